"""What a plan needs of N pairs: some numbers of each, and the vectors of the pairs that a repair can concern.

Those are the pairs to be repaired, and the trusted pairs of the highest correspondence, which may lend a part. Pairs in
memory give views (:meth:`PlanInput.of`). Rows that are streamed give copies (:meth:`PlanInput.from_rows`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core import RefusedError, writing
from cleanpairs.data import Pairs
from cleanpairs.data.duplicates import VectorSigns, group_near_vectors, near_vector_groups
from cleanpairs.data.rows import RowBatch
from cleanpairs.repair.displaced import MOVE
from cleanpairs.repair.settings import RepairSettings

TEXTS = pa.schema([("key", pa.string()), ("caption", pa.string())])

EmbeddedRows = Iterator[tuple[RowBatch, np.ndarray, np.ndarray, np.ndarray | None]]
# Batches of pairs; unit vectors (k, d) of their images and of their captions; and their correspondence (k,) float32,
# None where it is known already.


@dataclass(frozen=True)
class PlanInput:
    """What is known of N pairs.

    - ``correspondence`` (N,) float32: NaN where quarantined. ``reasons`` (pair -> why) says why
    - ``image_group``, ``text_group`` (N,) int64: content hashes
    - ``moves`` (k,) of :data:`cleanpairs.repair.displaced.MOVE`: the captions that the rule of displaced rows moves
    - ``mismatched`` (R,), ``trusted`` (T,) int64, rising: pairs below the threshold, and the pairs of the highest
      correspondence, without those of ``moves``
    - ``z_image`` (m, d), ``z_text`` (n, d) float32: unit vectors
    - ``image_row``, ``text_row`` (R + T,): rows of the vectors of the mismatched pairs, then of the trusted pairs
    - ``typical``: median cosines of mismatched and trusted pairs
    - ``near`` (2, N) int64: group of near duplicates, and row, of each pair's image. (0,) where these are wanted
    - ``texts``: reads the keys and captions of all pairs, in order
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
    texts: Callable[[], Iterable[pa.RecordBatch]]
    moves: np.ndarray = field(default_factory=lambda: np.empty(0, MOVE))
    near: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.correspondence)

    @property
    def concerned(self) -> np.ndarray:
        """(R + T,) int64: the mismatched pairs, then the trusted pairs."""
        return np.concatenate([self.mismatched, self.trusted])

    @property
    def undecided(self) -> np.ndarray:
        """(N,) float32: the correspondence, NaN for pairs that the rule repairs."""
        return _without(self.correspondence, self.moves["pair"])

    @classmethod
    def of(
        cls,
        pairs: Pairs,
        correspondence: np.ndarray,
        z_image: np.ndarray,
        z_text: np.ndarray,
        settings: RepairSettings,
        moves: np.ndarray | None = None,
    ) -> "PlanInput":
        """Return the input of N pairs in memory, with unit vectors (M, d) of images and (N, d) of captions.

        Raises
        ------
        RefusedError
            Some vectors are not finite.
        """
        values = _without(correspondence, pairs.reasons)
        index = np.asarray(pairs.image_index)
        _refuse_non_finite(z_image, np.unique(index[~np.isnan(values)]), "images")
        _refuse_non_finite(z_text, np.flatnonzero(~np.isnan(values)), "captions")
        moves = _wanted_moves(moves, settings)
        moves = moves[np.isfinite(values[moves["pair"]] + values[moves["donor"]])]
        undecided = _without(values, moves["pair"])
        mismatched, above = map(np.flatnonzero, _below_and_above(undecided, settings))
        best = _Best(settings.max_trusted)
        best.add(above, values[above])
        trusted = np.sort(best.pair)
        kept = np.concatenate([mismatched, trusted])

        def cosine(rows: np.ndarray) -> np.ndarray:
            return np.asarray(np.einsum("ij,ij->i", z_image[index[rows]], z_text[rows]))

        columns = [pa.array(c, pa.string()) for c in (pairs.keys, pairs.captions)]
        texts = pa.RecordBatch.from_arrays(columns, schema=TEXTS)
        near = (
            [group_near_vectors(pairs, settings.duplicate_bits).pair_image_group, pairs.row] if settings.dedup else []
        )
        return cls(
            values, pairs.pair_image_group, np.asarray(pairs.text_group), mismatched, trusted, z_image, z_text,
            index[kept], kept, (_typical(cosine, mismatched, 0.0), _typical(cosine, above, 1.0)), pairs.reasons,
            lambda: [texts], moves, np.array(near, np.int64),
        )  # fmt: skip

    @classmethod
    def from_rows(
        cls, rows: EmbeddedRows, n: int, settings: RepairSettings, texts: Path, known: np.ndarray | None = None,
        moves: np.ndarray | None = None, signs_of: VectorSigns | None = None,
    ) -> "PlanInput":  # fmt: skip
        """Read ``n`` rows of one pair. ``known`` (n,) is their correspondence. ``texts`` takes keys and captions.

        ``signs_of`` their vectors tell near duplicates. None where these are not wanted.

        Raises
        ------
        RefusedError
            Some vectors are not finite.
        OutputError
            The disk is full.
        """
        moves = _wanted_moves(moves, settings)
        undecided = np.ones(n, bool)
        undecided[moves["pair"]] = False
        values, cosine = np.empty(n, np.float32), np.empty(n, np.float32)
        image_group, text_group = np.empty(n, np.int64), np.empty(n, np.int64)
        vectors: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        reasons: dict[int, str] = {}
        signs = np.empty((0 if signs_of is None else n, 32), np.uint8)
        best = _Best(0 if settings.donor_pool == "mismatched" else min(settings.max_trusted, n))
        first = 0
        with writing(texts), pa.OSFile(str(texts), "wb") as sink, pa.ipc.new_file(sink, TEXTS) as table:
            for batch, z_image, z_text, scores in rows:
                s = slice(first, first + len(batch.captions))
                y = _without(known[s] if known is not None else scores, batch.faults)
                for z, what in ((z_image, "images"), (z_text, "captions")):
                    _refuse_non_finite(z, np.flatnonzero(~np.isnan(y)), what)
                values[s], image_group[s], text_group[s] = y, batch.image_group, batch.text_group
                cosine[s] = np.einsum("ij,ij->i", z_image, z_text)
                if signs_of is not None and batch.vectors is not None:
                    signs[s] = signs_of(batch.vectors)[batch.row]
                reasons.update({first + i: why for i, why in batch.faults.items()})
                below, above = (np.flatnonzero(undecided[s] & x) for x in _below_and_above(y, settings))
                for side, z in zip(vectors, (z_image, z_text), strict=True):
                    side.append(z[below])
                best.add(first + above, y[above], z_image[above], z_text[above])
                table.write_batch(pa.RecordBatch.from_arrays([batch.keys, batch.captions], schema=TEXTS))
                first = s.stop
        mismatched, above = (np.flatnonzero(undecided & x) for x in _below_and_above(values, settings))
        order = np.argsort(best.pair)
        row = np.arange(len(mismatched) + len(order))
        for side in vectors:
            if best.vectors:
                side.append(best.vectors.pop(0)[order])
        z_image, z_text = map(_joined, vectors)
        near = [near_vector_groups(signs, settings.duplicate_bits), np.arange(n)] if len(signs) else []
        return cls(
            values, image_group, text_group, mismatched, best.pair[order], z_image, z_text, row, row,
            (_typical(cosine.__getitem__, mismatched, 0.0), _typical(cosine.__getitem__, above, 1.0)), reasons,
            lambda: _read_texts(texts), moves, np.array(near, np.int64),
        )  # fmt: skip


class _Best:
    """The pairs of the highest values among all that are added, in any order. Of equal values the first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pair, self.value = np.empty(0, np.int64), np.empty(0, np.float32)
        self.vectors: list[np.ndarray] = []  # (most, d) each: those of ``pair`` are the first

    def add(self, pair: np.ndarray, value: np.ndarray, *vectors: np.ndarray) -> None:
        """Add the next pairs (b,), rising, with their ``vectors`` (b, d)."""
        if not self.vectors:
            self.vectors = [np.empty((self.most, z.shape[1]), np.float32) for z in vectors]
        count = len(self.pair)
        pairs, values = np.append(self.pair, pair), np.append(self.value, value)
        best = np.lexsort((pairs, -values))[: self.most]
        new = best[best >= count]
        place = np.concatenate([np.setdiff1d(np.arange(count), best), np.arange(count, len(best))])
        pairs[place], values[place] = pairs[new], values[new]
        for room, z in zip(self.vectors, vectors, strict=True):
            room[place] = z[new - count]
        self.pair, self.value = pairs[: len(best)], values[: len(best)]


def _wanted_moves(moves: np.ndarray | None, settings: RepairSettings) -> np.ndarray:
    """Return the moves that the settings want."""
    if moves is not None and settings.displaced and settings.repairs != "none" and settings.replaces_text:
        return np.asarray(moves[moves["confidence"] >= settings.min_confidence])
    return np.empty(0, MOVE)


def _below_and_above(values: np.ndarray, settings: RepairSettings) -> tuple[np.ndarray, np.ndarray]:
    """Return which values (N,) are below the threshold, and which are not. NaN is neither."""
    return values < settings.resolved_threshold, values >= settings.resolved_threshold


def _without(correspondence: np.ndarray | None, faulty: Iterable[int]) -> np.ndarray:
    """Return the correspondence in float32, NaN where a pair is faulty or has none."""
    values = np.array(correspondence, np.float32)
    values[np.fromiter(faulty, np.int64)] = np.nan
    values[~np.isfinite(values)] = np.nan
    return values


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Return the rows of all ``parts``, which are given up one after the other."""
    out = np.empty((sum(map(len, parts)), parts[0].shape[1] if parts else 1), np.float32)
    end = len(out)
    while parts:
        part = parts.pop()
        out[end - len(part) : end] = part
        end -= len(part)
    return out


def _read_texts(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)


def _typical(cosine: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, otherwise: float) -> float:
    """Return the median cosine of a sample of rows, or ``otherwise`` if there is none."""
    return float(np.median(cosine(rows[:: max(1, len(rows) // 20_000)]))) if len(rows) else otherwise


def _refuse_non_finite(z: np.ndarray, rows: np.ndarray, what: str) -> None:
    blocks = (rows[start : start + 16_384] for start in range(0, len(rows), 16_384))
    bad = sum(int((~np.isfinite(z[some]).all(axis=1)).sum()) for some in blocks)
    if bad:
        raise RefusedError(f"the embeddings of {bad} {what} that are not quarantined are not finite: quarantine them")
