"""L2RM's rematching loss against a double loop, values of its public code, and the cost net's objective."""

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.l2rm import RematchingLoss
from tests.objectives.conftest import assert_same


def naive(S: Tensor, plan: Tensor, tau: float, divergence: str) -> Tensor:
    """KL(R || P) + KL(P || R) of every row and of every column, the first alone, or -log P where R is largest."""
    values = []
    for i in range(len(S)):
        value = S[i, 0] * 0
        for s, t in ((S[i], plan[i]), (S[:, i], plan[:, i])):
            p = torch.exp(s / tau) / torch.exp(s / tau).sum()
            r = t.clamp_min(1e-10) / t.clamp_min(1e-10).sum()
            if divergence == "infonce":
                value = value - torch.log(p[int(r.argmax())])
                continue
            value = value + (r * (torch.log(r) - torch.log(p))).sum()
            if divergence == "symmetric":
                value = value + (p * (torch.log(p) - torch.log(r))).sum()
        values.append(value)
    return torch.stack(values)


@pytest.mark.parametrize("divergence", ["symmetric", "kl", "infonce"])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, divergence: str) -> None:
    g = torch.Generator().manual_seed(n)
    S = (torch.rand(n, n, generator=g, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    plan = torch.rand(n, n, generator=g, dtype=torch.float64) ** 4 / n**2
    plan[torch.rand(n, n, generator=g) < 0.3] = 0
    plan[0, 0] = 0.1
    assert_same(RematchingLoss(0.2, divergence)(S, plan), naive(S, plan, 0.2, divergence), S)


def test_degenerate_batches() -> None:
    for S0 in (torch.full((4, 4), 0.3), torch.eye(4) * 20, torch.zeros(1, 1), torch.zeros(2, 2)):
        n = len(S0)
        for plan in (torch.zeros(n, n), torch.eye(n) / n, torch.ones(n, n) / n**2):
            S = S0.clone().requires_grad_()
            loss = RematchingLoss()(S, plan)
            loss.sum().backward()
            assert loss.shape == (n,) and bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
            assert S.grad is not None and bool(torch.isfinite(S.grad).all())
