"""L2RM: the cost net, the loss against a double loop, the plan of a mismatched batch, captions sought among all."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cleanpairs import L2RM
from cleanpairs.methods.l2rm import CostNet, RematchingLoss
from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE
from cleanpairs.ops.transport import partial_transport
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import EpochContext
from tests.helpers import unit
from tests.methods.conftest import begun, corpus, parts, procedure_of
from tests.objectives.conftest import assert_same


def started(n: int = 40, clean: int = 24, **settings: Any) -> tuple[Any, EpochContext]:
    procedure, view = begun(L2RM, n, **{"batch_size": 8, "transport_reg": 0.05, **settings})
    procedure.w[0] = np.where(np.arange(n) < clean, 0.9, 0.1)
    procedure.split_known = True
    return procedure, view


# -- the cost net ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (1, 1), (0, 0), (3, 7), (9, 12)])
def test_the_cost_starts_as_1_minus_the_similarity(shape: tuple[int, int]) -> None:
    """Also in batches that are smaller or larger than the net."""
    S = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    cost = CostNet(8)(S)
    assert cost.shape == shape
    torch.testing.assert_close(cost, (1 - S).relu())


def test_columns_behind_the_net_keep_the_plain_cost() -> None:
    net, S = CostNet(3), torch.rand(5, 5)
    net.linear.bias.data.fill_(0.25)
    torch.testing.assert_close(net(S)[:, 3:], 1 - S[:, 3:])
    torch.testing.assert_close(net(S)[:, :3], (0.25 - S[:, :3]).relu())


@pytest.mark.parametrize("kept", [1, 3, 8, 50])
def test_supervision_is_where_a_kept_image_meets_its_caption(kept: int) -> None:
    """At the start the cost of each kept pair is 1 - S of that pair, wherever its image stands."""
    procedure, view = started(kept=kept)
    clean, noisy = parts(view, np.arange(8), np.arange(24, 32))
    own = (1 - clean.similarity().diagonal()).relu()
    torch.manual_seed(5)
    chosen = torch.randperm(8)[: min(kept, 8)]
    torch.manual_seed(5)
    loss = procedure.cost_loss(view, clean, noisy)
    torch.testing.assert_close(loss, own[chosen].sum())
    loss.backward()
    head: Any = view.networks[0].head
    assert all(p.grad is None for p in view.networks[0].model.parameters())
    assert {name for name, p in head.named_parameters() if p.grad is not None} == {"linear.weight", "linear.bias"}
    head.zero_grad()
    procedure.split_loss(view, 0, clean, noisy).backward()  # of batches of one size
    assert bool(head.linear.weight.grad.any()) and bool((head.linear.bias.grad >= 0).all())


# -- the loss -------------------------------------------------------------------------------------------------------


def naive(S: Tensor, plan: Tensor, tau: float, divergence: str) -> Tensor:
    """KL(R || P) + KL(P || R) of every row and of every column, the first alone, or -log P where R is largest."""
    values = []
    for i in range(len(S)):
        value = S[i, 0] * 0
        for s, t in ((S[i], plan[i]), (S[:, i], plan[:, i])):
            p = torch.exp(s / tau) / torch.exp(s / tau).sum()
            r = t.clamp_min(1e-10) / t.clamp_min(1e-10).sum()
            if divergence == "infonce":
                value = value - torch.log(p[int(r.argmax())])
                continue
            value = value + (r * (torch.log(r) - torch.log(p))).sum()
            if divergence == "symmetric":
                value = value + (p * (torch.log(p) - torch.log(r))).sum()
        values.append(value)
    return torch.stack(values)


@pytest.mark.parametrize("divergence", ["symmetric", "kl", "infonce"])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_value_and_gradient_of_the_rematching_loss_are_those_of_the_double_loop(n: int, divergence: str) -> None:
    g = torch.Generator().manual_seed(n)
    S = (torch.rand(n, n, generator=g, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    plan = torch.rand(n, n, generator=g, dtype=torch.float64) ** 4 / n**2
    plan[torch.rand(n, n, generator=g) < 0.3] = 0
    plan[0, 0] = 0.1
    assert_same(RematchingLoss(0.2, divergence)(S, plan), naive(S, plan, 0.2, divergence), S)


def test_the_rematching_loss_of_degenerate_batches_is_finite() -> None:
    for S0 in (torch.full((4, 4), 0.3), torch.eye(4) * 20, torch.zeros(1, 1)):
        n = len(S0)
        for plan in (torch.zeros(n, n), torch.eye(n) / n, torch.ones(n, n) / n**2):
            S = S0.clone().requires_grad_()
            loss = RematchingLoss()(S, plan)
            loss.sum().backward()
            assert loss.shape == (n,) and bool(torch.isfinite(loss).all()) and bool((loss >= 0).all())
            assert S.grad is not None and bool(torch.isfinite(S.grad).all())


# -- the step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [{}, {"cost": "learned"}, {"masked": False}, {"mass": 1.0}, {"divergence": "kl"}, {"divergence": "infonce"}],
)
def test_the_loss_is_the_pairs_and_the_rematching_on_the_plan(changes: dict[str, Any]) -> None:
    procedure, view = started(**{"cost": "cosine", "rematch_weight": 0.3, "mass": 0.2, "transport_tau": 0.1, **changes})
    assert (view.networks[0].head is None) == (changes.get("cost") != "learned")
    clean, noisy = parts(view, np.arange(8), np.arange(24, 31))  # of unlike sizes: the cost net does not learn
    S, masked, mass = noisy.similarity(), changes.get("masked", True), changes.get("mass", 0.2)
    forbidden = torch.eye(7, dtype=torch.bool) if masked else None
    plan = partial_transport((1 - S.detach()).relu(), mass=mass, reg=0.05, forbidden=forbidden).to(S.dtype)
    assert bool(plan.diagonal().any()) is not masked and float(plan.sum()) == pytest.approx(mass, rel=0.2)
    rematching = RematchingLoss(0.1, changes.get("divergence", "symmetric"))
    expected = procedure.pair_loss(clean, torch.ones(8)) + 0.3 * rematching(S, plan).mean()
    torch.testing.assert_close(procedure.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)
    alone = procedure.split_loss(view, 0, clean, None)
    torch.testing.assert_close(alone, procedure.pair_loss(clean, torch.ones(8)))
    torch.testing.assert_close(procedure.split_loss(view, 0, clean, noisy.select(np.arange(1))), alone)


def test_the_warm_up_has_the_reverse_cross_entropy_or_not() -> None:
    losses = [procedure_of(L2RM, 4, warm_loss=name, tau=0.2).warm_objective for name in ("rce", "infonce")]
    assert losses == [InfoNCEWithRCE(tau=0.2), InfoNCELoss(tau=0.2)]


# -- use ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_image", [True, False])
def test_rematching_offers_what_the_plan_moves_and_never_a_pairs_own(is_image: bool) -> None:
    rng = np.random.default_rng(0)
    images, texts = unit(rng.normal(size=(2, 30, 6)).astype("float32"))
    texts[5:15] = np.roll(images[5:15], 1, axis=0)  # ten pairs whose right partner is one away
    model = L2RM(rematch_mass=0.9, transport_reg=0.02)
    model._heads = [None]
    search = model._search(corpus(30, 0), Embeddings(images), Embeddings(texts))
    rows = np.arange(5, 15)
    found = search(is_image, False, rows, rows, 3)
    assert not (found.indices == np.arange(10)[:, None]).any()
    assert (found.indices[:, 0] == np.roll(np.arange(10), 1 if is_image else -1)).all()
    np.testing.assert_allclose(found.scores[:, 0], 1, rtol=1e-5)
    assert search(is_image, True, rows, rows, 3) is None
    assert search(is_image, False, rows[:1], rows, 3) is None
