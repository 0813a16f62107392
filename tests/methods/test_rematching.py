"""L2RM's rematching loss against a double loop, values of its public code, and the cost net's objective."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.l2rm import RematchingLoss
from tests.objectives.conftest import S4

# Plans of the public code at lambda 0.07, diagonal masked and not, and its loss on them.
MASKED = [
    [0.0, 0.0010855008149519563, 7.920660573290661e-05, 0.007071397732943296],
    [0.0005370221333578229, 0.0, 0.04728417098522186, 6.111925904406235e-05],
    [2.7044452508562244e-05, 0.01200537383556366, 0.0, 0.0021988677326589823],
    [0.0013496804749593139, 0.0002674586430657655, 0.03285302221775055, 0.0],
]
FREE = [
    [0.0684409961104393, 6.366446177707985e-05, 6.310991921054665e-06, 0.0003764670982491225],
    [3.533109702402726e-05, 0.0026185535825788975, 0.00601433590054512, 5.194401637709234e-06],
    [1.57094120822876e-06, 0.0009924190817400813, 0.0002674176648724824, 0.00016499597404617816],
    [7.731168443569914e-05, 2.180260889872443e-05, 0.003638282883912325, 0.022072555497288704],
]
LOSS_MASKED, LOSS_FREE = 14.88812255859375, 0.03528334200382233


def batch(n: int, m: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    S = torch.rand(n, m, generator=g, dtype=torch.float64) * 1.6 - 0.8
    plan = torch.rand(n, m, generator=g, dtype=torch.float64) ** 4 / (n * m)
    plan[torch.rand(n, m, generator=g) < 0.3] = 0
    return S.requires_grad_(), plan


def naive(S: Tensor, plan: Tensor, tau: float) -> tuple[list[Tensor], list[Tensor]]:
    """KL(R || P) + KL(P || R) of every row and of every column."""

    def one_way(S: Tensor, plan: Tensor) -> list[Tensor]:
        values = []
        for i in range(len(S)):
            total = sum(torch.exp(s / tau) for s in S[i])
            mass = sum(max(float(t), 1e-10) for t in plan[i])
            value = S[i, 0] * 0
            for s, t in zip(S[i], plan[i].tolist(), strict=True):
                p, r = torch.exp(s / tau) / total, max(t, 1e-10) / mass
                value = value + r * (math.log(r) - torch.log(p)) + p * (torch.log(p) - math.log(r))
            values.append(value)
        return values

    return one_way(S, plan), one_way(S.T, plan.T)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_are_those_of_the_double_loop(n: int) -> None:
    S, plan = batch(n, n, seed=n)
    assert n < 7 or bool((plan == 0).any())
    plan[0, 0] = 0.1
    ours = RematchingLoss(tau=0.2)(S, plan)
    rows, columns = naive(S, plan, 0.2)
    slow = torch.stack(rows) + torch.stack(columns)
    assert ours.shape == (n,)
    torch.testing.assert_close(ours, slow, rtol=1e-10, atol=1e-12)
    w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    (got,) = torch.autograd.grad((w * ours).sum(), S)
    (want,) = torch.autograd.grad((w * slow).sum(), S)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("plan", "loss"), [(MASKED, LOSS_MASKED), (FREE, LOSS_FREE)])
def test_values_of_the_public_code(plan: list[list[float]], loss: float) -> None:
    ours = RematchingLoss(tau=0.05)(torch.tensor(S4), torch.tensor(plan))
    assert float(ours.mean()) / 2 == pytest.approx(loss, rel=1e-5)  # eq. 10 halves each symmetric divergence


def test_it_is_zero_where_the_plan_is_the_matching_probability() -> None:
    """A circulant S has rows and columns of one sum: its softmax is a transport plan."""
    row = torch.tensor([0.5, 0.1, -0.2, 0.3])
    S = torch.stack([row.roll(k) for k in range(4)]).requires_grad_()
    loss = RematchingLoss(tau=0.1)(S, (S.detach() / 0.1).softmax(dim=1) / 4)
    assert loss.tolist() == pytest.approx([0.0] * 4, abs=1e-5)
    loss.sum().backward()
    assert S.grad is not None and float(S.grad.abs().max()) < 1e-4


def test_a_row_without_mass_has_a_uniform_target() -> None:
    S, plan = torch.tensor(S4), torch.zeros(4, 4)
    plan[0, 1] = 0.1
    uniform = [math.log(p) for p in (S[2] / 0.05).softmax(0).tolist()]
    want = sum((0.25 - math.exp(log_p)) * (math.log(0.25) - log_p) for log_p in uniform)
    plain = RematchingLoss()(S, plan)
    columns = float(RematchingLoss()(S.T.contiguous(), plan.T.contiguous())[2]) - want
    assert float(plain[2]) == pytest.approx(want + columns, rel=1e-5)


def test_degenerate_batches() -> None:
    for S0 in (torch.full((4, 4), 0.3), torch.eye(4) * 20, torch.zeros(1, 1), torch.zeros(2, 2)):
        n = len(S0)
        for plan in (torch.zeros(n, n), torch.eye(n) / n, torch.ones(n, n) / n**2):
            S = S0.clone().requires_grad_()
            loss = RematchingLoss()(S, plan)
            loss.sum().backward()
            assert loss.shape == (n,) and bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
            assert S.grad is not None and bool(torch.isfinite(S.grad).all())
