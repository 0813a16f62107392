"""Mixtures: known ones are found; what is none is not believed; never NaN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cleanpairs.correspondence.mixture import Split, beta_split, gaussian_split
from cleanpairs.errors import DataError

BOTH = pytest.mark.parametrize("split", [beta_split, gaussian_split])
Splitter = Callable[[np.ndarray], Split]


def check(split: Split, n: int) -> None:
    """What holds for any input."""
    assert split.high.shape == (n,) and split.high.dtype == np.float64
    assert np.isfinite(split.high).all() and ((split.high >= 0) & (split.high <= 1)).all()
    assert 0 <= split.weight <= 1
    assert np.isfinite(split.means).all() and split.means[0] <= split.means[1]
    assert not np.isnan(split.threshold)


@BOTH
def test_a_known_mixture(split: Splitter) -> None:
    rng = np.random.default_rng(0)
    wrong = np.arange(4000) < 1200
    x = np.where(wrong, rng.beta(2, 18, 4000), rng.beta(16, 4, 4000))
    found = split(x)
    check(found, 4000)
    assert found.separated
    assert found.weight == pytest.approx(0.7, abs=0.03)
    assert found.means == (pytest.approx(0.1, abs=0.03), pytest.approx(0.8, abs=0.03))
    assert 0.2 < found.threshold < 0.7
    assert ((found.high < 0.5) == wrong).mean() > 0.99
    assert ((x < found.threshold) == wrong).mean() > 0.99


@BOTH
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_all_alike(split: Splitter, value: float) -> None:
    found = split(np.full(500, value))
    check(found, 500)
    assert not found.separated
    assert not (np.full(500, value) < found.threshold).any()


@BOTH
@pytest.mark.parametrize(("a", "b"), [(30, 2), (2, 30)], ids=["all clean", "all noisy"])
def test_one_heap_is_no_split(split: Splitter, a: int, b: int) -> None:
    found = split(np.random.default_rng(1).beta(a, b, 3000))
    check(found, 3000)
    assert not found.separated


@BOTH
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5])
def test_few_values(split: Splitter, n: int) -> None:
    found = split(np.linspace(0, 1, n))
    check(found, n)
    if n < 4:
        assert not found.separated


@BOTH
def test_two_spikes(split: Splitter) -> None:
    x = np.repeat([0.0, 1.0], 200)
    found = split(x)
    check(found, 400)
    assert found.separated
    assert ((found.high >= 0.5) == (x == 1)).all()


@BOTH
def test_one_outlier_among_many(split: Splitter) -> None:
    check(split(np.append(np.full(999, 0.9), 0.1)), 1000)


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(split: Splitter, bad: float) -> None:
    with pytest.raises(DataError, match="finite"):
        split(np.array([0.1, 0.2, bad, 0.5, 0.9]))


@BOTH
def test_never_nan_out(split: Splitter) -> None:
    rng = np.random.default_rng(5)
    count = 0
    for n in (4, 7, 50, 400):
        for a, b in ((0.05, 0.05), (1, 1), (5, 0.1), (0.1, 5), (200, 200)):
            check(split(rng.beta(a, b, n)), n)
            count += 1
    assert count == 20
