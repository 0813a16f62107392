"""The label recursion of CRCL, eq. 10-12, by hand; guard, label_epochs, ablations."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import CRCL
from cleanpairs.methods.crcl import ActiveComplementaryLoss, MomentumCorrection
from tests.methods.conftest import begun


def test_two_pieces_by_hand() -> None:
    """Freeze 2, beta 0.8, two pieces of 4 epochs, one pair; p(piece, epoch) made up.

    TrainingStage 1: y(1) = y(2) = 1;  y(3) = p(2) = 0.5;  y(4) = 0.8 * 0.5 + 0.2 * p(3) = 0.8 * 0.5 + 0.2 * 0.9 = 0.58
    Then the last probability of the piece, p(4) = 0.1, makes 0.8 * 0.58 + 0.2 * 0.1 = 0.484: the last value of piece 1.
    TrainingStage 2: y(1) = y(2) = 0.484;  y(3) = 0.8 * 0.484 + 0.2 * 0.3 = 0.4472;  y(4) = 0.8 * 0.4472 + 0.2 * 1 =
    0.55776
    """
    p = {1: [0.2, 0.5, 0.9, 0.1], 2: [0.7, 0.3, 1.0, 0.0]}
    used = {1: [1.0, 1.0, 0.5, 0.58], 2: [0.484, 0.484, 0.4472, 0.55776]}
    labels = MomentumCorrection(1, ActiveComplementaryLoss(), beta=0.8, epsilon=0.0, freeze=2, guard=False)
    for piece in (1, 2):
        for epoch in (1, 2, 3, 4):
            assert labels.labels()[0] == pytest.approx(used[piece][epoch - 1], abs=1e-6), (piece, epoch)
            labels.update(epoch, np.array([p[piece][epoch - 1]]))


def test_epsilon_acts_on_use_only() -> None:
    labels = MomentumCorrection(2, ActiveComplementaryLoss(), beta=0.5, epsilon=0.25, freeze=1, guard=False)
    labels.update(1, np.array([0.125, 0.25]))
    assert labels.labels().tolist() == [0.0, 0.25]  # eq. 12: zero below epsilon, not at it
    assert labels.value().tolist() == [0.125, 0.25]
    labels.update(2, np.array([1.0, 1.0]))  # it comes back from 0.125, not from zero
    assert labels.value().tolist() == [0.5625, 0.625]


def test_guard_holds_until_the_probabilities_separate() -> None:
    ignorant, knowing = np.full(10, 0.02), np.array([0.9] * 5 + [0.01] * 5)
    labels = MomentumCorrection(10, ActiveComplementaryLoss(), freeze=1, guard=True)
    labels.update(1, ignorant)
    labels.update(2, ignorant)
    assert not labels.started and labels.labels().tolist() == [1.0] * 10
    labels.update(3, knowing)
    np.testing.assert_allclose(labels.value(), knowing, rtol=1e-6)
    labels.update(4, ignorant)  # it guards the start only
    np.testing.assert_allclose(labels.value(), 0.8 * knowing + 0.2 * ignorant, rtol=1e-5)


def test_horizon_ends_what_a_piece_tells() -> None:
    labels = MomentumCorrection(1, ActiveComplementaryLoss(), beta=0.5, freeze=1, guard=False, label_epochs=2)
    assert [labels.wants(t) for t in (1, 2, 3)] == [True, True, True]  # nothing taken over yet: still wanted
    for epoch in (1, 2, 3, 4):
        labels.update(epoch, np.array([1 / 2**epoch]))
    assert labels.value()[0] == pytest.approx(0.5 * 0.5 + 0.5 * 0.25)
    assert [labels.wants(t) for t in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize("changes", [{}, {"lam": 0.0}, {"active": 0.0}, {"q": 1.0}, {"correction": False}])
def test_a_step_of_crcl_with_each_of_its_ablations(changes: dict[str, Any]) -> None:
    """Against the equations that are left."""
    p = np.random.default_rng(0).random((4, 24)).astype(np.float32)
    labels, view = begun(CRCL, 24, refine_epochs=(), **changes)
    for epoch, of_epoch in enumerate(p, start=1):
        labels.update(epoch, of_epoch)
    f, corrected = view.forward(0, np.arange(12), seed=3), "correction" not in changes
    y = labels.labels() if corrected else np.ones(24, np.float32)
    assert bool((y == 1).all()) is not corrected
    objective = ActiveComplementaryLoss(0.07, **{"lam": 5.0, **changes} if corrected else {})
    expected = objective(f.similarity(), torch.from_numpy(y[f.rows])).mean()
    torch.testing.assert_close(labels.loss(view, 0, (np.arange(12),), 3), expected)
    if not corrected:
        np.testing.assert_allclose(labels.value(), p.mean(axis=0), rtol=1e-5)
