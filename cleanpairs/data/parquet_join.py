"""Parquet files put one after another without being decoded: their bytes are copied, their footers are merged.

A Parquet file is ``PAR1``, the row groups, a footer and the footer's length. The footer, a Thrift structure in the
compact protocol, says where in the file every column chunk begins; moved into another file, all of these move by one
number. No library joins files so (pyarrow writes row groups anew), and for vectors the encoding is nearly all the work
of an export.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cleanpairs.data.parquet_footer import MAGIC, common_part, moved_group, row_groups_of, rows_of, with_row_groups
from cleanpairs.data.thrift import Fields, read_struct, write_struct
from cleanpairs.errors import DataError, OutputError

__all__ = ["Joined", "Segment", "join_parquet"]

_COPY = 2**20  # bytes at a time, so that they are hashed in the cache


@dataclass(frozen=True)
class Segment:
    """A Parquet file within a file: ``size`` bytes of ``path`` from ``start`` on."""

    path: Path
    start: int
    size: int


@dataclass(frozen=True)
class Joined:
    """The number of ``rows`` of a joined file, and its SHA-256."""

    rows: int
    sha256: str


def join_parquet(segments: Sequence[Segment], out: str | Path) -> Joined:
    """Write the rows of all ``segments``, in order, into the file ``out``.

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
        with open(out, "wb") as file:
            target = _Hashed(file)
            target.write(MAGIC)
            for segment in segments:
                footer, begins = _footer(segment)
                if not whole:
                    whole = footer
                elif common_part(footer) != common_part(whole):
                    raise DataError(f"{segment.path} has another schema than {segments[0].path}: they cannot be joined")
                shift = target.size - len(MAGIC)
                for group in row_groups_of(footer):
                    groups.append(moved_group(group, shift, len(groups)))
                rows += rows_of(footer)
                _copy(segment, begins, target)
            encoded = bytearray()
            write_struct(encoded, with_row_groups(whole, rows, groups))
            target.write(bytes(encoded) + struct.pack("<I", len(encoded)) + MAGIC)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{out} cannot be written: {error.strerror or error}") from error
    return Joined(rows, target.digest.hexdigest())


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
            return read_struct(memoryview(file.read(size)), 0)[0], begins
    except (OSError, struct.error, IndexError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{segment.path} cannot be read as Parquet: {error}") from error


def _copy(segment: Segment, end: int, target: _Hashed) -> None:
    """The row groups of a segment."""
    left = end - len(MAGIC)
    room = memoryview(bytearray(min(left, _COPY)))
    with open(segment.path, "rb", buffering=0) as file:
        file.seek(segment.start + len(MAGIC))
        while left:
            some = room[: file.readinto(room[:left])]
            if not some:
                raise DataError(f"{segment.path} is shorter than it was")
            target.write(some)
            left -= len(some)


class _Hashed:
    """A file that is written from its beginning on, hashed on the way: while what was written is in the cache."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        """Append."""
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
