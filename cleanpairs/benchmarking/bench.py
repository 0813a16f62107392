"""The benchmark: every method at every noise with every seed, into a directory that a second call goes on with."""

import hashlib
import itertools
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cleanpairs import __version__
from cleanpairs.benchmarking.cell import PLAIN_SCORES, plain_row, plain_scores, run_cell
from cleanpairs.benchmarking.settings import MethodSettings, Splits, choose_methods, load_splits, method_settings
from cleanpairs.benchmarking.table import LEGEND, Summary, plot, summarise, to_csv, to_markdown
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputExistsError
from cleanpairs.core.plain import plain
from cleanpairs.core.progress import Silent
from cleanpairs.core.registry import METHODS
from cleanpairs.core.regular import read_bytes, reading, writing
from cleanpairs.data.atomic import staged_file, write_whole
from cleanpairs.data.guard import refuse_inputs
from cleanpairs.data.locks import output_lock
from cleanpairs.data.noise import Noise, NoiseKind, category_codes, inject_noise, load_noise_file, noise_of
from cleanpairs.data.pairs import Pairs


@dataclass(frozen=True)
class Bench:
    """What to run.

    - ``data``, ``val``, ``test``, ``limit``: see :func:`cleanpairs.benchmarking.settings.load_splits`
    - ``methods``: ``all``, or names with commas between them
    - ``noise``: rates in [0, 1], in whose place ``noise_files`` are permutations over the captions (``.npy``)
    - ``seeds``: seeds 0 to ``seeds`` - 1: of the noise, the same for all methods, and of the training
    - ``per`` {"caption", "image"}: unit of uniform noise; see :func:`cleanpairs.data.noise.inject_noise`
    - ``kind``: kinds of noise at each rate, with commas between them; see :meth:`cleanpairs.data.noise.NoiseKind.parse`
    - ``recipe``, ``overrides``: see :func:`cleanpairs.benchmarking.settings.method_settings`
    - ``columns``: keywords of :func:`cleanpairs.load_pairs`
    - ``out``: directory; ``runs/bench-NAME`` if not given
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
        """Where everything goes."""
        return Path(self.out) if self.out is not None else Path("runs") / f"bench-{Path(self.data.rstrip('/')).stem}"


@dataclass(frozen=True)
class BenchResult:
    """``rows``: the latest cells of this data, one each; ``summaries``: over seeds; ``notes`` for the reader."""

    out: str
    rows: list[dict[str, Any]]
    summaries: list[Summary]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        summary = [{k: v for k, v in vars(s).items() if k != "best"} for s in self.summaries]
        return {"out": self.out, "notes": self.notes, "summary": summary, "rows": self.rows}


class BenchLog:
    """``bench.jsonl`` of a directory: one JSON line a cell, synced, so that a kill costs the cell that was running."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines, in order; DataError for one that is no JSON object."""
        if not self.path.exists():
            return []
        with reading(self.path):
            raw = read_bytes(self.path)
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), start=1):
            with suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
            if len(rows) < number or not isinstance(rows[-1], dict):
                raise DataError(f"{self.path}, line {number}, is no row of a benchmark: remove the line, or the file")
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """One row, on the disk when this returns; numbers that are not finite become null."""
        text = json.dumps(plain(row, repr), allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.truncate(read_bytes(self.path).rfind(b"\n") + 1)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


# What rows say of their noise (``per``: unit of uniform noise, "file", or another kind), its digest, what makes it.
_Noise = tuple[dict[str, Any], str, Callable[..., Noise]]


def run_bench(bench: Bench, *, progress: Any = None) -> BenchResult:
    """Run the cells that are not in the log yet; write ``bench.jsonl``, ``table.md``, ``table.csv``, ``plot.png``.

    A cell is known by method, settings, noise, seed and data. One that failed with a CleanpairsError, or whose method
    needs something that is not there, is logged with its reason and tried again by the next call. ``progress`` is told
    by ``note(text)``, ``step(done, total, loss)`` and ``cell(at, total, row, done_before=)``.

    Raises CleanpairsError: settings, data or noise that cannot be used; another benchmark writes to the directory; not
    one cell has a result: the first cell's error.
    """
    progress = progress or Silent()
    if bench.seeds < 1:
        raise ConfigError(f"a benchmark needs at least 1 seed, found {bench.seeds}")
    names = choose_methods(bench.methods)
    settings, notes = method_settings(names, recipe=bench.recipe, overrides=bench.overrides)
    splits = load_splits(bench.data, val=bench.val, test=bench.test, limit=bench.limit, **bench.columns)
    if splits.train.has_both_vectors:  # in place of a model
        settings = [replace(s, missing=None) if "model" in METHODS[s.method].needs else s for s in settings]
    lacking = [s for s in settings if s.missing]
    if lacking and bench.methods.strip() != "all":
        raise ConfigError("; ".join(f"{s.method} needs {s.missing}" for s in lacking))
    notes += splits.notes
    notes += [f"no {role} pairs" for role, s in (("validation", splits.val), ("test", splits.test)) if s is None]
    settings += plain_scores(splits.train)  # what the methods on vectors are to be compared with
    noises = _noises(bench, splits.train)
    if splits.train.text_vectors is not None and any(head["per"].startswith("partial") for head, *_ in noises):
        raise ConfigError(
            f"the noise 'partial' makes captions of other words, and {bench.data} has its captions as vectors, of "
            "which there are none for these: choose another --kind, or leave the column of vectors out of the data"
        )
    log, inputs = BenchLog(bench.directory / "bench.jsonl"), (bench.data, bench.val, bench.test, *bench.noise_files)
    refuse_inputs([bench.directory], [given for given in inputs if given])
    for name in ("table.md", "table.csv", "plot.png"):
        if os.path.lexists(bench.directory / name) and not log.path.exists():
            raise OutputExistsError(f"{bench.directory} holds {name}, and no bench.jsonl: name another directory")
    with output_lock([bench.directory]):
        with writing(log.path):
            bench.directory.mkdir(parents=True, exist_ok=True)
            log.path.open("ab").close()
        for note in notes:
            progress.note(note)
        first_error = _run(bench, log, settings, splits, noises, progress)
        rows = _latest(log.rows(), bench, splits, {s.method: s.digest for s in settings})
        result = _write(bench, rows, notes)
    if first_error is not None and not any(row["status"] == "ok" for row in rows):
        raise first_error
    return result


def _run(
    bench: Bench,
    log: BenchLog,
    settings: Sequence[MethodSettings],
    splits: Splits,
    noises: Sequence[_Noise],
    progress: Any,
) -> CleanpairsError | None:
    done = {row["cell"]: row for row in log.rows() if row.get("status") == "ok"}
    first_error: CleanpairsError | None = None
    made: tuple[Any, Any] = (None, None)
    # All methods of a noise and seed before the next: what is there can be compared.
    cells = list(itertools.product(noises, range(bench.seeds), settings))
    for at, ((noise, digest, make), seed, method) in enumerate(cells, start=1):
        row = {
            "cell": f"{method.method}/{method.digest}/{digest}/{seed}/{splits.digest}/{bench.limit or 'all'}",
            "method": method.method,
            **noise,
            "seed": seed,
            "data": splits.digest,
            "limit": bench.limit,
            "settings": method.params,
            "settings_digest": method.digest,
            "recipe": method.recipe,
            "version": __version__,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        before = done.get(row["cell"])
        if before is None and method.missing:
            row |= {"status": "needs", "error": f"needs {method.missing}"}
        elif before is None:
            if made[0] != (digest, seed):
                made = (digest, seed), make(seed=seed)
            try:
                if method.method in PLAIN_SCORES:
                    row |= plain_row(method.method, splits, made[1])
                else:
                    row |= run_cell(method, splits, made[1], seed, on_step=progress.step)
                row |= {"status": "ok"}
            except CleanpairsError as error:
                first_error = first_error or error
                row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        if before is None:
            log.append(row)
        progress.cell(at, len(cells), before or row, done_before=before is not None)
    return first_error


def _noises(bench: Bench, train: Pairs) -> list[_Noise]:
    kinds = list(dict.fromkeys(NoiseKind.parse(part) for part in bench.kind.split(",") if part.strip()))
    if not kinds:
        raise ConfigError(f"a benchmark needs a kind of noise, found {bench.kind!r}; leave it out for uniform noise")
    if bench.noise_files and kinds != [NoiseKind()]:
        raise ConfigError(f"noise files hold their own noise: leave out either them or the kind {bench.kind!r}")
    if not (bench.noise or bench.noise_files):
        raise ConfigError("a benchmark needs noise rates or noise files")
    found = []
    for file in bench.noise_files:
        permutation = load_noise_file(file, len(train), train.image_index)
        digest, noise = hashlib.sha256(permutation.tobytes()).hexdigest()[:12], noise_of(train, permutation)
        head = {"noise": Path(file).stem, "rate": None, "per": "file"}
        found.append((head, digest, lambda seed, noise=noise: noise))
    for rate, kind in itertools.product(() if bench.noise_files else dict.fromkeys(bench.noise), kinds):
        if not 0 <= rate <= 1:
            raise ConfigError(f"the noise rate must be in [0, 1], found {rate}")
        groups = None if kind.column is None else category_codes(train, kind.column)
        uniform = kind.name == "uniform"
        how = {"per": bench.per} if uniform else {"kind": kind, "groups": groups}
        name, of = (f"{rate:g}", bench.per) if uniform else (f"{rate:g} {kind}", str(kind))
        head = {"noise": name, "rate": rate, "per": of}
        found.append((head, f"{of}-{rate:g}", partial(inject_noise, train, rate, **how)))
    return found


def _latest(
    rows: Sequence[dict[str, Any]], bench: Bench, splits: Splits, digests: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row a cell, of this data: with these settings, or the last ones for a method that takes no part now."""
    other = {"caption", "image"} - {bench.per}
    ours = [r for r in rows if r["data"] == splits.digest and r["limit"] == bench.limit and r["per"] not in other]
    last = {row["method"]: row["settings_digest"] for row in ours} | dict(digests)
    cells: dict[str, dict[str, Any]] = {}
    for row in ours:
        if row["settings_digest"] == last[row["method"]] and cells.get(row["cell"], {}).get("status") != "ok":
            cells[row["cell"]] = row
    return list(cells.values())


def _write(bench: Bench, rows: list[dict[str, Any]], notes: list[str]) -> BenchResult:
    order = [name for name in (*METHODS, *PLAIN_SCORES) if any(row["method"] == name for row in rows)]
    summaries = summarise(rows, order)
    folder, name = bench.directory, Path(bench.data.rstrip("/")).name
    kinds = sorted({str(row["per"]) for row in rows})
    said = {"caption": "per caption", "image": "per image", "file": "from files"}
    unit = f"noise {', '.join(said.get(kind, kind) for kind in kinds)}"
    remarks = [*notes, LEGEND, "± is the sample standard deviation over seeds"]
    write_whole(folder / "table.md", to_markdown(summaries, f"{shlex.quote(name)}, {unit}", remarks))
    write_whole(folder / "table.csv", to_csv(summaries))
    with staged_file(folder / "plot.png", overwrite=True) as staged:
        plot(rows, staged, methods=order, title=f"{name}, {unit}")
    return BenchResult(str(folder), rows, summaries, notes)
