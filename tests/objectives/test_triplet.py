"""The prediction of NCR, whose public code gives the same values."""

import pytest
import torch

from cleanpairs.objectives import TripletLoss, pair_loss_mean, prediction
from tests.objectives.conftest import S4, batch

# NCR's public code on them
EVAL_LOSS = [0.0, 0.0975, 0.3175, 0.0175]


def test_values_of_ncr() -> None:
    """S4 is small enough to be worked out by hand; the paper's code divides by N - 1 later than this one."""
    theirs = pair_loss_mean(torch.tensor(S4)) * 3 / 4
    assert theirs.tolist() == pytest.approx(EVAL_LOSS, abs=1e-7)
    assert [1 - v / 0.4 for v in theirs.tolist()] == pytest.approx([1.0, 0.75625, 0.20625, 0.95625], abs=1e-6)
    wanted = [max(0, 1 - v * 4 / 3 / 0.4) for v in EVAL_LOSS]
    assert prediction(torch.tensor(S4)).tolist() == pytest.approx(wanted, abs=1e-6)


def test_prediction_of_equal_similarities_is_no_rounding() -> None:
    S = 1 + 3e-7 * torch.randn((8, 8), generator=torch.Generator().manual_seed(0))
    assert float(prediction(S).max()) < 0.01


def test_prediction_is_relative_to_the_best_tenth() -> None:
    S, _ = batch(40, seed=2)
    loss = TripletLoss(negatives="mean")(S, torch.ones(40)).tolist()
    satisfied = [max(0.0, 1 - v / 0.4) for v in loss]
    best = sum(sorted(satisfied)[-4:]) / 4
    got = prediction(S)
    assert not got.requires_grad
    assert got.tolist() == pytest.approx([min(1.0, v / best) for v in satisfied])
    assert 0 < best < 1 and max(got.tolist()) == 1.0 and min(got.tolist()) == 0.0


def test_prediction_where_none_satisfies_its_margin() -> None:
    assert prediction(1 - 2 * torch.eye(5)).tolist() == [0.0] * 5
    assert prediction(torch.zeros(1, 1)).tolist() == [1.0]
    assert prediction(torch.zeros(0, 0)).shape == (0,)
