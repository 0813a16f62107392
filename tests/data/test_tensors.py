"""Tensors on disk: what is written is read back, and a disk's fault is an OSError that names the file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError, safe_open

from cleanpairs.core.errors import OutputError
from cleanpairs.data import staged_file
from cleanpairs.data.arrays import write_tensors


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_it_is_read_back(tmp_path: Path, make: Any, n: int) -> None:
    tensors = {f"t{k}": make([float(k)] * n) for k in range(n)}
    write_tensors(tensors, tmp_path / "t.safetensors", {"note": "x"})
    with safe_open(tmp_path / "t.safetensors", framework="np") as file:
        assert file.metadata() == {"note": "x"}
        assert {k: file.get_tensor(k).tolist() for k in file.keys()} == {k: v.tolist() for k, v in tensors.items()}  # noqa: SIM118


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        write_tensors({"a": np.ones(3)}, tmp_path / "no" / "t.safetensors")
    assert caught.value.errno == errno.ENOENT


def test_a_full_disk_is_an_output_error_that_names_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OutputError, match=r"t\.safetensors cannot be written: No space"):  # noqa: SIM117
        with staged_file(tmp_path / "t.safetensors") as staged:
            write_tensors({"a": np.ones(3)}, staged)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_caller_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise SafetensorError("tensors share memory")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(SafetensorError):
        write_tensors({"a": np.ones(3)}, tmp_path / "t.safetensors")
