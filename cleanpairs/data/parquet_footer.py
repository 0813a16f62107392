"""Parquet's footer, which says where the column chunks of a file are: taken apart, moved and put together.

Field numbers are those of https://github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cleanpairs.data.thrift import I16, I64, LIST, STRUCT, Fields, read_struct

__all__ = [
    "MAGIC",
    "chunks_of",
    "common_part",
    "field_of",
    "footer_of",
    "moved_chunk",
    "moved_group",
    "row_group",
    "row_groups_of",
    "rows_of",
    "with_row_groups",
]

MAGIC = b"PAR1"
_NUM_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_OFFSETS, _META_DATA = (2, 4, 6), 3  # of ColumnChunk: the chunk's, its offset index's, its column index's
_PATH, _UNPACKED_SIZE, _SIZE, _DATA_PAGE, _DICTIONARY = 3, 6, 7, 9, 11  # of ColumnMetaData
_META_OFFSETS = (9, 10, 11, 14)  # of ColumnMetaData: data, index and dictionary pages, bloom filter
_MOST_ORDINAL = 2**15  # it is an i16, and optional


def footer_of(data: pa.Buffer) -> Fields:
    """The footer of a file in memory."""
    whole = memoryview(data).cast("B")  # Arrow has them signed
    (size,) = struct.unpack("<I", whole[-8:-4])
    return read_struct(whole[-8 - size : -8], 0)[0]


def field_of(fields: Fields, number: int) -> Any:
    """The value of a field that is there."""
    return next(value for n, _, value in fields if n == number)


def rows_of(footer: Fields) -> int:
    """Rows of the file."""
    return int(field_of(footer, _NUM_ROWS))


def row_groups_of(footer: Fields) -> list[Fields]:
    """The row groups."""
    found: list[Fields] = field_of(footer, _ROW_GROUPS)[1]
    return found


def common_part(footer: Fields) -> Fields:
    """All but the row groups and the number of rows: the schema, the metadata, the writer."""
    return [field for field in footer if field[0] not in (_NUM_ROWS, _ROW_GROUPS)]


def with_row_groups(footer: Fields, rows: int, groups: Sequence[Fields]) -> Fields:
    """The footer of a file with other row groups."""
    new = {_NUM_ROWS: rows, _ROW_GROUPS: (STRUCT, list(groups))}
    return [(number, kind, new.get(number, value)) for number, kind, value in footer]


def chunks_of(footer: Fields) -> dict[str, tuple[Fields, int, int]]:
    """The column chunks of a file with one row group: path -> the chunk, where it begins, and its bytes."""
    found = {}
    (group,) = row_groups_of(footer)
    for chunk in field_of(group, _COLUMNS)[1]:
        meta = {number: value for number, _, value in field_of(chunk, _META_DATA)}
        path = ".".join(part.decode() for part in meta[_PATH][1])
        begin = min(meta[_DATA_PAGE], meta.get(_DICTIONARY) or meta[_DATA_PAGE])
        found[path] = (chunk, begin, meta[_SIZE])
    return found


def row_group(chunks: Sequence[Fields], rows: int, begin: int, ordinal: int) -> Fields:
    """A row group of these chunks, the ``ordinal``-th of its file, which begins at byte ``begin``."""
    sizes = [[field_of(field_of(chunk, _META_DATA), which) for chunk in chunks] for which in (_UNPACKED_SIZE, _SIZE)]
    group: Fields = [
        (_COLUMNS, LIST, (STRUCT, list(chunks))),
        (2, I64, sum(sizes[0])),
        (3, I64, rows),
        (_GROUP_OFFSET, I64, begin),
        (6, I64, sum(sizes[1])),
    ]
    return group + ([(_ORDINAL, I16, ordinal)] if ordinal < _MOST_ORDINAL else [])


def moved_group(group: Fields, shift: int, ordinal: int) -> Fields:
    """A row group that is the ``ordinal``-th of its file and stands ``shift`` bytes later."""
    moved: Fields = []
    for number, kind, value in group:
        if number == _COLUMNS:
            value = (value[0], [moved_chunk(chunk, shift) for chunk in value[1]])
        elif number == _GROUP_OFFSET and value:
            value += shift
        elif number == _ORDINAL:
            if ordinal >= _MOST_ORDINAL:
                continue
            value = ordinal
        moved.append((number, kind, value))
    return moved


def moved_chunk(chunk: Fields, shift: int) -> Fields:
    """A column chunk that stands ``shift`` bytes later."""
    moved: Fields = []
    for number, kind, value in chunk:
        if number in _CHUNK_OFFSETS and value:
            value += shift
        elif number == _META_DATA:
            value = [(n, k, v + shift if n in _META_OFFSETS and v else v) for n, k, v in value]
        moved.append((number, kind, value))
    return moved
