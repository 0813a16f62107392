"""Matching probabilities and duplicates against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from cleanpairs.ops.matching import duplicate_mask, log_probabilities, matching_probability
from tests.objectives.conftest import S4

# values of the reference implementation: p of one 4 x 4 matrix at tau 0.05
P4 = [0.9996944069862366, 0.513663649559021, 0.06972522288560867, 0.962486743927002]


def test_values_of_the_reference_implementation() -> None:
    torch.testing.assert_close(matching_probability(torch.tensor(S4), 0.05), torch.tensor(P4), rtol=1e-5, atol=1e-7)


def test_rows_and_columns_sum_to_one() -> None:
    S = torch.randn(6, 6, dtype=torch.float64)
    log = log_probabilities(S, 0.1)
    torch.testing.assert_close(log.log_p.exp().sum(1), torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(log.log_q.exp().sum(0), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 2, 6])
def test_matching_probability_by_hand(n: int) -> None:
    g = torch.Generator().manual_seed(2)
    S = torch.randn(n, n, dtype=torch.float64, generator=g)
    excluded = (torch.rand(n, n, generator=g) < 0.3).fill_diagonal_(False)
    got = matching_probability(S, 0.2, excluded)
    for i in range(n):
        own = math.exp(S[i, i] / 0.2)
        row = sum(math.exp(S[i, j] / 0.2) for j in range(n) if not excluded[i, j])
        column = sum(math.exp(S[j, i] / 0.2) for j in range(n) if not excluded[j, i])
        assert float(got[i]) == pytest.approx((own / row + own / column) / 2, rel=1e-12)


def test_no_gradient_flows_through_it() -> None:
    assert not matching_probability(torch.eye(3, requires_grad=True), 0.1).requires_grad


def test_duplicates_share_image_or_text() -> None:
    mask = duplicate_mask(torch.tensor([5, 5, 6, 7]), torch.tensor([1, 2, 3, 2]))
    assert mask.int().tolist() == [[0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert duplicate_mask(torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3])) is None
    assert duplicate_mask(torch.tensor([1]), torch.tensor([1])) is None
