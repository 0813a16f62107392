"""Every loss of a batch against a double loop in float64, in value and gradient, and in float32 where it is extreme."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from cleanpairs.methods.crcl import ActiveComplementaryLoss
from cleanpairs.methods.decl import EvidentialLoss
from cleanpairs.methods.rcl import ComplementaryLoss
from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE, TripletLoss, pair_loss_mean, prediction
from tests.objectives.conftest import assert_same, batch

OneWay = Callable[[Tensor, int, Tensor], Tensor]  # similarities of a pair's answers, which is its own, its label
TAU = 0.2


def probabilities(s: Tensor) -> Tensor:
    return torch.exp(s / TAU) / torch.exp(s / TAU).sum()


def active_complementary(lam: float = 3.0, active: float = 1.0, q: float | None = None) -> OneWay:
    """CRCL's eq. 8 and 9, as they are printed."""

    def one_way(s: Tensor, own: int, y: Tensor) -> Tensor:
        p = probabilities(s)
        total = torch.tan(p).sum() ** (1 - y if q is None else q)
        return -active * y * torch.log(p[own]) + sum(lam * torch.tan(x) / total for j, x in enumerate(p) if j != own)

    return one_way


def complementary(form: Callable[[Tensor], Tensor]) -> OneWay:
    def one_way(s: Tensor, own: int, y: Tensor) -> Tensor:
        p = probabilities(s)
        return 0.5 * sum((form(x) for j, x in enumerate(p) if j != own), start=s[own] * 0)

    return one_way


def evidential(kl_weight: float) -> OneWay:
    def one_way(s: Tensor, own: int, y: Tensor) -> Tensor:
        alpha = torch.exp(torch.tanh(s) / TAU) + 1
        strength = alpha.sum()
        loss = sum((float(j == own) - m) ** 2 + m * (1 - m) / (strength + 1) for j, m in enumerate(alpha / strength))
        wrong = torch.stack([torch.ones_like(a) if j == own else a for j, a in enumerate(alpha)])
        if len(wrong) > 1:
            loss = loss + kl_weight * kl_divergence(Dirichlet(wrong), Dirichlet(torch.ones_like(wrong)))
        return y * loss / 2

    return one_way


def reverse_cross_entropy(weight: float) -> OneWay:
    """Cross entropy, and H(p, one-hot) entry by entry."""

    def one_way(s: Tensor, own: int, y: Tensor) -> Tensor:
        p = probabilities(s)
        reverse = sum(-x * math.log(1 - 1e-7 if j == own else 1e-7) for j, x in enumerate(p))
        return y * (weight * reverse - torch.log(p[own])) / 2

    return one_way


def triplet(form: str) -> OneWay:
    def one_way(s: Tensor, own: int, y: Tensor) -> Tensor:
        alpha = 0.3 * (5 ** float(y) - 1) / 4
        hinges = [torch.relu(alpha - s[own] + x) for j, x in enumerate(s) if j != own] or [s[own] * 0]
        total = max(hinges) if form == "hard" else sum(hinges, start=s[own] * 0)
        return total / len(hinges) if form == "mean" else total

    return one_way


LOSSES: dict[str, tuple[Any, OneWay]] = {
    "CRCL": (ActiveComplementaryLoss(TAU, 3.0), active_complementary()),
    "CRCL, L_d alone": (ActiveComplementaryLoss(TAU, 0.0), active_complementary(lam=0.0)),
    "CRCL, L_r alone": (ActiveComplementaryLoss(TAU, 3.0, 0.0), active_complementary(active=0.0)),
    "CRCL, q = 0": (ActiveComplementaryLoss(TAU, 3.0, q=0.0), active_complementary(q=0.0)),
    "CRCL, q = 1": (ActiveComplementaryLoss(TAU, 3.0, q=1.0), active_complementary(q=1.0)),
    "RCL, log": (ComplementaryLoss(TAU, "log"), complementary(lambda p: -torch.log(1 - p))),
    "RCL, tan": (ComplementaryLoss(TAU, "tan"), complementary(torch.tan)),
    "RCL, gce": (ComplementaryLoss(TAU, "gce"), complementary(lambda p: (1 - (1 - p) ** 0.5) / 0.5)),
    "RCL, exp": (ComplementaryLoss(TAU, "exp"), complementary(lambda p: torch.exp(p - 1))),
    "DECL": (EvidentialLoss(TAU, 0.3), evidential(0.3)),
    "DECL, no divergence": (EvidentialLoss(TAU, 0.0), evidential(0.0)),
    "InfoNCE": (InfoNCELoss(TAU), reverse_cross_entropy(0.0)),
    "InfoNCE and RCE": (InfoNCEWithRCE(TAU, 0.7), reverse_cross_entropy(0.7)),
    **{f"triplet, {form}": (TripletLoss(margin=0.3, curve=5.0, negatives=form), triplet(form))
       for form in ("hard", "mean", "sum")},
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_double_loop(name: str) -> None:
    ours, one_way = LOSSES[name]
    for n, excluding in ((1, False), (2, False), (7, False), (2, True), (7, True)):
        S, y = batch(n)
        # more in a row than in a column
        excluded = (torch.rand(n, n, generator=torch.Generator().manual_seed(7)) < 0.4).fill_diagonal_(False)
        slow = []
        for i in range(n):
            loss = S[i, i] * 0
            for T, out in ((S, excluded), (S.T, excluded.T)):
                at = [j for j in range(n) if not (excluding and out[i, j])]
                loss = loss + one_way(T[i, at], at.index(i), y[i])
            slow.append(loss)
        assert_same(ours(S, y, excluded if excluding else None), torch.stack(slow), S)


@pytest.mark.parametrize("kind", ["log", "tan", "gce", "exp"])
def test_a_confident_batch_in_float32(kind: str) -> None:
    """A wrong answer of probability 1 is finite; a right one leaves next to nothing, and never less than nothing."""
    loss, S = ComplementaryLoss(tau=0.01, kind=kind), torch.eye(64)
    right, wrong = loss(S, torch.ones(64)), loss(S.flip(0), torch.ones(64))
    assert bool((right >= 0).all()) and (kind == "exp" or float(right.max()) < 1e-5)
    assert bool(torch.isfinite(wrong).all()) and float(wrong.min()) > 0.9


def test_float32_keeps_the_gradient_of_the_divergence() -> None:
    g = torch.Generator().manual_seed(0)
    S0 = torch.rand(128, 128, generator=g) * 0.6 - 0.1 + torch.eye(128) * 0.3
    gradients = []
    for dtype in (torch.float32, torch.float64):
        S = S0.to(dtype).requires_grad_()
        loss = EvidentialLoss(tau=0.03, kl_weight=1.0)(S, torch.ones(128, dtype=dtype))
        assert loss.dtype == dtype and bool((loss >= 0).all())
        gradients.append(torch.autograd.grad(loss.sum(), S)[0].double())
    error = (gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()
    assert float(error) < 1e-4  # 0.17 with everything in float32


# -- the prediction of NCR --------------------------------------------------------------------------------------------


def test_values_of_ncr() -> None:
    """Those of its public code on four pairs, worked out by hand; it divides by N - 1 later than this one."""
    rows = [0.82, 0.31, 0.15, 0.44], [0.27, 0.55, 0.61, 0.12], [0.05, 0.48, 0.39, 0.36], [0.33, 0.22, 0.58, 0.71]
    S = torch.tensor(rows)
    theirs = [0.0, 0.0975, 0.3175, 0.0175]
    assert (pair_loss_mean(S) * 3 / 4).tolist() == pytest.approx(theirs, abs=1e-7)
    assert prediction(S).tolist() == pytest.approx([max(0, 1 - v * 4 / 3 / 0.4) for v in theirs], abs=1e-6)


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
    equal = 1 + 3e-7 * torch.randn((8, 8), generator=torch.Generator().manual_seed(0))
    assert float(prediction(equal).max()) < 0.01  # no rounding
    assert prediction(torch.zeros(1, 1)).tolist() == [1.0]
    assert prediction(torch.zeros(0, 0)).shape == (0,)
