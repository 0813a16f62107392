"""Reverse cross entropy against its definition with a one-hot matrix, and values of L2RM's public code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.objectives import InfoNCEWithRCE
from tests.objectives.conftest import assert_same, batch, some


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
    assert_same(ours, slow, S)
