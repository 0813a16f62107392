"""Thrift's compact protocol, in which Parquet writes its footers and the headers of its pages.

A structure is a list of (field number, type, value): what is not understood is kept and written back as it was. See
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BINARY",
    "I16",
    "I32",
    "I64",
    "LIST",
    "STRUCT",
    "Fields",
    "read_struct",
    "read_varint",
    "write_struct",
    "write_varint",
]

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
_INTS = (I16, I32, I64)
_MOST_BITS = 70  # of a number in groups of seven: more are no number but damage

Fields = list[tuple[int, int, Any]]
"""A structure: (number, type, value) of each field, in order."""


def read_varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends; IndexError where the data ends before, ValueError where it is none."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= _MOST_BITS:
            raise ValueError("a number is too long")


def _read_zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def read_struct(data: memoryview, at: int) -> tuple[Fields, int]:
    """The structure at ``at``, and where it ends.

    Raises
    ------
    ValueError, IndexError
        It is none, or is cut off.
    """
    fields: Fields = []
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == STOP:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_zigzag(data, at)
        kind = head & 0x0F
        value, at = (kind == TRUE, at) if kind in (TRUE, FALSE) else _read(data, at, kind)
        fields.append((number, kind, value))


def _read(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    if kind in _INTS:
        return _read_zigzag(data, at)
    if kind == BINARY:
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise ValueError("it is cut off")
        return bytes(data[at : at + size]), at + size
    if kind == STRUCT:
        return read_struct(data, at)
    if kind in (BYTE, TRUE, FALSE):  # within a list a truth value is a byte
        return data[at], at + 1
    if kind == DOUBLE:
        return bytes(data[at : at + 8]), at + 8
    if kind in (LIST, SET):
        head = data[at]
        at += 1
        size, inner = head >> 4, head & 0x0F
        if size == 15:
            size, at = read_varint(data, at)
        values = []
        for _ in range(size):
            value, at = _read(data, at, inner)
            values.append(value)
        return (inner, values), at
    raise ValueError(f"a value has the unknown type {kind}")


def write_varint(out: bytearray, value: int) -> None:
    """Append a number, at least 0."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_zigzag(out: bytearray, value: int) -> None:
    write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def write_struct(out: bytearray, fields: Fields) -> None:
    """Append a structure."""
    last = 0
    for number, kind, value in fields:
        kind = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_zigzag(out, number)
        last = number
        if kind not in (TRUE, FALSE):
            _write(out, kind, value)
    out.append(STOP)


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTS:
        _write_zigzag(out, value)
    elif kind == BINARY:
        write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        write_struct(out, value)
    elif kind in (BYTE, TRUE, FALSE):
        out.append(value)
    elif kind == DOUBLE:
        out += value
    else:
        inner, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | inner)
        else:
            out.append(0xF0 | inner)
            write_varint(out, len(values))
        for one in values:
            _write(out, inner, one)
