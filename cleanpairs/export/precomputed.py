"""Columns that the input computed from caption or image (vectors of captions, similarities) once either is another.

A vector or a similarity of the old caption beside the new one would be noise of our own making: a caption that is lent
brings its vector along, and what is not known is null.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.ops.columns import flat_type, grouped, replace_values, taken


def list_type(kind: pa.DataType) -> pa.DataType:
    """The type of a list of scores in the cleaned file: of any number of captions, each with or without a score."""
    flat = flat_type(kind)
    return pa.large_list(flat) if pa.types.is_large_list(kind) else pa.list_(flat)


def without(column: pa.Array, where: np.ndarray) -> pa.Array:
    """``column`` (n,) of any type with nulls at the rows ``where`` (k,) int64."""
    return replace_values(column, where, pa.nulls(len(where), column.type))


def replaced_vectors(
    column: pa.Array, donated_to: np.ndarray, donor_values: pa.Array | None, unknown: np.ndarray
) -> pa.Array:
    """``column`` (n,) with ``donor_values`` (k,) at the rows ``donated_to`` (k,), and nulls at those ``unknown``."""
    values = pa.nulls(len(unknown), column.type)
    if donor_values is not None:  # at once: each replacement copies the column
        values = pa.concat_arrays([donor_values, values])
    return replace_values(column, np.concatenate([donated_to, unknown]), values)


def of_pairs(column: pa.Array, row: np.ndarray, position: np.ndarray, bare: np.ndarray) -> pa.Array:
    """One score a pair (k,) out of a ``column`` (n,) of lists: that in its ``row`` (k,) int64 at its ``position`` (k,);
    null where the list is short, or the pair has none any more, ``bare`` (k,) bool.
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    starts = np.cumsum(lengths) - lengths
    missing = bare | (position >= lengths[row])
    at = pa.array(np.where(missing, 0, starts[row] + position), mask=missing)
    return taken(column.flatten(), at).cast(flat_type(column.type))


def along_captions(column: pa.Array, scores: pa.Array, counts: np.ndarray, changed: np.ndarray) -> pa.Array:
    """A ``column`` (n,) of lists of scores of which the rows ``changed`` (m,) int64 are made anew, of the ``scores``
    (k,) of the pairs left, one after the other, ``counts`` (n,) in each row.
    """
    kind = list_type(column.type)
    column = column if column.type.equals(kind) else column.cast(kind)
    if not len(changed):
        return column
    lists = taken(grouped(scores, counts, large=pa.types.is_large_list(kind)), changed)
    return replace_values(column, changed, lists)
