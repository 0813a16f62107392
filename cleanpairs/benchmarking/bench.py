"""The benchmark: every method at every noise with every seed, into a directory that a second call continues."""

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs import __version__
from cleanpairs.benchmarking.settings import MethodSettings, Splits, choose_methods, load_splits, method_settings
from cleanpairs.benchmarking.table import plot, summarise, to_markdown
from cleanpairs.core import CleanpairsError, ConfigError, DataError, OutputExistsError, check_number, check_whole
from cleanpairs.core.plain import jsonable, without_secrets
from cleanpairs.core.progress import current_progress
from cleanpairs.core.regular import read_lines, writing
from cleanpairs.data.atomic import staged_file, write_whole
from cleanpairs.data.guard import refuse_inputs
from cleanpairs.data.locks import output_lock
from cleanpairs.data.noise import Noise, NoiseKind, apply_noise, category_codes, inject_noise, load_noise_file, noise_of
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.actions import acted
from cleanpairs.repair.editing import write_csv
from cleanpairs.repair.plan import wrong_in_output
from cleanpairs.scoring.evaluate import detection


@dataclass(frozen=True)
class Bench:
    """What to run.

    - ``data``, ``val``, ``test``, ``limit``: see :func:`cleanpairs.benchmarking.settings.load_splits`
    - ``methods``: ``all``, or names with commas between them
    - ``noise``: rates in [0, 1], in whose place ``noise_files`` are permutations over the captions (``.npy``)
    - ``seeds``: seeds 0 to ``seeds`` - 1: of the noise, the same for all methods, and of the training
    - ``per`` {"caption", "image"}: unit of uniform noise. See :func:`cleanpairs.data.noise.inject_noise`
    - ``kind``: kinds of noise at each rate, with commas between them. See :meth:`cleanpairs.data.noise.NoiseKind.parse`
    - ``recipe``, ``overrides``: see :func:`cleanpairs.benchmarking.settings.method_settings`
    - ``columns``: keywords of :func:`cleanpairs.load_pairs`
    - ``out``: directory. ``runs/bench-NAME`` if not given
    """

    data: str
    methods: str = "all"
    noise: Sequence[float] = (0.2, 0.4, 0.6, 0.8)
    noise_files: Sequence[str] = ()
    seeds: int = 3
    per: str = "caption"
    kind: str = "uniform"
    val: str | None = None
    test: str | None = None
    recipe: str | None = None
    overrides: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    out: str | None = None

    @property
    def directory(self) -> Path:
        """The directory of all outputs."""
        return Path(self.out or f"runs/bench-{Path(without_secrets(self.data)).stem}")


@dataclass(frozen=True)
class BenchResult:
    """The latest cells of this data as ``rows``, and ``notes`` for the reader."""

    out: str
    rows: list[dict[str, Any]]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON, with the table as ``summary``."""
        return {**vars(self), "summary": summarise(self.rows).to_dict("records")}


def _read_log(path: Path) -> list[dict[str, Any]]:
    """Return the rows of ``bench.jsonl``, a cell each. DataError names a line that is none."""
    rows = read_lines(path)
    texts = ("cell", "method", "noise", "per", "data", "settings_digest", "status")
    kinds: dict[str, Any] = dict.fromkeys(texts, str) | {"rate": float | int, "limit": int | None}
    for number, row in enumerate(rows, start=1):
        has = row if isinstance(row, dict) else {}
        failed = has.get("status") != "ok" and not isinstance(has.get("error"), str)
        if failed or not all(isinstance(has.get(key, ...), kind) for key, kind in kinds.items()):
            raise DataError(f"{path}, line {number}, is no row of a benchmark: remove the line, or the file")
    return rows


def _write_log(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class _NoiseLevel:
    """One line of the table: its ``name``, its ``rate``, what it is ``per``. What makes it, of a seed."""

    name: str
    rate: float
    per: str
    digest: str
    make: Callable[..., Noise]


def run_bench(bench: Bench) -> BenchResult:
    """Run the cells that are not in the log yet. Write ``bench.jsonl``, ``table.md``, ``table.csv``, ``plot.png``.

    A cell is known by method, settings, noise, seed and data. If it fails with a CleanpairsError, the log has the
    reason, and the next call tries it again. The current progress has the methods ``note(text)`` and
    ``cell(at, total, row, done_before=)``, too.

    Raises CleanpairsError: settings, data or noise cannot be used. Another benchmark writes to the directory. No cell
    has a result, which raises the first cell's error.
    """
    check_whole("a benchmark", "seeds", bench.seeds, 1)
    settings, notes = method_settings(choose_methods(bench.methods), recipe=bench.recipe, overrides=bench.overrides)
    splits = load_splits(bench.data, val=bench.val, test=bench.test, limit=bench.limit, **bench.columns)
    if not splits.train.has_both_vectors:  # which take the place of a model
        lacking = [f"{s.method} needs {' and '.join(s.missing)}" for s in settings if s.missing]
        if lacking and bench.methods.strip() != "all":
            raise ConfigError("; ".join(lacking))
        settings, notes = [s for s in settings if not s.missing], notes + lacking
    notes += splits.notes
    levels = _noise_levels(bench, splits.train)
    log, folder = bench.directory / "bench.jsonl", bench.directory
    refuse_inputs([folder], [given for given in (bench.data, bench.val, bench.test, *bench.noise_files) if given])
    for name in ("table.md", "table.csv", "plot.png"):
        if os.path.lexists(folder / name) and not log.exists():
            raise OutputExistsError(f"{folder} holds {name}, and no bench.jsonl: name another directory")
    with output_lock([folder]):
        logged = _read_log(log)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _write_log(log, logged)  # fails now, not after the first fit, where it cannot be written
        for note in notes:
            current_progress().note(note)
        # All methods of a noise and seed before the next: what is there can be compared.
        cells = list(product(levels, range(bench.seeds), settings))
        first_error = _run_cells(bench, logged, cells, splits)
        rows = _latest(logged, splits.digest, bench.limit, {s.method: s.digest for s in settings})
        title = Path(without_secrets(bench.data)).name
        write_whole(folder / "table.md", to_markdown(rows, title, notes))
        with staged_file(folder / "table.csv", overwrite=True) as staged:
            write_csv(pa.Table.from_pandas(summarise(rows), preserve_index=False), staged)
        with staged_file(folder / "plot.png", overwrite=True) as staged:
            plot(rows, staged, title=title)
    if first_error is not None and not any(row["status"] == "ok" for row in rows):
        raise first_error
    return BenchResult(str(folder), rows, notes)


def _run_cells(
    bench: Bench, logged: list[dict[str, Any]], cells: Sequence[tuple[_NoiseLevel, int, MethodSettings]], splits: Splits
) -> CleanpairsError | None:
    """Run what is left, and write the log with a row more after each cell. Returns the first error of a cell."""
    done = {row["cell"]: row for row in logged if row["status"] == "ok"}
    first_error: CleanpairsError | None = None
    progress = current_progress()
    for at, (level, seed, method) in enumerate(cells, start=1):
        row: dict[str, Any] = {
            "cell": f"{method.method}/{method.digest}/{level.digest}/{seed}/{splits.digest}/{bench.limit or 'all'}",
            "method": method.method,
            "noise": level.name,
            "rate": level.rate,
            "per": level.per,
            "seed": seed,
            "data": splits.digest,
            "limit": bench.limit,
            "settings": method.params,
            "settings_digest": method.digest,
            "recipe": method.recipe,
            "version": __version__,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        if before := done.get(row["cell"]):
            progress.cell(at, len(cells), before, done_before=True)
            continue
        try:
            row |= run_cell(method, splits, level.make(seed=seed), seed) | {"status": "ok"}
        except CleanpairsError as error:
            first_error = first_error or error
            row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        logged.append(jsonable(row, repr))  # numbers that are not finite become null
        _write_log(bench.directory / "bench.jsonl", logged)
        progress.cell(at, len(cells), logged[-1], done_before=False)
    return first_error


def _noise_levels(bench: Bench, train: Pairs) -> list[_NoiseLevel]:
    kinds = list(dict.fromkeys(NoiseKind.parse(part) for part in bench.kind.split(",") if part.strip()))
    if not kinds:
        raise ConfigError(f"a benchmark needs a kind of noise, found {bench.kind!r}; leave it out for uniform noise")
    if bench.noise_files and kinds != [NoiseKind()]:
        raise ConfigError(f"noise files hold their own noise: leave out either them or the kind {bench.kind!r}")
    if not (bench.noise or bench.noise_files):
        raise ConfigError("a benchmark needs noise rates or noise files")
    written = next((kind.name for kind in kinds if kind.rewrites), None)
    if train.text_vectors is not None and written:
        raise ConfigError(
            f"the noise {written!r} makes captions of other words, and {bench.data} has its captions as vectors, of "
            "which there are none for these: choose another --kind, or leave the column of vectors out of the data"
        )
    levels, stems = [], [Path(file).stem for file in bench.noise_files]
    for stem, file in zip(stems, bench.noise_files, strict=True):
        permutation = load_noise_file(file, len(train), train.image_index)
        digest, noise = hashlib.sha256(permutation.tobytes()).hexdigest()[:12], noise_of(train, permutation)
        name, rate = stem if stems.count(stem) == 1 else file, float(noise.mismatched.mean())
        levels.append(_NoiseLevel(name, rate, "file", digest, lambda seed, noise=noise: noise))
    for rate, kind in product(() if bench.noise_files else dict.fromkeys(bench.noise), kinds):
        check_number("a benchmark", "noise", rate, least=0, most=1)
        if rate == 0 and kind != kinds[0]:  # no noise of another kind is the same data
            continue
        uniform = kind.name == "uniform"
        how: dict[str, Any] = {"per": bench.per} if uniform else {"kind": kind}
        if kind.by_column:
            how["groups"] = category_codes(train, kind.column)
        per = bench.per if uniform else str(kind)
        name = f"{rate:g}" if per == "caption" else f"{rate:g} {per}"
        levels.append(_NoiseLevel(name, rate, per, f"{per}-{rate:g}", partial(inject_noise, train, rate, **how)))
    return levels


def _latest(
    rows: Sequence[dict[str, Any]], data: str, limit: int | None, digests: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row a cell, of this data: with these settings, or the last ones for a method that takes no part now."""
    ours = [row for row in rows if (row["data"], row["limit"]) == (data, limit)]
    last = {row["method"]: row["settings_digest"] for row in ours} | dict(digests)
    cells: dict[str, dict[str, Any]] = {}
    for row in ours:
        if row["settings_digest"] == last[row["method"]] and cells.get(row["cell"], {}).get("status") != "ok":
            cells[row["cell"]] = row
    return list(cells.values())


def run_cell(settings: MethodSettings, splits: Splits, noise: Noise, seed: int) -> dict[str, Any]:
    """Fit on mismatched pairs, and judge by the truth, which the method never sees. Returns dict:

    - ``rsum`` and the six recalls on the test split, ``val_rsum`` at the best epoch
    - detection at the method's threshold. ``flagged`` share, ``noise_rate_estimate`` (NaN: undetermined),
      ``mismatched``: the true share
    - ``wrong_kept``, ``wrong_out``: share of mismatched pairs among those kept, and among those and the ones that
      `rematch` repairs by default. See also :func:`repair_quality`
    - ``seconds`` of ``fit``

    Raises CleanpairsError: as :meth:`cleanpairs.estimators.PairScorer.fit`.
    """
    train, truth = apply_noise(splits.train, noise), noise.mismatched
    model, began = settings.estimator(random_state=seed), time.perf_counter()
    reports = {"on_step": current_progress().step} if "epochs" in model.get_params() else {}
    model.fit(train, val=splits.val, **reports)
    seconds, y = time.perf_counter() - began, model.correspondence_
    row: dict[str, Any] = {
        "pairs": len(train),
        "quarantined": len(model.quarantined_),
        "mismatched": float(truth.mean()),
        "epochs": len(model.history_),
        "val_rsum": model.best_val_rsum_,
        "threshold": float(model.threshold_),
        "flagged": float((y[np.isfinite(y)] < model.threshold_).mean()),
        "noise_rate_estimate": float(model.noise_rate_),
        "seconds": seconds,
    }
    if splits.test is not None:
        row |= model.evaluate(splits.test).to_dict()
    if truth.any():
        row |= detection(y, truth, model.threshold_).to_dict() | repair_quality(model, splits.train, train, noise)
        shares = wrong_in_output(train, model.rematch(train).table) or (math.nan, math.nan)
        row |= {"wrong_kept": shares[0], "wrong_out": shares[1]}
    return row


def repair_quality(model: Any, clean: Pairs, train: Pairs, noise: Noise) -> dict[str, Any]:
    """Measure the new captions that ``model.rematch`` plans.

    A new caption is right when it, or a caption with the same text, belongs to the pair's own image. Its words must be
    its own. The ``repair_precision`` is the share of the ``repaired`` that is right.
    The share of all mismatched pairs that got a right caption is ``corrupted_restored``.
    """
    table = model.rematch(train, targets="text", strategy="method", repairs="plausible").table
    rows = np.flatnonzero(acted(table, ["rematch_text"]))
    donor = np.array(table["donor_pair_id"].fill_null(-1), dtype=np.int64)[rows]
    after = noise.permutation.copy()
    after[rows] = noise.permutation[donor]
    right = ~clean.mismatched_by(after)[rows] & ~np.isin(donor, list(noise.rewritten))
    corrupted = int(noise.mismatched.sum())
    return {
        "repaired": len(rows),
        "repair_precision": float(right.mean()) if len(rows) else None,
        "corrupted_restored": float((right & noise.mismatched[rows]).sum() / corrupted) if corrupted else None,
    }
