"""A bank searched shard by shard is the bank searched whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cleanpairs.engine import make_engine
from cleanpairs.engine import search as sharded
from cleanpairs.errors import DataError
from cleanpairs.ops.search import SearchNote, top_k

LOCAL = make_engine("local")


def saved(path: Path, n: int, d: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    np.save(path, rows)
    return rows


@pytest.mark.parametrize("shard", [1, 7, 40, 1000])
@pytest.mark.parametrize(("n", "m"), [(0, 5), (1, 1), (2, 2), (30, 41)])
def test_shards_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, m: int, shard: int) -> None:
    monkeypatch.setattr(sharded, "_BLOCK", 13)
    queries, bank = saved(tmp_path / "q.npy", n), saved(tmp_path / "b.npy", m, seed=1)
    found = sharded.sharded_top_k(
        tmp_path / "q.npy", tmp_path / "b.npy", 5, tmp_path / "job", engine=LOCAL, shard=shard
    )
    wanted = top_k(queries, bank, 5)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
    assert found.note == SearchNote("flat", n, m)


def test_no_bank(tmp_path: Path) -> None:
    saved(tmp_path / "q.npy", 3)
    saved(tmp_path / "b.npy", 0)
    found = sharded.sharded_top_k(tmp_path / "q.npy", tmp_path / "b.npy", 2, tmp_path / "job", engine=LOCAL)
    assert (found.indices == -1).all() and found.indices.shape == (3, 2)


def test_a_shard_is_searched_once_and_again_when_the_bank_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(queries: np.ndarray, bank: np.ndarray, k: int, *, exact: bool) -> object:
        asked.append(len(bank))
        return top_k(queries, bank, k, exact=exact)

    monkeypatch.setattr(sharded, "top_k", counted)
    saved(tmp_path / "q.npy", 3)
    saved(tmp_path / "b.npy", 25, seed=1)
    paths = tmp_path / "q.npy", tmp_path / "b.npy"
    first = sharded.sharded_top_k(*paths, 2, tmp_path / "job", engine=LOCAL, shard=10)
    again = sharded.sharded_top_k(*paths, 2, tmp_path / "job", engine=LOCAL, shard=10)
    assert asked == [10, 10, 5]
    np.testing.assert_array_equal(first.indices, again.indices)
    bank = saved(tmp_path / "b.npy", 25, seed=2)
    changed = sharded.sharded_top_k(*paths, 2, tmp_path / "job", engine=LOCAL, shard=10)
    assert len(asked) == 6
    np.testing.assert_array_equal(changed.indices, top_k(np.load(paths[0]), bank, 2).indices)


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "q.npy", 3)
    (tmp_path / "b.npy").write_text("nothing")
    with pytest.raises(DataError, match=r"b\.npy cannot be read"):
        sharded.sharded_top_k(tmp_path / "q.npy", tmp_path / "b.npy", 2, tmp_path / "job", engine=LOCAL)
    np.save(tmp_path / "b.npy", np.arange(4))
    with pytest.raises(DataError, match="floating-point"):
        sharded.sharded_top_k(tmp_path / "q.npy", tmp_path / "b.npy", 2, tmp_path / "job", engine=LOCAL)


@pytest.mark.slow
def test_a_pool_searches_too(tmp_path: Path) -> None:
    queries, bank = saved(tmp_path / "q.npy", 20), saved(tmp_path / "b.npy", 50, seed=1)
    two = make_engine("local", workers=2)
    found = sharded.sharded_top_k(tmp_path / "q.npy", tmp_path / "b.npy", 4, tmp_path / "job", engine=two, shard=20)
    np.testing.assert_array_equal(found.indices, top_k(queries, bank, 4).indices)
