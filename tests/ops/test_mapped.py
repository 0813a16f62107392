"""Arrays in mapped files."""

import os
from pathlib import Path

import numpy as np
import pytest

from cleanpairs.core.errors import OutputError
from cleanpairs.ops.mapped import mapped_array, release


def resident() -> int:
    """Bytes of this process that are mapped from files."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssFile")).split()[1])


def test_mapped_arrays_keep_what_is_written_and_take_no_memory(tmp_path: Path) -> None:
    array = mapped_array((1 << 22,), np.float64, tmp_path)  # 32 MiB
    before = resident()
    array[:] = 3.0
    touched = resident()
    release(array[17:])
    assert touched - before > 30 * 2**20 and resident() - before < 8 * 2**20
    assert (array == 3.0).all() and not list(tmp_path.iterdir())  # no name: nothing is left by a kill


def test_values_of_a_copy_on_write_map_are_not_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[:] = 1
    release(array)
    assert (array == 1).all()


def test_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"4\.0 GiB .* No space left on device.*CLEANPAIRS_CACHE"):
        mapped_array((1 << 30,), np.float32, tmp_path)
