"""Nearest neighbours: both ways against a full sort."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cleanpairs.ops import search
from cleanpairs.ops.search import SearchNote, TopK, recall_at, top_k
from tests.helpers import unit


@pytest.fixture(params=["faiss", "blocked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "blocked":
        monkeypatch.setattr(search.Prepared, "flat", None)  # as on a GPU, which the build of FAISS cannot use
        monkeypatch.setattr(search, "_CPU_NUMBERS", 1000)  # many uneven blocks


def oracle(queries: np.ndarray, bank: np.ndarray, k: int) -> TopK:
    S = queries.astype(np.float64) @ bank.astype(np.float64).T
    indices = np.argsort(-S, axis=1, kind="stable")[:, :k]
    return TopK(np.take_along_axis(S, indices, 1), indices)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("n", "m", "k"), [(1, 1, 1), (100, 333, 32), (3, 70_000, 9), (4, 0, 5), (4, 3, 5), (0, 3, 5)])
def test_equals_a_full_sort_and_a_small_bank_is_padded(n: int, m: int, k: int) -> None:
    queries, bank = drawn(n, 16, seed=1), drawn(m, 16, seed=2)
    found, wanted = top_k(queries, bank, k), oracle(queries, bank, k)
    assert found.scores.shape == found.indices.shape == (n, k)
    assert found.scores.dtype == np.float32 and found.indices.dtype == np.int64
    np.testing.assert_allclose(found.scores[:, :m], wanted.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.indices[:, :m], wanted.indices)
    assert (found.indices[:, m:] == -1).all() and np.isneginf(found.scores[:, m:]).all()


@pytest.mark.usefixtures("way")
def test_ties_go_to_the_smaller_index() -> None:
    found = top_k(np.ones((2, 4), np.float32), np.ones((6, 4), np.float32), 6)
    np.testing.assert_array_equal(found.indices, np.tile(np.arange(6), (2, 1)))


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="no /proc/cpuinfo to read the processor from")
@pytest.mark.parametrize(
    "first_use",
    ["from cleanpairs.ops.search import top_k as use; data = np.eye(2), np.eye(2), 1",
     "from cleanpairs.data.duplicates import near_duplicate_groups as use; data = [np.ones((2, 201), np.uint8)]"],
)  # fmt: skip
def test_openblas_is_told_its_kernel_before_faiss_is_imported(first_use: str) -> None:
    """Whatever needs FAISS first. Another kernel ranks other rows, so that workers would find other donors."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    code = (
        f"import os, sys, numpy as np; {first_use}; assert 'faiss' not in sys.modules;"
        "use(*data); assert 'faiss' in sys.modules; print(os.environ.get('OPENBLAS_CORETYPE'));"
        "from cleanpairs.ops import search; search.open = None; use(*data)"  # it reads /proc/cpuinfo once
    )
    own = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(search._kernel_of(flags))


def modes(n: int, seed: int, *, modes: int = 20, d: int = 16) -> np.ndarray:
    """Unit vectors around a few centres, which are the same for every seed."""
    centres = np.random.default_rng(0).normal(size=(modes, d))
    rng = np.random.default_rng(seed)
    return unit(centres[rng.integers(0, modes, n)] + 0.5 * rng.normal(size=(n, d)))


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FLAT_UP_TO", 1000)
    monkeypatch.setattr(search, "_gpu", lambda: False)


def test_above_the_size_the_search_is_approximate_and_says_how_good(small_is_large: None) -> None:
    queries, bank = modes(600, 1), modes(4000, 2)
    found, wanted = top_k(queries, bank, 12), oracle(queries, bank, 12)
    assert found.note is not None and (found.note.index, found.note.lists) == ("ivf", 64)
    assert search.LEAST_RECALL - 0.03 <= found.note.recall <= 1  # measured on other queries than those that chose
    assert recall_at(found.indices[:, :10], wanted.indices[:, :10]) == pytest.approx(found.note.recall, abs=0.03)
    exact = np.einsum("qd,qkd->qk", queries, bank[found.indices])
    np.testing.assert_allclose(found.scores, exact, atol=1e-5)  # whatever is found has its true score
    assert (np.diff(found.scores, axis=1) <= 0).all()
    np.testing.assert_array_equal(top_k(queries, bank, 12).indices, found.indices)
    assert 0 < found.note.probes < 64


def test_at_the_size_few_queries_on_demand_and_without_structure_it_is_exact(small_is_large: None) -> None:
    queries, bank = modes(600, 1), modes(4000, 2)
    for asked, held, exact in ((queries, bank[:1000], False), (queries[:5], bank, False), (queries, bank, True)):
        found = top_k(asked, held, 5, exact=exact)
        assert found.note == SearchNote("flat", len(asked), len(held))
        np.testing.assert_array_equal(found.indices, oracle(asked, held, 5).indices)
    queries, bank = drawn(600, 64, seed=1), drawn(4000, 64, seed=2)  # without any structure
    found = top_k(queries, bank, 5)
    assert found.note.index == "flat"
    np.testing.assert_array_equal(found.indices, oracle(queries, bank, 5).indices)


@pytest.mark.parametrize("d", [15, 513])
def test_a_bank_of_half_floats_of_any_length(small_is_large: None, d: int) -> None:
    queries, bank = modes(600, 1, d=d), modes(4000, 2, d=d).astype(np.float16)
    found = top_k(queries, bank, 12)
    assert found.note.index == "ivf"
    again = top_k(queries, bank.astype(np.float32), 12)
    np.testing.assert_array_equal(found.indices, again.indices)
    np.testing.assert_array_equal(found.scores, again.scores)
