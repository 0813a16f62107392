"""L2RM, REPAIR and PC2: losses, labels and what is offered for rematching, against loops and brute force."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from cleanpairs import L2RM, PC2, REPAIR
from cleanpairs.correspondence.mixture import GuardedSplit, guarded_split
from cleanpairs.methods.l2rm import CostNet, RematchingLoss
from cleanpairs.methods.pc2 import PseudoClassifier, oscillation
from cleanpairs.methods.repair import correspondence_of_ranks, ends_of_ranks
from cleanpairs.objectives import TripletLoss
from cleanpairs.ops.matching import places
from cleanpairs.ops.transport import partial_transport
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import EpochContext
from tests.helpers import unit
from tests.methods.conftest import SMALL, begun, corpus, parts, strategy_of
from tests.objectives.conftest import assert_same

# -- L2RM -------------------------------------------------------------------------------------------------------------


def started_l2rm(n: int = 40, clean: int = 24, **settings: Any) -> tuple[Any, EpochContext]:
    strategy, view = begun(L2RM, n, **{"batch_size": 8, "transport_reg": 0.05, **settings})
    strategy.w[0] = np.where(np.arange(n) < clean, 0.9, 0.1)
    strategy.split_known = True
    return strategy, view


# -- the cost net ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (1, 1), (0, 0), (3, 7), (9, 12)])
def test_the_cost_starts_as_1_minus_the_similarity(shape: tuple[int, int]) -> None:
    """Also in batches that are smaller or larger than the net."""
    S = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 3 - 1.5
    torch.testing.assert_close(CostNet(8)(S), (1 - S).relu())


def test_columns_behind_the_net_keep_the_plain_cost() -> None:
    net, S = CostNet(3), torch.rand(5, 5)
    with torch.no_grad():
        net.linear.bias.fill_(0.25)
    torch.testing.assert_close(net(S)[:, 3:], 1 - S[:, 3:])
    torch.testing.assert_close(net(S)[:, :3], (0.25 - S[:, :3]).relu())


@pytest.mark.parametrize("kept", [1, 3, 8, 50])
def test_supervision_is_where_a_kept_image_meets_its_caption(kept: int) -> None:
    """At the start the cost of each kept pair is 1 - S of that pair, wherever its image stands."""
    strategy, view = started_l2rm(kept=kept)
    clean, noisy = parts(view, np.arange(8), np.arange(24, 32))
    own = (1 - clean.similarity().diagonal()).relu()
    torch.manual_seed(5)
    chosen = torch.randperm(8)[: min(kept, 8)]
    torch.manual_seed(5)
    loss = strategy.cost_loss(view, clean, noisy)
    torch.testing.assert_close(loss, own[chosen].sum())
    loss.backward()
    head: Any = view.networks[0].head
    assert all(p.grad is None for p in view.networks[0].model.parameters())
    assert {name for name, p in head.named_parameters() if p.grad is not None} == {"linear.weight", "linear.bias"}
    head.zero_grad()
    strategy.split_loss(view, 0, clean, noisy).backward()  # of batches of one size
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


# -- the step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"cost": "learned"}, {"masked": False}, {"mass": 1.0}, {"divergence": "kl"}])
def test_the_loss_is_the_pairs_and_the_rematching_on_the_plan(changes: dict[str, Any]) -> None:
    settings = {"cost": "cosine", "rematch_weight": 0.3, "mass": 0.2, "transport_tau": 0.1} | changes
    strategy, view = started_l2rm(**settings)
    assert (view.networks[0].head is None) == (changes.get("cost") != "learned")
    clean, noisy = parts(view, np.arange(8), np.arange(24, 31))  # of unlike sizes: the cost net does not learn
    S, masked, mass = noisy.similarity(), changes.get("masked", True), changes.get("mass", 0.2)
    forbidden = torch.eye(7, dtype=torch.bool) if masked else None
    plan = partial_transport((1 - S.detach()).relu(), mass=mass, reg=0.05, forbidden=forbidden).to(S.dtype)
    assert bool(plan.diagonal().any()) is not masked and float(plan.sum()) == pytest.approx(mass, rel=0.2)
    rematching = RematchingLoss(0.1, changes.get("divergence", "symmetric"))
    expected = strategy.pair_loss(clean, torch.ones(8)) + 0.3 * rematching(S, plan).mean()
    torch.testing.assert_close(strategy.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)
    alone = strategy.split_loss(view, 0, clean, None)
    torch.testing.assert_close(alone, strategy.pair_loss(clean, torch.ones(8)))
    torch.testing.assert_close(strategy.split_loss(view, 0, clean, noisy.select(np.arange(1))), alone)


# -- use ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_image", [True, False])
def test_rematching_offers_what_the_plan_moves_and_never_a_pairs_own(is_image: bool) -> None:
    images, texts = unit(np.random.default_rng(0).normal(size=(2, 30, 6)).astype("float32"))
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


# -- REPAIR -----------------------------------------------------------------------------------------------------------


def rows(n: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, 8)))


def vectors(n: int, seed: int) -> Tensor:
    return torch.from_numpy(rows(n, seed))


def spearman(image: np.ndarray, text: np.ndarray, images: np.ndarray, texts: np.ndarray) -> float:
    """Of one pair's distances to the memory's images and texts."""
    d = [np.linalg.norm(bank.astype(np.float64) - z, axis=1) for z, bank in ((image, images), (text, texts))]
    return float(stats.spearmanr(*d).statistic)


SIZES = {"memory": 32, "neighbours": 5}


# -- labels by ranks ------------------------------------------------------------------------------------------------


def test_correspondence_and_ends_of_ranks_by_hand() -> None:
    got = correspondence_of_ranks(np.array([-1.0, 0.0, 0.1, 0.2, 0.35, 0.5, 0.50001, 1.0]), 0.2, 0.5)
    assert got.dtype == np.float32
    assert got.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 1, 1, 1], abs=1e-6)
    assert correspondence_of_ranks(np.array([0.3, 0.4]), 0.4, 0.4).tolist() == [0, 0]  # ends that meet
    assert correspondence_of_ranks(np.zeros(0), 0.0, 1.0).shape == (0,)
    c = np.random.default_rng(0).permutation(np.linspace(0.1, 0.9, 300))
    assert ends_of_ranks(c) == pytest.approx((np.sort(c)[:3].mean(), np.sort(c)[-30:].mean()))
    assert ends_of_ranks(c - 0.5)[0] == 0  # not below 0
    assert ends_of_ranks(np.array([0.3])) == pytest.approx((0.3, 0.3))
    assert ends_of_ranks(np.array([0.7, 0.3])) == pytest.approx((0.3, 0.7))


def test_a_pairs_own_entry_does_not_take_part() -> None:
    """Its distance to itself is 0 both ways, which would speak for any pair."""
    strategy = strategy_of(REPAIR, 20, **SIZES)
    images, texts, held = rows(20, 1), rows(20, 2), np.array([4, 9, 1, 15, 7, 12, 3, 18])
    memory, pairs = strategy.memories[0], (torch.from_numpy(images), torch.from_numpy(texts))
    memory.push(pairs[1][held], pairs[0][held], held)  # as they were an epoch before
    memory.push(pairs[0][held], pairs[1][held], held)
    got = strategy.correlation(memory, *pairs, np.arange(20))
    for i in range(20):
        others = held[held != i]
        assert got[i] == pytest.approx(spearman(images[i], texts[i], images[others], texts[others]), abs=1e-5)
    asked = strategy.correlation(memory, *pairs, None)
    assert asked[4] == pytest.approx(spearman(images[4], texts[4], images[held], texts[held]), abs=1e-5)
    assert asked[4] > got[4]


@pytest.mark.parametrize("held", [0, 1, 2, 6])
def test_a_memory_too_small_or_too_alike_to_rank_trusts_all(held: int) -> None:
    strategy, alike = strategy_of(REPAIR, 6, **SIZES), vectors(1, 1).repeat(6, 1)
    strategy.memories[0].push(alike[:held], vectors(held, 2), np.arange(held))
    assert strategy.correlation(strategy.memories[0], alike, vectors(6, 4), np.arange(6)).tolist() == [1.0] * 6


def test_labels_of_one_network_train_the_other() -> None:
    n = 30
    strategy, view = begun(REPAIR, n, **SIZES)
    strategy.w = np.random.default_rng(1).random((2, n)).astype(np.float32)
    value = strategy.judge(view)
    labels = []
    for k, memory in enumerate(strategy.memories):
        held = memory.rows[memory.rows >= 0]
        assert sorted(held.tolist()) == np.flatnonzero(strategy.w[k] > 0.5).tolist()  # the clean ones
        images, texts = view.encoded(k).images.vectors, view.encoded(k).texts.vectors
        others = [np.setdiff1d(held, [i]) for i in range(n)]
        c = np.array([spearman(images[i], texts[i], images[at], texts[at]) for i, at in enumerate(others)])
        labels.append(correspondence_of_ranks(c, *ends_of_ranks(c)))
    np.testing.assert_allclose(strategy.y, labels[::-1], atol=1e-3)
    np.testing.assert_allclose(value, (np.mean(labels, axis=0) + strategy.w.mean(axis=0)) / 2, atol=1e-3)


# -- half-replacing -------------------------------------------------------------------------------------------------


def replaced_by_hand(strategy: Any, view: EpochContext, f: Any, *, image: bool) -> Tensor:
    """Eq. 10 to 13, pair by pair."""
    memory = strategy.memories[0]
    images, texts = (x[memory.rows >= 0].numpy() for x in (memory.images, memory.texts))
    same, other = (texts, images) if image else (images, texts)
    kept = (f.texts if image else f.images).detach().numpy()
    nearest = [sorted(range(len(same)), key=lambda j: float(np.linalg.norm(same[j] - z))) for z in kept]
    within = strategy.method.neighbours
    chosen = [max(near[:within], key=lambda j: float(other[j] @ z)) for near, z in zip(nearest, kept, strict=True)]
    given = other[chosen]
    pairs = zip(*((given, kept) if image else (kept, given)), strict=True)
    y = [spearman(*pair, images, texts) for pair in pairs]
    labels = torch.from_numpy(correspondence_of_ranks(np.array(y), *strategy.ends[0]))
    new = torch.from_numpy(given)
    S = new @ f.texts.T if image else f.images @ new.T
    rows = memory.rows[chosen]
    excluded = torch.tensor([[a == b for b in rows] for a in rows]).fill_diagonal_(False)
    return strategy.pair_objective(S, labels, excluded).mean()


def with_memory(n: int, **settings: Any) -> tuple[Any, EpochContext]:
    strategy, view = begun(REPAIR, n, **{**SIZES, **settings})
    strategy.memories[0].push(vectors(20, 1), vectors(20, 2), np.arange(20))
    strategy.ends[0] = (0.0, 0.4)
    strategy.split_known = True
    return strategy, view


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("neighbours", [1, 5, 20, 50])
def test_the_replacement_is_the_best_of_the_nearest(neighbours: int, image: bool) -> None:
    strategy, view = with_memory(40, neighbours=neighbours)
    f = view.forward(0, np.arange(24, 38), seed=1)
    got, want = strategy.replaced(view, 0, f, image=image), replaced_by_hand(strategy, view, f, image=image)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    parameters, how = list(view.networks[0].model.parameters()), {"materialize_grads": True, "retain_graph": True}
    slopes = [torch.autograd.grad(loss, parameters, **how) for loss in (got, want)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-5)


def test_only_pairs_below_eta_in_both_networks_are_replaced_and_clean_ones_are_remembered() -> None:
    strategy, view = with_memory(40, eta=0.3, noisy_weight=0.2, memory=24)
    strategy.y = np.random.default_rng(1).random((2, 40)).astype(np.float32)
    strategy.w[:, 30:] = [[0.1] * 10, [0.1, 0.2, 0.4, 0.29, 0.9, 0.31, 0.0, 0.5, 0.2, 0.6]]
    clean, noisy = parts(view, np.arange(20, 29), np.arange(30, 40))
    mismatched = noisy.select(np.isin(noisy.rows, [30, 31, 33, 36, 38]))
    assert len(mismatched.rows) == 5
    expected = strategy.pair_loss(clean, clean.of(strategy.y[0]))
    for image in (True, False):
        expected = expected + 0.2 * replaced_by_hand(strategy, view, mismatched, image=image)
    torch.testing.assert_close(strategy.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)
    held = strategy.memories[0]
    assert sorted(held.rows.tolist()) == list(range(5, 29))  # the oldest five have made room
    at = places(held.rows, clean.rows)
    np.testing.assert_allclose(held.images[at], clean.images.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(held.texts[at], clean.texts.detach().numpy(), atol=1e-6)


def test_half_replacing_begins_behind_the_epoch_that_was_asked_for_and_a_single_pair_has_no_negative() -> None:
    strategy, view = with_memory(40, replace_after=1)
    clean, noisy = parts(view, np.arange(8), np.arange(30, 36))
    alone = strategy.pair_loss(clean, clean.of(strategy.y[0]))
    for mismatched, epoch in ((0, 2), (1, 2), (10, 1)):
        strategy.w[:, 30 : 30 + mismatched], view.epoch = 0, epoch
        torch.testing.assert_close(strategy.split_loss(view, 0, clean, noisy), alone)
    view.epoch = 2
    assert strategy.split_loss(view, 0, clean, noisy).item() > alone.item()


# -- use ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [4, 14])  # fewer and more than the neighbours
@pytest.mark.parametrize("is_image", [True, False])
def test_rematching_offers_the_other_half_of_what_is_near(is_image: bool, k: int) -> None:
    pairs, images, texts = corpus(30, 0), rows(30, 1), rows(30, 2)
    search = REPAIR(neighbours=6)._search(pairs, Embeddings(images), Embeddings(texts))
    queries, donors = np.array([3, 8, 21]), np.arange(9, 30)
    found = search(is_image, True, queries, donors, k)
    kept, given = (texts, images) if is_image else (images, texts)
    for q, row in enumerate(queries):
        near = sorted(range(len(donors)), key=lambda j: -float(kept[donors[j]] @ kept[row]))[:6]
        best = sorted(near, key=lambda j: -float(given[donors[j]] @ kept[row]))[:k]
        assert found.indices[q].tolist() == best
        np.testing.assert_allclose(found.scores[q], [given[donors[j]] @ kept[row] for j in best], rtol=1e-5)
    assert search(is_image, False, queries, donors, k) is None


# -- PC2 --------------------------------------------------------------------------------------------------------------


def started_pc2(n: int = 40, clean: int = 24, **settings: Any) -> tuple[Any, EpochContext]:
    """The first ``clean`` pairs are clean for both networks."""
    strategy, view = begun(PC2, n, **{"classes": 6, "class_tau": 0.3, **settings})
    strategy.w[:] = np.where(np.arange(n) < clean, 0.9, 0.1)
    strategy.y = np.random.default_rng(1).random((2, n)).astype(np.float32)
    strategy.split_known = True
    return strategy, view


# -- the classifier -------------------------------------------------------------------------------------------------


def test_the_classifier_is_a_cosine_over_its_temperature() -> None:
    torch.manual_seed(0)
    head = PseudoClassifier(8, 5, 0.2)
    z = torch.nn.functional.normalize(torch.randn(3, 8), dim=1)
    head.weight.data.mul_(3.0)  # its length means nothing
    torch.testing.assert_close(head(z), z @ (head.weight / head.weight.norm(dim=1, keepdim=True)).T / 0.2)
    assert head(z[:0]).shape == (0, 5)


@pytest.mark.parametrize(("reduction", "pseudo_weight"), [("mean", 1.0), ("mean", 0.0), ("sum", 1.0)])
def test_the_classes_loss_by_hand_is_a_mean(reduction: str, pseudo_weight: float) -> None:
    strategy, view = started_pc2(entropy_weight=7.0, reduction=reduction, pseudo_weight=pseudo_weight)
    f = view.forward(0, np.arange(9), seed=1)
    head: Any = view.networks[0].head
    p, q = head(f.images).softmax(dim=1), head(f.texts).softmax(dim=1)
    classification = torch.stack([-p[i, int(q[i].argmax())].log() for i in range(9)]).mean()
    entropy = -sum(m * m.log() for m in p.mean(dim=0))
    torch.testing.assert_close(strategy.class_loss(view, 0, f, f), pseudo_weight * classification - 7.0 * entropy)
    a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert 10 < oscillation(a, b)[0] < 1e3 and oscillation(a, b)[1] == 0  # finite where a class is ruled out


# -- pseudo-captions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("donor_by", "weight"), [("classes", 1.0), ("classes", 0.0), ("embeddings", 0.4)])
def test_the_clean_pair_of_most_similar_prediction_or_image_lends_its_caption(donor_by: str, weight: float) -> None:
    """Margins are by the similarity; equal captions are no negatives."""
    strategy, view = started_pc2(donor_by=donor_by, noisy_weight=weight)
    clean, noisy = parts(view, np.arange(5, 15), np.arange(26, 36))
    head: Any = view.networks[0].head
    each = [head(x.images).softmax(dim=1) if donor_by == "classes" else x.images for x in (noisy, clean)]
    p_noisy, p_clean = (unit(p.detach().numpy()) for p in each)
    similar = p_noisy @ p_clean.T
    at = similar.argmax(axis=1)
    lenders, rows = clean.select(at), clean.rows[at]
    assert len(set(at.tolist())) > 2
    expected = strategy.pair_loss(clean, clean.of(strategy.y[0])) + strategy.class_loss(view, 0, clean, clean)
    S, excluded = noisy.images @ lenders.texts.T, torch.from_numpy(rows[:, None] == rows).fill_diagonal_(False)
    expected = expected + weight * TripletLoss()(S, torch.from_numpy(similar.max(axis=1)), excluded).mean()  # eq. 5, 6
    torch.testing.assert_close(strategy.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)


# -- labels ---------------------------------------------------------------------------------------------------------


def test_oscillation_is_against_the_epoch_before() -> None:
    """Half of the pairs change their class, the others stay: those have w_o near 1."""
    strategy, view = started_pc2(n=80)
    rng = np.random.default_rng(0)
    w = rng.uniform(0.05, 0.95, (2, 80)).astype(np.float32)
    strategy.w = w.copy()
    before = np.eye(6, dtype=np.float32)[rng.integers(0, 6, 80)] * 0.7 + 0.05
    now = before * (1 + 0.1 * rng.random((80, 6)).astype(np.float32))
    now[:32] = np.roll(now[:32], 1, axis=1)
    now /= now.sum(axis=1, keepdims=True)
    strategy.previous, strategy.p = np.stack([before] * 2), np.stack([now] * 2)
    value = strategy.judge(view)
    o = (before * np.log(before / now)).sum(axis=1).clip(0)
    split = guarded_split(np.clip(o / np.quantile(o, 0.99), 0, 1))
    assert split.refused is None and (split.clean[32:] > 0.5).all()
    steady = np.where(split.clean >= 0.5, split.clean, 0)
    labels = np.where(w > 0.5, w + (1 - w) * steady, w)  # of clean pairs alone
    np.testing.assert_allclose(strategy.y, labels[::-1], atol=1e-3)
    np.testing.assert_allclose(value, labels.mean(axis=0), atol=1e-3)
    clean, steady_pairs = w[::-1] > 0.5, np.arange(80) >= 32
    assert (strategy.y[clean & steady_pairs] > 0.95).all() and (strategy.y[~clean & steady_pairs] <= 0.5).all()
    strategy.p = strategy.previous  # nobody moves: that tells no pair from another
    strategy.judge(view)
    np.testing.assert_array_equal(strategy.y, w[::-1])
    strategy.method.rectify = False
    np.testing.assert_array_equal(strategy.judge(view), w.mean(axis=0))  # what it leaves is the same
    assert (strategy.y == 1).all()


def test_a_pair_that_more_likely_moves_is_not_steady_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 8."""
    split = GuardedSplit(np.array([0.2, 0.49, 0.5, 0.8]), None)
    monkeypatch.setattr("cleanpairs.methods.pc2.guarded_split", lambda *args: split)
    strategy = strategy_of(PC2, 4, classes=6)
    strategy.previous, strategy.w[:] = strategy.p, 0.6
    assert strategy.judge(None).tolist() == pytest.approx([0.6, 0.6, 0.8, 0.92])
    strategy.w[:] = 0.4
    assert strategy.judge(None).tolist() == pytest.approx([0.4] * 4)  # eq. 8 is of clean pairs
    strategy.clean_above = 0.3  # one threshold tau in the paper
    assert strategy.judge(None).tolist() == pytest.approx([0.4, 0.694, 0.7, 0.88])


def test_predictions_of_every_epoch_are_kept_for_the_next_one() -> None:
    strategy, view = begun(PC2, 40, warmup=3, classes=6)
    before = None
    for view.epoch in (1, 2, 3):
        strategy.end_epoch(view)
        np.testing.assert_array_equal(strategy.previous, before)
        before = strategy.p.copy()
        assert before.shape == (2, 40, 6) and not np.allclose(before, strategy.previous if view.epoch > 1 else 0)
        np.testing.assert_allclose(before.sum(axis=2), 1, rtol=1e-5)
        for network in view.networks:
            network.head.weight.data.add_(0.3 * torch.randn_like(network.head.weight))  # type: ignore
    assert strategy.split_known


# -- use ------------------------------------------------------------------------------------------------------------


def test_rematching_looks_among_pairs_of_like_classes() -> None:
    pairs = corpus(60, 10)
    model = PC2(**{**SMALL, "epochs": 2, "warmup": 1}, classes=8).fit(pairs)
    images, texts = (found := model._embed(pairs)).images, found.texts
    search = model._search(pairs, images, texts)
    queries, donors = np.array([3, 8]), np.arange(20, 60)
    probabilities = []
    for vectors in (images.vectors, texts.vectors):
        z = (torch.from_numpy(unit(vectors[:, k : k + 32])) for k in (0, 32))
        p = [unit(head(x).softmax(dim=1).detach().numpy()) for head, x in zip(model._heads, z, strict=True)]
        probabilities.append(np.concatenate(p, axis=1) / np.sqrt(2))
    for is_image in (True, False):
        found = search(is_image, True, queries, donors, 5)
        p = probabilities[1 if is_image else 0]
        assert found is not None and search(is_image, False, queries, donors, 5) is None
        for q, row in enumerate(queries):
            best = sorted(float(p[row] @ p[j]) for j in donors)[::-1][:5]
            np.testing.assert_allclose(found.scores[q], best, rtol=1e-4)
            np.testing.assert_allclose([p[row] @ p[donors[j]] for j in found.indices[q]], best, rtol=1e-4)


def test_losses_are_sums_over_the_pairs_where_the_paper_sums() -> None:
    """Eq. 6 and 9: with a sum, the entropy of the batch counts as often as one pair."""
    losses = {}
    for reduction in ("mean", "sum"):
        strategy, view = started_pc2(reduction=reduction, entropy_weight=0.0, pseudo_weight=0.0)
        clean, noisy = parts(view, np.arange(8), np.arange(24, 32))
        losses[reduction] = strategy.split_loss(view, 0, clean, noisy), strategy.warm_loss(view, 0, clean)
    for mean, total in zip(losses["mean"], losses["sum"], strict=True):
        torch.testing.assert_close(total, 8 * mean)
