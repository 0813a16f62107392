"""Triplet losses against a double loop in float64, in value and gradient, and values of NCR's public code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.objectives import TripletLoss, pair_loss_mean, prediction, soft_margin
from tests.objectives.conftest import S4, assert_same, batch, some

# NCR's public code on them
EVAL_LOSS = [0.0, 0.0975, 0.3175, 0.0175]
PREDICTION = [1.0, 0.75625, 0.20625, 0.95625]


def naive(S: Tensor, y: Tensor, margin: float, curve: float, form: str, excluded: Tensor | None = None) -> Tensor:
    n, losses = len(S), []
    for i in range(n):
        alpha = margin * (curve ** float(y[i]) - 1) / (curve - 1)
        loss = S[i, i] * 0
        for image_first in (True, False):
            hinges = []
            for j in range(n):
                at = (i, j) if image_first else (j, i)
                if j != i and not (excluded is not None and excluded[at]):
                    hinges.append(torch.relu(alpha - S[i, i] + S[at]))
            if hinges:
                total: Tensor = torch.stack(hinges).max() if form == "hard" else torch.stack(hinges).sum()
                loss = loss + (total / len(hinges) if form == "mean" else total)
        losses.append(loss)
    return torch.stack(losses)


@pytest.mark.parametrize("form", ["hard", "mean", "sum"])
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("excluding", [False, True])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, form: str, excluding: bool) -> None:
    S, y = batch(n)
    excluded = some(n) if excluding else None
    ours = TripletLoss(margin=0.3, curve=5.0, negatives=form)(S, y, excluded)
    slow = naive(S, y, 0.3, 5.0, form, excluded)
    assert_same(ours, slow, S)


def test_soft_margin() -> None:
    y = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    want = [0.2 * (10**v - 1) / 9 for v in y.tolist()]
    assert soft_margin(y).tolist() == pytest.approx(want)
    assert soft_margin(y)[0] == 0 and float(soft_margin(y)[-1]) == pytest.approx(0.2)
    assert float(soft_margin(torch.tensor(0.5), margin=1.0, curve=4.0)) == pytest.approx(1 / 3)


def test_values_of_ncr() -> None:
    """S4 is small enough to be worked out by hand; the paper's code divides by N - 1 later than this one."""
    theirs = pair_loss_mean(torch.tensor(S4)) * 3 / 4
    assert theirs.tolist() == pytest.approx(EVAL_LOSS, abs=1e-7)
    assert [1 - v / 0.4 for v in theirs.tolist()] == pytest.approx(PREDICTION, abs=1e-6)
    assert prediction(torch.tensor(S4)).tolist() == pytest.approx(
        [max(0, 1 - v * 4 / 3 / 0.4) for v in EVAL_LOSS], abs=1e-6
    )


def test_prediction_is_relative_to_the_best_tenth() -> None:
    S, _ = batch(40, seed=2)
    loss = naive(S, torch.ones(40), 0.2, 10.0, "mean").tolist()
    satisfied = [max(0.0, 1 - v / 0.4) for v in loss]
    best = sum(sorted(satisfied)[-4:]) / 4
    got = prediction(S)
    assert not got.requires_grad
    assert got.tolist() == pytest.approx([min(1.0, v / best) for v in satisfied])
    assert 0 < best < 1 and max(got.tolist()) == 1.0 and min(got.tolist()) == 0.0


def test_prediction_where_none_satisfies_its_margin() -> None:
    S = 1 - 2 * torch.eye(5)
    assert prediction(S).tolist() == [0.0] * 5
    assert prediction(torch.zeros(1, 1)).tolist() == [1.0]
    assert prediction(torch.zeros(0, 0)).shape == (0,)


@pytest.mark.parametrize("form", ["hard", "mean", "sum"])
def test_no_negatives_at_all_is_a_loss_of_zero_with_a_gradient(form: str) -> None:
    S, y = batch(3)
    for loss in (
        TripletLoss(negatives=form)(S, y, ~torch.eye(3, dtype=torch.bool)),
        TripletLoss(negatives=form)(S[:1, :1], y[:1]),
        TripletLoss(negatives=form)(S[:0, :0], y[:0]),
    ):
        assert loss.requires_grad and loss.tolist() == [0.0] * len(loss)
        (gradient,) = torch.autograd.grad(loss.sum(), S)
        assert float(gradient.abs().sum()) == 0


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("form", ["hard", "mean", "sum"])
def test_equal_similarities_leave_the_margin(form: str, label: float) -> None:
    S = torch.full((4, 4), 0.3, requires_grad=True)
    loss = TripletLoss(negatives=form)(S, torch.full((4,), label))
    times = 3 if form == "sum" else 1
    assert loss.tolist() == pytest.approx([2 * 0.2 * label * times] * 4, abs=1e-6)
    loss.sum().backward()
    assert S.grad is not None and math.isfinite(float(S.grad.abs().sum()))
