"""Arrays that lie in mapped files.

A mapped page counts as this process's memory from its first touch. The function :func:`release` gives such pages back.
So a pass over an array takes as much memory as it touches between two releases.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core import OutputError


def blocks(n: int, size: int) -> Iterator[slice]:
    """Slices that cover the numbers from 0 to ``n``, of at most ``size`` each, in order."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def mapped_array(shape: tuple[int, ...], dtype: Any, folder: Path) -> np.ndarray:
    """An array of unknown contents in a file of ``folder`` without a name.

    The file is gone with the last array that maps it, also where the process is killed.

    Raises
    ------
    OutputError
        The file cannot be made, or the disk is full.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            os.posix_fallocate(file.fileno(), 0, size)  # a page that found no room later would kill the process
            return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
    except OSError as error:
        raise OutputError(
            f"{size / 2**30:.1f} GiB of temporary files do not fit into {folder}: {error.strerror}; make room, or name "
            "another disk by CLEANPAIRS_CACHE"
        ) from error


def release(*arrays: np.ndarray | None) -> None:
    """Give back the pages of mapped arrays and of views of them.

    Written values stay in the file. Arrays that are copied on write are skipped: they would lose their changes.
    """
    for array in arrays:
        base, private = array, False
        while isinstance(base, np.ndarray):
            private |= isinstance(base, np.memmap) and base.mode == "c"
            base = base.base
        if isinstance(base, mmap.mmap) and not private:
            base.madvise(mmap.MADV_DONTNEED)
