"""Arrow's views and extension types as the plain types that hold them: pyarrow has few kernels for others."""

from __future__ import annotations

import pyarrow as pa

from cleanpairs.ops.columns import recast


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
    if pa.types.is_map(kind):
        parts = (field.with_type(plain_type(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(*parts, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    for is_one, made in (
        (pa.types.is_fixed_size_list, lambda field: pa.list_(field, kind.list_size)),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list, pa.list_),
        (pa.types.is_list_view, pa.list_),
        (pa.types.is_large_list_view, pa.large_list),
    ):
        if is_one(kind):
            return made(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without views and extensions."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema], schema.metadata)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without views and extensions; itself where it has none."""
    schema = plain_schema(batch.schema)
    if schema.equals(batch.schema):
        return batch
    arrays = [_plain(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return _plain(column.storage, kind) if isinstance(column, pa.ExtensionArray) else recast(column, kind)
