"""Checks of exports, runs, models and Parquet files, by what they say of themselves, and the findings.

All pages of Parquet are read, column by column. Of an export its files are checked by the manifest, its counts, and
that its ledger has every pair exactly once.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.commands.run import SCORES_SCHEMA, Run
from cleanpairs.core import CleanpairsError, ConfigError, DataError, error_text, plural, reading, sha256_of
from cleanpairs.core.recipe import Recipe
from cleanpairs.core.regular import read_object
from cleanpairs.data.arrays import read_tensors
from cleanpairs.data.parquet_io import common_schema, footer, open_parquet, parquet_files, read_table
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.formats import FORMATS
from cleanpairs.export.ledger import LEDGER_SCHEMA, LedgerNote
from cleanpairs.export.manifest import Part, check_name, manifest_of, read_manifest
from cleanpairs.repair.actions import ACTIONS, COUNTED, WRITTEN, acted
from cleanpairs.repair.plan import RepairPlan, counted

_ROWS = 64  # of a column at once: a compression bomb's page is not unpacked whole, and images may be large
_MANIFEST = ".manifest.json"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``place``: the part of the file, such as ``row group 2, column 'caption'``, or ""."""

    file: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.what}"


@dataclass
class Verification:
    """The checks, one line each, the problems, and notes on what is unusual but not wrong."""

    path: Path
    kind: str
    checked: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kind}"]
        lines += [f"  ok     {line}" for line in self.checked]
        lines += [f"  note   {line}" for line in self.notes]
        lines += [f"  WRONG  {problem}" for problem in self.problems]
        return "\n".join(" ".join(line.splitlines()) for line in lines)  # a file's name may have several lines

    def wrong(self, file: str | Path, what: str, place: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem(str(file), place, what))

    def wrong_rows(self, file: str | Path, column: str, bad: np.ndarray, what: str) -> None:
        """Note the first of the rows ``bad`` (n,) bool of a column, and how many more there are."""
        rows = np.flatnonzero(bad)
        if len(rows):
            more = f" (and in {plural(len(rows) - 1, 'more row')})" if len(rows) > 1 else ""
            self.wrong(file, what + more, f"row {rows[0]}, column {column!r}")

    @contextmanager
    def section(self, line: str, file: str | Path) -> Iterator[None]:
        """Note ``line`` as checked if the block finds nothing wrong. A CleanpairsError in it becomes a problem."""
        before = len(self.problems)
        try:
            yield
        except CleanpairsError as error:
            self.wrong(file, str(error).removeprefix(f"{file} ").removeprefix(f"{file}: "))
        if len(self.problems) == before:
            self.checked.append(line)


def read_pages(path: Path, findings: Verification) -> int | None:
    """Read every column of every row group, and verify page checksums. Return the rows, or None if it is no Parquet."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_parquet(str(path)))
        except DataError as error:
            findings.wrong(path, str(error).removeprefix(f"{path} "), "footer")
            return None
        metadata = file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        odd: set[str] = set()
        for group, expected in enumerate(sizes):
            for name in dict.fromkeys(file.schema_arrow.names):
                place, row = f"row group {group}, column {name!r}", 0
                try:
                    for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=[name]):
                        try:
                            batch.validate(full=True)
                        except pa.ArrowInvalid as error:
                            if "Invalid UTF8" not in str(error):
                                raise
                            odd.add(name)  # the input had it, unless the file is damaged
                        row += len(batch)
                except (pa.ArrowException, OSError) as error:
                    findings.wrong(path, f"damaged after row {row} of it: {error_text(error)}", place)
                    continue
                if row != expected:
                    findings.wrong(path, f"has {plural(row, 'row')}, and its row group {expected:,}", place)
        if sum(sizes) != metadata.num_rows:
            findings.wrong(path, f"the row groups' rows do not add up to its {metadata.num_rows:,}", "footer")
        findings.notes += [f"{path.name}: column {name!r} holds text that is not UTF-8" for name in sorted(odd)]
        return int(metadata.num_rows)


def check_schema(path: Path, schema: pa.Schema, wanted: pa.Schema, findings: Verification) -> bool:
    """Whether ``schema`` has the columns of ``wanted``, with their types. Missing and other columns are noted."""
    before = len(findings.problems)
    for column in wanted:
        at = schema.get_field_index(column.name)
        if at < 0:
            findings.wrong(path, "is missing", f"column {column.name!r}")
        elif schema.field(at).type != column.type:
            findings.wrong(path, f"is {schema.field(at).type}, not {column.type}", f"column {column.name!r}")
    return len(findings.problems) == before


def check_scores(path: Path, findings: Verification, pairs: int | None = None, threshold: float | None = None) -> int:
    """Check a scores table: one row a pair in order, scores in [0, 1] or null with a reason. Return the flagged."""
    table = read_table(path)
    if not check_schema(path, table.schema, SCORES_SCHEMA, findings):
        return 0
    if pairs is not None and len(table) != pairs:
        findings.wrong(path, f"has {plural(len(table), 'row')}, and the run {plural(pairs, 'pair')}")
    ids = table["pair_id"]
    if ids.null_count or not np.array_equal(ids.to_numpy(), np.arange(len(table))):
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    score = table["correspondence"]
    valid = np.array(score.is_valid(), bool)
    value = score.fill_null(0.5).to_numpy()
    findings.wrong_rows(path, "correspondence", ~((value >= 0) & (value <= 1)), "is not in [0, 1]")
    present = "has to be there exactly where the correspondence is"
    findings.wrong_rows(path, "reason", valid == np.array(table["reason"].is_valid(), bool), f"{present} not")
    flags = table["is_mismatch"]
    findings.wrong_rows(path, "is_mismatch", valid != np.array(flags.is_valid(), bool), present)
    flagged = np.array(flags.fill_null(False), bool)
    if threshold is not None:
        # As the table was made: scores of one precision against the threshold as Python has it.
        other = valid & (flagged != (value.astype(np.float32) < threshold))
        findings.wrong_rows(path, "is_mismatch", other, f"is not whether the correspondence is below {threshold:g}")
    return int(flagged.sum())


def kind_of(path: Path) -> str:
    """``export``, ``run``, ``model``, ``parquet`` or ``directory`` (of Parquet). DataError: nothing that can be
    verified.
    """
    if path.name.endswith(_MANIFEST) or manifest_of(path).is_file():
        return "export"
    if not path.exists():
        raise DataError(f"there is no {path}: name an export, a run, a model or a Parquet file")
    if path.is_dir():
        if (path / "run.json").exists():
            return "run"
        if (path / "config.json").exists():
            return "model"
        if parquet_files(path):
            return "directory"
        raise DataError(f"{path} is no run, model or directory of Parquet, and has no {path.name}{_MANIFEST} beside it")
    if path.suffix in (".parquet", ".pq"):
        return "parquet"
    raise DataError(f"{path} is no Parquet file, and has no {path.name}{_MANIFEST} next to it: it cannot be verified")


def verify_path(path: str | Path) -> Verification:
    """Check an export (its cleaned data, or the manifest), a run, a model or Parquet, by what it says of itself.

    Raises DataError: there is nothing to verify.
    """
    path = Path(path) if Path(path).name else Path(path).absolute()  # "."
    kind = kind_of(path)
    findings = Verification(path, kind)
    if kind == "export":
        out = path.parent / path.name.removesuffix(_MANIFEST)
        with findings.section(f"{out.name}{_MANIFEST}: a manifest", manifest_of(out)):
            verify_export(out, findings)
    elif kind == "run":
        _verify_run(path.resolve(), findings)  # runs/latest is a link
    elif kind == "model":
        _verify_model(path, findings)
    else:
        for file in [path] if kind == "parquet" else [Path(p) for p in parquet_files(path)]:
            _verify_parquet(file, findings)
    return findings


def _verify_parquet(path: Path, findings: Verification) -> None:
    with findings.section(f"{path.name}: pages", path):
        rows = read_pages(path, findings)
    if rows is None:
        return
    _, groups, schema = footer(str(path))
    counts = plural(rows, "row"), plural(len(groups), "row group"), plural(len(schema), "column")
    findings.notes.append(f"{path.name}: {', '.join(counts)}")
    if schema.names[: len(SCORES_SCHEMA)] == SCORES_SCHEMA.names:
        with findings.section(f"{path.name}: a scores table, one row a pair, ranges", path):
            check_scores(path, findings)


def _verify_run(path: Path, findings: Verification) -> None:
    """Check a run directory. Files that an unfinished run does not have yet are a note."""
    run = Run(path)
    with findings.section("run.json", path / "run.json"):
        info = run.info
        _check_info(info, path, findings)
    if findings.problems:
        return  # the other files cannot be checked without it
    done = info["status"] == "complete"
    if not done:
        resume = f"cleanpairs fit --resume --out {quote(str(path))}"
        findings.notes.append(f"the run is {info['status']}, not complete: `{resume}` resumes it")
    for name, digest in (info.get("files") or {}).items():  # a run that did not finish has none
        file = path / name
        if _exists(file, True, findings, "run.json lists it"):
            with findings.section(f"{name}: SHA-256", file):
                if sha256_of(file) != digest:
                    findings.wrong(file, "has not the SHA-256 of run.json: damaged or edited")
    if _exists(path / "recipe.yaml", done, findings):
        with findings.section("recipe.yaml: settings", path / "recipe.yaml"):
            Recipe.resolve(str(path / "recipe.yaml"))
    scores = path / "scores.parquet"
    if _exists(scores, done, findings):
        with findings.section("scores.parquet: pages, one row a pair, ranges", scores):
            if read_pages(scores, findings) is not None:
                result = info["result"] if done else {}
                pairs = info["input"]["pairs"] if done else None
                flagged = check_scores(scores, findings, pairs=pairs, threshold=result.get("threshold"))
                if done and not findings.problems and flagged != (recorded := result.get("flagged")):
                    findings.wrong(scores, f"flags {flagged:,}, and run.json says {recorded}", "is_mismatch")
    if _exists(path / "model", done, findings):
        _verify_model(path / "model", findings)
    plan = path / "plan.parquet"
    if plan.is_file():
        with findings.section("plan.parquet: pages, a repair plan", plan):
            if read_pages(plan, findings) is not None:
                RepairPlan.load(plan)
    checkpoints = path / "checkpoints"
    for file in sorted(checkpoints.rglob("*.safetensors")) if checkpoints.is_dir() else ():
        with findings.section(f"{file.relative_to(path)}: whole", file):
            _read_tensors(file, findings, finite=False)  # moments of an optimizer may be anything
    if run._replaced.exists():
        findings.notes.append(f"the run that this one was to replace is kept, at {run._replaced}")


def _exists(path: Path, wanted: bool, findings: Verification, why: str = "the run is complete") -> bool:
    """Whether a file, or the model's folder, exists. A ``wanted`` one that is missing is a problem."""
    exists = path.is_dir() if path.name == "model" else path.is_file()
    if wanted and not exists:
        findings.wrong(path, f"is missing, and {why}")
    return exists


def _check_info(info: dict[str, Any], path: Path, findings: Verification) -> None:
    wanted = ["status", "method", "versions", "input", *(["result"] if info.get("status") == "complete" else [])]
    lacking = [name for name in wanted if info.get(name) is None]
    within = info.get("input") or {}
    lacking += [f"input.{name}" for name in ("data", "fingerprint", "rows", "pairs") if name not in within]
    for name in lacking:
        findings.wrong(path / "run.json", "is missing", f"key {name!r}")
    if info.get("status") not in ("running", "interrupted", "complete"):
        findings.wrong(path / "run.json", "is none of running, interrupted and complete", "key 'status'")


def _verify_model(folder: Path, findings: Verification) -> None:
    """Check a directory that ``save_pretrained`` wrote: no code in files, finite weights, and that it loads."""
    may_run = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".ckpt")
    for file in sorted(p for p in folder.rglob("*") if p.suffix.lower() in may_run):
        findings.wrong(file, "is of a kind that may run code when it is loaded; cleanpairs neither writes nor reads it")
    for file in sorted(folder.glob("*.json")):
        with findings.section(f"{folder.name}/{file.name}: JSON", file):
            read_object(file, "model")
    for file in sorted(folder.glob("*.safetensors")):
        with findings.section(f"{folder.name}/{file.name}: tensors, finite", file):
            _read_tensors(file, findings, finite=True)
    if findings.problems:
        return
    from cleanpairs.estimators.persistence import load_estimator

    try:
        load_estimator(folder)
    except ConfigError as error:  # it needs the caller's module, or an extra: the files are right
        findings.notes.append(f"{folder.name} was not loaded: {error}")
    except CleanpairsError as error:
        findings.wrong(folder, str(error))
    else:
        findings.checked.append(f"{folder.name}: loads, from safetensors and JSON")


def _read_tensors(file: Path, findings: Verification, *, finite: bool) -> None:
    from safetensors import SafetensorError

    with reading(file, "read as safetensors", SafetensorError, ValueError, TypeError, RuntimeError):
        for name, value in read_tensors(file, "pt")[0].items():
            # An undetermined noise rate is NaN.
            if finite and name != "calibration.noise_rate" and not bool(np.isfinite(value.float().numpy()).all()):
                findings.wrong(file, "holds values that are not finite", f"tensor {name!r}")


def verify_export(out: Path, findings: Verification) -> None:
    """Check the export whose cleaned data is ``out``, by the manifest beside it."""
    manifest = manifest_of(out)
    noted, parts = read_manifest(out)
    kind, counts = noted["format"], Counter[str](noted["counts"])  # a count that a manifest lacks is 0
    # The Parquet beside a tar holds the same rows again.
    beside_tars = any(part.path.suffix == ".tar" and part.rows is not None for part in parts)
    rows = Counter[str]()
    for part in parts:
        check_inside(part.path, (out.parent, out), manifest, "bring the files together, and export again")
        if not (part.role == "out" and part.path != out and beside_tars and part.path.suffix != ".tar"):
            rows[part.role] += part.rows or 0
        _check_file(part, manifest, findings)
    check_name(out, manifest, parts)
    roles = {part.role: part.path for part in parts if part.role != "out" or part.path == out}
    names = {part.path for part in parts}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p not in names):
        findings.wrong(path, f"is in the directory, and not in {manifest.name}: it would be read as a part of it")
    _check_counts(out, manifest, kind, rows, counts, findings)
    if "ledger" not in roles:
        findings.wrong(manifest, "names no ledger: export again")
    elif roles["ledger"].is_file():
        checked = f"every pair exactly once in {roles['ledger'].name}"
        with findings.section(checked, roles["ledger"]), suppress(DataError):  # page by page this is reported already
            _check_ledger(out, roles["ledger"], rows, counts, findings)


def _check_file(part: Part, manifest: Path, findings: Verification) -> None:
    path, name = part.path, os.path.relpath(part.path, manifest.parent)
    if not path.is_file():
        findings.wrong(path, f"is missing, and {manifest.name} lists it")
        return
    with findings.section(f"{name}: {part.bytes:,} bytes, SHA-256", path):
        if how := part.difference():
            findings.wrong(path, f"is not the file that {manifest.name} describes ({how}): damaged, cut or edited")
    if path.suffix == ".parquet":
        with findings.section(f"{name}: pages", path):
            pages = read_pages(path, findings)
            if pages is not None and part.rows is not None and pages != part.rows:
                findings.wrong(path, f"has {plural(pages, 'row')}, not the {part.rows:,} of {manifest.name}")


def _check_counts(
    out: Path, manifest: Path, kind: str, rows: Counter[str], counts: Counter[str], findings: Verification
) -> None:
    pairs = counts["pairs"]
    with findings.section(f"rows add up: {plural(pairs, 'pair')}, {plural(rows['out'], 'row')} out", manifest):
        total = sum(counts[name] for name in COUNTED)
        if total != pairs:
            findings.wrong(manifest, f"the counts add up to {total:,}, and the pairs are {pairs:,}")
        if "ledger" in rows and rows["ledger"] != pairs:
            findings.wrong(manifest, f"the ledger counts {rows['ledger']:,}, and the manifest {pairs:,}")
        gone = counts["dropped"] + counts["quarantined"]
        if "dropped" in rows and rows["dropped"] != gone:
            findings.wrong(manifest, f"the dropped file counts {rows['dropped']:,}, and the manifest {gone:,}")
        if kind not in FORMATS:
            findings.wrong(manifest, f"the format {kind!r} is none of {', '.join(FORMATS)}")
        elif out.exists() and kind != "parquet":  # of a Parquet file the rows were read, page by page
            with reading(out, f"read as {kind}", Exception):  # libraries raise anything for a damaged file
                on_disk = FORMATS.load(kind).count(out)
            if on_disk != rows["out"]:
                findings.wrong(out, f"has {plural(on_disk, 'row')}, not the {rows['out']:,} of {manifest.name}")


def _check_ledger(out: Path, path: Path, rows: Counter[str], counts: Counter[str], findings: Verification) -> None:
    if not check_schema(path, common_schema([str(path)]), LEDGER_SCHEMA, findings):
        return
    note = None
    with findings.section(f"{path.name}: its note of the input", path):
        note = LedgerNote.read(path)
    if note is None:
        return
    table = read_table(path, ["pair_id", "row", "action", "out_row"])
    pairs = len(table)
    by_action = counted(table["action"])
    for unknown in sorted(str(a) for a in by_action if a not in ACTIONS):
        findings.wrong(path, f"holds the action {unknown!r}, which is none", "column 'action'")
    for name, which in COUNTED.items():
        if by_action[which] != counts[name]:
            difference = f"has {by_action[which]:,} of {which!r}, and the manifest {counts[name]:,}"
            findings.wrong(path, difference, "column 'action'")
    numbers = table.select(["pair_id", "row", "out_row"]).columns
    pair, row, out_row = (np.asarray(column.fill_null(-1).to_numpy(), np.int64) for column in numbers)
    if (pair != np.arange(pairs)).any():
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    written = acted(table, WRITTEN)
    what = "has to be there exactly for the pairs that are written"
    findings.wrong_rows(path, "out_row", (out_row >= 0) != written, what)
    columns = ("row", row, note.rows, "the input"), ("out_row", out_row[written], rows["out"], out.name)
    for name, at, n, of in columns:
        steps = np.diff(at, prepend=-1)
        if ((steps < 0) | (steps > 1)).any() or (at[-1] + 1 if len(at) else 0) != n:
            findings.wrong(path, f"does not lead in order through {of}, of {plural(n, 'row')}", f"column {name!r}")
