"""The run directory that ``fit`` leaves, and that every other command reads.

    run.json            what ran: versions, seed, device, input with its fingerprint, results
    recipe.yaml         the resolved settings
    metrics.jsonl       one JSON object an epoch
    scores.parquet      one row a pair
    model/              save_pretrained
    checkpoints/        to resume from

``runs/latest``, in the working directory, is a symbolic link to the newest run, wherever that is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import cleanpairs
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.parquet_io import read_table
from cleanpairs.errors import ConfigError, DataError, OutputError, OutputExistsError

__all__ = ["Run", "Scores", "versions", "write_scores"]

SCORES_SCHEMA = pa.schema(
    [
        ("pair_id", pa.int64()),
        ("key", pa.string()),
        ("correspondence", pa.float32()),
        ("is_mismatch", pa.bool_()),
        ("reason", pa.string()),
    ]
)


class Scores:
    """A scores table in memory: ``correspondence`` (N,) float32, NaN where quarantined; ``reasons`` pair_id -> text."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.correspondence = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
        texts = table["reason"]
        self.reasons = {int(i): texts[int(i)].as_py() for i in np.flatnonzero(texts.is_valid().to_numpy())}


def scores_table(
    keys: list[str] | pa.Array, correspondence: np.ndarray, threshold: float, reasons: dict[int, str], first: int = 0
) -> pa.Table:
    """Rows ``first`` .. of a scores table; ``correspondence`` is NaN where quarantined, and null in the table."""
    n = len(keys)
    why = pa.nulls(n, pa.string())
    if reasons:
        why = pa.array([reasons.get(first + i) for i in range(n)], pa.string())
    known = np.isfinite(correspondence)
    return pa.table(
        [
            pa.array(np.arange(first, first + n)),
            keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string()),
            pa.array(correspondence.astype(np.float32), mask=~known),
            pa.array(correspondence < threshold, mask=~known),
            why,
        ],
        schema=SCORES_SCHEMA,
    )


def write_scores(
    path: str | Path,
    keys: list[str],
    correspondence: np.ndarray,
    threshold: float,
    reasons: dict[int, str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write ``scores.parquet``, one row a pair in pair_id order, atomically."""
    from cleanpairs.data.writing import ParquetSink

    with staged_file(path, overwrite=overwrite) as staged, ParquetSink(staged, SCORES_SCHEMA) as sink:
        for batch in scores_table(keys, correspondence, threshold, reasons).to_batches(max_chunksize=65_536):
            sink.write(batch)
    return Path(path)


def versions() -> dict[str, str]:
    """Of everything that the numbers depend on."""
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "scikit-learn", "pillow", "lightning-fabric")
    return {
        "cleanpairs": cleanpairs.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


class Run:
    """One run directory.

    Raises
    ------
    DataError
        From :meth:`open`: there is no such run.
    OutputExistsError
        From :meth:`create`: the directory exists.
    """

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path, self.trusted = path, trusted
        self._points_latest = False
        self._latest_before: str | None = None

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False, resume: bool = False, latest: bool = True) -> Run:
        """A new directory, or the one to resume; ``runs/latest`` will point to it (unless ``latest`` is False).

        A run that is overwritten is set aside, until :meth:`forget_replaced` or :meth:`restore_replaced`.
        """
        path = Path(path)
        if path.is_symlink() and not resume:
            raise OutputExistsError(f"{path} is a symbolic link; name the run directory itself")
        aside = cls(path)._aside
        if aside.exists() and not path.exists():  # killed in the instant between setting aside and beginning
            aside.rename(path)
        if path.exists() and not resume:
            if not overwrite:
                raise OutputExistsError(f"{path} exists; --overwrite replaces it, --resume goes on with it")
            if not (path / "run.json").exists() and not aside.exists():
                raise OutputExistsError(f"{path} exists and is no run directory: it is not replaced; name another")
            if aside.exists() and not cls(path).complete:  # a fit that was to replace it was killed: it is the last
                shutil.rmtree(path)  # complete one, and stays until there is another
            else:
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the run directory {path} cannot be made: {error.strerror}") from error
        run = cls(path)
        if latest:
            run._point_latest()
        return run

    @classmethod
    def check_resumable(cls, path: str | Path) -> None:
        """Raise :class:`ConfigError` where there is no run at ``path`` to go on with."""
        run = cls(Path(path))
        if not (run.path / "run.json").exists() and not run._aside.exists():
            raise ConfigError(
                f"--resume (resume=True): there is no run to go on with at {path}: {run.path / 'run.json'} is missing; "
                "name the directory of a run that was begun, or leave --resume out to begin one"
            )

    @property
    def has_checkpoint(self) -> bool:
        """Whether a training can go on from where it was; else it begins anew."""
        return any((self.path / "checkpoints").rglob("*.safetensors"))

    @property
    def _aside(self) -> Path:
        return self.path.parent / f".replaced-{self.path.name}"

    def forget_replaced(self) -> None:
        """The new run is complete: the one that it replaces goes."""
        shutil.rmtree(self._aside, ignore_errors=True)

    def restore_replaced(self) -> None:
        """The new run has failed: the one that it was to replace comes back, if there was one."""
        if self._aside.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            self._aside.rename(self.path)

    def discard_empty(self) -> None:
        """The fit was refused before it had learnt anything: neither the run nor the link to it stays."""
        if any(p.is_file() for p in (self.path / "checkpoints").rglob("*")) or (self.path / "model").exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._points_latest and (link := Path("runs/latest")).is_symlink() and not link.exists():
            link.unlink()
            if self._latest_before is not None:
                link.symlink_to(self._latest_before)

    def _point_latest(self) -> None:
        link = Path("runs/latest")
        if link.exists() and not link.is_symlink():
            return  # somebody's own file or directory: not ours to replace
        self._points_latest = True
        self._latest_before = os.readlink(link) if link.is_symlink() else None
        link.parent.mkdir(exist_ok=True)
        temporary = link.parent / f".latest-{os.getpid()}"
        temporary.unlink(missing_ok=True)  # of a dead process that had this number
        temporary.symlink_to(os.path.relpath(self.path.absolute(), link.parent.absolute()))
        temporary.replace(link)

    @classmethod
    def open(cls, path: str | Path | None, *, trusted: bool = False) -> Run:
        """The run at ``path``, or ``runs/latest``; ``trusted``: see :func:`cleanpairs.data.open_recorded`."""
        chosen = Path("runs/latest") if path is None else Path(path)
        if not (chosen / "run.json").exists():
            hint = (
                "run `cleanpairs fit DATA` first, or name a run directory" if path is None else "it holds no run.json"
            )
            kept = cls(chosen)._aside
            if kept.exists():
                hint += f"; a fit that was to replace it was killed: the run that it was is {kept}, move it back"
            raise DataError(f"{chosen} is no run directory: {hint}")
        return cls(chosen.resolve(), trusted=trusted)

    @property
    def complete(self) -> bool:
        """Whether the fit has ended; False where run.json cannot be read."""
        try:
            return self.info.get("status") == "complete"
        except DataError:
            return False

    @property
    def info(self) -> dict[str, Any]:
        """run.json."""
        try:
            data = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / 'run.json'} cannot be read: {error}") from error
        return dict(data)

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files that a complete run does not change any more, by their names in the run."""
        names = [self.path / name for name in ("recipe.yaml", "metrics.jsonl", "scores.parquet")]
        files = [p for p in (*names, *sorted((self.path / "model").rglob("*"))) if p.is_file()]
        found = {}
        for file in files:
            with file.open("rb") as stream:
                found[file.relative_to(self.path).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
        return found

    def write_info(self, info: dict[str, Any]) -> None:
        """Replace run.json."""
        with staged_file(self.path / "run.json", overwrite=True) as path:
            Path(path).write_text(json.dumps(info, indent=2, default=str) + "\n", encoding="utf-8")

    def write_text(self, name: str, text: str) -> None:
        """Replace a text file of the run."""
        with staged_file(self.path / name, overwrite=True) as path:
            Path(path).write_text(text, encoding="utf-8")

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl."""
        self.write_text("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in history))

    def metrics(self) -> list[dict[str, Any]]:
        """One dict an epoch."""
        file = self.path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []

    def scores(self) -> Scores:
        """scores.parquet; DataError when the run has none yet or it is damaged."""
        file = self.path / "scores.parquet"
        if not file.exists():
            raise DataError(f"{self.path} has no scores: the run did not finish; `cleanpairs fit ... --resume`")
        table = read_table(file)
        if table.schema.remove_metadata() != SCORES_SCHEMA:
            raise DataError(f"{file} cannot be read: it is no table of scores: its columns are {table.column_names}")
        return Scores(table)

    def model(self) -> Any:
        """The fitted estimator, without its training pairs; DataError when the run did not finish."""
        from cleanpairs.persistence import load_estimator

        if not (self.path / "model").exists():
            raise DataError(
                f"{self.path} has no model: the run did not finish; "
                f"go on with `cleanpairs fit --resume --out {self.path}`"
            )
        return load_estimator(self.path / "model")

    def estimator(self) -> Any:
        """The fitted estimator, with the correspondence of its training pairs."""
        estimator = self.model()
        scores = self.scores()
        estimator.correspondence_ = scores.correspondence
        estimator.quarantined_ = scores.reasons
        return estimator

    def load_input(self) -> Any:
        """The pairs that the run was fitted on, read again; see :meth:`open_input`."""
        from cleanpairs.data import load_source

        given = self.info.get("input")
        if isinstance(given, dict) and given.get("noise"):
            raise DataError(
                f"the run {self.path.name} was fitted on captions that --noise-file wronged in memory only: write them "
                "with `cleanpairs corrupt --noise-file`, and fit on that to export or report"
            )
        return load_source(self.open_input())

    def open_input(self) -> Any:
        """The source of what the run was fitted on.

        Raises
        ------
        DataError
            It has changed since.
        ConfigError
            It would open what the user has not named: see :func:`cleanpairs.data.open_recorded`.
        """
        from cleanpairs.data import open_recorded

        given = self.info.get("input")
        if not isinstance(given, dict):
            raise DataError(f"{self.path / 'run.json'} does not say which data the run was fitted on")
        where = self.path / "run.json"
        source = open_recorded(given.get("data"), given.get("options"), where, trusted=self.trusted)
        if source.fingerprint != given.get("fingerprint"):
            raise DataError(f"{given['data']} has changed since the run {self.path.name} was fitted on it; fit again")
        return source


def default_run_path(method: str, data: str | Path) -> Path:
    """``runs/<date>-<method>-<data name>``, with a number behind it when that is taken."""
    name = Path(str(data).rstrip("/*")).stem or "data"
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{name}"
    path, k = base, 2
    while path.exists():
        path, k = base.with_name(f"{base.name}-{k}"), k + 1
    if not str(name).isprintable():
        raise ConfigError(f"the data's name {name!r} has characters that a directory should not have: give --out")
    return path
