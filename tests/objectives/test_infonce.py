"""InfoNCE against torch's cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from cleanpairs.objectives import InfoNCELoss


@pytest.mark.parametrize("n", [1, 2, 7])
def test_it_is_torchs_cross_entropy_of_both_directions(n: int) -> None:
    S = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    target = torch.arange(n)
    want = (cross_entropy(S / 0.07, target, reduction="none") + cross_entropy(S.T / 0.07, target, reduction="none")) / 2
    got = InfoNCELoss(tau=0.07)(S, torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got.sum(), S), torch.autograd.grad(want.sum(), S), strict=True):
        torch.testing.assert_close(a, b)


def test_labels_weigh_the_pairs() -> None:
    S, y = torch.rand(3, 3), torch.tensor([0.0, 0.25, 1.0])
    torch.testing.assert_close(InfoNCELoss()(S, y), y * InfoNCELoss()(S, torch.ones(3)))


def test_an_excluded_entry_is_as_if_it_were_not_there() -> None:
    S = torch.tensor([[0.9, 0.8, 0.1], [0.8, 0.9, 0.2], [0.0, 0.3, 0.7]])
    excluded = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    moved = S.clone()
    moved[0, 1] = moved[1, 0] = -0.4
    objective = InfoNCELoss(tau=0.1)
    torch.testing.assert_close(objective(S, torch.ones(3), excluded), objective(moved, torch.ones(3), excluded))
    assert float(objective(S, torch.ones(3), excluded)[0]) < float(objective(S, torch.ones(3))[0])
