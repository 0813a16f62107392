"""Arrow columns: rows taken out, values replaced or regrouped into lists, views and extension types made plain ones,
text that can be read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Data = TypeVar("Data", pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)
Frame = TypeVar("Frame", pa.RecordBatch, pa.Table)
Rows = TypeVar("Rows", bound=Sized)


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The column as a single array."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def taken(data: Data, rows: np.ndarray | pa.Array) -> Data:
    """The ``rows`` (k,) int64 of a column or a table, in any order, null where a row is. The data itself for all rows.

    Rows are taken out of Arrow data here and in :func:`filtered` only. From a slice of fixed-size lists of fixed-size
    lists, pyarrow 26 takes the values of other rows or of none.
    """
    if isinstance(rows, np.ndarray):
        n = len(data)
        if len(rows) == n and (not n or (rows[0] == 0 and rows[-1] == n - 1 and bool((np.diff(rows) == 1).all()))):
            return data
        rows = pa.array(rows, pa.int64())
    return _without_offsets(data).take(rows)


def filtered(data: Data, mask: np.ndarray | pa.Array) -> Data:
    """The rows of a column or a table at which ``mask`` (n,) bool is true. See :func:`taken`."""
    return _without_offsets(data).filter(mask if isinstance(mask, pa.Array) else pa.array(mask, pa.bool_()))


def numbered(batches: Iterable[Rows], first: int = 0) -> Iterator[tuple[int, Rows]]:
    """Consecutive batches of rows, each behind the number of its first row."""
    for batch in batches:
        yield first, batch
        first += len(batch)


def picked(batches: Iterable[Data], rows: np.ndarray) -> Iterator[Data]:
    """The ``rows`` (k,) int64, rising, of consecutive batches: of each batch those that are in it."""
    for first, batch in numbered(batches):
        yield taken(batch, rows[slice(*np.searchsorted(rows, [first, first + len(batch)]))] - first)


def _without_offsets(data: Any) -> Any:
    """The same values, but nested fixed-size lists, at any depth, copied into arrays that begin with their first."""
    if isinstance(data, pa.Array):
        return pa.concat_arrays([data]) if _nested(data.type) else data
    if isinstance(data, pa.ChunkedArray):
        return pa.chunked_array(map(_without_offsets, data.chunks), data.type) if _nested(data.type) else data
    if not any(_nested(field.type) for field in data.schema):
        return data
    return type(data).from_arrays([_without_offsets(column) for column in data.columns], schema=data.schema)


def _nested(kind: pa.DataType) -> bool:
    """Whether a fixed-size list of fixed-size lists is anywhere in the type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _nested(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _nested(kind.value_type)
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    if pa.types.is_fixed_size_list(kind) and pa.types.is_fixed_size_list(kind.value_type):
        return True
    return any(map(_nested, parts))


def repeats_names(kind: pa.DataType) -> bool:
    """Whether a struct has two parts of one name, anywhere in the type: such a value has no form in Python."""
    parts = [kind.field(i) for i in range(kind.num_fields)]
    twice = pa.types.is_struct(kind) and len({part.name for part in parts}) < len(parts)
    return twice or any(repeats_names(part.type) for part in parts)


def as_schema(data: Frame, schema: pa.Schema) -> Frame:
    """A table or a batch with the types and metadata of ``schema``, whose columns it has. See :func:`recast`."""
    return type(data).from_arrays([recast(data.column(field.name), field.type) for field in schema], schema=schema)


def recast(column: Any, kind: pa.DataType) -> Any:
    """The array, or chunked array, as another type. Value by value where pyarrow has no right cast."""
    if column.type.equals(kind):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([recast(chunk, kind) for chunk in column.chunks], kind)
    if isinstance(column, pa.ExtensionArray):
        return recast(column.storage, kind)
    # What pyarrow 26 casts to invalid arrays: views of lists with nulls, and slices of lists of the type null.
    if not re.search(r"list_view|(?<!not )\bnull\b", str(column.type)):
        try:
            return column.cast(kind)
        except pa.ArrowNotImplementedError:  # inside of maps and dictionaries
            pass
    return pa.array(column.to_pylist(), kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without views and extensions: string for string_view and arrow.json, inside lists and structs too."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return _with_parts(kind, lambda field: field.with_type(plain_type(field.type)))


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionaries, at every depth: that of their values in place of each."""
    if pa.types.is_dictionary(kind):
        return decoded_type(kind.value_type)
    return _with_parts(kind, lambda field: field.with_type(decoded_type(field.type)))


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """The type whose lists and structs may hold nulls, at every depth."""
    return _with_parts(kind, lambda field: field.with_type(nullable_type(field.type)).with_nullable(True))


def _with_parts(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """A map, a struct or a list whose parts are changed. A view of a list becomes a list."""
    if pa.types.is_map(kind):
        key, item = change(kind.key_field).with_nullable(False), change(kind.item_field)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([change(field) for field in kind])
    for is_kind, list_of in (
        (pa.types.is_fixed_size_list, lambda field: pa.list_(field, kind.list_size)),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list, pa.list_),
        (pa.types.is_list_view, pa.list_),
        (pa.types.is_large_list_view, pa.large_list),
    ):
        if is_kind(kind):
            return list_of(change(kind.value_field))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without views and extensions."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema], schema.metadata)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without views and extensions. The batch itself where it has none."""
    schema = plain_schema(batch.schema)
    return batch if schema.equals(batch.schema) else as_schema(batch, schema)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of this type are lists, of fixed size or not."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_image_struct(kind: pa.DataType) -> bool:
    """Whether the type is struct<bytes, path>, the storage of `datasets`' Image."""
    return bool(pa.types.is_struct(kind)) and {part.name for part in kind} == {"bytes", "path"}


def flat_type(kind: pa.DataType) -> pa.DataType:
    """The type of one caption of a text column: the value type of lists and of dictionaries, else the type itself."""
    while is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind


def list_lengths(array: pa.Array) -> np.ndarray:
    """Lengths (n,) int64 of lists, 0 where there is no list."""
    return np.asarray(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), np.int64)


def readable(array: pa.Array) -> pa.Array:
    """A column as plain strings, of whole numbers too, with what is not UTF-8 replaced."""
    return decoded(array)[0]


def decoded(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """As :func:`readable`, and the rows that were not UTF-8."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    text = array.cast(pa.string(), safe=False) if not pa.types.is_string_view(array.type) else array.cast(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        cells = text.cast(pa.binary()).to_pylist()
        texts = [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]
        not_utf8 = [i for i, text in enumerate(texts) if text is not None and text.encode() != cells[i]]
        return pa.array(texts, pa.string()), not_utf8
    return text, []


def whole_numbers(column: pa.Array) -> pa.Array:
    """Floats as whole numbers, null where one is none: pandas makes floats of numbers of which one is missing."""
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)  # nulls come as NaN
    whole = (np.trunc(values) == values) & (np.abs(values) < 2**53)
    return pa.array(np.where(whole, values, 0).astype(np.int64), mask=~whole)


def replace_values(column: pa.ChunkedArray | pa.Array, positions: np.ndarray, values: pa.Array) -> pa.Array:
    """``column`` (n,) with ``values[j]``, cast to its type, at ``positions[j]`` (k,)."""
    array = one_array(column)
    if not len(positions):
        return array
    index = np.arange(len(array))
    index[positions] = len(array) + np.arange(len(positions))
    return taken(pa.concat_arrays([array, values if values.type == array.type else values.cast(array.type)]), index)


def grouped(values: pa.ChunkedArray | pa.Array, counts: np.ndarray, large: bool = False) -> pa.Array:
    """Lists of ``counts[r]`` (R,) consecutive values each."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    array_type, offset_type = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    return array_type.from_arrays(pa.array(offsets, offset_type), one_array(values))


def with_columns(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return ``table`` with new values in ``columns``."""
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def fresh_names(present: list[str], added: list[str]) -> dict[str, str]:
    """New names for the columns of ``present`` that are among ``added``: ``x`` becomes ``x_input``, ``x_input_2``..."""
    used = {*present, *added}
    renamed: dict[str, str] = {}
    for name in present:
        if name in added:
            fresh, number = f"{name}_input", 2
            while fresh in used:
                fresh, number = f"{name}_input_{number}", number + 1
            used.add(fresh)
            renamed[name] = fresh
    return renamed
