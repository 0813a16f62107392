"""One batch of input rows, converted: captions, keys, vectors, hashes, and what is wrong with each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.data.columns import is_list, score_columns
from cleanpairs.data.images import cell_bytes, image_cells, vector_groups
from cleanpairs.data.text import NOT_UTF8, caption_fault, content_hash
from cleanpairs.errors import DataError
from cleanpairs.ops.columns import unsliced

__all__ = ["RowBatch", "Vectors", "convert", "vector_shape", "vectors_of"]


@dataclass(frozen=True)
class Vectors:
    """``array`` (n, R, D) float, zero where a row is bad; ``faults``: row -> why."""

    array: np.ndarray
    faults: dict[int, str]


@dataclass
class RowBatch:
    """n input rows as k pairs. ``row`` counts within the batch; ``faults``: pair (within the batch) -> reason."""

    n_rows: int
    captions: list[str] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)
    image_group: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # (n_rows,)
    vectors: np.ndarray | None = None  # (n_rows, R, D)
    true_mismatch: list[bool] | None = None
    true_key: list[str] | None = None
    given_scores: dict[str, np.ndarray] = field(default_factory=dict)  # column -> (k,) float32, NaN where missing


def vector_shape(kind: pa.DataType, column: pa.Array | None) -> tuple[int, int, np.dtype[Any]] | None:
    """(R, D, dtype) of a column of vectors: by its type, else the usual one among its rows; None where none tells."""
    fixed: list[int | None] = []
    inner = kind
    while is_list(inner):
        fixed.append(int(inner.list_size) if pa.types.is_fixed_size_list(inner) else None)
        inner = inner.value_type
    sizes: list[int] = []
    for size in fixed:
        if size is None:
            lengths = _lengths(column) if column is not None else np.empty(0, np.int64)
            values, counts = np.unique(lengths[lengths > 0], return_counts=True)
            if not len(values):
                return None
            size = int(values[counts.argmax()])
        sizes.append(size)
        column = column.flatten() if column is not None else None
    dtype = np.dtype(np.float16 if pa.types.is_float16(inner) else np.float32)
    if 0 in sizes:  # of no numbers
        return None
    return (1, sizes[0], dtype) if len(sizes) == 1 else (sizes[0], sizes[1], dtype)


def _lengths(column: pa.Array) -> np.ndarray:
    """List length (n,) int64, -1 where null."""
    return np.asarray(pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False), np.int64)


def vectors_of(column: pa.Array, shape: tuple[int, int, np.dtype[Any]]) -> Vectors:
    """A column of vectors as an array, without Python per row but for the bad ones."""
    R, D, dtype = shape
    column, n = unsliced(column), len(column)
    nested = is_list(column.type.value_type)
    outer = R if nested else D
    lengths = _lengths(column)
    faults = {
        i: "there is no vector" if lengths[i] < 0 else f"its vector has {lengths[i]} values, not {outer}"
        for i in np.flatnonzero(lengths != outer).tolist()
    }
    good = lengths == outer
    if nested and good.any():
        inner = _lengths(column.filter(pa.array(good)).flatten()).reshape(-1, R)
        ragged = (inner != D).any(axis=1)
        rows = np.flatnonzero(good)[ragged]
        faults.update({i: f"a region of its vectors has not {D} values" for i in rows.tolist()})
        good[rows] = False
    out = np.zeros((n, R, D), dtype=dtype)
    if good.any():
        flat = column.filter(pa.array(good)).flatten()
        flat = flat.flatten() if nested else flat
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and its row is quarantined
            out[good] = flat.to_numpy(zero_copy_only=False).reshape(-1, R, D)
    finite = np.isfinite(out).all(axis=(1, 2))
    for i in np.flatnonzero(~finite).tolist():
        faults[i] = "its vector is not finite"
        out[i] = 0
    return Vectors(out, faults)


def _cells(column: pa.Array | None, rows: int) -> list[Any]:
    return [None] * rows if column is None else column.to_pylist()


def _texts(column: pa.Array | None, rows: int) -> list[Any]:
    """As :func:`_cells`, but a text that is not UTF-8 comes back as its bytes: Parquet does not promise that it is."""
    try:
        return _cells(column, rows)
    except UnicodeDecodeError:
        assert column is not None
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        raw = column.cast(pa.list_(pa.binary()) if is_list(column.type) else pa.binary())
        return [[_decoded(t) for t in cell] if isinstance(cell, list) else _decoded(cell) for cell in raw.to_pylist()]


def _decoded(raw: bytes | None) -> str | bytes | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def _readable(text: str | bytes | None) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""


def convert(
    batch: pa.RecordBatch,
    columns: Mapping[str, str],
    *,
    path: str,
    image_root: str | None,
    first_row: int,
    shape: tuple[int, int, np.dtype[Any]] | None,
    faults: Mapping[int, str] | None = None,
) -> RowBatch:
    """Convert a batch of input rows; see :class:`RowBatch`.

    Parameters
    ----------
    columns : mapping
        Role -> column, as found by :func:`cleanpairs.data.columns.find_columns`.
    first_row : int
        Input row of the batch's first: names rows without a key.
    shape : (R, D, dtype)
        Of the vectors, where there are any.
    faults : mapping, optional
        Row of the batch -> what is wrong with it, known to the reader already.
    """

    def column(name: str | None) -> pa.Array | None:
        return batch.column(name) if name is not None and name in batch.schema.names else None

    n = len(batch)
    out = RowBatch(n)
    row_faults: dict[int, str] = {}
    if "features" in columns:
        values = column(columns["features"])
        assert values is not None
        if shape is None:
            row_faults = {i: "there is no vector" for i in range(n)}
            out.vectors = np.zeros((n, 1, 1), np.float32)
        else:
            vectors = vectors_of(values, shape)
            out.vectors, row_faults = vectors.array, vectors.faults
        out.image_group = vector_groups(out.vectors)
    else:
        out.image_group, row_faults = _image_groups(column(columns["image"]), path, image_root, first_row)
    row_faults |= faults or {}
    keys = _texts(column(columns.get("key")), n)
    captions = _texts(column(columns["text"]), n)
    lists = is_list(batch.schema.field(columns["text"]).type)
    mismatch, true_key = _cells(column("true_mismatch"), n), _texts(column("true_key"), n)
    has_truth = "true_mismatch" in batch.schema.names
    out.true_mismatch, out.true_key = ([], []) if has_truth else (None, None)
    for i in range(n):
        texts = captions[i] if lists else [captions[i]]
        if not texts:
            texts = [None]
        for position, text in enumerate(texts):
            pair = len(out.captions)
            fault = row_faults.get(i)
            fault = fault or (NOT_UTF8 if isinstance(text, bytes) else caption_fault(text))
            if fault:
                out.faults[pair] = fault
            out.captions.append(_readable(text))
            out.row.append(i)
            out.position.append(position)
            key = first_row + i if keys[i] is None else keys[i]
            out.keys.append(str(_readable(key) if isinstance(key, bytes) else key))
            if has_truth:
                assert out.true_mismatch is not None and out.true_key is not None
                out.true_mismatch.append(bool(_nth(mismatch[i], position)))
                out.true_key.append(str(_nth(true_key[i], position) or ""))
    for name in score_columns(columns):
        out.given_scores[name] = _scores(column(name), out)
    return out


def _scores(column: pa.Array | None, rows: RowBatch) -> np.ndarray:
    """The given score of each pair, (k,) float32: its row's number, or its own in the row's list."""
    if column is None:
        return np.full(len(rows.row), np.nan, np.float32)
    if is_list(column.type):
        cells = column.to_pylist()
        own = [_nth(cells[i], position) for i, position in zip(rows.row, rows.position, strict=True)]
        values = np.array([np.nan if value is None else value for value in own], np.float64)
    else:
        values = column.to_numpy(zero_copy_only=False)[rows.row]  # nulls come as NaN
    with np.errstate(over="ignore"):  # beyond float32: infinite
        return np.asarray(values.astype(np.float32))


def _nth(value: Any, position: int) -> Any:
    """The entry of a truth column for one caption: it may be a list, as the captions are."""
    if isinstance(value, list):
        return value[position] if position < len(value) else None
    return value


def _image_groups(
    column: pa.Array | None, path: str, image_root: str | None, first_row: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Content hash (n,) of each row's encoded image, and why a row has none."""
    assert column is not None
    root = Path(image_root) if image_root is not None else Path(path).parent
    groups = np.empty(len(column), dtype=np.int64)
    faults: dict[int, str] = {}
    for i, value in enumerate(image_cells(column)):
        try:
            groups[i] = content_hash(cell_bytes(value, root))
        except DataError as error:
            faults[i] = str(error)
            groups[i] = content_hash(f"missing {first_row + i}".encode())
    return groups, faults
