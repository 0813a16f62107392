"""A Parquet file whose vectors are written as they lie: the other columns by Arrow, one row group at a time.

Arrow puts the levels of a list of numbers together number by number, which is most of the work of writing vectors. Here
the pages of vectors are put together from levels that are known beforehand and from the numbers as they are in memory;
Arrow writes the rest of a row group into memory, from where its column chunks are copied, and an empty file, from which
the footer is taken. What has lists of several lengths, or null numbers in them, is written by Arrow too. The pages are
read by :mod:`cleanpairs.data.vector_pages`, and by any reader of Parquet:
https://github.com/apache/parquet-format.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanpairs.data.parquet_footer import MAGIC, chunks_of, footer_of, moved_chunk, row_group, with_row_groups
from cleanpairs.data.thrift import BINARY, I32, I64, LIST, STRUCT, Fields, write_struct, write_varint
from cleanpairs.ops.columns import is_list

__all__ = ["VectorWriter", "vector_leaves"]

PAGE = 2**20  # bytes of a page, about
_PHYSICAL = {pa.float16(): 7, pa.float32(): 4, pa.float64(): 5}  # Parquet's numbers of the types
_PLAIN, _RLE = 0, 3


@dataclass(frozen=True)
class Leaf:
    """A column of vectors: ``place`` of its column and, within a struct, of the field in it; its name in Parquet."""

    place: tuple[int, ...]
    path: str
    kind: pa.DataType
    outer: int  # the definition level of a list that is null in a struct that is there: 1 where the struct may be null
    deepest: int  # and of a number that is there


@dataclass(frozen=True)
class _Piece:
    """Some rows: the definition level of each that has no list, ``deepest`` for the others, whose numbers follow."""

    levels: np.ndarray  # (rows,) uint8
    size: int  # numbers of a list; 0 where there is none
    values: memoryview  # lists * size * bytes of a number


def vector_leaves(schema: pa.Schema, columns: pq.ParquetSchema) -> list[Leaf]:
    """The columns of vectors in a schema, and in its structs; ``columns`` is how Parquet has the schema."""
    paths = {columns.column(i).path: columns.column(i) for i in range(len(columns))}
    found: list[Leaf] = []
    for i, field in enumerate(schema):
        inner: list[tuple[tuple[int, ...], pa.Field, bool, int]] = [((i,), field, False, 0)]
        if pa.types.is_struct(field.type):
            inner = [((i, j), part, True, int(field.nullable)) for j, part in enumerate(field.type)]
        for place, part, nested, outer in inner:
            if not is_list(part.type) or part.type.value_type not in _PHYSICAL:
                continue
            start = f"{field.name}.{part.name}." if nested else f"{field.name}."
            named = [path for path in paths if path.startswith(start)]
            deepest = outer + part.nullable + 1 + part.type.value_field.nullable
            if (
                len(named) == 1
                and paths[named[0]].max_definition_level == deepest
                and named[0].count(".") == len(place) + 1
            ):
                found.append(Leaf(place, named[0], part.type, outer, deepest))
    return found


class VectorWriter:
    """Writes row groups of one schema; what :class:`cleanpairs.data.writing.ParquetSink` needs of a writer.

    Parameters
    ----------
    path : path
    schema : pa.Schema
    hashed : bool
        Make :attr:`sha256` while writing.
    **options
        Of :class:`pyarrow.parquet.ParquetWriter`.

    Raises
    ------
    OSError
        The file cannot be written.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, hashed: bool = False, **options: Any) -> None:
        self._options = options
        empty = pa.BufferOutputStream()
        pq.ParquetWriter(empty, schema, **options).close()
        whole = empty.getvalue()
        self._template = footer_of(whole)
        columns = pq.ParquetFile(pa.BufferReader(whole)).schema
        self._paths = [columns.column(i).path for i in range(len(columns))]
        self._leaves = vector_leaves(schema, columns)
        self._groups: list[Fields] = []
        self._rows = self._at = 0
        self._digest = hashlib.sha256() if hashed else None
        self._file = path.open("wb")
        self._put(MAGIC)

    def write_table(self, table: pa.Table, row_group_size: int) -> None:
        """Write a row group; ``row_group_size`` is at least the rows of ``table``."""
        pieces = {leaf.path: _pieces(leaf, table.column(leaf.place[0])) for leaf in self._leaves}
        plain = {leaf.path: leaf for leaf in self._leaves if pieces[leaf.path] is not None}
        rest = _without(table, [leaf.place for leaf in plain.values()])
        written: Mapping[str, tuple[Fields, int, int]] = {}
        body = pa.py_buffer(b"")
        if rest.num_columns:
            stream = pa.BufferOutputStream()
            pq.write_table(rest, stream, row_group_size=max(len(rest), 1), **self._options)
            body = stream.getvalue()
            written = chunks_of(footer_of(body))
        chunks: list[Fields] = []
        begin = self._at
        for path in self._paths:
            if path in plain:
                chunks.append(self._vectors(plain[path], pieces[path] or []))
                continue
            chunk, start, size = written[path]
            chunks.append(moved_chunk(chunk, self._at - start))
            self._put(memoryview(body)[start : start + size])
        self._groups.append(row_group(chunks, len(table), begin, len(self._groups)))
        self._rows += len(table)

    def close(self) -> None:
        """Write the footer and close the file."""
        if self._file.closed:
            return
        footer = bytearray()
        write_struct(footer, with_row_groups(self._template, self._rows, self._groups))
        self._put(bytes(footer) + struct.pack("<I", len(footer)) + MAGIC)
        self._file.close()

    @property
    def sha256(self) -> str | None:
        """Of the closed file; None if it was not asked for."""
        return None if self._digest is None else self._digest.hexdigest()

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._at += len(data)
        if self._digest is not None:
            self._digest.update(data)

    def _vectors(self, leaf: Leaf, pieces: Sequence[_Piece]) -> Fields:
        """Write a column chunk; what the footer says of it."""
        begin, count = self._at, 0
        for page in _pages(pieces, leaf.deepest):
            count += self._page(leaf, page)
        size = self._at - begin
        meta: Fields = [
            (1, I32, _PHYSICAL[leaf.kind.value_type]),
            (2, LIST, (I32, [_PLAIN, _RLE])),
            (3, LIST, (BINARY, [part.encode() for part in leaf.path.split(".")])),
            (4, I32, 0),  # not compressed
            (5, I64, count),
            (6, I64, size),
            (7, I64, size),
            (9, I64, begin),
        ]
        return [(2, I64, 0), (3, STRUCT, meta)]

    def _page(self, leaf: Leaf, pieces: Sequence[_Piece]) -> int:
        """Write a page of all these rows; how many levels it has."""
        begins, defines, count = _levels(np.concatenate([p.levels for p in pieces]), pieces[0].size, leaf.deepest)
        levels = b"".join([struct.pack("<I", len(begins)), begins, struct.pack("<I", len(defines)), defines])
        crc, size = zlib.crc32(levels), len(levels)
        for piece in pieces:
            crc, size = zlib.crc32(piece.values, crc), size + len(piece.values)
        (signed,) = struct.unpack("<i", struct.pack("<I", crc))
        head = bytearray()
        data_page = [(1, I32, count), (2, I32, _PLAIN), (3, I32, _RLE), (4, I32, _RLE)]
        write_struct(head, [(1, I32, 0), (2, I32, size), (3, I32, size), (4, I32, signed), (5, STRUCT, data_page)])
        self._put(bytes(head) + levels)
        for piece in pieces:
            self._put(piece.values)
        return count


def _pieces(leaf: Leaf, column: pa.ChunkedArray) -> list[_Piece] | None:
    """The rows of a column of vectors; None where they are not all of one length, or hold a null number."""
    found: list[_Piece] = []
    size = leaf.kind.list_size if pa.types.is_fixed_size_list(leaf.kind) else 0
    for chunk in column.chunks:
        lists, levels = chunk, None
        if len(leaf.place) == 2:
            lists = chunk.flatten()[leaf.place[1]]  # null, too, where the struct is
        there = np.ones(len(lists), bool)
        if lists.null_count:
            there = np.asarray(lists.is_valid())
            levels = np.where(there, leaf.deepest, leaf.outer).astype(np.uint8)
            if chunk.null_count and len(leaf.place) == 2:
                levels[np.asarray(chunk.is_null())] = 0
        values = lists.flatten()
        if there.any():
            if not pa.types.is_fixed_size_list(leaf.kind):
                lengths = np.asarray(pc.list_value_length(lists).drop_null())
                size = size or int(lengths[0])
                if not (lengths == size).all():
                    return None
            if not size or values.null_count:
                return None
        if levels is None:
            levels = np.full(len(lists), leaf.deepest, np.uint8)
        raw = memoryview(b"")
        if len(values):
            width = leaf.kind.value_type.bit_width // 8
            raw = np.frombuffer(values.buffers()[1], np.uint8, len(values) * width, values.offset * width).data
        found.append(_Piece(levels, size, raw))
    if any(piece.size != size for piece in found):  # those before the first list
        found = [_Piece(piece.levels, size, piece.values) for piece in found]
    return found


def _pages(pieces: Sequence[_Piece], deepest: int) -> Iterator[list[_Piece]]:
    """The pieces cut and put together to pages of about :data:`PAGE` bytes."""
    lists = sum(int((piece.levels == deepest).sum()) for piece in pieces)
    a_row = sum(len(piece.values) for piece in pieces) // max(lists, 1)
    most = max(1, PAGE // max(a_row, 8))
    page: list[_Piece] = []
    room = most
    for piece in pieces:
        ends = np.cumsum(piece.levels == deepest) * a_row
        at = 0
        while at < len(piece.levels):
            some = slice(at, min(len(piece.levels), at + room))
            before = int(ends[at - 1]) if at else 0
            page.append(_Piece(piece.levels[some], piece.size, piece.values[before : int(ends[some.stop - 1])]))
            room -= some.stop - at
            at = some.stop
            if not room:
                yield page
                page, room = [], most
    if page:
        yield page


def _levels(rows: np.ndarray, size: int, deepest: int) -> tuple[bytes, bytes, int]:
    """Repetition and definition levels, in runs, of rows with these definition levels; and how many they are."""
    begins, defines, count = bytearray(), bytearray(), 0
    a_list = _run(1, 0) + (_run(size - 1, 1) if size > 1 else b"")
    cuts = np.flatnonzero(np.diff(rows, prepend=255)).tolist()
    for at, end in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        n, level = end - at, int(rows[at])
        if level == deepest:
            begins += a_list * n
            n *= size
        else:
            begins += _run(n, 0)
        defines += _run(n, level)
        count += n
    return bytes(begins), bytes(defines), count


@lru_cache(maxsize=1024)
def _run(count: int, value: int) -> bytes:
    """``count`` times the same level."""
    out = bytearray()
    write_varint(out, count << 1)
    out.append(value)
    return bytes(out)


def _without(table: pa.Table, places: Sequence[tuple[int, ...]]) -> pa.Table:
    """The table without these columns, and fields of structs."""
    gone = {place[0] for place in places if len(place) == 1}
    inner: dict[int, set[int]] = {}
    for place in places:
        if len(place) == 2:
            inner.setdefault(place[0], set()).add(place[1])
    columns, fields = [], []
    for i, field in enumerate(table.schema):
        if i in gone:
            continue
        column = table.column(i)
        if i in inner:
            kept = [j for j in range(field.type.num_fields) if j not in inner[i]]
            if not kept:
                continue
            parts = [field.type.field(j) for j in kept]
            made = [
                pa.StructArray.from_arrays([chunk.field(j) for j in kept], fields=parts, mask=chunk.is_null())
                for chunk in column.chunks
            ]
            field = field.with_type(pa.struct(parts))
            column = pa.chunked_array(made, field.type)
        columns.append(column)
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
