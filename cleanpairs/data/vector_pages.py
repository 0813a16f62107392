"""Columns of vectors out of a Parquet file, page by page, without looking at each number.

Parquet stores a list of numbers as the numbers, and with each of them two small ones, its levels, that say where a list
begins and what is null. Arrow decodes these for each number, which is most of the work of reading vectors. Where they
are stored plainly, all are there and all of one length, the levels of a page are known beforehand: they are compared,
and the numbers are copied as they lie. Whatever is otherwise, damaged pages too, is left for Arrow to read, or to
complain of: nothing here raises for what is in a file.

https://github.com/apache/parquet-format describes the pages, and its parquet.thrift the numbers of the fields.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data.thrift import Fields, read_struct, read_varint
from cleanpairs.regular import open_regular

__all__ = ["Chunk", "VectorColumn", "plain_columns"]

_CODECS = ("UNCOMPRESSED", "SNAPPY", "ZSTD")
_TYPES = {"FIXED_LEN_BYTE_ARRAY": pa.float16(), "FLOAT": pa.float32(), "DOUBLE": pa.float64()}
_PLAIN, _RLE, _DATA_PAGE, _DATA_PAGE_V2 = 0, 3, 0, 3  # of Encoding and of PageType
_TYPE, _UNCOMPRESSED, _COMPRESSED, _CRC, _V1, _V2 = 1, 2, 3, 4, 5, 8  # of PageHeader; the last: data page headers
_HEAD = 2048  # bytes that hold the header of a page, but for one with large statistics
_MOST = 64 * 2**20  # bytes of a page; writers make them of one MiB
_MOST_LEVELS = 2**20  # bytes of a page's levels
_ARROW_ROWS = 1024  # of a batch
_BAD = (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError, struct.error, OSError)
"""What arises of a page that is damaged, or not stored as these are; Arrow's own errors are among them."""


@dataclass(frozen=True)
class Chunk:
    """A column in a row group: its bytes in the file, and ``rows`` lists of ``size`` values."""

    group: int
    start: int
    end: int
    rows: int
    size: int
    codec: str
    deepest: int  # the definition level of a number that is there


def plain_columns(file: pq.ParquetFile, names: Sequence[str]) -> dict[str, list[Chunk | None]]:
    """Which of the columns ``names`` may be read here: of each its chunks, None for those that Arrow has to read.

    A column is left out where none of its chunks can be.
    """
    found: dict[str, list[Chunk | None]] = {}
    schema, footer = file.schema_arrow, file.metadata
    if any("." in name for name in schema.names) or len(set(schema.names)) < len(schema.names):
        return found  # Parquet's paths are not clear then
    vectors = {name for name in names if _is_vector(schema.field(name).type)}
    if not vectors:
        return found
    leaves: dict[str, list[int]] = {}
    for i in range(len(file.schema)):
        leaves.setdefault(file.schema.column(i).path.split(".")[0], []).append(i)
    for name in names:
        kind, at = schema.field(name).type, leaves.get(name, [])
        if len(at) != 1 or name not in vectors:
            continue
        leaf = file.schema.column(at[0])
        if leaf.max_repetition_level != 1 or _TYPES.get(leaf.physical_type) != kind.value_type:
            continue
        chunks = [
            _chunk(footer, group, at[0], kind, leaf.max_definition_level) for group in range(footer.num_row_groups)
        ]
        if any(chunks):
            found[name] = chunks
    return found


def _is_vector(kind: pa.DataType) -> bool:
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(listed and kind.value_type in _TYPES.values())


def _chunk(footer: pq.FileMetaData, group: int, column: int, kind: pa.DataType, deepest: int) -> Chunk | None:
    rows, chunk = footer.row_group(group).num_rows, footer.row_group(group).column(column)
    if chunk.compression not in _CODECS or chunk.has_dictionary_page or not 0 < rows <= chunk.num_values:
        return None
    size, rest = divmod(chunk.num_values, rows)
    fixed = kind.list_size if pa.types.is_fixed_size_list(kind) else size
    if rest or size != fixed or chunk.file_path or {"PLAIN"} != set(chunk.encodings) - {"RLE", "BIT_PACKED"}:
        return None
    start = chunk.data_page_offset
    return Chunk(group, start, start + chunk.total_compressed_size, rows, size, chunk.compression, deepest)


class VectorColumn:
    """A column of a file, from the beginning of a row group on; holds the file open until :meth:`close`.

    Parameters
    ----------
    path : str
    field : pa.Field
        Of the column.
    chunks : sequence
        Of all row groups, as :func:`plain_columns` has them.
    rows : sequence of int
        Of all row groups.
    group : int
        The row group to begin with.
    opened : callable
        Opens the file for Arrow.
    """

    def __init__(
        self,
        path: str,
        field: pa.Field,
        chunks: Sequence[Chunk | None],
        rows: Sequence[int],
        group: int,
        opened: Callable[[], pq.ParquetFile],
    ) -> None:
        self._field, self._chunks, self._rows, self._opened = field, chunks, rows, opened
        self._group, self._at = group, 0  # the row of the group that is next
        self._file = open_regular(path, buffering=0)
        self._pages: _Pages | None = None
        self._arrow: _ByArrow | None = None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        self._end_group()

    def read(self, rows: int) -> pa.Array:
        """The next ``rows`` rows, as Arrow would give them, and with its errors; there must be as many."""
        pieces: list[pa.Array] = []
        while rows:
            while self._at == self._rows[self._group]:
                self._end_group()
                self._group, self._at = self._group + 1, 0
            piece = self._piece(min(rows, self._rows[self._group] - self._at))
            pieces.append(piece)
            self._at += len(piece)
            rows -= len(piece)
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces or [pa.array([], self._field.type)])

    def _piece(self, rows: int) -> pa.Array:
        """The next rows, at most so many, of the row group."""
        chunk = self._chunks[self._group]
        if chunk is not None and self._arrow is None:
            if self._pages is None:
                self._pages = _Pages(self._file.fileno(), chunk, self._field.type.value_type)
            try:
                return _lists(self._pages.values(rows), chunk.size, self._field.type)
            except _BAD:
                self._pages = None
        if self._arrow is None:  # for the rest of the row group
            self._arrow = _ByArrow(self._opened(), self._field.name, self._group, self._at)
        return self._arrow.piece(rows)

    def _end_group(self) -> None:
        self._pages = None
        if self._arrow is not None:
            self._arrow.close()
            self._arrow = None


class _ByArrow:
    """A column of a row group from row ``first`` of it on, as Arrow reads it."""

    def __init__(self, file: pq.ParquetFile, name: str, group: int, first: int) -> None:
        self._file, self._skip = file, first
        self._batches = file.iter_batches(batch_size=_ARROW_ROWS, row_groups=[group], columns=[name])
        self._left: pa.Array | None = None

    def piece(self, rows: int) -> pa.Array:
        """The next rows, at most so many."""
        while self._left is None or not len(self._left):
            batch = next(self._batches).column(0)
            self._left = batch.slice(self._skip)
            self._skip -= min(self._skip, len(batch))
        piece, self._left = self._left.slice(0, rows), self._left.slice(rows)
        return piece

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class _Pages:
    """The numbers of a chunk, page by page."""

    def __init__(self, fd: int, chunk: Chunk, kind: pa.DataType) -> None:
        self._fd, self._chunk, self._kind = fd, chunk, kind
        self._bytes = kind.bit_width // 8
        self._next, self._seen = chunk.start, 0  # where the next page is, and the numbers before it
        self._left = np.empty(0, np.uint8)  # of the page in hand
        self._room = np.empty(0, np.uint8)

    def values(self, rows: int) -> pa.Array:
        """The numbers of the next rows, (rows * size,); an error of :data:`_BAD` where a page is odd."""
        count = rows * self._chunk.size
        out = np.empty(count * self._bytes, np.uint8)
        at = 0
        while at < len(out):
            if not len(self._left):
                self._left = self._page()
            some = self._left[: len(out) - at]
            out[at : at + len(some)] = some
            self._left = self._left[len(some) :]
            at += len(some)
        return pa.Array.from_buffers(self._kind, count, [None, pa.py_buffer(out)])

    def _page(self) -> np.ndarray:
        """The bytes of the numbers of the next page."""
        chunk = self._chunk
        head = os.pread(self._fd, min(_HEAD, chunk.end - self._next), self._next)
        fields, length = read_struct(memoryview(head), 0)
        page = _by_number(fields)
        begin, size, unpacked = self._next + length, page[_COMPRESSED], page[_UNCOMPRESSED]
        if not 0 <= size <= min(chunk.end - begin, _MOST) or not 0 <= unpacked <= _MOST:
            raise ValueError("the page is too large")
        body = self._read(begin, size)
        if _CRC in page and zlib.crc32(body.data) != page[_CRC] & 0xFFFFFFFF:
            raise ValueError("the checksum is not that of the page")
        codec = None if chunk.codec == "UNCOMPRESSED" else pa.Codec(chunk.codec.lower())
        if page[_TYPE] == _DATA_PAGE:
            head_of = _by_number(page[_V1])
            count, encodings = head_of[1], (head_of[2], head_of[3], head_of[4])
            if encodings != (_PLAIN, _RLE, _RLE):
                raise ValueError("the encoding is another")
            body = body if codec is None else _unpacked(codec, body, unpacked)
            begins, lengthy = _sized(body, 0)
            defines, data = _sized(body, lengthy)
        elif page[_TYPE] == _DATA_PAGE_V2:
            head_of = _by_number(page[_V2])
            count, (defined, repeated) = head_of[1], (head_of[5], head_of[6])
            if head_of[4] != _PLAIN or min(defined, repeated) < 0 or defined + repeated > size:
                raise ValueError("the encoding is another")
            begins, defines = body[:repeated].tobytes(), body[repeated : repeated + defined].tobytes()
            data = repeated + defined
            if codec is not None and head_of.get(7, True):
                body, data = _unpacked(codec, body[data:], unpacked - data), 0
        else:
            raise ValueError("the page holds no data")
        if len(body) - data != count * self._bytes or len(begins) > _MOST_LEVELS or len(defines) > _MOST_LEVELS:
            raise ValueError("the page has another size than its numbers")
        if not _all_there(begins, defines, count, self._seen % chunk.size, chunk.size, chunk.deepest):
            raise ValueError("a list is missing, or of another length")
        self._next, self._seen = begin + size, self._seen + count
        return body[data:]

    def _read(self, at: int, size: int) -> np.ndarray:
        if len(self._room) < size:
            self._room = np.empty(size, np.uint8)
        room, got = self._room[:size], 0
        while got < size:
            some = os.preadv(self._fd, [room[got:].data], at + got)
            if not some:
                raise ValueError("the file ends within a page")
            got += some
        return room


def _by_number(fields: Fields) -> dict[int, Any]:
    return {number: value for number, _, value in fields}


def _unpacked(codec: pa.Codec, data: np.ndarray, size: int) -> np.ndarray:
    return np.frombuffer(codec.decompress(pa.py_buffer(data), size), np.uint8)


def _sized(body: np.ndarray, at: int) -> tuple[bytes, int]:
    """The bytes behind their number (four bytes) at ``at``, and where they end."""
    (size,) = struct.unpack_from("<I", body.data, at)
    if size > len(body) - at - 4:
        raise ValueError("the levels are cut off")
    return body[at + 4 : at + 4 + size].tobytes(), at + 4 + size


@lru_cache(maxsize=64)  # the pages of a column have the same levels again and again
def _all_there(begins: bytes, defines: bytes, count: int, phase: int, size: int, deepest: int) -> bool:
    """Whether levels say that ``count`` numbers are there in lists of ``size``, the first of them the ``phase``-th."""
    if not np.array_equal(_levels(defines, count, deepest.bit_length()), np.full(count, deepest, np.uint8)):
        return False
    return np.array_equal(_levels(begins, count, 1), (np.arange(phase, phase + count) % size != 0).astype(np.uint8))


def _levels(data: bytes, count: int, width: int) -> np.ndarray:
    """(count,) uint8 out of Parquet's hybrid of runs and packed bits, ``width`` bits each."""
    out = np.empty(count, np.uint8)
    at = done = 0
    while done < count:
        head, at = read_varint(data, at)
        if head & 1:  # eights of packed numbers
            packed = np.frombuffer(data, np.uint8, (head >> 1) * width, at)
            at += len(packed)
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
            some = (bits << np.arange(width, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)[: count - done]
            out[done : done + len(some)] = some
            done += len(some)
        else:
            out[done : done + (head >> 1)] = data[at]
            done, at = done + (head >> 1), at + 1
        if not head >> 1:
            raise ValueError("a run is empty")
    return out


def _lists(values: pa.Array, size: int, kind: pa.DataType) -> pa.Array:
    """Lists of ``size`` values each, as ``kind`` has them."""
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    large = pa.types.is_large_list(kind)
    if not large and len(values) >= 2**31:
        raise ValueError("too many numbers for lists of this type")
    ends = pa.array(np.arange(0, len(values) + 1, size, dtype=np.int64 if large else np.int32))
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(ends, values, type=kind)
