"""The run directory that ``fit`` leaves, and that every other command reads.

    run.json            what ran: versions, seed, device, input with its fingerprint, results
    recipe.yaml         the resolved settings
    metrics.jsonl       one JSON object an epoch
    scores.parquet      one row a pair
    issues.csv          the worst pairs, by what is wrong with them
    model/              save_pretrained
    checkpoints/        to resume from

``runs/latest``, in the working directory, is a symbolic link to the newest run, wherever that is.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cleanpairs.core import is_share, without_secrets
from cleanpairs.core.errors import ConfigError, DataError, MissingInputError, OutputError, OutputExistsError
from cleanpairs.core.regular import read_json, read_lines, reading, sha256_of, writing
from cleanpairs.data import ParquetSink, load_source, open_recorded, staged_file
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.guard import holds, refuse_foreign, refuse_labels
from cleanpairs.data.locks import lock_of
from cleanpairs.data.parquet_io import read_table
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.displaced import COLUMNS, as_columns, from_columns
from cleanpairs.repair.plan import RepairPlan, refuse_edited
from cleanpairs.review.log import DecisionLog

if TYPE_CHECKING:
    from cleanpairs.audit import Answered, Opinions
    from cleanpairs.correspondence.calibration import Calibration

PLAN, ANSWERS, OPINIONS = "plan.parquet", "review/decisions.jsonl", "review/opinions.json"
LATEST = Path("runs/latest")
SCORES_SCHEMA = pa.schema(
    {"pair_id": pa.int64(), "key": pa.string(), "correspondence": pa.float32(), "is_mismatch": pa.bool_()}
    | {"reason": pa.string()}
)
WHY = pa.field("why", pa.string())  # behind the others, in the scores of a fit, before those of displaced rows


def mistyped(info: dict[str, Any]) -> list[str]:
    """Return the keys of a run.json, such as ``result.threshold``, whose values have the wrong type."""
    counts = ("seed", "input.rows", "input.pairs", "result.flagged", "result.pairs")
    texts = ("status", "method", "device", "input.data", "input.fingerprint", "input.kind")
    objects = ("versions", "files", "input", "input.options", "input.columns", "result")
    kinds: dict[str, type] = dict.fromkeys(counts, int) | dict.fromkeys(texts, str) | dict.fromkeys(objects, dict)
    kinds |= {"result.threshold": float, "result.noise_rate": float}  # shares
    wrong = []
    for key, kind in kinds.items():
        outer, _, inner = key.rpartition(".")
        within = info.get(outer) if outer else info
        value = within.get(inner) if isinstance(within, dict) else None
        if not (value is None or (is_share(value) if kind is float else isinstance(value, kind))):
            wrong.append(key)
    return wrong


def run_files() -> re.Pattern[str]:
    """Return a pattern of the names of all files that cleanpairs writes into a run."""
    from cleanpairs.audit.labels import AUDIT_FILES
    from cleanpairs.estimators.persistence import MODEL_FILES

    return re.compile(
        r"(run\.json|recipe\.yaml|metrics\.jsonl|(scores|plan)\.parquet|issues\.csv"
        rf"|(fold-\d+/)?checkpoints/last\.safetensors|model/({MODEL_FILES.pattern})|audit/({AUDIT_FILES.pattern}))"
    )


class Scores:
    """A scores table.

    - ``correspondence`` (N,) float32, NaN where quarantined
    - ``reasons``: pair_id -> text
    - ``why`` (N,): what speaks against a pair, None where nothing does, or in a table without it
    - ``moves`` (k,) of :data:`cleanpairs.repair.displaced.MOVE`: where the captions of displaced rows go
    """

    def __init__(self, table: pa.Table) -> None:
        if WHY.name not in table.column_names:
            table = table.append_column(WHY, pa.nulls(len(table), WHY.type))
        self.table, self.why, self.moves = table, table[WHY.name], from_columns(table)
        self.correspondence = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
        self.reasons = {i: why for i, why in enumerate(table["reason"].to_pylist()) if why is not None}


def scores_table(
    keys: list[str] | pa.Array, correspondence: np.ndarray, threshold: float, reasons: dict[int, str], first: int = 0
) -> pa.Table:
    """Rows of a scores table, from pair ``first`` on. ``correspondence`` (n,): NaN where quarantined, which is null.
    ``reasons``: why, by place among these.
    """
    n, finite = len(keys), np.isfinite(correspondence)
    columns = [
        pa.array(np.arange(first, first + n)),
        keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string()),
        pa.array(correspondence.astype(np.float32), mask=~finite),
        pa.array(correspondence < threshold, mask=~finite),
        pa.array([reasons.get(i) for i in range(n)], pa.string()) if reasons else pa.nulls(n, pa.string()),
    ]
    return pa.table(columns, schema=SCORES_SCHEMA)


def write_scores(
    path: str | Path,
    keys: list[str],
    correspondence: np.ndarray,
    threshold: float,
    reasons: dict[int, str],
    why: Mapping[int, str] | None = None,
    moves: np.ndarray | None = None,
) -> None:
    """Write ``scores.parquet``, one row a pair in pair_id order, atomically. ``why``: pair_id -> a sentence. ``moves``
    (k,) of :data:`cleanpairs.repair.displaced.MOVE`: of displaced rows.
    """
    table = scores_table(keys, correspondence, threshold, reasons)
    if why is not None:
        table = table.append_column(WHY, pa.array([why.get(i) for i in range(len(table))], WHY.type))
    if moves is not None and len(moves):
        for field, column in zip(COLUMNS, as_columns(moves, len(table)), strict=True):
            table = table.append_column(field, column)
    with staged_file(path, overwrite=True) as staged, ParquetSink(staged, table.schema) as sink:
        sink.write(table)


class Run:
    """One run directory."""

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path, self.trusted = path, trusted
        self._before: tuple[str | None, ...] = ()  # where runs/latest led, if it was to lead here
        self._answered: tuple[Any, Answered | None] | None = None  # and the state of the files that it follows from

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False, resume: bool = False, latest: bool = True) -> "Run":
        """Return a new directory, or the one to resume. ``runs/latest`` will point to it (unless ``latest`` is False).

        A run that is overwritten is moved away, until :meth:`forget_replaced` or :meth:`restore_replaced`.
        """
        path = Path(path)
        if path.is_symlink() and not resume:
            raise OutputExistsError(f"{path} is a symbolic link; name the run directory itself")
        run = cls(path)
        aside = run._replaced
        if aside.exists() and not path.exists():  # killed in the instant between setting aside and beginning
            aside.rename(path)
        replaces = path.exists() and not resume and (aside.exists() or not run.is_unused())
        if replaces:
            if not path.is_dir() or not ((path / "run.json").exists() or aside.exists()):
                raise OutputExistsError(f"{path} exists and is no run directory: it is not replaced; name another")
            if not overwrite:
                raise OutputExistsError(f"{path} exists; --overwrite replaces it, --resume resumes it")
            for folder in (path, aside):
                refuse_user_files(folder)
        run._before = (os.readlink(LATEST) if LATEST.is_symlink() else None,) if latest else ()
        try:
            if replaces and aside.exists() and not run.complete:  # a fit that was to replace it was killed: it is the
                shutil.rmtree(path)  # last complete one, and stays until there is another
            elif replaces:
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
            with writing(f"the run directory {path}"):
                path.mkdir(parents=True, exist_ok=True)
            if latest:
                _link_latest(path)
        except BaseException:
            if not resume:
                with suppress(OSError):
                    path.rmdir()
                if aside.exists() and not path.exists():
                    aside.rename(path)
            run._restore_latest()
            raise
        return run

    @classmethod
    def check_resumable(cls, path: str | Path) -> None:
        """Raise :class:`DataError` where there is no run at ``path`` to resume."""
        run = cls(Path(path))
        if not (run.path / "run.json").exists() and not run._replaced.exists() and not run.is_unused():
            raise DataError(f"--resume: no run to resume: {run.path / 'run.json'} is missing; leave --resume out")

    def is_unused(self) -> bool:
        """Whether the directory holds nothing but what a fit leaves that ends before its recipe is written."""
        if not self.path.is_dir() or set(holds(self.path)) - {"run.json"}:
            return False
        return not (self.path / "run.json").exists() or self.info.get("status") in ("running", "interrupted")

    @property
    def complete(self) -> bool:
        """Whether a fit has ended here."""
        with suppress(DataError):
            return self.info.get("status") == "complete"
        return False

    @property
    def _replaced(self) -> Path:
        """Where the run that this one replaces is kept until this one is complete."""
        return self.path.parent / f".replaced-{self.path.name}"

    def forget_replaced(self) -> None:
        """Delete the run that was replaced, now that the new one is complete."""
        if self._replaced.exists():
            refuse_user_files(self._replaced)  # somebody may have put something there meanwhile
            shutil.rmtree(self._replaced, ignore_errors=True)

    def restore_replaced(self) -> None:
        """Restore the run that was to be replaced, if there was one, as the new one has failed."""
        if self._replaced.exists():
            refuse_user_files(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
            self._replaced.rename(self.path)

    def has_checkpoint(self) -> bool:
        """Whether there is one to resume from, or a part of the scores of a stream."""
        saved = (self.path / "checkpoints").rglob("*.safetensors"), self.path.glob("scores.parquet.parts/part-??????")
        return any(any(files) for files in saved)

    def discard_empty(self, trains: bool = True) -> None:
        """Delete the run and the link to it, if the fit ended before it had learnt anything. A model that it does not
        train (``trains``) is soon made again.
        """
        learnt = trains and (self.path / "model").exists()
        if learnt or any(p.is_file() for p in (self.path / "checkpoints").rglob("*")):
            return
        with suppress(OutputExistsError):
            refuse_user_files(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
            self._restore_latest()

    def _restore_latest(self) -> None:
        """Let the link lead to the older run again, where it leads nowhere."""
        with suppress(OSError):
            if self._before and LATEST.is_symlink() and not LATEST.exists():
                LATEST.unlink()
                if self._before[0] is not None:
                    LATEST.symlink_to(self._before[0])

    @classmethod
    def open(cls, path: str | Path | None, *, trusted: bool = False) -> "Run":
        """Return the run at ``path``, or ``runs/latest``. ``trusted``: see :func:`cleanpairs.data.open_recorded`."""
        chosen = LATEST if path is None else Path(path)
        if not (chosen / "run.json").exists():
            hint = "run `cleanpairs fit DATA` first, or name a run directory"
            if path:
                there = "it holds no run.json" if chosen.is_dir() else "it is a file"
                hint = there if chosen.exists() else "there is nothing of that name"
                if others := [str(run) for run in sorted(LATEST.parent.glob("*")) if (run / "run.json").is_file()]:
                    hint += f"; runs here: {', '.join(others[-4:])}"
            aside = cls(chosen)._replaced
            if aside.exists():
                hint += f"; a fit that was to replace it was killed: the old run is {aside}, move it back"
            raise DataError(f"{chosen.absolute()} is no run directory: {hint}")
        return cls(chosen.resolve(), trusted=trusted)

    @property
    def info(self) -> dict[str, Any]:
        """run.json. DataError where it cannot be read, or is not as ``fit`` writes it."""
        file = self.path / "run.json"
        with reading(file, "read", ValueError, TypeError):
            data = dict(read_json(file))
        if wrong := mistyped(data):
            raise DataError(f"{file} is not as fit writes it: {', '.join(wrong)} has another type")
        return data

    def named_columns(self) -> dict[str, str]:
        """Return the columns that ``fit`` was told to read, as parameters of :func:`cleanpairs.load_pairs`."""
        options = (self.info.get("input") or {}).get("options") or {}
        names = ("image_column", "text_column", "key_column")
        return {name: options[name] for name in names if isinstance(options.get(name), str)}

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files that a complete run does not change any more, by their names in the run."""
        names = [self.path / name for name in ("recipe.yaml", "metrics.jsonl", "scores.parquet")]
        files = [p for p in (*names, *sorted((self.path / "model").rglob("*"))) if p.is_file()]
        return {file.relative_to(self.path).as_posix(): sha256_of(file) for file in files}

    def write_info(self, info: dict[str, Any]) -> None:
        """Replace run.json."""
        write_whole(self.path / "run.json", json.dumps(info, indent=2, default=str) + "\n")

    def write_metrics(self, history: list[dict[str, Any]]) -> None:
        """Replace metrics.jsonl."""
        write_whole(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in history))

    def metrics(self) -> list[dict[str, Any]]:
        """One dict an epoch. DataError where the file cannot be read."""
        return read_lines(self.path / "metrics.jsonl")

    def scores(self) -> Scores:
        """Return the scores, calibrated by the answers where there are enough. DataError as :meth:`fitted_scores`."""
        fitted = self.fitted_scores()
        answered = self.answered(fitted)
        if answered is None:
            return fitted
        correspondence = pa.array(answered.correspondence, mask=np.isnan(answered.correspondence))
        below = pa.array(answered.correspondence < answered.threshold, mask=np.isnan(answered.correspondence))
        return Scores(with_columns(fitted.table, {"correspondence": correspondence, "is_mismatch": below}))

    def decision_log(self, pairs: int, **how: bool) -> DecisionLog:
        """Return the log of the answers about the run, whose data has so many ``pairs``. ``how``: as of the log."""
        return DecisionLog(self.path / ANSWERS, str(self.info["input"]["fingerprint"]), pairs, **how)

    def take_answers(self) -> None:
        """Take over the answers about the same data that other runs in the same folder have."""
        of, answers = self.info["input"], list[tuple[str, int, bool | None]]()
        for file in sorted(self.path.parent.glob(f"*/{ANSWERS}")):
            about = file, of["fingerprint"], of["pairs"]
            with suppress(DataError, OutputError), closing(DecisionLog(*about, read_only=True)) as log:
                answers += [(getattr(log.of(i, True), "time", ""), i, label) for i, label in log.labels().items()]
        if answers:
            y = self.fitted_scores().correspondence  # other filters may quarantine other pairs
            with closing(self.decision_log(len(y))) as log:  # the last one about a pair counts, in whatever run
                log.label({i: label for _, i, label in sorted(answers, key=lambda a: a[0]) if np.isfinite(y[i])})

    def answered(self, scores: Scores | None = None) -> "Answered | None":
        """Calibrate the ``scores`` of the fit, read if None, by people's answers and a judge's opinions.
        None of too few answers without opinions.

        They are calibrated anew only where the answers, or the scores, have changed.
        """
        from cleanpairs.audit import Answered

        least, sources = 20, [self.path / name for name in (ANSWERS, OPINIONS)]
        if not any(file.exists() for file in sources):
            return None
        files = [file for file in (*sources, self.path / "scores.parquet") if file.exists()]
        state = [(about.st_ino, about.st_size, about.st_mtime_ns) for about in map(os.stat, files)]
        if self._answered is not None and self._answered[0] == state:
            return self._answered[1]
        scores, opinions = scores or self.fitted_scores(), self.opinions()
        y, displaced = scores.correspondence, len(scores.moves) > 0
        labels: dict[int, bool] = {}
        if (self.path / ANSWERS).exists():
            with closing(self.decision_log(len(y), read_only=True)) as log:
                labels = {i: label for i, label in log.labels().items() if label is not None and np.isfinite(y[i])}
        enough = len(labels) >= least or opinions is not None
        self._answered = state, Answered.of(y, labels, opinions, displaced=displaced) if enough else None
        return self._answered[1]

    def opinions(self) -> "Opinions | None":
        """Return the opinions of a judge, if there are any. DataError if the file holds something else."""
        if not (self.path / OPINIONS).exists():
            return None
        from cleanpairs.audit import Opinions

        return Opinions.read(self.path / OPINIONS)

    @property
    def result(self) -> dict[str, Any]:
        """What the fit found. The answers' figures where there are enough."""
        answered, result = self.answered(), dict(self.info.get("result") or {})
        for name, kind in (("displaced", dict), ("standing_out", int)):  # the file may have been edited
            if name in result:
                listed = result[name] if isinstance(result[name], list) else []
                result[name] = [x for x in listed if isinstance(x, kind)]
        return result if answered is None else result | answered.figures()

    def fitted_scores(self) -> Scores:
        """scores.parquet. DataError when the run has none yet or it is damaged."""
        table = read_table(file := self._finished("scores.parquet"))
        explained = SCORES_SCHEMA.append(WHY)
        moved = pa.unify_schemas([explained, COLUMNS])
        if table.schema.remove_metadata() not in (SCORES_SCHEMA, explained, moved):
            raise DataError(f"{file} cannot be read: it is no table of scores: its columns are {table.column_names}")
        pairs = len(table)
        with suppress(DataError):  # where there is no run.json, nothing says how many
            pairs = (self.info.get("input") or {}).get("pairs", pairs)
        scores = Scores(table)
        bad = np.any((scores.correspondence < 0) | (scores.correspondence > 1))
        if bad or len(table) != pairs or not np.array_equal(table["pair_id"], np.arange(pairs)):
            raise DataError(f"{file} has not the {pairs:,} pairs of the run in order, with scores in [0, 1]: fit again")
        return scores

    @property
    def model_folder(self) -> Path:
        """The folder of the saved model. DataError if the run did not finish."""
        return self._finished("model")

    def _finished(self, name: str) -> Path:
        """Return the path of scores or model. DataError: the run did not finish, so that they are missing or change."""
        path, status = self.path / name, None
        with suppress(DataError):  # what lies beside a damaged run.json is read
            status = self.info.get("status")
        if status in ("running", "interrupted") or not path.exists():
            resume = f"resume it with `cleanpairs fit --resume --out {quote(str(self.path))}`"
            raise DataError(f"{self.path} has no complete {path.stem}: the run did not finish; {resume}")
        return path

    def model(self) -> Any:
        """Return the fitted estimator, without its training pairs. DataError when the run did not finish."""
        from cleanpairs.estimators.persistence import load_estimator

        return load_estimator(self.model_folder)

    def calibration(self) -> "Calibration | None":
        """Return the calibration of the scores. None if the method has none, and nobody has answered."""
        from cleanpairs.estimators.persistence import Saved

        if (answered := self.answered()) is not None:
            return answered.calibration
        return Saved(self.path / "model").calibration() if (self.path / "model").exists() else None

    def estimator(self, scores: Scores | None = None, *, fitted: bool = False) -> Any:
        """Return the estimator, with the correspondence of its training pairs and what the answers make of it, if not
        ``fitted``. ``scores`` of the fit: read where they are None.
        """
        estimator, scores = self.model(), scores or self.fitted_scores()
        estimator.correspondence_ = scores.correspondence
        estimator.quarantined_, estimator._moves_ = scores.reasons, scores.moves
        estimator._blocks_ = self.result.get("displaced", ())
        if not fitted and (answered := self.answered(scores)) is not None:
            estimator._apply_answers(answered)
        return estimator

    def reported(self, pairs: Any, plan: Any) -> dict[str, Any]:
        """Return parameters of :func:`cleanpairs.report.write_report`, by the run, its pairs and a plan."""
        scores, info = self.scores(), self.info | {"result": self.result}
        of_run = {"info": info, "scores": scores.table, "metrics": self.metrics(), "calibration": self.calibration()}
        threshold = self.result["threshold"] if plan is None else plan.threshold
        of_plan = {"pairs": pairs, "plan": plan, "threshold": threshold, "why": scores.why.to_pylist()}
        return of_run | of_plan

    def current_plan(self, file: Path | None = None) -> RepairPlan | None:
        """Return the plan in a file, or the run's. None if there is none, or answers have changed the scores since."""
        if not (file := file or self.path / PLAN).exists():
            return None
        plan = RepairPlan.load(file)
        if not any((self.path / name).exists() for name in (ANSWERS, OPINIONS)):
            return plan
        planned = plan.table["correspondence"].to_numpy(zero_copy_only=False)
        return plan if np.array_equal(planned, self.scores().correspondence, equal_nan=True) else None

    def load_input(self) -> Any:
        """Return the pairs that the run was fitted on, read again. See :meth:`open_input`."""
        return load_source(self.open_input())

    @property
    def fingerprint(self) -> Any:
        """That of the data that the run was fitted on, or its fit was begun on."""
        return (self.info.get("input") or {}).get("fingerprint")

    def open_input(self) -> Any:
        """Return the source of what the run was fitted on. DataError if it has changed."""
        given = self.info.get("input")
        if not isinstance(given, dict):
            raise DataError(f"{self.path / 'run.json'} does not say which data the run was fitted on")
        try:
            of_data = given.get("data"), given.get("options"), self.fingerprint
            return open_recorded(*of_data, self.path / "run.json", trusted=self.trusted)
        except MissingInputError as error:
            message = f"{error}; the run {self.path.name} was fitted on it: put it back, or give its new place as DATA"
            raise MissingInputError(f"{message} to rematch, score or evaluate") from error


def _link_latest(run: Path) -> None:
    """Let ``runs/latest`` lead to ``run``, unless it is no link. OutputError if it still leads to an older run."""
    before = os.readlink(LATEST) if LATEST.is_symlink() else None
    if before is None and os.path.lexists(LATEST):
        return
    fresh = LATEST.with_name(f".latest-{os.getpid()}")
    try:
        LATEST.parent.mkdir(exist_ok=True)
        fresh.unlink(missing_ok=True)  # of a dead process that had this number
        fresh.symlink_to(os.path.relpath(run.absolute(), LATEST.parent.absolute()))
        fresh.replace(LATEST)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        if before is not None:
            message = f"{LATEST} points to {before}, and cannot be made to point to {run}: {error.strerror}; remove it"
            raise OutputError(message) from error


def refuse_user_files(folder: Path) -> None:
    """OutputExistsError where a run that is to be removed holds what no fit has left: files, labels, an edited plan."""
    if folder.exists():
        refuse_labels(folder)
        refuse_foreign(folder, run_files())
        refuse_edited(folder / PLAN)


def default_run_path(method: str, data: str | Path) -> Path:
    """Return ``runs/<date>-<method>-<data name>``, with a number behind it if that is taken."""
    fixed = Path(without_secrets(str(data)).rstrip("/*")).stem.partition("{")[0]  # of a pattern
    name = fixed.rstrip("_-*") or "data"
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{name}"
    path, k = base, 2
    while path.exists() or lock_of(path).exists():  # another fit of this second may be about to make it
        path, k = base.with_name(f"{base.name}-{k}"), k + 1
    if not str(name).isprintable():
        raise ConfigError(f"the data's name {name!r} has characters that a directory should not have: give --out")
    return path
