"""RCL's complementary losses against a double loop in float64, and values of its public code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.rcl import ComplementaryLoss
from tests.objectives.conftest import assert_same, batch, some

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
    assert_same(ours, slow, S)


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
