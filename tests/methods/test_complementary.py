"""RCL's complementary losses against a double loop in float64, and values of its public code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.crcl import ActiveComplementaryLoss
from cleanpairs.methods.rcl import ComplementaryLoss
from tests.objectives.conftest import S4, batch, some

PUBLIC = {"log": 1.221722960472107, "tan": 0.8637146949768066, "gce": 0.9224218130111694}  # mean of the batch
KINDS = ["log", "tan", "gce", "exp"]


def naive(S: Tensor, tau: float, kind: str, excluded: Tensor | None) -> Tensor:
    n, losses = len(S), []
    for i in range(n):
        loss = S[i, i] * 0
        for image_first in (True, False):
            at = [(i, j) if image_first else (j, i) for j in range(n)]
            at = [a for a in at if excluded is None or not excluded[a]]
            total = torch.stack([torch.exp(S[a] / tau) for a in at]).sum()
            for a in at:
                if a == (i, i):
                    continue
                p = torch.exp(S[a] / tau) / total
                loss = loss + 0.5 * {
                    "log": lambda p: -torch.log(1 - p),
                    "tan": torch.tan,
                    "gce": lambda p: (1 - (1 - p) ** 0.5) / 0.5,
                    "exp": lambda p: torch.exp(p - 1),
                }[kind](p)
        losses.append(loss)
    return torch.stack(losses)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_double_loop(n: int, kind: str, excluding: bool) -> None:
    S, y = batch(n)
    excluded = some(n) if excluding else None
    ours = ComplementaryLoss(tau=0.3, kind=kind)(S, y, excluded)
    slow = naive(S, 0.3, kind, excluded)
    assert ours.shape == (n,)
    torch.testing.assert_close(ours, slow, rtol=1e-10, atol=1e-12)
    w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    (got,) = torch.autograd.grad((w * ours).sum(), S)
    (want,) = torch.autograd.grad((w * slow).sum(), S)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", list(PUBLIC))
def test_values_of_the_public_code(kind: str) -> None:
    ours = ComplementaryLoss(tau=0.05, kind=kind)(torch.tensor(S4), torch.ones(4))
    assert 2 * float(ours.mean()) == pytest.approx(PUBLIC[kind], rel=1e-5)  # it sums the directions


def test_twice_the_tangent_is_crcls_complementary_part_at_q_0() -> None:
    """Label 1 is q = 0."""
    S, ones = batch(6)[0], torch.ones(6, dtype=torch.float64)
    both = ActiveComplementaryLoss(tau=0.1, lam=1.0)(S, ones) - ActiveComplementaryLoss(tau=0.1, lam=0.0)(S, ones)
    torch.testing.assert_close(2 * ComplementaryLoss(tau=0.1, kind="tan")(S, ones), both)


@pytest.mark.parametrize("kind", KINDS)
def test_the_labels_are_not_looked_at_and_wrong_answers_are_pushed_down(kind: str) -> None:
    S, y = batch(5)
    loss = ComplementaryLoss(tau=0.2, kind=kind)(S, y)
    torch.testing.assert_close(loss, ComplementaryLoss(tau=0.2, kind=kind)(S, 1 - y))
    (slope,) = torch.autograd.grad(loss.sum(), S)
    lower = ComplementaryLoss(tau=0.2, kind=kind)(S - 1e-3 * slope, y)
    assert float(lower.sum().detach()) < float(loss.sum().detach())


@pytest.mark.parametrize("kind", KINDS)
def test_a_confident_batch_in_float32(kind: str) -> None:
    """A wrong answer of probability 1 is finite; a right one leaves next to nothing, and never less than nothing."""
    for S0, right in ((torch.eye(64), True), (torch.eye(64).flip(0), False)):
        S = S0.clone().requires_grad_()
        loss = ComplementaryLoss(tau=0.01, kind=kind)(S, torch.ones(64))
        loss.sum().backward()
        assert bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
        assert S.grad is not None and bool(torch.isfinite(S.grad).all())
        if right and kind != "exp":
            assert float(loss.max().detach()) < 1e-5
        if not right:
            assert float(loss.min().detach()) > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_batches(kind: str) -> None:
    for S0 in (torch.full((4, 4), 0.3), torch.zeros(1, 1), torch.zeros(2, 2), torch.zeros(0, 0)):
        n = len(S0)
        for excluded in (None, ~torch.eye(n, dtype=torch.bool)):
            S = S0.clone().requires_grad_()
            loss = ComplementaryLoss(kind=kind)(S, torch.zeros(n), excluded)
            loss.sum().backward()
            assert loss.shape == (n,) and bool(torch.isfinite(loss).all())
            assert S.grad is not None and bool(torch.isfinite(S.grad).all())
            if n < 2 or excluded is not None:
                assert loss.tolist() == [0.0] * n and float(S.grad.abs().sum()) == 0
