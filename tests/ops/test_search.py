"""Nearest neighbours: both ways against a full sort."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from cleanpairs.ops import search
from cleanpairs.ops.search import TopK, top_k

ways = pytest.mark.parametrize("way", ["faiss", "blocked"])


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch):
    def set_way(way: str) -> None:
        if way == "blocked":
            monkeypatch.setattr(search, "_faiss", lambda: None)
            monkeypatch.setattr(search, "_BLOCK_ENTRIES", 1000)  # many uneven blocks
        else:
            pytest.importorskip("faiss")

    return set_way


def oracle(queries: np.ndarray, bank: np.ndarray, k: int) -> TopK:
    S = queries.astype(np.float64) @ bank.astype(np.float64).T
    indices = np.argsort(-S, axis=1, kind="stable")[:, :k]
    return TopK(np.take_along_axis(S, indices, 1), indices)


@ways
@pytest.mark.parametrize(("n", "m", "k"), [(1, 1, 1), (2, 2, 2), (7, 130, 5), (100, 333, 32), (40, 20, 20)])
def test_equals_a_full_sort(choose, way: str, n: int, m: int, k: int) -> None:
    choose(way)
    rng = np.random.default_rng(n * m)
    queries, bank = rng.normal(size=(n, 16)).astype(np.float32), rng.normal(size=(m, 16)).astype(np.float32)
    found, wanted = top_k(queries, bank, k), oracle(queries, bank, k)
    assert found.scores.dtype == np.float32 and found.indices.dtype == np.int64
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.indices, wanted.indices)


@ways
def test_blocks_of_the_bank_agree_with_one_block(choose, way: str) -> None:
    choose(way)
    rng = np.random.default_rng(0)
    queries, bank = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(70_000, 4)).astype(np.float32)
    found, wanted = top_k(queries, bank, 9), oracle(queries, bank, 9)
    np.testing.assert_array_equal(found.indices, wanted.indices)


@ways
@pytest.mark.parametrize("m", [0, 1, 3])
def test_a_small_bank_is_padded(choose, way: str, m: int) -> None:
    choose(way)
    rng = np.random.default_rng(1)
    queries, bank = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(m, 8)).astype(np.float32)
    found = top_k(queries, bank, 5)
    assert found.scores.shape == found.indices.shape == (4, 5)
    assert (found.indices[:, m:] == -1).all() and np.isneginf(found.scores[:, m:]).all()
    np.testing.assert_array_equal(found.indices[:, :m], oracle(queries, bank, 5).indices)


@ways
def test_no_queries(choose, way: str) -> None:
    choose(way)
    assert top_k(np.zeros((0, 8), np.float32), np.ones((3, 8), np.float32), 2).indices.shape == (0, 2)


@ways
def test_ties_go_to_the_smaller_index(choose, way: str) -> None:
    choose(way)
    found = top_k(np.ones((2, 4), np.float32), np.ones((6, 4), np.float32), 6)
    np.testing.assert_array_equal(found.indices, np.tile(np.arange(6), (2, 1)))


@pytest.mark.parametrize(("queries", "bank", "k"), [((2, 3), (2, 4), 1), ((2, 3), (2, 3), 0), ((3,), (2, 3), 1)])
def test_wrong_shapes_are_refused(queries: tuple[int, ...], bank: tuple[int, ...], k: int) -> None:
    with pytest.raises(ValueError, match=r"k must be at least 1|must share d"):
        top_k(np.zeros(queries), np.zeros(bank), k)


def test_the_users_openblas_kernel_stays() -> None:
    code = (
        "import os, numpy as np; from cleanpairs.ops.search import top_k;"
        "top_k(np.eye(2), np.eye(2), 1); print(os.environ['OPENBLAS_CORETYPE'])"
    )
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "Haswell"
