"""Arrays on disk: read as they are, or refused by name."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data.arrays import read_npy


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_it_is_read_and_not_to_be_written(tmp_path: Path, n: int) -> None:
    array = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    np.save(tmp_path / "a.npy", array)
    found = read_npy(tmp_path / "a.npy")
    assert np.array_equal(found, array) and found.dtype == np.float32
    if n:
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1


def test_a_damaged_header_is_an_error_of_the_data(tmp_path: Path) -> None:
    """Numpy reads it as Python's text is read: a bracket too few raises an error of the tokenizer's own."""
    stream, rng = io.BytesIO(), np.random.default_rng(0)
    np.save(stream, np.zeros((4, 2), np.float32))
    for _ in range(200):
        data = bytearray(stream.getvalue())
        data[int(rng.integers(0, 70))] = int(rng.choice(list(b"({['\"\\\n,0")))
        (tmp_path / "a.npy").write_bytes(data)
        with suppress(DataError):  # it may be a header still; any other error is the failure
            read_npy(tmp_path / "a.npy")


PICKLED = io.BytesIO()
np.save(PICKLED, np.array([{"a": 1}], dtype=object), allow_pickle=True)
ZIPPED = io.BytesIO()
np.savez(ZIPPED, np.arange(3))


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"<html>", b"PK\x03\x04", PICKLED.getvalue(), ZIPPED.getvalue()])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")
