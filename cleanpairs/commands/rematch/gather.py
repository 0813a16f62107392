"""One pass over the input: what a plan needs of every pair, and the vectors of those that it can concern.

Of each of N pairs a few numbers are kept in memory, 24 bytes; its caption and its key go into a file, to be read again
in order when the plan is written. Vectors are kept of the pairs that are to be repaired, and of the best trusted ones,
which may lend a part: the others take part in no search.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import OutputError, RefusedError
from cleanpairs.core.regular import read_json
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.rows import RowBatch
from cleanpairs.ops.scratch import Scratch, release

__all__ = ["TEXTS", "Gathered", "gather", "gathered_before"]

TEXTS = pa.schema([("key", pa.string()), ("caption", pa.string())])
_NUMBERS = ("correspondence", "cosine", "image_group", "text_group", "mismatched", "trusted")
_FILES = ("texts.arrow", "image.f32", "text.f32", *(f"{name}.npy" for name in _NUMBERS), "gathered.json")

Rows = Iterator[tuple[RowBatch, np.ndarray, np.ndarray, np.ndarray | None]]
"""Batches of input rows, one pair a row; unit vectors of images and captions (b, d) float32; the correspondence (b,)
float32 where it is to be had from them, None where it is known already."""


@dataclass(frozen=True)
class Gathered:
    """What a pass over N pairs has left in ``folder``.

    Attributes
    ----------
    correspondence : (N,) float32
        NaN where quarantined.
    cosine : (N,) float32
        Of the pair's vectors.
    image_group, text_group : (N,) int64
        Content hashes.
    mismatched : (R,) int64
        Pairs below the threshold, rising.
    trusted : (T,) int64
        The trusted pairs whose vectors are kept, rising: those of the highest correspondence.
    z_image, z_text : (R + T, d) float32
        Of the mismatched pairs and, behind them, of these; mapped.
    reasons : dict
        Pair -> why it is quarantined.
    """

    folder: Path
    correspondence: np.ndarray
    cosine: np.ndarray
    image_group: np.ndarray
    text_group: np.ndarray
    mismatched: np.ndarray
    trusted: np.ndarray
    z_image: np.ndarray
    z_text: np.ndarray
    reasons: dict[int, str]

    def __len__(self) -> int:
        return len(self.correspondence)

    def texts(self) -> Iterator[pa.RecordBatch]:
        """Keys and captions of all pairs, in order."""
        with pa.OSFile(str(self.folder / "texts.arrow")) as file, pa.ipc.open_file(file) as reader:
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)

    def remove(self) -> None:
        """Remove what the pass has left."""
        for name in _FILES:
            (self.folder / name).unlink(missing_ok=True)


def gathered_before(folder: Path, job: str) -> Gathered | None:
    """What a pass of the same ``job`` left in ``folder`` before the process was stopped; None where it did not end."""
    try:
        note = read_json(folder / "gathered.json")
        if note["job"] != job:
            return None
        numbers = {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in _NUMBERS}
        shape = len(numbers["mismatched"]) + len(numbers["trusted"]), int(note["dim"])
        sides = [_mapped(folder / f"{side}.f32", shape) for side in ("image", "text")]
        if not (folder / "texts.arrow").exists():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Gathered(folder, **numbers, z_image=sides[0], z_text=sides[1], reasons=dict(note["reasons"]))


def gather(
    rows: Rows,
    n: int,
    folder: Path,
    *,
    job: str,
    threshold: float,
    most_trusted: int,
    known: np.ndarray | None,
    scratch: Scratch,
    progress: Callable[[int], None] = lambda done: None,
) -> Gathered:
    """Make the pass.

    Parameters
    ----------
    rows : iterator
        See :data:`Rows`; N pairs in all.
    n : int
        N.
    folder : path
        Where the files go; it exists.
    job : str
        Names everything that the files follow from.
    threshold : float
        Pairs of a lower correspondence are to be repaired.
    most_trusted : int
        How many trusted pairs to keep the vectors of; 0 for none.
    known : (N,) float32, optional
        The correspondence, where it is known.

    Raises
    ------
    RefusedError
        Vectors of pairs that are not quarantined are not finite.
    OutputError
        The disk is full.
    """
    correspondence, cosine = np.full(n, np.nan, np.float32), np.zeros(n, np.float32)
    image_group, text_group = np.empty(n, np.int64), np.empty(n, np.int64)
    reasons: dict[int, str] = {}
    mismatched: list[np.ndarray] = [np.empty(0, np.int64)]
    best = _Best(most_trusted, scratch)
    first, dim = 0, 0
    (folder / "gathered.json").unlink(missing_ok=True)
    try:
        with ExitStack() as stack:
            sides = [stack.enter_context((folder / f"{side}.f32").open("wb")) for side in ("image", "text")]
            sink = stack.enter_context(pa.OSFile(str(folder / "texts.arrow"), "wb"))
            texts = stack.enter_context(pa.ipc.new_file(sink, TEXTS))
            for batch, z_image, z_text, scores in rows:
                s = slice(first, first + len(batch.captions))
                dim = z_image.shape[1]
                values = known[s] if known is not None else scores
                assert values is not None
                values = np.array(values, np.float32)
                values[list(batch.faults)] = np.nan
                reasons.update({first + i: why for i, why in batch.faults.items()})
                usable = np.isfinite(values)
                _refuse_non_finite(usable, z_image, z_text)
                correspondence[s], image_group[s] = values, batch.image_group
                text_group[s] = batch.text_group
                cosine[s] = np.einsum("ij,ij->i", z_image, z_text)
                below = np.flatnonzero(usable & (np.where(usable, values, 0) < threshold))
                mismatched.append(first + below)
                for file, z in zip(sides, (z_image, z_text), strict=True):
                    file.write(np.ascontiguousarray(z[below], np.float32).data)
                above = np.flatnonzero(usable & (np.where(usable, values, 0) >= threshold))
                best.add(first + above, values[above], z_image, z_text, above)
                texts.write_batch(pa.RecordBatch.from_arrays([batch.keys, batch.captions], schema=TEXTS))
                first = s.stop
                progress(first)
            trusted = best.kept()
            for file, z in zip(sides, best.vectors(len(trusted)), strict=True):
                for start in range(0, len(trusted), 1 << 14):
                    file.write(np.ascontiguousarray(z[start : min(start + (1 << 14), len(trusted))]).data)
                    release(z)
        numbers: dict[str, np.ndarray] = {
            "correspondence": correspondence,
            "cosine": cosine,
            "image_group": image_group,
            "text_group": text_group,
            "mismatched": np.concatenate(mismatched),
            "trusted": trusted,
        }
        for name, array in numbers.items():
            np.save(folder / f"{name}.npy", array)
        note = {"job": job, "dim": dim, "reasons": list(reasons.items())}
        with staged_file(folder / "gathered.json", overwrite=True) as staged:
            Path(staged).write_text(json.dumps(note), encoding="utf-8")
    except OSError as error:
        if isinstance(error, OutputError) or error.errno is None:
            raise
        raise OutputError(f"{folder} cannot be written: {error.strerror}") from error
    shape = len(numbers["mismatched"]) + len(trusted), dim
    z_image, z_text = (_mapped(folder / f"{side}.f32", shape) for side in ("image", "text"))
    return Gathered(folder, **numbers, z_image=z_image, z_text=z_text, reasons=reasons)


class _Best:
    """The pairs of the highest values among all that come, with their vectors; of equal ones the first."""

    def __init__(self, most: int, scratch: Scratch) -> None:
        self.most, self.scratch = most, scratch
        self.pair, self.value = np.empty(0, np.int64), np.empty(0, np.float32)
        self.least = -np.inf
        self.room: list[np.ndarray] = []

    def add(self, pair: np.ndarray, value: np.ndarray, z_image: np.ndarray, z_text: np.ndarray, at: np.ndarray) -> None:
        """The next pairs (b,), rising, whose vectors are the rows ``at`` (b,)."""
        chosen = np.flatnonzero(value > self.least) if self.most else at[:0]
        for start in range(0, len(chosen), max(1, self.most)):
            some = chosen[start : start + self.most]
            if not self.room:
                self.room = [self.scratch.empty((2 * self.most, z.shape[1]), np.float32) for z in (z_image, z_text)]
            if len(self.pair) + len(some) > 2 * self.most:
                self._prune()
            s = slice(len(self.pair), len(self.pair) + len(some))
            for room, z in zip(self.room, (z_image, z_text), strict=True):
                room[s] = z[at[some]]
                release(room)
            self.pair, self.value = np.append(self.pair, pair[some]), np.append(self.value, value[some])

    def _prune(self) -> None:
        keep = np.sort(np.argsort(-self.value, kind="stable")[: self.most])
        for room in self.room:
            for start in range(0, len(keep), 1 << 12):  # downwards, in order: nothing is overwritten before it is read
                room[start : min(start + (1 << 12), len(keep))] = room[keep[start : start + (1 << 12)]]
                release(room)
        self.pair, self.value = self.pair[keep], self.value[keep]
        if len(keep) == self.most:
            self.least = float(self.value.min())

    def kept(self) -> np.ndarray:
        """The pairs, rising."""
        if self.room:
            self._prune()
        return self.pair

    def vectors(self, count: int) -> list[np.ndarray]:
        """Of the images, and of the captions, of the pairs that are kept."""
        return [room[:count] for room in self.room] or [np.empty((0, 0), np.float32)] * 2


def _refuse_non_finite(usable: np.ndarray, z_image: np.ndarray, z_text: np.ndarray) -> None:
    for z, what in ((z_image, "images"), (z_text, "captions")):
        bad = int((~np.isfinite(z[usable]).all(axis=1)).sum()) if not np.isfinite(z.sum()) else 0
        if bad:
            raise RefusedError(
                f"the embeddings of {bad} {what} that are not quarantined are not finite: quarantine them"
            )


def _mapped(path: Path, shape: tuple[int, int]) -> np.ndarray:
    if not shape[0] * shape[1]:
        return np.empty(shape, np.float32)
    if path.stat().st_size != 4 * shape[0] * shape[1]:
        raise ValueError(f"{path} is not as it was written")
    return np.memmap(path, np.float32, "r+", shape=shape)
