"""Reverse cross entropy against its definition with a one-hot matrix, and values of L2RM's public code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE
from tests.objectives.conftest import S4, batch, some

INFO_NCE, WITH_RCE = 2.160998821258545, 6.941159248352051


def naive(S: Tensor, y: Tensor, tau: float, weight: float, ce: float, excluded: Tensor | None) -> Tensor:
    """H(p, one-hot) of both directions, entry by entry."""
    n, losses = len(S), []
    for i in range(n):
        loss = S[i, i] * 0
        for image_first in (True, False):
            at = [(i, j) if image_first else (j, i) for j in range(n)]
            at = [a for a in at if excluded is None or not excluded[a]]
            total = torch.stack([torch.exp(S[a] / tau) for a in at]).sum()
            for a in at:
                p = torch.exp(S[a] / tau) / total
                bounded = 1 - 1e-7 if a == (i, i) else 1e-7
                loss = loss - weight * p * math.log(bounded) / 2
                if a == (i, i):
                    loss = loss - ce * torch.log(p) / 2
        losses.append(y[i] * loss)
    return torch.stack(losses)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, excluding: bool) -> None:
    S, y = batch(n)
    excluded = some(n) if excluding else None
    ours = InfoNCEWithRCE(tau=0.2, weight=0.7)(S, y, excluded)
    slow = naive(S, y, 0.2, 0.7, 1.0, excluded)
    assert ours.shape == (n,)
    torch.testing.assert_close(ours, slow, rtol=1e-9, atol=1e-12)
    w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    (got,) = torch.autograd.grad((w * ours).sum(), S)
    (want,) = torch.autograd.grad((w * slow).sum(), S)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


def test_values_of_the_public_code() -> None:
    S, ones = torch.tensor(S4), torch.ones(4)
    assert 2 * float(InfoNCEWithRCE(weight=0.0)(S, ones).mean()) == pytest.approx(INFO_NCE, rel=1e-6)
    # What is called RCE there is the warm-up's whole loss, both terms, the mean of the directions:
    assert float(InfoNCEWithRCE()(S, ones).mean()) == pytest.approx(WITH_RCE, rel=1e-6)


def test_a_wrong_pair_has_a_bounded_reverse_loss() -> None:
    S = torch.eye(4).flip(0).requires_grad_()
    both, cross = InfoNCEWithRCE(tau=0.01)(S, torch.ones(4)), InfoNCEWithRCE(tau=0.01, weight=0.0)(S, torch.ones(4))
    loss = both - cross
    assert loss.tolist() == pytest.approx([-math.log(1e-7)] * 4)
    assert float(InfoNCELoss(tau=0.01)(S, torch.ones(4))[0].detach()) > 50
    loss.sum().backward()
    assert S.grad is not None and float(S.grad.abs().max()) < 1e-6  # nothing to learn from it


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_degenerate_batches(label: float) -> None:
    for S0 in (torch.full((4, 4), 0.3), -torch.eye(4) * 20, torch.zeros(1, 1), torch.zeros(0, 0)):
        n = len(S0)
        for excluded in (None, ~torch.eye(n, dtype=torch.bool)):
            S = S0.clone().requires_grad_()
            loss = InfoNCEWithRCE()(S, torch.full((n,), label), excluded)
            loss.sum().backward()
            assert loss.shape == (n,) and bool(torch.isfinite(loss).all())
            assert S.grad is not None and bool(torch.isfinite(S.grad).all())
            if excluded is not None or label == 0:
                assert loss.tolist() == pytest.approx([0.0] * n, abs=1e-6)
