"""Arrays in ``.npy`` files: nothing else that numpy would open, no archives and no pickles."""

from __future__ import annotations

import os

import numpy as np

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import check_regular


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a ``.npy`` file, memory-mapped, not to be written.

    Raises DataError: it is no such file, is cut short, or holds Python objects.
    """
    try:
        check_regular(path)
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # the header is read as Python's text is: a damaged one raises tokenize's errors too
        raise DataError(f"{path} cannot be read as an array: {error}") from error
    return np.asarray(array) if array.size == 0 else array
