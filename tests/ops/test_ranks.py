"""Ranks and rank correlations against scipy, row by row, ties and awkward values included; matching probabilities."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from cleanpairs.core.errors import DataError
from cleanpairs.ops import ranks
from cleanpairs.ops.matching import duplicate_mask, matching_probability, unit_rows
from tests.helpers import assert_raises


def average_ranks(x: np.ndarray) -> np.ndarray:
    return ranks.average_ranks(torch.from_numpy(np.ascontiguousarray(x))).numpy()


def rank_correlation(*args: np.ndarray, exclude: np.ndarray | None = None, block: int = ranks.BLOCK) -> np.ndarray:
    left_out = None if exclude is None else torch.from_numpy(exclude)
    return ranks.rank_correlation(*map(torch.from_numpy, args), exclude=left_out, block=block).numpy()


def by_scipy(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation, 0 where scipy has none."""
    return stats.spearmanr(x, y).statistic if len(x) > 1 and np.ptp(x) and np.ptp(y) else 0.0


def by_loop(*args: np.ndarray, exclude: np.ndarray | None = None) -> np.ndarray:
    """Of images and texts (n), by their distances to those of a bank; -1 excludes nobody."""
    x_image, x_text, images, texts = args
    out = np.zeros(len(x_image))
    for i, without in enumerate(np.full(len(out), -1) if exclude is None else exclude):
        kept = np.arange(len(images)) != without
        out[i] = by_scipy(*(((bank[kept] - x[i]) ** 2).sum(axis=1) for x, bank in ((x_image, images), (x_text, texts))))
    return out


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small whole numbers: distances between them are exact, and many are equal."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float64)


def floats(width: int) -> Any:
    numbers = st.floats(width=width, allow_nan=False) | st.floats(0, 0.0009765625, width=width)
    return arrays.arrays(f"float{width}", arrays.array_shapes(min_dims=2, max_dims=2, max_side=30), elements=numbers)


@settings(max_examples=100, deadline=None)
@example(np.array([[np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0, 1.0000001]], dtype=np.float32))
@example(np.array([[3e-45, 1e-45, 0.0, 1e-45]], dtype=np.float32))  # 65,000 over their range overflows
@example(np.array([[1.7e308, -1.7e308, 0.0]]))
@given(st.sampled_from([32, 64]).flatmap(floats))
def test_ranks_equal_scipy_for_any_floats(x: np.ndarray) -> None:
    found = average_ranks(x)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, stats.rankdata(x, axis=1))
    assert_raises(DataError, "NaN", average_ranks, np.where(x == x[0, 0], np.nan, x))


@pytest.mark.parametrize("make", [vectors, whole])
def test_rank_correlation_equals_the_row_loop(make: Any) -> None:
    """Also without an entry each, in blocks of any size; images with several captions tie exactly."""
    for n, m in ((0, 3), (1, 0), (2, 1), (9, 2), (9, 3), (20, 60)):
        several = np.repeat(make(m, 4, seed=3), 5, axis=0)[np.random.default_rng(0).permutation(5 * m)[:m]]
        for images in (make(m, 4, seed=3), several):
            args = make(n, 4, seed=1), make(n, 3, seed=2), images, make(m, 3, seed=4)
            np.testing.assert_allclose(rank_correlation(*args), by_loop(*args), atol=1e-12)
            exclude = np.random.default_rng(1).integers(-1, m, n)
            wanted = by_loop(*args, exclude=exclude)
            for block in (1, 100, ranks.BLOCK):
                np.testing.assert_allclose(rank_correlation(*args, exclude=exclude, block=block), wanted, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu_as_on_the_cpu() -> None:
    x, y = torch.from_numpy(whole(9, 5)), torch.from_numpy(whole(50, 5, seed=1))
    assert torch.equal(ranks.average_ranks(y.cuda()).cpu(), ranks.average_ranks(y))
    there = ranks.rank_correlation(x.cuda(), x.cuda(), y.cuda(), y.cuda(), exclude=torch.arange(9).cuda())
    torch.testing.assert_close(there.cpu(), ranks.rank_correlation(x, x, y, y, exclude=torch.arange(9)))


# -- matching probabilities and duplicates ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 6])
def test_matching_probability_by_hand(n: int) -> None:
    g = torch.Generator().manual_seed(2)
    S = torch.randn(n, n, dtype=torch.float64, generator=g)
    excluded = (torch.rand(n, n, generator=g) < 0.3).fill_diagonal_(False)
    got = matching_probability(S.clone().requires_grad_(), 0.2, excluded)
    assert not got.requires_grad
    for i in range(n):
        own = math.exp(S[i, i] / 0.2)
        row = sum(math.exp(S[i, j] / 0.2) for j in range(n) if not excluded[i, j])
        column = sum(math.exp(S[j, i] / 0.2) for j in range(n) if not excluded[j, i])
        assert float(got[i]) == pytest.approx((own / row + own / column) / 2, rel=1e-12)


def test_duplicates_share_image_or_text() -> None:
    mask = duplicate_mask(torch.tensor([5, 5, 6, 7]), torch.tensor([1, 2, 3, 2]))
    assert mask.int().tolist() == [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert all(duplicate_mask(torch.arange(n), torch.arange(n)) is None for n in (1, 3))


@pytest.mark.parametrize("size", [1e-44, 1e-13, 1.0, 1e20, 3e38])
def test_rows_of_any_size_get_length_one(size: float) -> None:
    found = unit_rows(np.array([[size, -size], [np.inf, 0], [np.nan, 1], [0, 0], [3, 4]], np.float32))
    np.testing.assert_allclose(found[0], [math.sqrt(0.5), -math.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose(found[1:], [[0, 0], [0, 0], [0, 0], [0.6, 0.8]], rtol=1e-6)
