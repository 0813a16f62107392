"""Parquet files put one after another without being decoded: their bytes are copied, their footers are merged.

A Parquet file is ``PAR1``, the row groups, a footer and the footer's length. The footer, a Thrift structure in the
compact protocol, says where in the file every column chunk begins; moved into another file, all of these move by one
number. No library joins files so (pyarrow writes row groups anew), and for vectors the encoding is nearly all the work
of an export. Field numbers are those of https://github.com/apache/parquet-format, parquet.thrift.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cleanpairs.errors import DataError, OutputError

__all__ = ["Segment", "join_parquet"]

MAGIC = b"PAR1"
_COPY = 8 * 2**20
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTS = (4, 5, 6)
_NUM_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData
_COLUMNS, _GROUP_OFFSET, _ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_OFFSETS, _META_DATA = (2, 4, 6), 3  # of ColumnChunk: the chunk's, its offset index's, its column index's
_META_OFFSETS = (9, 10, 11, 14)  # of ColumnMetaData: data, index and dictionary pages, bloom filter
_MOST_ORDINAL = 2**15  # it is an i16, and optional

Fields = list[tuple[int, int, Any]]
"""A structure: (number, type, value) of each field, in order."""


@dataclass(frozen=True)
class Segment:
    """A Parquet file within a file: ``size`` bytes of ``path`` from ``start`` on."""

    path: Path
    start: int
    size: int


def join_parquet(segments: Sequence[Segment], out: str | Path) -> int:
    """Write the rows of all ``segments``, in order, into the file ``out``; the number of rows.

    Parameters
    ----------
    segments : sequence of Segment
        At least one, all with the same schema, metadata and writer.

    Raises
    ------
    DataError
        A segment is no Parquet file, or differs from the first.
    OutputError
        ``out`` cannot be written.
    """
    whole: Fields = []
    groups: list[Fields] = []
    rows = 0
    try:
        with open(out, "wb") as target:
            target.write(MAGIC)
            for segment in segments:
                footer, begins = _footer(segment)
                if not whole:
                    whole = footer
                elif _common(footer) != _common(whole):
                    raise DataError(f"{segment.path} has another schema than {segments[0].path}: they cannot be joined")
                shift = target.tell() - len(MAGIC)
                for group in _value(footer, _ROW_GROUPS)[1]:
                    groups.append(_moved_group(group, shift, len(groups)))
                rows += _value(footer, _NUM_ROWS)
                _copy(segment, begins, target)
            counted = {_NUM_ROWS: rows, _ROW_GROUPS: (_STRUCT, groups)}
            encoded = bytearray()
            _write_struct(encoded, [(n, kind, counted.get(n, value)) for n, kind, value in whole])
            target.write(bytes(encoded) + struct.pack("<I", len(encoded)) + MAGIC)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{out} cannot be written: {error.strerror or error}") from error
    return rows


def _footer(segment: Segment) -> tuple[Fields, int]:
    """The footer of a segment, and where in the segment it begins."""
    try:
        with open(segment.path, "rb") as file:
            file.seek(segment.start + segment.size - 8)
            size, magic = struct.unpack("<I4s", file.read(8))
            begins = segment.size - 8 - size
            if magic != MAGIC or begins < len(MAGIC):
                raise DataError(f"{segment.path} is no Parquet file: it does not end as one")
            file.seek(segment.start + begins)
            return _read_struct(memoryview(file.read(size)), 0)[0], begins
    except (OSError, struct.error, IndexError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{segment.path} cannot be read as Parquet: {error}") from error


def _copy(segment: Segment, end: int, target: IO[bytes]) -> None:
    """The row groups of a segment; by the kernel, where it can."""
    left = end - len(MAGIC)
    target.flush()
    with open(segment.path, "rb") as file:
        at = segment.start + len(MAGIC)
        while left:
            moved = os.sendfile(target.fileno(), file.fileno(), at, min(left, _COPY))
            if not moved:
                raise DataError(f"{segment.path} is shorter than it was")
            at, left = at + moved, left - moved
    target.seek(0, os.SEEK_END)


def _common(footer: Fields) -> Fields:
    return [field for field in footer if field[0] not in (_NUM_ROWS, _ROW_GROUPS)]


def _value(fields: Fields, number: int) -> Any:
    return next(value for n, _, value in fields if n == number)


def _moved_group(group: Fields, shift: int, ordinal: int) -> Fields:
    """A row group that is the ``ordinal``-th of its file and stands ``shift`` bytes later."""
    moved: Fields = []
    for number, kind, value in group:
        if number == _COLUMNS:
            value = (value[0], [_moved_chunk(chunk, shift) for chunk in value[1]])
        elif number == _GROUP_OFFSET and value:
            value += shift
        elif number == _ORDINAL:
            if ordinal >= _MOST_ORDINAL:
                continue
            value = ordinal
        moved.append((number, kind, value))
    return moved


def _moved_chunk(chunk: Fields, shift: int) -> Fields:
    moved: Fields = []
    for number, kind, value in chunk:
        if number in _CHUNK_OFFSETS and value:
            value += shift
        elif number == _META_DATA:
            value = [(n, k, v + shift if n in _META_OFFSETS and v else v) for n, k, v in value]
        moved.append((number, kind, value))
    return moved


# -- Thrift's compact protocol ----------------------------------------------------------------------------------------


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _read_zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_struct(data: memoryview, at: int) -> tuple[Fields, int]:
    fields: Fields = []
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == _STOP:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_zigzag(data, at)
        kind = head & 0x0F
        value, at = (kind == _TRUE, at) if kind in (_TRUE, _FALSE) else _read(data, at, kind)
        fields.append((number, kind, value))


def _read(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in _INTS:
        return _read_zigzag(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        if at + size > len(data):
            raise ValueError("its footer is cut off")
        return bytes(data[at : at + size]), at + size
    if kind == _STRUCT:
        return _read_struct(data, at)
    if kind in (_BYTE, _TRUE, _FALSE):  # within a list a truth value is a byte
        return data[at], at + 1
    if kind == _DOUBLE:
        return bytes(data[at : at + 8]), at + 8
    if kind in (_LIST, _SET):
        head = data[at]
        at += 1
        size, inner = head >> 4, head & 0x0F
        if size == 15:
            size, at = _read_varint(data, at)
        values = []
        for _ in range(size):
            value, at = _read(data, at, inner)
            values.append(value)
        return (inner, values), at
    raise ValueError(f"its footer has a value of the unknown type {kind}")


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_zigzag(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_struct(out: bytearray, fields: Fields) -> None:
    last = 0
    for number, kind, value in fields:
        kind = (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_zigzag(out, number)
        last = number
        if kind not in (_TRUE, _FALSE):
            _write(out, kind, value)
    out.append(_STOP)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTS:
        _write_zigzag(out, value)
    elif kind == _BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == _STRUCT:
        _write_struct(out, value)
    elif kind in (_BYTE, _TRUE, _FALSE):
        out.append(value)
    elif kind == _DOUBLE:
        out += value
    else:
        inner, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | inner)
        else:
            out.append(0xF0 | inner)
            _write_varint(out, len(values))
        for one in values:
            _write(out, inner, one)
