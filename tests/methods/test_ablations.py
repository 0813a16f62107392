"""The ablations of CRCL and PC2 as settings: a step with each, against the equations that are left."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import CRCL, PC2
from cleanpairs.methods.crcl import ActiveComplementaryLoss
from tests.methods.conftest import view_of

N = 24
CLEAN, NOISY = np.arange(12), np.arange(12, 24)


@pytest.mark.parametrize("changes", [{}, {"lam": 0.0}, {"active": 0.0}, {"q": 1.0}, {"correction": False}])
def test_crcl(changes: dict[str, Any]) -> None:
    p = np.random.default_rng(0).random((4, N)).astype(np.float32)
    procedure: Any = CRCL(refine_epochs=(), **changes)._procedure(range(N))  # type: ignore[arg-type]
    labels, view = procedure.correspondence, view_of(procedure, N)
    for epoch in range(1, 5):
        labels.update(1, epoch, p[epoch - 1])
    f, corrected = view.forward(0, CLEAN, seed=3), "correction" not in changes
    y = labels.labels() if corrected else np.ones(N, np.float32)
    assert bool((y == 1).all()) is not corrected
    objective = ActiveComplementaryLoss(0.07, **{"lam": 5.0, **changes} if corrected else {})
    expected = objective(f.similarity(), torch.from_numpy(y[f.rows])).mean()
    torch.testing.assert_close(procedure.loss(view, 0, (CLEAN,), 3), expected)
    if not corrected:
        np.testing.assert_allclose(labels.value(), p.mean(axis=0), rtol=1e-5)


def pc2(**changes: Any) -> tuple[Any, Any, Any, Any]:
    procedure: Any = PC2(**{"clean_loss": "triplet", **changes})._procedure(range(N))  # type: ignore[arg-type]
    view = view_of(procedure, N)
    procedure.y[:] = np.random.default_rng(1).random((2, N))
    f = view.forward(0, CLEAN, NOISY, seed=3)
    return procedure, view, f.select(f.source == 0), f.select(f.source == 1)


def test_pc2_without_pseudo_captions() -> None:
    procedure, *step = pc2(noisy_weight=0.0)
    without = procedure.split_loss(step[0], 0, step[1], None)
    torch.testing.assert_close(procedure.split_loss(step[0], 0, *step[1:]), without)
    procedure, *step = pc2()
    assert procedure.split_loss(step[0], 0, *step[1:]).item() > without.item() + 1e-3


def test_pc2_without_pseudo_classification() -> None:
    losses = []
    for weight in (1.0, 0.0):
        procedure, view, clean, noisy = pc2(pseudo_weight=weight)
        losses.append(procedure.split_loss(view, 0, clean, noisy).item())
        head = view.networks[0].head
        p = head(clean.images).softmax(dim=1).detach().numpy()
        named = head(clean.texts).argmax(dim=1).numpy()
    expected = -np.log(p[np.arange(len(p)), named]).mean()
    assert losses[0] - losses[1] == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("rectify", [True, False])
def test_pc2_without_rectified_labels(rectify: bool) -> None:
    procedure, view, *_ = pc2(rectify=rectify)
    procedure.w = np.random.default_rng(2).random((2, N)).astype(np.float32)
    value = procedure.judge(view)
    np.testing.assert_allclose(procedure.y, procedure.w[::-1] if rectify else np.ones((2, N)), rtol=1e-6)
    np.testing.assert_allclose(value, procedure.w.mean(axis=0), rtol=1e-6)  # what it leaves is the same
