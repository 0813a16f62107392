"""Searches by the workers of an engine, a part of the queries each: what one process finds, bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.engine.queries import EngineSearch
from cleanpairs.ops import search
from cleanpairs.ops.search import TopK, top_k
from tests.helpers import InParts, assert_raises, unit


def heaps(n: int, d: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit(rng.normal(size=(20, d))[rng.integers(0, 20, n)] + 0.1 * rng.normal(size=(n, d)))


def assert_as_in_one_process(looks: EngineSearch, queries: np.ndarray, bank: np.ndarray, k: int) -> TopK:
    found, wanted = looks(queries, bank, k), top_k(queries, bank, k)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert found.note == wanted.note
    return found


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (1, 1), (2, 2), (300, 40)])
def test_the_exact_search_in_parts_removes_its_own_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, m: int
) -> None:
    monkeypatch.setattr(search, "_FLAT_BLOCK", 64)
    parts = tmp_path / "parts"
    looks = EngineSearch(parts, InParts())
    assert_as_in_one_process(looks, heaps(n), heaps(m, seed=1), 7)
    looks.remove()
    assert not parts.exists()
    parts.mkdir()
    (parts / "part-000000").touch()
    EngineSearch(parts, InParts()).remove()  # without a search nothing of the folder is removed
    assert (parts / "part-000000").exists()


def test_the_approximate_search_in_parts_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLAT_UP_TO", "_IVF_BLOCK"):
        monkeypatch.setattr(search, name, 100)
    queries, bank = heaps(1000), heaps(1200, seed=1)
    assert_raises(DataError, "stopped", EngineSearch(tmp_path / "parts", InParts(stops=4)), queries, bank, 10)
    engine = InParts()
    looks = EngineSearch(tmp_path / "parts", engine)
    assert assert_as_in_one_process(looks, queries, bank, 10).note.index == "ivf"
    assert engine.done == 5  # of ten
    assert_as_in_one_process(looks, bank, queries, 10)  # the next search has a folder of its own
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == [".job-lock", "search-0", "search-1"]
    looks.remove()
    assert not (tmp_path / "parts").exists()
