"""Tensors on disk: what is written is read back, and a disk's fault is an OSError that names the file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError

from cleanpairs.core.errors import OutputError
from cleanpairs.data import staged_file
from cleanpairs.data.arrays import read_tensors, write_tensors


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_it_is_read_back(tmp_path: Path, make: Any, n: int) -> None:
    tensors = {f"t{k}": make([float(k)] * n) for k in range(n)}
    write_tensors(tensors, tmp_path / "t.safetensors", {"note": "x"})
    for framework in ("np", "pt"):
        found, metadata = read_tensors(tmp_path / "t.safetensors", framework)
        assert metadata == {"note": "x"}
        assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in tensors.items()}


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_every_flipped_bit_is_noticed(tmp_path: Path, make: Any) -> None:
    file = tmp_path / "t.safetensors"
    write_tensors({"a": make([1.0, 2.0]), "b": make([True, False, True])}, file, {"note": "x"})
    whole = file.read_bytes()
    for at in range(0, len(whole) * 8, 5):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        file.write_bytes(damaged)
        with pytest.raises((SafetensorError, ValueError, OSError)):
            read_tensors(file, "np" if make is np.asarray else "pt")


def test_errors_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, said = {"a": np.ones(3)}, ""
    with pytest.raises(OSError, match="No such file") as caught:
        write_tensors(tensors, tmp_path / "no" / "t.safetensors")
    assert caught.value.errno == errno.ENOENT

    def fail(*_: Any, **__: Any) -> None:
        raise SafetensorError(said)

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    named = r"t\.safetensors cannot be written: No space"
    with pytest.raises(OutputError, match=named), staged_file(tmp_path / "t.safetensors") as staged:
        write_tensors(tensors, staged)
    said = "tensors share memory"
    with pytest.raises(SafetensorError):
        write_tensors(tensors, tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []
