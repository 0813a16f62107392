"""What a plan needs of N pairs: a few numbers of each, and the vectors of those that a repair can concern: the pairs to
be repaired, and the best trusted ones, which may lend a part; views of pairs in memory (:meth:`Gathered.of`), or files,
which are mapped, written by one pass over the rows (:func:`gather`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError, RefusedError
from cleanpairs.core.regular import read_json, writing
from cleanpairs.data import Pairs
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.rows import RowBatch
from cleanpairs.ops.scratch import Scratch, release
from cleanpairs.repair.settings import RepairSettings

TEXTS = pa.schema([("key", pa.string()), ("caption", pa.string())])
_NUMBERS = ("correspondence.f32", "image_group.i64", "text_group.i64", "mismatched.i64", "trusted.i64")
_VECTORS = ("image.f32", "text.f32")
_COSINES = ("wrong.f32", "right.f32")  # of the pairs below the threshold, and of the others
_MAPPED = (*_NUMBERS, *_VECTORS, *_COSINES)
_BLOCK = 1 << 14

Rows = Iterator[tuple[RowBatch, np.ndarray, np.ndarray, np.ndarray | None]]
"""Batches of pairs; unit vectors (k, d) of their images and of their captions; and their correspondence (k,) float32,
None where it is known already."""


@dataclass(frozen=True)
class Gathered:
    """What is known of N pairs.

    - ``correspondence`` (N,) float32: NaN where quarantined, of which ``reasons`` (pair -> why) tells
    - ``image_group``, ``text_group`` (N,) int64: content hashes
    - ``mismatched`` (R,), ``trusted`` (T,) int64, rising: pairs below the threshold, and those of the highest
      correspondence, which may lend a part
    - ``z_image``, ``z_text`` (m, d), (n, d) float32: unit vectors, perhaps mapped; ``image_row``, ``text_row`` (R +
      T,): where those of the mismatched pairs are, and behind them those of the trusted ones
    - ``typical``: median cosines of mismatched and trusted pairs
    - ``held``: keys and captions, where they are in memory; ``folder``: where :func:`gather` has left its files
    """

    correspondence: np.ndarray
    image_group: np.ndarray
    text_group: np.ndarray
    mismatched: np.ndarray
    trusted: np.ndarray
    z_image: np.ndarray
    z_text: np.ndarray
    image_row: np.ndarray
    text_row: np.ndarray
    typical: tuple[float, float]
    reasons: Mapping[int, str]
    held: pa.RecordBatch | None = None
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.correspondence)

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        correspondence: np.ndarray,
        z_image: np.ndarray,
        z_text: np.ndarray,
        settings: RepairSettings,
    ) -> "Gathered":
        """Of N pairs in memory, with unit vectors (M, d) of their images and (N, d) of their captions.

        Raises DataError: ``correspondence`` is not of ``pairs``; RefusedError: vectors that are not finite.
        """
        if np.shape(correspondence) != (n := len(pairs),):
            raise DataError(f"correspondence must be ({n},), one per pair of the data, got {np.shape(correspondence)}")
        values = np.array(correspondence, np.float32)
        values[list(pairs.reasons)] = np.nan
        values[~np.isfinite(values)] = np.nan
        index, usable = np.asarray(pairs.image_index), np.flatnonzero(~np.isnan(values))
        _refuse_non_finite(z_image, np.unique(index[usable]), "images")
        _refuse_non_finite(z_text, usable, "captions")
        mismatched = np.flatnonzero(values < settings.resolved_threshold)
        above = np.flatnonzero(values >= settings.resolved_threshold)
        best = np.sort(above[np.argsort(-values[above], kind="stable")[: settings.max_trusted]])
        kept = np.concatenate([mismatched, best])

        some = map(_sampled, (mismatched, above))
        typical = _typical(*(np.einsum("ij,ij->i", z_image[index[rows]], z_text[rows]) for rows in some))
        return cls(
            values, pairs.pair_image_group, np.asarray(pairs.text_group), mismatched, best, z_image, z_text,
            index[kept], kept, typical, pairs.reasons, held=pa.RecordBatch.from_arrays(
                [pa.array(pairs.keys, pa.string()), pa.array(pairs.captions, pa.string())], schema=TEXTS
            ),
        )  # fmt: skip

    @property
    def concerned(self) -> np.ndarray:
        """(R + T,) int64: the mismatched pairs, and those that may lend a part."""
        return np.concatenate([self.mismatched, self.trusted])

    def texts(self) -> Iterator[pa.RecordBatch]:
        """Keys and captions of all pairs, in order."""
        if self.held is not None:
            yield self.held
            return
        assert self.folder is not None
        with pa.OSFile(str(self.folder / "texts.arrow")) as file, pa.ipc.open_file(file) as reader:
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)

    def remove(self) -> None:
        """Remove what the pass has left."""
        assert self.folder is not None
        for name in (*_MAPPED, "texts.arrow", "gathered.json"):
            (self.folder / name).unlink(missing_ok=True)


def gathered_before(folder: Path, job: str) -> Gathered | None:
    """What a finished pass of the same ``job`` left in ``folder``; None where there is none."""
    try:
        note = read_json(folder / "gathered.json")
        if note["job"] != job or note["sizes"] != _sizes(folder) or not (folder / "texts.arrow").exists():
            return None
        numbers = {name.split(".")[0]: _mapped(folder / name) for name in _NUMBERS}
        rows = np.arange(len(numbers["mismatched"]) + len(numbers["trusted"]), dtype=np.int32)
        z_image, z_text = (_mapped(folder / name).reshape(len(rows), note["dim"]) for name in _VECTORS)
        typical, reasons = tuple(note["typical"]), {int(pair): str(why) for pair, why in note["reasons"]}
        return Gathered(
            **numbers, z_image=z_image, z_text=z_text, image_row=rows, text_row=rows, typical=typical, reasons=reasons,
            folder=folder,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def gather(
    rows: Rows, n: int, folder: Path, settings: RepairSettings, *, job: str, known: np.ndarray | None, scratch: Scratch
) -> Gathered:
    """Make the pass over ``n`` pairs; the files go into ``folder``, which exists, and follow from what ``job`` names.

    ``known`` (n,) float32: the correspondence, where it is known.
    Raises RefusedError: vectors that are not finite; OutputError: the disk is full.
    """
    reasons: dict[int, str] = {}
    best = _Best(0 if settings.lenders == "mismatched" else min(settings.max_trusted, n), scratch)
    first, dim = 0, 0
    (folder / "gathered.json").unlink(missing_ok=True)
    with writing(folder):
        with ExitStack() as stack:
            files = {name: stack.enter_context((folder / name).open("wb")) for name in _MAPPED}

            def put(names: Sequence[str], *columns: np.ndarray) -> None:
                for name, values in zip(names, columns, strict=True):
                    files[name].write(np.ascontiguousarray(values, _kind(name)).data)

            sink = stack.enter_context(pa.OSFile(str(folder / "texts.arrow"), "wb"))
            texts = stack.enter_context(pa.ipc.new_file(sink, TEXTS))
            for batch, z_image, z_text, scores in rows:
                s = slice(first, first + len(batch.captions))
                dim = z_image.shape[1]
                values = np.array(known[s] if known is not None else scores, np.float32)
                values[list(batch.faults)] = np.nan
                values[~np.isfinite(values)] = np.nan
                reasons.update({first + i: why for i, why in batch.faults.items()})
                for z, what in ((z_image, "images"), (z_text, "captions")):
                    _refuse_non_finite(z, np.flatnonzero(~np.isnan(values)), what)
                below = np.flatnonzero(values < settings.resolved_threshold)
                above = np.flatnonzero(values >= settings.resolved_threshold)
                cosine = np.einsum("ij,ij->i", z_image, z_text)
                put(_NUMBERS[:4], values, batch.image_group, batch.text_group, first + below)
                put(_COSINES, cosine[below], cosine[above])
                put(_VECTORS, z_image[below], z_text[below])
                best.add(first + above, values[above], z_image, z_text, above)
                texts.write_batch(pa.RecordBatch.from_arrays([batch.keys, batch.captions], schema=TEXTS))
                first = s.stop
            put(_NUMBERS[4:], trusted := best.kept())
            for start in range(0, len(trusted), _BLOCK):
                put(_VECTORS, *(z[start : min(start + _BLOCK, len(trusted))] for z in best.room))
                release(*best.room)
        typical = _typical(*(_sampled(_mapped(folder / name)) for name in _COSINES))
        note = {"job": job, "dim": dim, "typical": typical, "reasons": list(reasons.items())}
        note["sizes"] = _sizes(folder)
        write_whole(folder / "gathered.json", json.dumps(note))
    found = gathered_before(folder, job)
    assert found is not None
    return found


class _Best:
    """The pairs of the highest values among all that come, with their vectors; of equal ones the first."""

    def __init__(self, most: int, scratch: Scratch) -> None:
        self.most, self.scratch = most, scratch
        self.pair, self.value = np.empty(0, np.int64), np.empty(0, np.float32)
        self.least = -np.inf
        self.room: list[np.ndarray] = []

    def add(self, pair: np.ndarray, value: np.ndarray, z_image: np.ndarray, z_text: np.ndarray, at: np.ndarray) -> None:
        """The next pairs (b,), rising, whose vectors are the rows ``at`` (b,)."""
        best = np.sort(np.argsort(-value, kind="stable")[: self.most])
        some = best[value[best] > self.least]
        if not len(some):
            return
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
        """The pairs, rising; their vectors are the first of ``room``."""
        if self.room:
            self._prune()
        return self.pair


def _typical(wrong: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    return float(np.median(wrong)) if len(wrong) else 0.0, float(np.median(right)) if len(right) else 1.0


def _sampled(rows: np.ndarray) -> np.ndarray:
    return rows[:: max(1, len(rows) // 20_000)]


def _refuse_non_finite(z: np.ndarray, rows: np.ndarray, what: str) -> None:
    blocks = (rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK))
    bad = sum(int((~np.isfinite(z[some]).all(axis=1)).sum()) for some in blocks)
    if bad:
        raise RefusedError(f"the embeddings of {bad} {what} that are not quarantined are not finite: quarantine them")


def _sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in _MAPPED}


def _kind(name: str) -> type[np.generic]:
    return np.int64 if name.endswith(".i64") else np.float32


def _mapped(path: Path) -> np.ndarray:
    kind = _kind(path.name)
    return np.memmap(path, kind, "r+") if path.stat().st_size else np.empty(0, kind)
