"""Memory of earlier batches is written to again only where nothing holds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cleanpairs.trainer import gathering
from cleanpairs.trainer.gathering import Gathering


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LARGE", 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_rows_as_by_indexing(dtype: type, tmp_path: Path) -> None:
    x: np.ndarray = np.arange(60).reshape(10, 3, 2).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    gather = Gathering()
    for source in (x, x[:, ::-1], np.load(tmp_path / "x.npy", mmap_mode="r")):
        for rows in ([], [3], [9, 0, 0, 5], list(range(10))):
            at = np.array(rows, dtype=np.int64)
            got = gather(source, at)
            assert np.array_equal(got, source[at]) and got.dtype == x.dtype and got.flags.writeable


def test_memory_is_used_again_once_it_is_free() -> None:
    x, rows, gather = np.random.default_rng(0).random((6, 4, 3), np.float32), np.array([1, 2]), Gathering()
    place = gather(x, rows).ctypes.data
    assert gather(x, rows[::-1]).ctypes.data == place
    assert gather(x, rows[:1]).ctypes.data != place  # another shape


def test_what_is_held_is_not_written_to() -> None:
    x, gather = np.random.default_rng(0).random((6, 4, 3), np.float32), Gathering()
    held = [gather(x, np.array([k, 5 - k])) for k in range(4)]
    views = [torch.from_numpy(gather(x, np.array([k, 0])))[:, 1:] for k in range(4)]
    for k in range(4):
        assert np.array_equal(held[k], x[[k, 5 - k]])
        assert np.array_equal(views[k].numpy(), x[[k, 0], 1:])


def test_a_graph_that_waits_for_its_gradient_holds_it() -> None:
    x, gather = np.random.default_rng(0).random((6, 8), np.float32), Gathering()
    weight = torch.ones(1, 8, requires_grad=True)
    losses = [(torch.from_numpy(gather(x, np.array([k]))) @ weight.T).sum() for k in range(3)]
    for k, loss in enumerate(losses):
        (gradient,) = torch.autograd.grad(loss, weight)
        assert np.array_equal(gradient.numpy()[0], x[k])


def test_small_batches_are_left_to_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LARGE", 1 << 22)
    gather = Gathering()
    assert np.array_equal(gather(np.eye(3), np.array([2])), np.eye(3)[[2]]) and not gather.arrays
