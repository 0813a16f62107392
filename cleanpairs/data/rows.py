"""One batch of input rows, converted: captions, keys, vectors, hashes, and the faults of rows."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError
from cleanpairs.data.captions import Faults
from cleanpairs.data.columns import score_columns
from cleanpairs.data.images import cell_bytes, comparable_vectors, image_cells, named_file, vector_groups
from cleanpairs.data.text import NO_DOWNLOAD, NOT_UTF8, concerns_caption, content_hash, text_groups, unusable_captions
from cleanpairs.ops.columns import decoded, grouped, is_list, list_lengths, readable, taken, whole_numbers

Shape = tuple[int, int, np.dtype[Any]]  # (R, D, dtype)
Vectors = tuple[np.ndarray, dict[int, str]]


@dataclass(frozen=True)
class Rows:
    """Input rows in a batch, and the file that they are from.

    Some rows are unusable: ``faults`` is row of the batch -> reason. Some have an unusable caption: ``caption_faults``.
    """

    path: str
    batch: pa.RecordBatch
    faults: Mapping[int, str] = field(default_factory=dict)
    caption_faults: Faults = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch)

    def at(self, rows: np.ndarray) -> "Rows":
        """Some ``rows`` (k,) of these."""
        return Rows(self.path, taken(self.batch, rows), *faults_at(rows, self.faults, self.caption_faults))


def faults_at(rows: np.ndarray, faults: Mapping[int, str], captions: Faults) -> tuple[dict[int, str], Faults]:
    """The faults of some ``rows`` (k,), and those of their ``captions``, by the place among these rows."""
    place = {row: k for k, row in enumerate(rows.tolist())}
    of_captions = {(place[row], k): why for (row, k), why in captions.items() if row in place}
    return {k: faults[row] for row, k in place.items() if row in faults}, of_captions


@dataclass
class RowBatch:
    """n input rows as k pairs. ``row`` counts within the batch. ``faults``: pair (within the batch) -> reason.

    ``named``: row (within the batch) -> the path of its image, and the folder of the table that names it.
    """

    n_rows: int
    captions: pa.Array  # (k,) string, no nulls
    row: np.ndarray  # (k,) int64
    position: np.ndarray  # (k,) int64
    keys: pa.Array  # (k,) string, no nulls
    faults: dict[int, str]
    image_group: np.ndarray  # (n_rows,), empty unless wanted
    vectors: np.ndarray | None = None  # (n_rows, R, D)
    text_vectors: np.ndarray | None = None  # (k, D)
    true_mismatch: list[bool | None] | None = None
    true_key: list[str] | None = None
    precomputed_scores: dict[str, np.ndarray] = field(default_factory=dict)  # column -> (k,) float32, NaN where missing
    named: dict[int, tuple[str, str]] = field(default_factory=dict)
    captioned: bool = True  # else the captions are empty, and only their vectors identify them

    @property
    def text_group(self) -> np.ndarray:
        """(k,) int64: equal = the same text. Where there are no captions, the same vector."""
        if self.captioned or self.text_vectors is None:
            return text_groups(self.captions)
        return vector_groups(self.text_vectors)


def vector_shape(column: pa.Array) -> Shape | None:
    """(R, D, dtype) of a column of vectors: by its type, else the commonest of its rows. None where all are empty."""
    sizes: list[int] = []
    while is_list(column.type):
        if pa.types.is_fixed_size_list(column.type):
            sizes.append(int(column.type.list_size))
        else:
            lengths = list_lengths(column)
            values, counts = np.unique(lengths[lengths > 0], return_counts=True)
            if not len(values):
                return None
            sizes.append(int(values[counts.argmax()]))
        column = column.flatten()
    R, D = [1, *sizes][-2:]
    return None if 0 in sizes else (R, D, np.dtype(np.float16 if pa.types.is_float16(column.type) else np.float32))


def vectors_of(column: pa.Array, shape: Shape | None, what: str = "vector") -> Vectors:
    """Vectors (n, R, D), not to be written, zero where a row is bad, and row -> why. ``what``: their name."""
    n = len(column)
    if shape is None:
        return np.zeros((n, 1, 1), np.float32), {i: f"there is no {what}" for i in range(n)}
    R, D, dtype = shape
    nested = is_list(column.type.value_type)
    outer, lengths = R if nested else D, list_lengths(column)
    good = lengths == outer
    faults = {i: f"its {what} has the length {lengths[i]}, not {outer}" for i in np.flatnonzero(~good).tolist()}
    faults |= dict.fromkeys(np.flatnonzero(column.is_null()).tolist(), f"there is no {what}")
    if nested and good.any():
        inner = list_lengths(taken(column, np.flatnonzero(good)).flatten()).reshape(-1, R)
        rows = np.flatnonzero(good)[(inner != D).any(axis=1)]
        faults.update({i: f"a region of its {what}s has not {D} values" for i in rows.tolist()})
        good[rows] = False
    out = np.zeros((0 if good.all() else n, R, D), dtype=dtype)
    if good.any():
        flat = taken(column, np.flatnonzero(good)).flatten()
        flat = flat.flatten() if nested else flat
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and its row is quarantined
            values = flat.to_numpy(zero_copy_only=False).reshape(-1, R, D)
            if len(values) == n:
                out = values.astype(dtype, copy=False)
            else:
                out[good] = values
    out, bad = comparable_vectors(out, what)
    return out, bad | faults


def texts_of(column: pa.Array) -> list[Any]:
    """The texts of a column, or its lists of texts."""
    if is_list(column.type):
        return grouped(readable(column.flatten()), list_lengths(column)).to_pylist()
    return readable(column).to_pylist()


def convert(
    rows: Rows, columns: Mapping[str, str], shapes: Mapping[str, Shape | None], *, image_root: str | None,
    first_row: int, names: pa.Array, hash_vectors: bool = True,
) -> RowBatch:  # fmt: skip
    """A batch of input rows, converted.

    - ``columns``: role -> column
    - ``shapes``: those of the vectors of ``features`` and ``text_features``
    - ``names``: names of the rows where there is no column of keys
    - ``hash_vectors``: whether ``image_group`` is wanted, which takes 3 microseconds a row
    """
    batch = rows.batch

    def column(name: str | None) -> pa.Array | None:
        return batch.column(name) if name is not None and name in batch.schema.names else None

    n, vectors, groups, named = len(batch), None, np.empty(0, np.int64), dict[int, tuple[str, str]]()
    if "features" in columns:
        vectors, row_faults = vectors_of(batch.column(columns["features"]), shapes["features"])
        groups = vector_groups(vectors) if hash_vectors else groups
    else:
        cells = image_cells(batch.column(columns["image"]))
        groups, row_faults = _image_hashes(cells, rows.path, image_root, first_row)
        paths = enumerate(map(named_file, cells))
        named = {i: (path, os.path.dirname(rows.path)) for i, path in paths if path is not None}
    row_faults |= rows.faults
    if row_faults and (status := column("status")) is not None:
        why = column("error_message")
        outcomes = zip(image_cells(status), [None] * n if why is None else image_cells(why), strict=True)
        failed = {i: message or word for i, (word, message) in enumerate(outcomes) if str(word).startswith("failed")}
        row_faults |= {i: f"{NO_DOWNLOAD}: {failed[i]}" for i in row_faults.keys() & failed.keys()}
    captions, keys = column(columns.get("text")), column(columns.get("key"))
    if keys is not None:  # a number alone may be the key of another row
        names = pc.binary_join_element_wise("row", row_numbers(first_row, n), " ")
    pairs = _pairs(captions, names, keys, row_faults, rows.caption_faults)
    out = RowBatch(n, *pairs, image_group=groups, vectors=vectors, named=named, captioned=captions is not None)

    def of_pairs(cells: list[Any]) -> list[Any]:  # the row's value, or the pair's in the row's list
        at = ((cells[i], k) for i, k in zip(out.row.tolist(), out.position.tolist(), strict=True))
        return [(cell[k : k + 1] or [None])[0] if isinstance(cell, list) else cell for cell, k in at]

    if "true_mismatch" in batch.schema.names:
        true_key = column("true_key")
        out.true_mismatch = of_pairs(batch.column("true_mismatch").to_pylist())
        out.true_key = None if true_key is None else [str(key or "") for key in of_pairs(texts_of(true_key))]
    texts = column(columns.get("text_features"))
    if texts is not None:
        vectors, why = vectors_of(texts, shapes["text_features"], "text vector")
        out.text_vectors, out.faults = vectors[:, 0], why | out.faults
    for name in score_columns(columns):
        given = batch.column(name)
        if is_list(given.type):
            values = np.array(of_pairs(given.to_pylist()), np.float64)
        else:
            values = given.to_numpy(zero_copy_only=False)[out.row]  # nulls come as NaN
        with np.errstate(over="ignore"):  # beyond float32: infinite
            out.precomputed_scores[name] = values.astype(np.float32)
    return out


def _image_hashes(
    cells: list[Any], path: str, image_root: str | None, first_row: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Content hashes (n,) of encoded images, and row -> why there is none."""
    table_folder, groups, faults = Path(path).parent, np.empty(len(cells), np.int64), dict[int, str]()
    root = table_folder if image_root is None else Path(image_root)
    for i, value in enumerate(cells):
        try:
            groups[i] = content_hash(cell_bytes(value, root, table_folder))
        except DataError as error:
            faults[i] = str(error)
            groups[i] = content_hash(f"missing {first_row + i}".encode())
    return groups, faults


def row_numbers(first: int, n: int) -> pa.Array:
    """The numbers of the rows from ``first`` on (n,), as texts."""
    return pa.array(np.arange(first, first + n)).cast(pa.string())


def _pairs(
    captions: pa.Array | None, names: pa.Array, keys: pa.Array | None, faults: dict[int, str], caption_faults: Faults
) -> tuple[pa.Array, np.ndarray, np.ndarray, pa.Array, dict[int, str]]:
    """The captions, rows, positions, keys and faults of the pairs of n rows with ``names``. ``faults``: row -> why."""
    n = len(names)
    row, position = np.arange(n), np.zeros(n, np.int64)
    texts = pa.nulls(n, pa.string()) if captions is None else captions
    if is_list(texts.type):
        lengths = list_lengths(texts)
        counts = np.maximum(lengths, 1)  # a row without captions is a pair without one
        row = np.repeat(np.arange(n), counts)
        position = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        has_caption = lengths[row] > 0
        texts = taken(texts.flatten(), pa.array(np.cumsum(has_caption) - 1, mask=~has_caption))
    texts, not_utf8 = decoded(texts)
    if keys is not None:
        texts_of_keys = readable(keys)
        if pa.types.is_floating(keys.type):
            fractions = pc.if_else(pc.equal(texts_of_keys, "nan"), None, texts_of_keys)
            texts_of_keys = pc.coalesce(whole_numbers(keys).cast(pa.string()), fractions)
        names = pc.coalesce(texts_of_keys, names) if texts_of_keys.null_count else texts_of_keys
    reasons: dict[int, str] = {}
    if captions is not None:
        reasons = unusable_captions(texts.to_pylist())
        reasons |= dict.fromkeys(not_utf8, NOT_UTF8)
        reasons |= {int(np.searchsorted(row, i)) + k: fault for (i, k), fault in caption_faults.items()}
    return texts.fill_null(""), row, position, taken(names, row), with_row_faults(reasons, row, faults)


def with_row_faults(reasons: dict[int, str], rows: np.ndarray, faults: Mapping[int, str]) -> dict[int, str]:
    """The ``reasons`` of pairs, and ``faults`` of their ``rows`` (N,), which come before reasons of the captions."""
    for pair in np.flatnonzero(np.isin(rows, list(faults))).tolist():
        if pair not in reasons or concerns_caption(reasons[pair]):
            reasons[pair] = faults[int(rows[pair])]
    return dict(sorted(reasons.items()))
