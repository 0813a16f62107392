"""Arrow columns: values put in the place of others, flat values regrouped into lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["flat_type", "fresh_names", "grouped", "is_list", "one_array", "replace_values", "unsliced"]


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as a single array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def unsliced(array: pa.Array) -> pa.Array:
    """The array without an offset: pyarrow 26 takes wrong values out of a slice of nested fixed-size lists."""
    return pa.concat_arrays([array]) if array.offset else array


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists, of fixed size or not."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def flat_type(kind: pa.DataType) -> pa.DataType:
    """The type of one caption of a text column: the value type of lists and of dictionaries, else the type itself."""
    while is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind


def replace_values(column: pa.ChunkedArray | pa.Array, where: np.ndarray, values: pa.Array) -> pa.Array:
    """``column`` with ``values[j]`` at position ``where[j]``, for any type; the others are untouched.

    Parameters
    ----------
    column : (n,) array
    where : (k,) int
    values : (k,) array
        Cast to the column's type.
    """
    array = one_array(column)
    if not len(where):
        return array
    index = np.arange(len(array))
    index[where] = len(array) + np.arange(len(where))
    return pa.concat_arrays([array, values if values.type == array.type else values.cast(array.type)]).take(index)


def grouped(values: pa.ChunkedArray | pa.Array, counts: np.ndarray, large: bool = False) -> pa.Array:
    """Lists of ``counts[r]`` (R,) consecutive values each."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if large:
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), one_array(values))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), one_array(values))


def fresh_names(present: list[str], added: list[str]) -> dict[str, str]:
    """New names for the columns of ``present`` that are among ``added``: ``x`` becomes ``x_input``, ``x_input_2``..."""
    taken = {*present, *added}
    renamed: dict[str, str] = {}
    for name in present:
        if name in added:
            fresh, number = f"{name}_input", 2
            while fresh in taken:
                fresh, number = f"{name}_input_{number}", number + 1
            taken.add(fresh)
            renamed[name] = fresh
    return renamed
