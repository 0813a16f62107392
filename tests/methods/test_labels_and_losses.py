"""NCR, DECL, BiCro, GSC, CREAM, NPC and IN2R: their labels, weights and losses against loops and by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from cleanpairs import CREAM, DECL, GSC, IN2R, NCR, NPC, BiCro
from cleanpairs.core.errors import ConfigError
from cleanpairs.methods.bicro import consistency
from cleanpairs.methods.cream import CLEAN, HARD, NOISY, spread_cross_entropy
from cleanpairs.methods.decl import EvidentialLoss, expected_probability
from cleanpairs.methods.gsc import geometric_loss, structure_consistency
from cleanpairs.methods.in2r import GraphRefiner
from cleanpairs.methods.npc import negative_weight
from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE, TripletLoss, prediction
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import BatchOutput
from tests.helpers import assert_raises, unit
from tests.methods.conftest import begun, parts, probabilities_of_both, similarities, strategy_of


def known(*shape: int) -> np.ndarray:
    """Weights or labels by chance."""
    return np.random.default_rng(1).random(shape).astype(np.float32)


def test_what_is_split_is_a_loss_of_the_whole_group_between_0_and_1() -> None:
    y = torch.from_numpy(known(30))

    def inconsistency(view: Any) -> torch.Tensor:
        encoded = view.encoded(0)
        V, U = (torch.from_numpy(x.vectors @ x.vectors.T) for x in (encoded.images, encoded.texts))
        return -structure_consistency(V, U, y)

    def cross_entropy(view: Any) -> torch.Tensor:
        S = similarities(view) / 0.07
        return -(S.log_softmax(1) + S.log_softmax(0)).diagonal()

    for method, settings, loss_of in (
        (DECL, {"evidence_tau": 0.2}, lambda view: -expected_probability(similarities(view), 0.2)),
        (GSC, {"networks": 1}, inconsistency),
        (CREAM, {"split_by": "infonce"}, cross_entropy),
    ):
        strategy, view = begun(method, 30, **settings)
        strategy.y[0] = y
        loss = loss_of(view).numpy()
        expected = (loss - loss.min()) / (loss.max() - loss.min())
        np.testing.assert_allclose(strategy.losses(view, 0), expected, atol=1e-5)


# -- NCR --------------------------------------------------------------------------------------------------------------


def test_labels_of_ncr_are_rectified_by_the_other_networks_split() -> None:
    strategy, view = begun(NCR, 30, margin=0.6)
    strategy.w = known(2, 30)
    value, w = strategy.judge(view), strategy.w[::-1]
    r = np.array([prediction(similarities(view, k), margin=0.6).numpy() for k in (0, 1)])
    assert len(set(r[0].round(3).tolist())) > 10  # the networks say different things of the pairs
    np.testing.assert_allclose(strategy.y, np.where(w > 0.5, w + (1 - w) * r, r.mean(axis=0)), atol=1e-4)
    np.testing.assert_allclose(value, strategy.w.mean(axis=0) * strategy.y.mean(axis=0), rtol=1e-5)
    assert strategy.y.min() >= 0 and strategy.y.max() <= 1


@pytest.mark.parametrize(("weight", "loss"), [(0.0, "triplet"), (0.3, "triplet"), (0.3, "rce")])
def test_the_loss_of_ncr_is_that_of_clean_pairs_and_the_weighted_one_of_noisy_pairs(weight: float, loss: str) -> None:
    strategy, view = begun(NCR, 30, noisy_weight=weight, clean_loss=loss, margin=0.3, curve=4.0, tau=0.2)
    strategy.y = known(2, 30)
    clean, noisy = parts(view, np.arange(10), np.arange(20, 26), 1)
    each = TripletLoss(margin=0.3, curve=4.0) if loss == "triplet" else InfoNCEWithRCE(tau=0.2)
    of_clean, of_noisy = (each(p.similarity(), p.of(strategy.y[1]), p.excluded).mean() for p in (clean, noisy))
    torch.testing.assert_close(strategy.split_loss(view, 1, clean, noisy), of_clean + weight * of_noisy)
    torch.testing.assert_close(strategy.split_loss(view, 1, clean, None), of_clean)


# -- DECL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_expected_probability_by_hand(n: int, excluding: bool) -> None:
    g = torch.Generator().manual_seed(n)
    S = torch.rand(n, n, generator=g, dtype=torch.float64) * 2 - 1
    out = (torch.rand(n, n, generator=g) < 0.4).fill_diagonal_(False)
    got = expected_probability(S, 0.2, out if excluding else None)
    alpha = [[math.exp(math.tanh(s) / 0.2) + 1 for s in row] for row in S.tolist()]
    for i in range(n):
        row = sum(alpha[i][j] for j in range(n) if not (excluding and out[i, j]))
        column = sum(alpha[j][i] for j in range(n) if not (excluding and out[j, i]))
        assert float(got[i]) == pytest.approx((alpha[i][i] / row + alpha[i][i] / column) / 2)
    assert n > 1 or got.tolist() == [1.0]


def test_decl_takes_every_pair_once_an_epoch_weighed_by_its_posterior() -> None:
    strategy, view = begun(DECL, 30, evidence_tau=0.2, kl_weight=0.01)
    strategy.w[0], strategy.split_known = known(30), True
    assert sorted(np.concatenate([b[0] for b in strategy.batches(view, 0)]).tolist()) == list(range(30))
    f = view.forward(0, np.arange(9), seed=1)
    each = EvidentialLoss(tau=0.2, kl_weight=0.01)(f.similarity(), torch.ones(9))
    w = torch.from_numpy(strategy.w[0][f.rows])
    torch.testing.assert_close(strategy.loss(view, 0, (np.arange(9),), 1), (w * each).sum() / w.sum())
    strategy.w[0] = 0
    assert float(strategy.loss(view, 0, (np.arange(9),), 1).detach()) == 0
    for tau in (0.012, float("nan")):  # float32 does not hold its exponentials
        assert_raises(ConfigError, r"evidence_tau of decl must be .*0\.0125, found", DECL(evidence_tau=tau).validate)


# -- BiCro ------------------------------------------------------------------------------------------------------------


def rows(n: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, 6)))


def by_loop(images: np.ndarray, texts: np.ndarray, a_images: np.ndarray, a_texts: np.ndarray) -> list[float]:
    out = np.zeros(len(images))
    for z, other, anchors, answers in ((images, texts, a_images, a_texts), (texts, images, a_texts, a_images)):
        for i in range(len(z)):
            d = [float(np.linalg.norm(z[i] - x)) for x in anchors]
            e = [float(np.linalg.norm(other[i] - y)) for y in answers]
            left = [k for k in range(len(d)) if d[k] >= 1e-3 or e[k] >= 1e-3]  # else the pair itself
            k = min(left, key=d.__getitem__, default=None)
            out[i] += 0.5 if k is None else min(1.0, (d[k] + 1e-3) / (e[k] + 1e-3)) / 2
    return out.tolist()


@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 2), (2, 1), (25, 2), (25, 12)])
def test_consistency_against_a_double_loop(n: int, m: int) -> None:
    images, texts = rows(n, 1), rows(n, 2)
    for anchors in ((rows(m, 3), rows(m, 4)), (images[:8], texts[:8])):  # a pair's own anchor is passed over
        got = consistency(images, texts, *anchors)
        np.testing.assert_allclose(got, by_loop(images, texts, *anchors), rtol=1e-3, atol=1e-3)
        assert got.shape == (n,) and ((got >= 0) & (got <= 1)).all()


def test_the_scale_puts_right_anchors_at_1_and_shuffled_ones_at_0() -> None:
    n, images = 200, rows(200, 1)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    texts = unit(images @ turn + 0.15 * np.random.default_rng(2).normal(size=(n, 6)))
    texts[:40] = np.roll(texts[:40], 1, axis=0)
    w = np.where(np.arange(n) < 40, 0.1, 0.95).astype(np.float32)
    y = strategy_of(BiCro, n).estimate(images, texts, w, 3)
    assert y.shape == (n,) and y.dtype == np.float32 and y.min() >= 0 and y.max() <= 1
    assert np.median(y[40:]) > 0.9 and np.median(y[:40]) < 0.2  # a wrong pair is not as one put among the anchors
    assert (y[40:] == 1).mean() == pytest.approx(0.5, abs=0.02)  # the median anchor stands at 1
    c = np.array(by_loop(images, texts, images[40:], texts[40:]))
    inside = (y > 0) & (y < 1)
    slope = np.polyfit(c[inside], y[inside], 1)
    np.testing.assert_allclose(np.polyval(slope, c[inside]), y[inside], atol=0.01)  # and between the ends it is linear


@pytest.mark.parametrize(("case", "n"), [("few anchors", 3), ("all alike", 60), ("no relation", 60)])
def test_anchors_that_say_nothing_give_zeros(case: str, n: int) -> None:
    images, texts = (np.repeat(rows(1, k), n, axis=0) if case == "all alike" else rows(n, k) for k in (1, 2))
    y = strategy_of(BiCro, n).estimate(images, texts, np.ones(n, dtype=np.float32), 3)
    assert y.shape == (n,) and np.isfinite(y).all()
    assert case == "no relation" or not y.any()


def test_clean_pairs_keep_1_and_the_value_joins_split_and_consistency() -> None:
    strategy, view = begun(BiCro, 40)
    strategy.w = known(2, 40)
    value, each = strategy.judge(view), []
    for k, w in enumerate(strategy.w):
        encoded = view.encoded(k)
        y = strategy.estimate(encoded.images.vectors, encoded.texts.vectors, w, view.seed(11, k))
        np.testing.assert_array_equal(strategy.y[1 - k], np.where(w > 0.5, 1, y))
        each.append(w * (1 + y) / 2)
    np.testing.assert_allclose(value, np.mean(each, axis=0), rtol=1e-5)


# -- GSC --------------------------------------------------------------------------------------------------------------


def within(f: BatchOutput) -> list[torch.Tensor]:
    """V and U (B, B) of a batch: unit vectors of its images, and of its texts, by those of the same side."""
    return [z @ z.T for z in (f.model.vector(side).detach() for side in (f.images, f.texts))]


@pytest.mark.parametrize("excluding", [False, True])
def test_the_geometric_loss_and_the_consistency_against_a_loop(excluding: bool) -> None:
    rng, n = np.random.default_rng(3), 5
    V, U = (x @ x.T for x in (z / np.linalg.norm(z, axis=1, keepdims=True) for z in rng.normal(size=(2, n, 4))))
    y, excluded = rng.random(n), np.zeros((n, n), bool)
    excluded[[1, 3], [3, 1]] = excluding
    losses, consistencies = [], []
    for i, (v, u) in enumerate(zip(V * y, U * y, strict=True)):
        G = [sum(y[k] * V[i, k] * y[k] * U[j, k] for k in range(n)) for j in range(n)]
        total = sum(np.exp(G[j]) for j in range(n) if not excluded[i, j])
        losses.append(-y[i] * np.log(np.exp(G[i]) / total))
        consistencies.append(sum(v * u) / np.sqrt(sum(v * v) * sum(u * u)))
    given, out = [torch.from_numpy(x) for x in (V, U, y)], torch.from_numpy(excluded) if excluding else None
    np.testing.assert_allclose(geometric_loss(*given, out), losses, rtol=1e-10)
    np.testing.assert_allclose(structure_consistency(*given), consistencies, rtol=1e-10)
    assert float(structure_consistency(given[0], given[0], given[2]).min()) == pytest.approx(1)


def test_labels_are_the_lower_of_two_running_means_and_those_of_the_other_network() -> None:
    strategy, view = begun(GSC, 30, beta=0.7)
    w = strategy.w = known(2, 30)
    p, value = probabilities_of_both(view), strategy.judge(view)
    a, b = 0.7 * w + 0.3, 0.7 * np.stack(p) + 0.3  # both were 1
    for k in range(2):
        np.testing.assert_allclose(strategy.y[1 - k], np.minimum(a[k], b[k]), rtol=1e-4)
    np.testing.assert_allclose(value, (a + b).mean(axis=0) / 2, rtol=1e-4)
    strategy.judge(view)
    np.testing.assert_allclose(strategy.a, 0.7 * w + 0.3 * a, rtol=1e-4)
    np.testing.assert_allclose(strategy.b, 0.7 * np.stack(p) + 0.3 * b, rtol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_loss_of_a_batch_of_gsc(gamma: float) -> None:
    strategy, view = begun(GSC, 30, gamma=gamma, tau=0.1)
    strategy.y = known(2, 30)
    f = view.forward(1, np.arange(8), seed=4)
    y = f.of(strategy.y[1])
    expected = InfoNCELoss(tau=0.1)(f.similarity(), y, f.excluded)
    expected = expected + gamma * geometric_loss(*within(f), y, f.excluded)
    torch.testing.assert_close(strategy.loss(view, 1, (np.arange(8),), 4), expected.mean())


def test_figures_of_the_training_batches() -> None:
    """``label_pass="batch"``: c and p are those of the batch that a pair was trained in."""
    strategy, view = begun(GSC, 30, label_pass="batch", networks=1)
    for rows in (np.arange(16), np.arange(16, 30)):
        strategy.loss(view, 0, (rows,), 4)
        f = view.forward(0, rows, seed=4)
        np.testing.assert_allclose(strategy.p[0, f.rows], matching_probability(f.similarity(), 0.07), rtol=1e-5)
        c = structure_consistency(*within(f), torch.ones(len(rows)))
        np.testing.assert_allclose(strategy.c[0, f.rows], c, rtol=1e-5)


# -- CREAM ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [0.0, 0.15, float("inf")])
@pytest.mark.parametrize("excluding", [False, True])
def test_the_loss_of_cream_against_a_loop(phi: float, excluding: bool) -> None:
    rng, n, tau = np.random.default_rng(3), 5, 0.3
    S, y, excluded = rng.uniform(-0.3, 1, size=(n, n)), rng.random(n), np.zeros((n, n), bool)
    excluded[[1, 3], [3, 1]] = excluding
    expected, spreads = [], 0
    for i in range(n):
        total = 0.0
        for T, out in ((S, excluded), (S.T, excluded.T)):  # image to texts, text to images
            left = [j for j in range(n) if not out[i, j]]
            p = {j: np.exp(T[i, j] / tau) / sum(np.exp(T[i, k] / tau) for k in left) for j in left}
            shares = {j: max(T[i, j], 0) for j in left if j != i}
            weights = {j: (1 - y[i]) * share / sum(shares.values()) for j, share in shares.items()}
            spread = {j: weight for j, weight in weights.items() if weight >= phi}
            spreads += sum(spread.values()) > 0
            total -= sum(weight * np.log(p[j]) for j, weight in {i: y[i], **spread}.items())
        expected.append(total)
    args = torch.from_numpy(S), torch.from_numpy(y), tau, phi, torch.from_numpy(excluded) if excluding else None
    np.testing.assert_allclose(spread_cross_entropy(*args), expected, rtol=1e-4)
    assert (spreads == 0) == (phi == float("inf"))
    if phi == float("inf"):  # nothing spreads: a weighted cross entropy
        torch.testing.assert_close(spread_cross_entropy(*args), 2 * InfoNCELoss(tau=tau)(args[0], args[1], args[4]))


def split_in_three(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    """Both networks take the first half for clean, B the next fifth."""
    strategy, view = begun(CREAM, n, **settings)
    rng = np.random.default_rng(1)
    low, high = rng.uniform(0, 0.4, (2, n)), rng.uniform(0.6, 1, (2, n))
    strategy.w = np.where(np.arange(n) < np.array([[n // 2], [n * 7 // 10]]), high, low).astype(np.float32)
    strategy.judge(view)
    strategy.split_known = True
    return strategy, view


def test_labels_of_the_three_kinds_by_hand() -> None:
    strategy, view = split_in_three()
    kind = strategy.kinds()
    assert kind.tolist() == [CLEAN] * 15 + [HARD] * 6 + [NOISY] * 9
    value, p = strategy.judge(view), probabilities_of_both(view)
    w_a, w_b = strategy.w
    v, mean = (w_a + w_b) / 2, (p[0] + p[1]) / 2
    for own, (own_p, other_w) in enumerate(((p[0], w_b), (p[1], w_a))):
        expected = [other_w + (1 - other_w) * own_p, v + (1 - v) * own_p, mean]
        np.testing.assert_allclose(strategy.y[own], np.choose(kind, expected), rtol=1e-4)
    np.testing.assert_allclose(value, np.choose(kind, [v + (1 - v) * mean, v + (1 - v) * mean, mean]), rtol=1e-4)


@pytest.mark.parametrize(("behind", "kinds"), [(1, {CLEAN}), (3, {CLEAN, HARD}), (5, {CLEAN, HARD, NOISY})])
def test_kinds_join_in_their_order(behind: int, kinds: set[int]) -> None:
    strategy, view = split_in_three(hard_after=2, noisy_after=4, warmup=4)
    view.epoch = 4 + behind
    kind, batches = strategy.kinds(), strategy.batches(view, 0)
    seen: dict[int, list[int]] = {}
    for rows in itertools.chain(*batches):
        assert len(set(kind[rows])) == 1  # each kind is a batch of its own
        seen.setdefault(kind[rows[0]], []).extend(rows.tolist())
    assert set(seen) == kinds
    for k in kinds - {NOISY}:
        assert sorted(seen[k]) == np.flatnonzero(kind == k).tolist()
    if NOISY in kinds:  # as often as there are clean batches
        assert set(seen[NOISY]) == set(np.flatnonzero(kind == NOISY)) and len(batches[-1]) >= 2


@pytest.mark.parametrize("behind", [1, 5])
def test_the_loss_of_a_batch_of_each_kind(behind: int) -> None:
    strategy, view = split_in_three(hard_after=2, noisy_after=4, warmup=4, tau=0.2)
    strategy.y = np.random.default_rng(2).uniform(0, 0.2, (2, 30)).astype(np.float32)  # so that some weights pass phi
    view.epoch = 4 + behind
    batch = tuple(np.flatnonzero(strategy.kinds() == k) for k in (CLEAN, HARD, NOISY))
    f, phi, expected = view.forward(1, *batch, seed=4), float(strategy.y[1].mean()), 0.0
    for k in range(3):
        part = f.select(f.source == k)
        least = float("inf") if k == 0 and behind <= 2 else phi
        y = part.of(strategy.y[1])
        loss = spread_cross_entropy(part.similarity(), y, 0.2, least, part.excluded)
        if least == phi:
            bare = spread_cross_entropy(part.similarity(), y, 0.2, float("inf"), part.excluded)
            assert bool((loss > bare + 1e-4).any())  # something does spread
        expected += loss.mean()
    torch.testing.assert_close(strategy.loss(view, 1, batch, 4), expected)


def test_nothing_is_filtered_where_nearly_all_are_clean() -> None:
    strategy, view = split_in_three(tau=0.2)
    strategy.w[:] = np.where(np.arange(30) < 28, 0.9, 0.1)
    strategy.judge(view)
    view.epoch, rows = 5, np.arange(8)
    f = view.forward(0, rows, seed=4)
    expected = spread_cross_entropy(f.similarity(), f.of(strategy.y[0]), 0.2, 0.0, f.excluded).mean()
    torch.testing.assert_close(strategy.loss(view, 0, (rows,), 4), expected)


# -- NPC --------------------------------------------------------------------------------------------------------------


def test_weights_of_npc_by_hand() -> None:
    before = torch.tensor([[2.0, 1.0, 1.0, 0.5], [1.0, 1.0, 3.0, 0.5]])
    after = torch.tensor([[1.0, 1.0, 4.0, 1.0], [1.0, 1.0, 4.0, 2.0]])
    # r: (2 + 1) / 2, 1, (1/4 + 3/4) / 2, (1/2 + 1/4) / 2
    np.testing.assert_allclose(negative_weight(before, after), [1.0, 1.0, math.tanh(0.5), math.tanh(0.375)], rtol=1e-5)


def with_bank(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    strategy, view = begun(NPC, n, **settings)
    strategy.w[0] = np.where(np.arange(n) % 3 == 0, 0.95, 0.85)
    strategy.judge(view)
    strategy.split_known = True
    return strategy, view


def test_the_bank_is_the_nearest_trusted_pair_by_image_and_by_text_and_is_built_once() -> None:
    strategy, view = with_bank()
    encoded, bank = view.encoded(0), np.arange(0, 30, 3)
    for k, z in enumerate((encoded.images.vectors, encoded.texts.vectors)):
        distances = np.linalg.norm(z[:, None] - z[bank], axis=2)
        assert strategy.nearest[k].tolist() == bank[distances.argmin(axis=1)].tolist()
    assert (strategy.nearest[:, bank] == bank).all()  # a trusted pair is its own neighbour, as in the paper
    before = strategy.nearest.copy()
    strategy.w[0] = 0.95
    strategy.judge(view)
    assert (strategy.nearest == before).all()


def test_the_step_is_adamws_and_is_taken_back() -> None:
    strategy, view = with_bank(lr=0.01, weight_decay=0.1)
    model, rows, objective = view.networks[0].model, np.arange(8), InfoNCELoss(tau=0.07)
    model.register_buffer("batches", torch.zeros(()))  # as batch norm counts them
    model.register_forward_hook(lambda *_: model.batches.add_(1) and None)
    banks = strategy.nearest[:, rows]
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    weight = strategy.tried(view, rows, banks, seed=5)
    assert [k for k, v in model.state_dict().items() if not torch.equal(v, kept[k])] == []

    def losses() -> torch.Tensor:
        S, same = similarities(view), [torch.from_numpy(at[:, None] == at).fill_diagonal_(False) for at in banks]
        each = (objective(S[at][:, at], torch.ones(8), out) for at, out in zip(banks, same, strict=True))
        return torch.stack(list(each))

    before = losses()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    f = view.forward(0, rows, seed=5)
    (2 * objective(f.similarity(), torch.ones(8), f.excluded).mean()).backward()
    optimizer.step()
    view.changed()
    expected = negative_weight(before, losses())
    assert expected.min() < 1 and not torch.equal(before, losses())
    np.testing.assert_allclose(weight, expected, rtol=1e-3)


def test_the_loss_weighs_the_batch_and_adds_both_banks() -> None:
    strategy, view = with_bank(lr=0.05)
    got = strategy.loss(view, 0, (rows := np.arange(10),), 7)
    got.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in view.networks[0].parameters())
    weight = strategy.tried(view, rows, strategy.nearest[:, rows], 7)
    assert len(set(weight.tolist())) > 2 and weight.max() <= 1
    np.testing.assert_array_equal(strategy.weight[rows], weight)
    assert (strategy.weight[10:] == 1).all()
    total, objective = 0.0, InfoNCELoss(tau=0.07)
    for k, at in enumerate((rows, *strategy.nearest[:, rows])):
        f = view.forward(0, at, seed=7)
        each = objective(f.similarity(), torch.ones(len(at)), f.excluded)
        total += float((each.detach() * (weight[f.rows] if k == 0 else 1)).mean())
    assert got.item() == pytest.approx(total, rel=1e-4)


def test_without_a_warm_up_the_bank_is_built_before_the_first_epoch_whose_labels_count() -> None:
    strategy, view = begun(NPC, 30, warmup=0, label_epochs=1)
    view.epoch = 1
    strategy.start_epoch(view)
    assert strategy.split_known and len(np.unique(strategy.value())) > 1
    late = strategy_of(NPC, 30, warmup=2)
    late.start_epoch(view)
    assert not late.split_known


# -- IN2R: the refiner, both losses, what is remembered ---------------------------------------------------------------


def nce(M: np.ndarray, tau: float) -> np.ndarray:
    """Half the sum of cross entropies and reverse ones, both ways (n,)."""
    total, one_hot = np.zeros(len(M)), np.clip(np.eye(len(M)), 1e-7, 1 - 1e-7)
    for logits in (M / tau, M.T / tau):
        R = softmax(logits, axis=1)
        total += -np.log(R.diagonal()) - (R * np.log(one_hot)).sum(axis=1)
    return total / 2


def test_the_refiner_of_in2r_against_numpy() -> None:
    torch.manual_seed(0)
    refiner = GraphRefiner(8).double().eval()
    assert refiner.attention.num_heads == 4
    X = np.random.default_rng(1).normal(size=(3, 5, 8))
    a = refiner.attention
    W, b = a.in_proj_weight.detach().numpy(), a.in_proj_bias.detach().numpy()
    expected = []
    for x in X:
        q, k, v = np.split(x @ W.T + b, 3, axis=1)
        parts = (slice(h, h + 2) for h in range(0, 8, 2))
        heads = [softmax(q[:, at] @ k[:, at].T / np.sqrt(2), axis=1) @ v[:, at] for at in parts]
        mixed = np.concatenate(heads, axis=1) @ a.out_proj.weight.detach().numpy().T + a.out_proj.bias.detach().numpy()
        z = x + mixed
        z = (z - z.mean(axis=1, keepdims=True)) / np.sqrt(z.var(axis=1, keepdims=True) + 1e-5)
        expected.append(unit(z.mean(axis=0)))
    np.testing.assert_allclose(refiner(torch.from_numpy(X)).detach(), expected, rtol=1e-6)
    assert GraphRefiner(6).attention.num_heads == 2


def after_the_split(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    strategy, view = begun(IN2R, n, **settings)
    strategy.w, strategy.split_known = known(2, n), True
    return strategy, view


@pytest.mark.parametrize("k", [3, 99])  # 99 are more than the memory holds
def test_the_noisy_loss_of_in2r_against_numpy(k: int) -> None:
    strategy, view = after_the_split(neighbours=k, memory=10, tau=0.2, noisy_weight=0.7, within_weight=0.0)
    encoded, network = view.encoded(0), view.networks[0]
    images, texts = (np.array(x.vectors) for x in (encoded.images, encoded.texts))
    remembered, clean, noisy = np.arange(10, 20), np.arange(20, 28), np.arange(6)
    strategy.memories[0].push(torch.from_numpy(images[remembered]), torch.from_numpy(texts[remembered]), remembered)
    strategy.w[:, clean] = 0.51  # below the clean pairs' mean: the memory stays as it is
    network.head.eval()
    got = strategy.loss(view, 0, (clean, clean, noisy), 4).item()
    assert strategy.memories[0].rows.tolist() == remembered.tolist()
    expected = nce(images[clean] @ texts[clean].T, 0.2).mean()
    for z, partners, refiner in ((images, texts, network.head[0]), (texts, images, network.head[1])):
        near = [sorted(remembered, key=lambda j: -z[i] @ z[j])[:k] for i in noisy]
        targets = [refiner(torch.from_numpy(partners[rows])[None])[0].detach().numpy() for rows in near]
        expected += 0.7 * nce(z[noisy] @ np.array(targets).T, 0.2).mean()
    assert got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_clean_loss_of_in2r_pairs_both_passes_row_by_row(reduction: str) -> None:
    """Words are dropped anew in the second pass, which packs the pairs in another order."""
    strategy, view = after_the_split(noisy_weight=0.0, clean_loss="triplet", within_weight=2.0, reduction=reduction)
    view.networks[0].model.text_drop = 0.5
    rows = np.arange(12)
    f = view.forward(0, rows, rows, np.arange(12, 16), seed=3)
    first, again = ({int(r): k for k, r in enumerate(f.rows) if f.source[k] == s} for s in range(2))
    assert list(first) != list(again)
    z, t = f.images.detach().numpy(), f.texts.detach().numpy()
    a, b = [first[int(r)] for r in rows], [again[int(r)] for r in rows]

    def hardest(S: np.ndarray, margin: float) -> np.ndarray:
        hinge = margin - S.diagonal()[:, None] + np.stack([S, S.T])
        hinge[:, np.arange(12), np.arange(12)] = 0
        return np.asarray(np.maximum(hinge, 0).max(axis=2).sum(axis=0))

    expected = hardest(z[a] @ t[a].T, 0.2) + 2 * (hardest(z[a] @ z[b].T, 0.3) + hardest(t[a] @ t[b].T, 0.3))
    got = strategy.loss(view, 0, (rows, rows, np.arange(12, 16)), 3).item()
    assert got == pytest.approx(float(getattr(expected, reduction)()), rel=1e-4)


def test_in2r_what_the_other_network_calls_clean_is_trained_on_and_its_surest_part_is_remembered() -> None:
    strategy, view = after_the_split()
    f = view.forward(0, np.arange(30), seed=4)
    strategy.remember(0, f)
    other = strategy.w[1]
    sure = np.flatnonzero(other >= other[other > 0.5].mean())
    assert 0 < len(sure) < (other > 0.5).sum()
    for batch in strategy.batches(view, 0):  # they hold the clean pairs twice
        assert len(batch) == 3 and batch[0] is batch[1]
        assert (other[batch[0]] > 0.5).all() and (other[batch[2]] <= 0.5).all()
    memory = strategy.memories[0]
    held = memory.rows[memory.rows >= 0].tolist()
    assert sorted(held) == sure.tolist() and not len(strategy.memories[1])
    torch.testing.assert_close(memory.texts[: len(held)], f.texts.detach()[[f.rows.tolist().index(r) for r in held]])


def test_the_warm_up_of_in2r_is_nce_between_and_within_the_modalities() -> None:
    strategy, view = begun(IN2R, 30, tau=0.2, within_weight=1.0)
    rows = np.arange(8)
    f = view.forward(0, rows, rows, seed=3)
    first, again = f.select(f.source == 0), f.select(f.source == 1)
    assert first.rows.tolist() == again.rows.tolist()  # nothing is dropped
    z, t = first.images.detach().numpy(), first.texts.detach().numpy()
    expected = nce(z @ t.T, 0.2) + nce(z @ z.T, 0.2) + nce(t @ t.T, 0.2)
    assert strategy.loss(view, 0, (rows, rows), 3).item() == pytest.approx(expected.mean(), rel=1e-4)


def test_gradients_of_in2r_reach_the_towers_and_both_refiners() -> None:
    strategy, view = after_the_split(neighbours=3)
    strategy.remember(0, view.forward(0, np.arange(30), seed=1))
    assert len(strategy.memories[0]) >= 3
    strategy.loss(view, 0, (np.arange(8), np.arange(8), np.arange(8, 16)), 4).backward()
    for name, p in view.networks[0].named_parameters():
        if "in_proj" in name or "linear.weight" in name:
            assert p.grad is not None and p.grad.abs().max() > 0, name
