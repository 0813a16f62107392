"""Matching probabilities and duplicates against their definitions."""

import math

import numpy as np
import pytest
import torch

from cleanpairs.ops.matching import duplicate_mask, matching_probability, unit_rows


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
    given = np.array([[size, -size], [np.inf, 0], [np.nan, 1], [0, 0], [3, 4]], np.float32)
    found = unit_rows(given)
    np.testing.assert_allclose(found[0], [math.sqrt(0.5), -math.sqrt(0.5)], rtol=1e-6)
    np.testing.assert_allclose(found[1:], [[0, 0], [0, 0], [0, 0], [0.6, 0.8]], rtol=1e-6)
