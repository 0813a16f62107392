"""The images of a batch, gathered into memory of batches before it.

A batch of 128 x 36 x 2048 floats is 38 MB. Memory of that size is returned to the system when it is freed, and new
memory costs as much as what is written to it: each page is found missing, sought and cleared.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["Gathering"]

LARGE = 1 << 22  # bytes from which on it pays; less is kept by the allocator anyway
KEPT = 2  # arrays: two networks in turns


def _references(arrays: list[np.ndarray]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays]


FREE = _references([np.empty(0)])[0]  # of an array that nobody but its list has; versions of Python count differently


class Gathering:
    """Rows of arrays, into arrays that nobody uses any more.

    A tensor that `torch.from_numpy` made holds the array, and so does whatever holds the tensor, such as a graph that
    waits for its gradient: as long as any does, the array is not written to. Not for several threads.
    """

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def __call__(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """``x[rows]`` (b, ...) of x (M, ...) and rows (b,) int64 in [0, M)."""
        shape = (len(rows), *x.shape[1:])
        if not len(rows) or len(rows) * x[:1].nbytes < LARGE:
            return np.asarray(x[rows])
        for array, references in zip(self.arrays, _references(self.arrays), strict=True):
            if references == FREE and array.shape == shape and array.dtype == x.dtype:
                break
        else:
            array = np.empty(shape, x.dtype)
            self.arrays = [*self.arrays, array][-KEPT:]
        return np.take(x, rows, axis=0, out=array, mode="clip")  # with the check of the rows it would be copied twice
