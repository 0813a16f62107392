"""ACL against a naive double loop in float64, against values of the reference implementation, and lemma 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.crcl import ActiveComplementaryLoss
from tests.objectives.conftest import S4, batch

# One 4 x 4 similarity matrix (rows are images) and its labels, with values of the reference implementation (float32).
Y4 = [1.0, 0.35, 0.0, 0.8]
POSITIVE = [0.0006113338749855757, 1.6922613382339478, 6.873539924621582, 0.07758328318595886]
COMPLEMENTARY = [0.0006111998809501529, 1.0382031202316284, 1.8850581645965576, 0.07004032284021378]
LOSS = 3.9061331748962402
GRADIENT = [
    [-0.018328111618757248, 0.13869044184684753, 5.2681047236546874e-05, 0.1355360746383667],
    [3.0451872589765117e-05, -11.590095520019531, 7.284558296203613, 0.00017684941121842712],
    [0.00013746075273957103, 6.814231872558594, -2.781097888946533, 0.08987007290124893],
    [0.013810303062200546, 0.024086274206638336, 1.8573243618011475, -1.968982458114624],
]


def naive(S: Tensor, y: Tensor, tau: float, lam: float, excluded: Tensor | None = None) -> Tensor:
    """Eq. 8-9 term by term, as they are printed."""
    n = len(S)

    def gone(i: int, j: int) -> bool:
        return excluded is not None and bool(excluded[i, j])

    losses = []
    for i in range(n):
        row = [torch.exp(S[i, j] / tau) if not gone(i, j) else None for j in range(n)]
        col = [torch.exp(S[j, i] / tau) if not gone(j, i) else None for j in range(n)]
        P = [None if r is None else r / sum(x for x in row if x is not None) for r in row]
        Q = [None if c is None else c / sum(x for x in col if x is not None) for c in col]
        P_ii, Q_ii = P[i], Q[i]
        assert P_ii is not None and Q_ii is not None
        loss = -y[i] * (torch.log(P_ii) + torch.log(Q_ii))
        q = 1 - y[i]
        for probabilities in (P, Q):
            total = sum(torch.tan(x) for x in probabilities if x is not None)
            for j, x in enumerate(probabilities):
                if j != i and x is not None:
                    loss = loss + lam * torch.tan(x) / total**q
        losses.append(loss)
    return torch.stack(losses)


def mask(n: int) -> Tensor:
    """About a third of the off-diagonal entries, symmetric."""
    g = torch.Generator().manual_seed(7)
    m = torch.rand(n, n, generator=g) < 0.2
    m = m | m.T
    return m.fill_diagonal_(False)


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_are_those_of_the_double_loop(n: int, excluding: bool) -> None:
    S, y = batch(n)
    excluded = (torch.ones(n, n, dtype=torch.bool).fill_diagonal_(False) if n == 2 else mask(n)) if excluding else None
    if excluding and n > 1:
        assert excluded is not None and bool(excluded.any())
    weight = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    ours = ActiveComplementaryLoss(tau=0.2, lam=3.0)(S, y, excluded)
    slow = naive(S, y, 0.2, 3.0, excluded)
    assert ours.shape == (n,)
    torch.testing.assert_close(ours, slow, rtol=1e-12, atol=1e-12)
    (got,) = torch.autograd.grad((weight * ours).sum(), S)
    (want,) = torch.autograd.grad((weight * slow).sum(), S)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_gradcheck(n: int) -> None:
    S, y = batch(n, seed=3)
    objective = ActiveComplementaryLoss(tau=0.3, lam=5.0)
    assert torch.autograd.gradcheck(lambda s: objective(s, y), (S,))
    assert torch.autograd.gradcheck(lambda s: objective(s, y, mask(n)), (S,))


def test_values_of_the_reference_implementation() -> None:
    S, y = torch.tensor(S4, requires_grad=True), torch.tensor(Y4)
    active = ActiveComplementaryLoss(tau=0.05, lam=0.0)(S, torch.ones(4)).detach()
    torch.testing.assert_close(active, torch.tensor(POSITIVE), rtol=1e-5, atol=1e-6)
    both = ActiveComplementaryLoss(tau=0.05, lam=1.0)(S, y).detach()
    alone = ActiveComplementaryLoss(tau=0.05, lam=0.0)(S, y).detach()
    torch.testing.assert_close(both - alone, torch.tensor(COMPLEMENTARY), rtol=1e-5, atol=1e-6)
    loss = ActiveComplementaryLoss(tau=0.05, lam=5.0)(S, y).mean()
    assert float(loss.detach()) == pytest.approx(LOSS, rel=1e-6)
    loss.backward()
    torch.testing.assert_close(S.grad, torch.tensor(GRADIENT), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_lemma_1_noise_tolerance(n: int) -> None:
    """At q = 1 (label 0) the sum of L_r over which pair is the positive is N - 1 a direction, whatever S is."""
    for seed in range(3):
        S, _ = batch(n, seed)
        total = torch.zeros(n, dtype=torch.float64)
        for shift in range(n):  # pair (i, i + shift) is taken as the positive: it stands on the diagonal
            rolled = torch.stack([S[i].roll(-shift) for i in range(n)])  # rows: the same images, texts renumbered
            row_only = rolled.detach()
            P = torch.softmax(row_only / 0.1, dim=1).tan()
            total += (P.sum(1) - P.diagonal()) / P.sum(1)
        torch.testing.assert_close(total, torch.full((n,), float(n - 1), dtype=torch.float64))

        columns = torch.arange(n)
        ours = torch.zeros(n, dtype=torch.float64)
        for shift in range(n):  # through the loss itself: a permutation of the texts keeps all rows and columns
            permuted = S[:, (columns + shift) % n].detach()
            ours += ActiveComplementaryLoss(tau=0.1, lam=1.0)(permuted, torch.zeros(n, dtype=torch.float64))
        assert float(ours.sum()) == pytest.approx(2 * n * (n - 1), rel=1e-12)


def test_finite_at_extreme_similarities() -> None:
    S = torch.tensor([[1.0, -1.0], [1.0, -1.0]], requires_grad=True)
    for y in (0.0, 0.5, 1.0):
        loss = ActiveComplementaryLoss(tau=0.01)(S, torch.full((2,), y))
        assert bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
        (gradient,) = torch.autograd.grad(loss.sum(), S)
        assert bool(torch.isfinite(gradient).all())


def test_a_pair_alone_has_no_complementary_loss() -> None:
    loss = ActiveComplementaryLoss()(torch.tensor([[0.3]]), torch.tensor([0.4]))
    assert loss.tolist() == [0.0]
    assert math.copysign(1.0, float(loss[0])) == 1.0
