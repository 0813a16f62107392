"""DECL's evidential loss against a double loop in float64, torch's Dirichlet distribution, and sampling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from cleanpairs import DECL
from cleanpairs.core.errors import ConfigError
from cleanpairs.methods.decl import EvidentialLoss
from tests.objectives.conftest import assert_same, batch, some


def answers(S: Tensor, i: int, image_first: bool, excluded: Tensor | None) -> tuple[list[Tensor], int]:
    """Similarities of pair i's answers in one direction, and which of them is its own."""
    at = [(i, j) if image_first else (j, i) for j in range(len(S))]
    at = [a for a in at if excluded is None or not excluded[a]]
    return [S[a] for a in at], at.index((i, i))


def naive(S: Tensor, y: Tensor, tau: float, w: float, excluded: Tensor | None) -> Tensor:
    losses = []
    for i in range(len(S)):
        loss = S[i, i] * 0
        for image_first in (True, False):
            values, own = answers(S, i, image_first, excluded)
            alpha = [torch.exp(torch.tanh(s) / tau) + 1 for s in values]
            strength = torch.stack(alpha).sum()
            for k, a in enumerate(alpha):
                m = a / strength
                loss = loss + (float(k == own) - m) ** 2 + m * (1 - m) / (strength + 1)
            wrong = torch.stack([torch.ones_like(a) if k == own else a for k, a in enumerate(alpha)])
            if len(wrong) > 1:
                loss = loss + w * kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong)))
        losses.append(y[i] * loss / 2)
    return torch.stack(losses)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("kl_weight", [0.0, 0.3])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, excluding: bool, kl_weight: float) -> None:
    S, y = batch(n)
    excluded = some(n) if excluding else None
    ours = EvidentialLoss(tau=0.2, kl_weight=kl_weight)(S, y, excluded)
    slow = naive(S, y, 0.2, kl_weight, excluded)
    assert_same(ours, slow, S)


def test_float32_keeps_the_divergences_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    S0 = torch.rand(128, 128, generator=g) * 0.6 - 0.1 + torch.eye(128) * 0.3
    gradients = []
    for dtype in (torch.float32, torch.float64):
        S = S0.to(dtype).requires_grad_()
        loss = EvidentialLoss(tau=0.03, kl_weight=1.0)(S, torch.ones(128, dtype=dtype))
        assert loss.dtype == dtype and bool((loss >= 0).all())
        gradients.append(torch.autograd.grad(loss.sum(), S)[0].double())
    error = (gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()
    assert float(error) < 1e-4  # 0.17 with everything in float32


@pytest.mark.parametrize("tau", [0.0, -0.1, 0.012, float("nan")])
def test_a_temperature_that_leaves_float32(tau: float) -> None:
    with pytest.raises(ConfigError, match=r"evidence_tau of decl must be .*0\.0125, found"):
        DECL(evidence_tau=tau).validate()
