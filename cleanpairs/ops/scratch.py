"""Room for large arrays: in memory, or in files that are mapped and let go of block by block.

The same code runs on both, in the same blocks, so that where an array lies changes no bit of what is computed. A mapped
page counts as this process's memory from its first touch on; :func:`release` gives such pages back (what was written
stays in the file), so that a pass over an array takes as much memory as it touches between two releases.
"""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import OutputError


class Scratch:
    """Makes arrays: in memory, or in files of ``folder`` without names, which are gone with the last array that maps
    them, also where the process is killed.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array of unknown contents. Raises OutputError: the file cannot be made, or the disk is full."""
        shape = (shape,) if isinstance(shape, int) else shape
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if self.folder is None or size < mmap.PAGESIZE:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.truncate(size)
                os.posix_fallocate(file.fileno(), 0, size)  # a page that found no room later would kill the process
                return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
        except OSError as error:
            raise OutputError(
                f"{size / 2**30:.1f} GiB of temporary files do not fit into {self.folder}: {error.strerror}; make "
                "room, or set TMPDIR to another disk"
            ) from error

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: Any) -> np.ndarray:
        """An array of equal numbers."""
        array = self.empty(shape, dtype)
        step = max(1, (1 << 24) // max(1, array[:1].nbytes))
        for start in range(0, len(array), step):
            array[start : start + step] = value
            release(array)
        return array

    def trim(self) -> None:
        """Where arrays lie in files: give back to the system what is freed, and the C library would keep."""
        if self.folder is not None:
            trim()


def trim() -> None:
    """Give back to the system what is freed, and the C library and Arrow would keep."""
    pa.default_memory_pool().release_unused()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc
        libc.malloc_trim(0)


MEMORY = Scratch()
_STRETCH = 1 << 20  # entries of an array from which some are picked at once


def picked(array: np.ndarray, at: np.ndarray) -> np.ndarray:
    """``array[at]`` (k,) of an array (n,), ``at`` from 0 on, in any order: of a mapped one, stretch by stretch."""
    if not is_mapped(array):
        return np.asarray(array[at])
    out, order = np.empty(len(at), array.dtype), np.argsort(at)
    for start, stop in pairwise(np.searchsorted(at, np.arange(0, len(array) + _STRETCH, _STRETCH), sorter=order)):
        some = order[start:stop]
        out[some] = array[at[some]]
        release(array)
    return out


def release(*arrays: np.ndarray | None) -> None:
    """Give back the pages of mapped arrays, or of views of them; not if copied on write, which would be lost."""
    for array in arrays:
        base, writes = _base(array)
        if base is not None and not writes:
            base.madvise(mmap.MADV_DONTNEED)


def is_mapped(array: np.ndarray) -> bool:
    """Whether an array is a mapped file, or a view of one."""
    return _base(array)[0] is not None


def _base(array: np.ndarray | None) -> tuple[mmap.mmap | None, bool]:
    """The file's map that an array is a view of, and whether what is written there is this process's own."""
    base, copied = array, False
    while isinstance(base, np.ndarray):
        copied |= isinstance(base, np.memmap) and base.mode == "c"
        base = base.base
    return (base if isinstance(base, mmap.mmap) else None), copied


class Buckets:
    """Rows of several columns, sorted into buckets whose sizes are known; within a bucket they keep their order.

    ``counts`` (B,) int: rows of each bucket; ``types``: column -> dtype.
    """

    def __init__(self, scratch: Scratch, counts: np.ndarray, types: Mapping[str, Any]) -> None:
        self.start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.cursor = self.start[:-1].copy()
        self.columns = {name: scratch.empty(int(self.start[-1]), kind) for name, kind in types.items()}

    def __len__(self) -> int:
        return len(self.cursor)

    def add(self, bucket: np.ndarray, **columns: np.ndarray) -> None:
        """The next rows: ``bucket`` (b,) of each, and its columns (b,)."""
        order = np.argsort(bucket, kind="stable")
        ends = np.cumsum(np.bincount(bucket, minlength=len(self)))
        for b in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
            rows = order[ends[b - 1] if b else 0 : ends[b]]
            at = int(self.cursor[b])
            for name, values in columns.items():
                self.columns[name][at : at + len(rows)] = values[rows]
            self.cursor[b] += len(rows)
            if b % 4 == 3:
                release(*self.columns.values())
        release(*self.columns.values())

    def part(self, bucket: int) -> dict[str, np.ndarray]:
        """The columns of one bucket, in memory."""
        s = slice(int(self.start[bucket]), int(self.start[bucket + 1]))
        found = {}
        for name, values in self.columns.items():
            found[name] = np.array(values[s])
            release(values)
        return found
