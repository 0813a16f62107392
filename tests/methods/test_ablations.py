"""The ablations of the papers as settings: a step with each, against the same step by the equations that are left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cleanpairs import CRCL, L2RM, PC2
from cleanpairs.ops.transport import partial_transport
from tests.methods.conftest import view_of

N = 24
CLEAN, NOISY = np.arange(12), np.arange(12, 24)


def parts(S: Tensor, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """P and Q (B, B) of similarities, in float64 by numpy."""
    e = np.exp(S.detach().double().numpy() / tau)
    return e / e.sum(axis=1, keepdims=True), e / e.sum(axis=0, keepdims=True)


def acl(S: Tensor, y: np.ndarray, q: np.ndarray, lam: float, active: float) -> float:
    """Mean of CRCL's eq. 8-9 by loops."""
    P, Q = parts(S, 0.07)
    total = 0.0
    for i in range(len(S)):
        total += -active * y[i] * (np.log(P[i, i]) + np.log(Q[i, i]))
        for row in (P[i], Q[:, i]):
            tan = np.tan(row)
            total += lam * (tan.sum() - tan[i]) / tan.sum() ** q[i]
    return total / len(S)


@pytest.mark.parametrize(
    ("changes", "lam", "active", "q"),
    [
        ({}, 5, 1, None),
        ({"lam": 0.0}, 0, 1, None),
        ({"active": 0.0}, 5, 0, None),
        ({"q": 1.0}, 5, 1, 1.0),
        ({"q": 0.0}, 5, 1, 0.0),
    ],
)
def test_crcl(changes: dict[str, Any], lam: float, active: float, q: float | None) -> None:
    procedure: Any = CRCL(**changes)._procedure(range(N))  # type: ignore[arg-type]
    view = view_of(procedure, N)
    y = np.random.default_rng(0).uniform(0.2, 1, N).astype(np.float32)
    procedure.correspondence.y = y.copy()
    f = view.forward(0, CLEAN, seed=3)
    assert f.excluded is None
    expected = acl(f.similarity(), y[f.rows], (1 - y if q is None else np.full(N, q))[f.rows], lam, active)
    got = procedure.loss(view, 0, (CLEAN,), 3)
    assert got.item() == pytest.approx(expected, rel=1e-4)
    got.backward()
    assert max(float(p.grad.abs().max()) for p in view.networks[0].parameters() if p.grad is not None) > 0


def test_crcl_without_the_correction_trains_with_labels_of_1() -> None:
    p = np.random.default_rng(0).random((4, N)).astype(np.float32)
    for correction in (True, False):
        procedure: Any = CRCL(refine_epochs=(), correction=correction)._procedure(range(N))  # type: ignore[arg-type]
        labels, view = procedure.correspondence, view_of(procedure, N)
        for epoch in range(1, 5):
            labels.update(1, epoch, p[epoch - 1])
        f, y = view.forward(0, CLEAN, seed=3), labels.labels() if correction else np.ones(N)
        assert bool((y == 1).all()) is not correction
        expected = acl(f.similarity(), y[f.rows], 1 - y[f.rows], 5, 1)
        assert procedure.loss(view, 0, (CLEAN,), 3).item() == pytest.approx(expected, rel=1e-4)
        if not correction:
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


def symmetric(R: np.ndarray, P: np.ndarray) -> np.ndarray:
    return (R * np.log(R / P) + P * np.log(P / R)).sum(axis=1)


def one_way(R: np.ndarray, P: np.ndarray) -> np.ndarray:
    return (R * np.log(R / P)).sum(axis=1)


def best(R: np.ndarray, P: np.ndarray) -> np.ndarray:
    return -np.log(P[np.arange(len(P)), R.argmax(axis=1)])


@pytest.mark.parametrize(
    ("changes", "masked", "mass", "apart"),
    [
        ({}, True, 0.1, symmetric),
        ({"masked": False}, False, 0.1, symmetric),
        ({"mass": 1.0}, True, 1.0, symmetric),
        ({"divergence": "kl"}, True, 0.1, one_way),
        ({"divergence": "infonce"}, True, 0.1, best),
    ],
)
def test_l2rm(changes: dict[str, Any], masked: bool, mass: float, apart: Callable[..., np.ndarray]) -> None:
    settings = {"cost": "cosine", "rematch_weight": 1.0, "transport_reg": 0.05, **changes}
    procedure: Any = L2RM(**settings)._procedure(range(N))  # type: ignore[arg-type]
    assert procedure.head(None) is None  # without the cost net
    view = view_of(procedure, N)
    f = view.forward(0, CLEAN, NOISY, seed=3)
    clean, noisy = f.select(f.source == 0), f.select(f.source == 1)
    S = noisy.similarity().detach()
    forbidden = torch.eye(len(S), dtype=torch.bool) if masked else None
    plan = partial_transport((1 - S).clamp_min(1e-10), mass=mass, reg=0.05, forbidden=forbidden).plan
    assert (plan.diagonal() > 0).any().item() is not masked and plan.sum().item() == pytest.approx(mass, rel=0.1)
    kept = plan.double().numpy().clip(1e-10)
    P, Q = parts(S, 0.05)
    R, C = kept / kept.sum(axis=1, keepdims=True), kept / kept.sum(axis=0, keepdims=True)
    expected = apart(R, P).mean() + apart(C.T, Q.T).mean()
    got = procedure.split_loss(view, 0, clean, noisy) - procedure.split_loss(view, 0, clean, None)
    assert got.item() == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("warm_loss", ["rce", "infonce"])
def test_l2rms_warm_up(warm_loss: str) -> None:
    procedure: Any = L2RM(warm_loss=warm_loss)._procedure(range(N))  # type: ignore[arg-type]
    view = view_of(procedure, N)
    P, Q = parts(view.forward(0, CLEAN, seed=3).similarity(), 0.07)
    p, q = P.diagonal(), Q.diagonal()
    expected = -(np.log(p) + np.log(q)) / 2
    if warm_loss == "rce":
        expected = expected + np.log(1e7) * (1 - (p + q) / 2)
    got = procedure.loss(view, 0, (CLEAN,), 3)
    assert got.item() == pytest.approx(float(expected.mean()), rel=1e-4)
