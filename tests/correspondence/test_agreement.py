"""Neighbours' agreement: against loops, what it finds, what it says of the noise rate."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest, rankdata
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score, roc_auc_score

from cleanpairs import Auto, ClipScore, Pairs
from cleanpairs.correspondence import agreement, similarity
from cleanpairs.correspondence.agreement import NUMBERS, NeighbourAgreement, neighbour_agreement, normalised_agreement
from cleanpairs.correspondence.density_ratio import noise_rate_by_tails
from cleanpairs.correspondence.similarity import SimilarityModel, _near, similarity_agreement
from cleanpairs.ops import normalised_similarity
from cleanpairs.ops.normalised_similarity import VectorPairs, balanced, cosines
from tests.helpers import cone, distinct, reloaded, unit


def corpus(n: int, rate: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images and captions around 30 common topics; a share of the captions is permuted. (n, d) twice, (n,) bool."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, 30, n)
    images = unit(rng.normal(size=(30, 24))[topic] + 0.5 * rng.normal(size=(n, 24)))
    texts = unit(rng.normal(size=(30, 16))[topic] + 0.5 * rng.normal(size=(n, 16)))
    chosen = rng.choice(n, round(rate * n), replace=False)
    order = np.arange(n)
    order[chosen] = np.roll(chosen, 1)
    return images, texts[order], order != np.arange(n)


def ask(images: np.ndarray, texts: np.ndarray, **how: Any) -> NeighbourAgreement:
    return neighbour_agreement(distinct(images, texts), **how)


@pytest.mark.parametrize("bank", [60, 200])
def test_answers_are_those_of_a_loop(bank: int) -> None:
    rng, n = np.random.default_rng(1), 90
    x, t = unit(rng.normal(size=(n, 5))), unit(rng.normal(size=(n, 4)))
    group, weight = rng.integers(0, 40, n), rng.random(n).astype(np.float32)
    asked = np.sort(rng.permutation(n)[:bank])
    rows = np.sort(rng.permutation(n)[:70])
    (sums,), (mass,) = agreement.kernel_sums(x, t, group, rows, asked, weight, (NUMBERS.tau,))
    for at, i in enumerate(rows):
        others = [j for j in range(n) if j != i and (j in asked or group[j] == group[i])]
        k = weight[others] * [np.exp((x[i] @ x[j] - 1) / NUMBERS.tau) if j in asked else 1.0 for j in others]
        np.testing.assert_allclose(sums[at], k @ t[others], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(mass[at], k.sum(), rtol=1e-3, atol=1e-5)


def predictions(a: np.ndarray, b: np.ndarray, right: np.ndarray, i: int, *out: int) -> tuple[np.ndarray, np.ndarray]:
    """What the near ones say less what all say, and what a ridge regression predicts, of pair i without some."""
    j = np.setdiff1d(np.arange(len(a)), out)
    near = right[j] * np.exp((a[j] @ a[i] - 1) / NUMBERS.tau)
    strength = (right @ a**2).mean()  # of all pairs, the one that is left out too
    found = Ridge(alpha=1.0).fit(a[j] / strength**0.5, b[j], sample_weight=right[j])
    by_near = near @ b[j] / near.sum() - right[j] @ b[j] / right[j].sum()
    return np.asarray(by_near), np.asarray(found.predict(a[[i]] / strength**0.5)[0])


def in_deviations(
    a: np.ndarray, b: np.ndarray, right: np.ndarray, queries: np.ndarray, targets: np.ndarray
) -> Iterator[list[np.ndarray]]:
    """By either, (n, d) of all pairs without themselves, (m, d) of ``queries`` ones without the ``targets`` ones, in
    deviations of their products with all of b.
    """
    spread = np.cov(b.T, bias=True)
    plain = np.array([predictions(a, b, right, i, i) for i in range(len(a))])
    planted = np.array([predictions(a, b, right, i, i, j) for i, j in zip(queries, targets, strict=True)])
    for k in range(2):
        each = [c[:, k] - plain[:, k].mean(0) for c in (plain, planted)]
        yield [c / np.sqrt(np.einsum("ij,jk,ik->i", c, spread, c))[:, None] for c in each]


def small_spaces() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return unit(rng.normal(size=(50, 6))), unit(rng.normal(size=(50, 4))), rng.random(50)


def test_agreement_is_that_of_a_loop() -> None:
    """The pair or the targets one is left out; joined by Fisher's discriminant."""
    x, t, right = small_spaces()
    every = np.arange(len(x))
    pairs = np.stack([every, np.roll(every, 3)])
    observed, null = [], []
    for a, b, (queries, targets) in ((x, t, pairs), (t, x, pairs[::-1])):
        each = b - b.mean(0)
        for plain, planted in in_deviations(a, b, right, queries, targets):
            observed.append((plain * each).sum(1))
            null.append((planted * each[targets]).sum(1))
    found = agreement._joined_agreement(agreement._directions(distinct(x, t)), every, pairs, every, right)
    own, control = (np.array(x) / np.std(null, axis=1, keepdims=True) for x in (observed, null))
    apart = np.maximum(own.mean(1) - control.mean(1), 0)
    weight = np.maximum(np.linalg.solve(np.cov(control) + 0.1 * np.eye(4), apart), 0)
    for value, expected in zip(found, (own, control), strict=True):
        np.testing.assert_allclose(value, weight @ expected / (weight @ control).std(), rtol=1e-3, atol=1e-3)


def test_normalised_agreement_is_that_of_a_loop() -> None:
    """The four add up to a matrix, whose entropic transport's first and twentieth steps are taken off, half of each."""
    x, t, right = small_spaces()
    n, tau = len(x), NUMBERS.sum_tau
    pairs = np.array([[4, 17, 30], [9, 2, 31]])
    Z, of_pairs = np.zeros((n, n)), np.zeros(3)
    for a, b, (queries, targets) in ((x, t, pairs), (t, x, pairs[::-1])):
        each = b - b.mean(0)
        for plain, planted in in_deviations(a, b, right, queries, targets):
            Z += plain @ each.T if a is x else each @ plain.T
            of_pairs += (planted * each[targets]).sum(1)
    u, v, steps = np.zeros(n), np.zeros(n), []
    for _ in range(20):
        over_texts, over_images = (np.logaddexp.reduce(M, axis=1) for M in (Z / tau + v, Z.T / tau + u))
        u, v = (u - over_texts) / 2, (v - over_images) / 2
        steps.append((u, v))
    u, v = (tau * (steps[0][k] + steps[-1][k]) / 2 for k in range(2))
    found = normalised_agreement(distinct(x, t), right, pairs)
    np.testing.assert_allclose(found[0], Z.diagonal() + u + v, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found[1], of_pairs + u[pairs[0]] + v[pairs[1]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rivals", [5000, 400])
def test_normalised_agreement_finds_more_than_agreement(rivals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalised_similarity, "RIVALS", rivals)
    rng = np.random.default_rng(5)
    told, noise = rng.normal(size=(1500, 12)), rng.normal(size=(2, 1500, 16))
    told *= np.exp(rng.normal(size=(1500, 1)))  # some pairs say more than others
    images, texts = (unit(told @ rng.normal(size=(12, 16)) + 2.5 * each) for each in noise)
    group, order = np.arange(1500), rng.permutation(1500)
    wrong = np.isin(group, rng.permutation(1500)[:600])
    texts[wrong] = np.roll(texts[wrong], 1, axis=0)
    pairs = np.stack([order, np.roll(order, 1)])
    plain = ask(images, texts)
    observed, planted = normalised_agreement(distinct(images, texts), plain.matched, pairs)
    assert roc_auc_score(~wrong, observed) > roc_auc_score(~wrong, plain.observed)
    is_planted = np.repeat([True, False], [1500, 600])
    assert abs(roc_auc_score(is_planted, np.concatenate([planted, observed[wrong]])) - 0.5) < 0.05


def test_null_pairs_agree_like_wrong_ones_and_change_nothing() -> None:
    images, texts, wrong = corpus(3000, 0.4)
    order = np.random.default_rng(5).permutation(3000)[:600]
    found = ask(images, texts, planted=np.stack([order, np.roll(order, 1)]))
    assert kstest(found.planted, found.observed[wrong]).statistic < 0.06
    assert abs(found.planted_matched.mean() - found.matched[wrong].mean()) < 0.02
    without = ask(images, texts)
    assert np.corrcoef(found.observed, without.observed)[0, 1] > 0.9999
    assert abs(found.noise_rate - without.noise_rate) < 0.01


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8])
def test_it_finds_wrong_pairs_and_their_share_without_a_label(rate: float) -> None:
    images, texts, wrong = corpus(3000, rate)
    found = ask(images, texts)
    assert abs(found.noise_rate - wrong.mean()) < 0.05
    assert abs(found.matched.mean() - (1 - wrong.mean())) < 0.06
    assert roc_auc_score(~wrong, found.observed) > 0.9 if rate else (found.matched < 0.5).mean() < 0.02


@pytest.mark.parametrize(("rate", "of_all"), [(0.0, True), (0.3, True), (0.4, False)])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("single", [0, 400], ids=["all in groups", "some alone"])
def test_pairs_of_a_group_that_are_all_wrong_do_not_vouch_for_each_other(
    rate: float, of_all: bool, side: int, single: int
) -> None:
    rng, n, k = np.random.default_rng(0), 400, 4
    images, texts, wrong = corpus(n + single, rate if of_all else 0)
    image = np.concatenate([np.repeat(np.arange(n), k), np.arange(n, n + single)])
    wrong = wrong[image]
    texts = unit(texts[image] + 0.1 * rng.normal(size=(len(image), texts.shape[1])))
    if not of_all:
        chosen = rng.choice(len(image), round(rate * len(image)), replace=False)
        texts[chosen], wrong[chosen] = texts[np.roll(chosen, 1)], True
    both, groups = (images[image], texts.astype(np.float32)), (image, np.arange(len(image)))
    found = neighbour_agreement(VectorPairs(*both[:: 1 - 2 * side], *groups[:: 1 - 2 * side]))
    assert abs(found.noise_rate - wrong.mean()) < 0.05
    all_wrong = np.bincount(image, ~wrong)[image] == 0
    assert abs(found.group_noise_rate.value - all_wrong.mean()) < 0.05
    assert ((found.matched < 0.5) != wrong).mean() < 0.08
    assert not rate or roc_auc_score(~wrong, found.matched) > 0.95


@pytest.mark.parametrize("single", [0, 90])
def test_the_rate_of_few_images_with_all_captions_wrong_is_within_its_interval(single: int) -> None:
    """A few images of one caption, whose own rate is wide, do not make that of all undetermined."""
    image = np.concatenate([np.repeat(np.arange(250), 3), np.arange(250, 250 + single)])
    for seed in (3, 4):
        rng = np.random.default_rng(seed)
        images, texts, _ = corpus(250 + single, 0.4, seed)
        images, texts = (unit(x + 0.15 * rng.normal(size=x.shape)) for x in (images, texts))
        texts = unit(texts[image] + 0.1 * rng.normal(size=(len(image), texts.shape[1])))
        found = neighbour_agreement(VectorPairs(images[image], texts, image, np.arange(len(image))), seed=seed)
        assert found.group_noise_rate.low <= 0.4 <= found.group_noise_rate.high


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_products_are_judged_once_by_all_their_images_and_captions(rate: float) -> None:
    """Each of three images stands with each of three captions, and all captions of a product are another's."""
    rng, n = np.random.default_rng(0), 200
    images, texts, wrong = corpus(n, rate)
    product, i, j = (x.ravel() for x in np.indices((n, 3, 3)))
    views, words = (unit(np.repeat(x, 3, axis=0) + 0.1 * rng.normal(size=(3 * n, x.shape[1]))) for x in (images, texts))
    image, text = 3 * product + i, 3 * product + j
    found = neighbour_agreement(VectorPairs(views[image], words[text], image, text))
    assert abs(found.noise_rate - wrong.mean()) < 0.06
    assert ((found.matched < 0.5) != wrong[product]).mean() < 0.1


def test_groups_are_judged_as_a_whole_where_partners_are_alike() -> None:
    """Copies of one caption for random images make no group. Rows that are all alike are finite."""
    images, texts, _ = corpus(900, 0.0)
    for copies, alike in ((300, True), (300, False), (60, True)):
        source = np.concatenate([np.arange(900), np.arange(copies)])
        shown = source if alike else np.random.default_rng(0).permutation(len(source)) % 900
        found = neighbour_agreement(VectorPairs(images[shown], texts[source], np.arange(len(source)), source))
        assert (found.group_noise_rate is not None) == alike
    assert found.group_noise_rate.high == pytest.approx(120 / 960)  # with fewer than 80 all may be wrong
    found = neighbour_agreement(VectorPairs(np.ones((200, 3)), np.ones((200, 3)), np.zeros(200), np.zeros(200)))
    assert np.isfinite(found.observed).all() and np.isfinite(found.matched).all()


def test_wrong_pairs_do_not_raise_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the images judged by the other half, many rounds do not lower the share of wrong pairs."""
    monkeypatch.setattr(agreement, "NUMBERS", replace(NUMBERS, rounds=6))
    shares = [ask(*corpus(1200, 0.85, seed)[:2], seed=seed).noise_rate for seed in range(3)]
    assert abs(np.mean(shares) - 0.85) < 0.04


def test_right_pairs_with_little_agreement_do_not_count_as_wrong() -> None:
    """The ratio of the tails is taken to where right pairs have no mass."""
    rng = np.random.default_rng(1)
    own = np.concatenate([rng.normal(size=12_000), 1.5 + rng.normal(size=28_000)])
    assert abs(noise_rate_by_tails(own, rng.normal(size=40_000)) - 0.3) < 0.05
    below = np.concatenate([rng.normal(size=12_000), 6 + rng.normal(size=27_200), rng.normal(size=800) - 6])
    assert abs(noise_rate_by_tails(below, rng.normal(size=40_000)) - 0.32) < 0.05  # the ratio falls: its mean


def test_neighbour_similarity_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(2)
    n = 60
    x, t = unit(rng.normal(size=(n, 5))), unit(rng.normal(size=(n, 5)))
    right = rng.random(n)
    above, nearer = np.zeros(n), np.zeros(n)
    for a, b in ((x, t), (t, x)):
        sums = {}
        for tau in (NUMBERS.many_tau, NUMBERS.few_tau):
            k = right[None] * np.exp((a @ a.T - 1) / tau)
            np.fill_diagonal(k, 0)
            sums[tau] = unit(k @ b)
        like = np.array([sums[NUMBERS.many_tau][i] @ b[i] - (b @ sums[NUMBERS.many_tau][i]).mean() for i in range(n)])
        above += like / like.std()
        S = sums[NUMBERS.few_tau] @ b.T
        for i in range(n):
            nearer[i] += sum(np.log1p(sum(others > S[i, i])) for others in (S[i], S[:, i]))
    expected = (rankdata(above) + rankdata(-nearer) - 1) / (2 * n)
    found = agreement.similarity_to_neighbours(distinct(x, t), right)
    assert found.min() > 0 and found.max() < 1
    np.testing.assert_allclose(found, expected, atol=2 / n)  # nearly equal cosines may change places
    assert np.abs(found - expected).mean() < 0.002


def test_loose_captions_and_pairs_that_stand_out_are_told_from_mismatched_ones() -> None:
    """Of right pairs 0.9 fit better than 19 of 20 random ones, beside mismatched ones too; of loose ones 0.2."""
    rng = np.random.default_rng(0)
    null, right, loose = rng.normal(size=4000), rng.normal(3, 1, 1000), rng.normal(0.8, 1, 1000)
    noisy = np.concatenate([right[:500], null[:500]])
    for observed, rate, low, high in ((right, 0.0, 0.85, 1), (noisy, 0.5, 0.85, 1), (loose, 0.0, 0.1, 0.3)):
        found = NeighbourAgreement(observed, null, rate, np.ones(len(observed)))
        assert low < found.better_than_random() < high
        assert len(found.standing_out()) == 0 or observed is right
    odd = np.concatenate([[-2.0, 9.0, -0.5], right + 3])
    assert NeighbourAgreement(odd, null, 0.0, np.ones(len(odd))).standing_out()[:2].tolist() == [0, 2]
    nothing = agreement.nothing_known(5)
    assert np.isnan(nothing.better_than_random()) and len(nothing.standing_out()) == 0


# -- Evidence of vectors of one space, on corpora whose truth is known: what it finds, and when it has no --


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.4, 0.6])
def test_rate_and_probabilities_without_a_training(wrong: float) -> None:
    images, texts, at, truth = cone(800, wrong)
    found = similarity_agreement(VectorPairs(images, texts, np.arange(800), at))
    assert found is not None and abs(found.noise_rate - truth.mean()) < 0.04
    assert abs(float(1 - found.matched.mean()) - truth.mean()) < 0.05
    flagged = found.matched < 0.5
    assert flagged.mean() <= 0.005 if not wrong else roc_auc_score(~truth, found.observed) > 0.98
    assert not wrong or f1_score(truth, flagged) > 0.9


@pytest.mark.parametrize("wrong", [(0.01, 0.5), (0.5, 0.01)])
def test_sources_that_differ_in_noise_and_difficulty_are_judged_together(wrong: tuple[float, float]) -> None:
    """Without weights the null pairs of the source with few wrong captions decide how those of the other one score."""
    easy, hard = cone(600, wrong[0]), cone(600, wrong[1], spread=1.6, seed=100)
    images, texts, at, truth = (np.concatenate(both) for both in zip(easy, hard, strict=True))
    at[600:] += 600
    found = similarity_agreement(VectorPairs(images, texts, np.arange(1200), at))
    estimate = found.calibration.noise_rate(1200)
    assert estimate.low <= truth.mean() <= estimate.high and f1_score(truth, found.matched < 0.5) > 0.9


@pytest.mark.parametrize(("n", "wrong"), [(200, 0.1), (400, 0.4), (800, 0.1)])
def test_captions_of_images_that_are_not_in_the_data_are_counted(n: int, wrong: float) -> None:
    """A wrong pair whose right partners are elsewhere scores above random pairs, whose partners are in the data."""
    images, texts, at, _ = cone(2 * n, 0.0, spread=0.5)
    at[: round(wrong * n)] += n
    pairs = VectorPairs(images[:n], texts[at[:n]], np.arange(n), at[:n])
    found = similarity_agreement(pairs)
    vectors = Pairs.from_arrays(image_vectors=pairs.images, text_vectors=pairs.texts)
    model = ClipScore(text_encoder="features").fit(vectors)
    for matched, rate in ((found.matched, found.noise_rate), (model.correspondence_, model.noise_rate_)):
        assert abs(rate - wrong) < 0.03 and f1_score(at[:n] >= n, matched < 0.5) > 0.9
    estimate = found.calibration.noise_rate(n)
    assert estimate.low < wrong < estimate.high and found.bound(estimate) > wrong


def test_the_balance_counts_where_the_images_of_wrong_captions_are_there() -> None:
    """There it has fewer errors than half of it. Captions from outside lose nothing by it."""
    errors = np.zeros((2, 2))
    for seed in range(2):
        images, texts, at, _ = cone(800, 0.0, spread=1.2, seed=seed)
        for there in (0, 1):
            at[:200] = np.roll(np.arange(200), 1) if there else np.arange(400, 600)
            pairs, wrong = VectorPairs(images[:400], texts[at[:400]], np.arange(400), at[:400]), np.arange(400) < 200
            found = similarity_agreement(pairs)
            assert found is not None and abs(found.noise_rate - 0.5) < 0.04
            half = cosines(pairs.images, pairs.texts) - balanced(pairs).mean(axis=0)
            errors[there] += [roc_auc_score(wrong, score) for score in (found.observed, half)]
    assert errors[1, 0] < 0.75 * errors[1, 1] and errors[0, 0] < 1.05 * errors[0, 1]


def test_copies_of_a_few_captions_are_counted() -> None:
    """Nearly all mismatched pairs have a copy, and most random ones have none."""
    images, texts, at, _ = cone(1500, 0.0)
    rng = np.random.default_rng(0)
    wrong = rng.random(1500) < 0.3
    at[wrong] = rng.integers(0, 1500, 10)[rng.integers(0, 10, wrong.sum())]
    found = similarity_agreement(VectorPairs(images, texts[at], np.arange(1500), at))
    assert found is not None and found.calibration.noise_rate(1500).low < wrong.mean() < found.noise_rate + 0.05


def test_placeholders_in_place_of_images_are_no_near_images() -> None:
    """Their own captions are not in the data, so that such pairs score above random ones, as near ones do."""
    rng, shown = np.random.default_rng(0), np.arange(300)
    shown[rng.permutation(300)[:90]] = rng.integers(300, 305, 90)
    for seed in (6, 8):
        images, texts, _, _ = cone(305, 0.0, spread=1.0, seed=seed)
        found = similarity_agreement(VectorPairs(images[shown], texts[:300], shown, np.arange(300)))
        estimate = found.calibration.noise_rate(300)
        assert not found.near and estimate.low < 0.3 < estimate.high
        assert (shown >= 300)[found.matched < 0.5].mean() > 0.9


@pytest.mark.parametrize("n", [200, 600])
def test_of_two_spaces_nothing_is_said(n: int) -> None:
    """Of equal dimensions, and with all that relates images and captions still there."""
    images, texts, at, _ = cone(n, 0.2)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(64, 64)))[0].astype(np.float32)
    groups = np.arange(n), at
    assert similarity_agreement(VectorPairs(images, texts @ turn, *groups)) is None
    assert similarity_agreement(VectorPairs(images[:, :32], texts, *groups)) is None
    assert similarity_agreement(VectorPairs(images, texts, *groups)) is not None
    assert similarity_agreement(VectorPairs(images[:50], texts[:50], groups[0][:50], at[:50])) is None


def swapped_with_near(texts: np.ndarray, share: float, random: float = 0.0) -> np.ndarray:
    """Whose caption each has: a ``share`` swap with one of the five nearest, a ``random`` share rotate."""
    n, order = len(texts), np.random.default_rng(0).permutation(len(texts))
    S = texts @ texts.T
    np.fill_diagonal(S, -1)
    at, moved = np.arange(n), order[: round(random * n)]
    at[moved] = np.roll(moved, 1)
    free, least = at == np.arange(n), 1 - random - share
    for i in order:
        j = next((j for j in np.argsort(-S[i])[:5] if free[j]), i)
        if free[i] and free.mean() > least:
            at[i], at[j], free[i], free[j] = j, i, False, False
    return at


@pytest.mark.parametrize("random", [0.1, 0.2, 0.4])
def test_the_bound_counts_near_captions_beside_random_ones(random: float) -> None:
    """What is most like a wrong caption is random to the image, and shows nothing of near ones."""
    images, texts, _, _ = cone(800, 0.0, spread=0.5, seed=3)
    at = swapped_with_near(texts, 0.2, random)
    found = similarity_agreement(VectorPairs(images, texts[at], np.arange(800), at))
    assert found is not None and found.near == (random < 0.15)
    estimate, wrong = found.calibration.noise_rate(800), (at != np.arange(800)).mean()
    assert wrong < (estimate.high if found.near else found.bound(estimate)) < wrong + 0.25


def test_captions_swapped_with_the_nearest_are_told(tmp_path: Path) -> None:
    images, texts, _, _ = cone(800, 0.0, spread=0.5, seed=3)
    at = swapped_with_near(texts, 0.3)
    wrong = at != np.arange(800)
    found = similarity_agreement(VectorPairs(images, texts[at], np.arange(800), at))
    assert found is not None and found.near and found.settled
    pairs = Pairs.from_arrays(image_vectors=images, text_vectors=texts[at])
    model = Auto(random_state=0).fit(pairs)
    assert reloaded(model, tmp_path, pairs)._counts_similar  # for its card
    assert model._counts_similar and model.noise_rate_bound_ == model.noise_rate_interval_[1] > wrong.mean()
    assert f1_score(wrong, found.matched < 0.5) > 0.75
    clean = similarity_agreement(distinct(images, texts))
    assert clean is not None and not clean.near and (clean.matched < 0.5).mean() <= 0.005
    # Many look random without their partners beside them. These are in other pairs, which placeholders' are not.
    rng = np.random.default_rng(0)
    z = rng.normal(size=(340, 256)) + rng.normal(size=(60, 256))[rng.integers(0, 60, 340)]
    images, texts = (unit(z + 0.7 * rng.normal(size=z.shape) + shift) for shift in (0.8, -0.8))
    found = similarity_agreement(VectorPairs(images, texts[at := swapped_with_near(texts, 0.3)], *[np.arange(340)] * 2))
    assert found is not None and found.near and f1_score(at != np.arange(340), found.matched < 0.5) > 0.95


def test_a_sample_tells_of_all_pairs_what_their_comparison_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample's own pairs keep their scores; those of half precision and any length score as the others do."""
    images, texts, at, truth = cone(1600, 0.3, hubs=3.0, seed=2)
    pairs = VectorPairs(images, texts, np.arange(1600) * 7, at)
    whole = similarity_agreement(pairs)
    monkeypatch.setattr(similarity, "NUMBERS", replace(similarity.NUMBERS, exact=800))
    large = VectorPairs((3 * images).astype(np.float16), texts.astype(np.float16), pairs.image_group, at)
    found = similarity_agreement(large)
    assert whole is not None and found is not None and len(found.observed) == len(found.matched) == 1600
    areas = [roc_auc_score(~truth, each.observed) for each in (whole, found)]
    assert areas[1] > areas[0] - 0.005 and abs(found.noise_rate - whole.noise_rate) < 0.02
    assert abs(found.calibration.rate - found.noise_rate) < 1e-3
    assert ((found.matched < 0.5) == (whole.matched < 0.5)).mean() > 0.97


@pytest.mark.parametrize(("exact", "n", "spread"), [(400, 1600, 2.0), (8192, 1000, 3.0)])
def test_rates_of_samples_and_weak_vectors(exact: int, n: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similarity, "NUMBERS", replace(similarity.NUMBERS, exact=exact))
    drawn = [cone(n, 0.3, spread=spread, seed=seed) for seed in range(4)]
    found = [similarity_agreement(VectorPairs(x, t, np.arange(n), at)) for x, t, at, _ in drawn]
    assert abs(np.mean([each.noise_rate for each in found]) - 0.3) < 0.02


def test_what_was_learned_of_pairs_judges_others_after_it_was_stored() -> None:
    images, texts, at, truth = cone(1400, 0.3, seed=4)
    pairs = VectorPairs(images, texts, np.arange(1400), at)
    known, others = pairs.take(np.arange(800)), pairs.take(np.arange(800, 1400))
    some = similarity_agreement(known)
    stored = SimilarityModel.from_arrays(some.model.arrays())
    got = stored(others)
    np.testing.assert_array_equal(got, some.model(others))
    assert roc_auc_score(~truth[800:], got) > 0.98 and abs(1 - got.mean() - truth[800:].mean()) < 0.05
    np.testing.assert_allclose(stored(known), some.matched, atol=1e-5)


def test_what_hubs_have_spoiled_is_mended_by_the_pairs() -> None:
    images, texts, at, truth = cone(800, 0.4, hubs=3.0)
    found = similarity_agreement(VectorPairs(images, texts, np.arange(800), at))
    pairs = distinct(images, texts)
    plain = 1 - roc_auc_score(~truth, cosines(images, texts) - pairs.shared(pairs).mean(axis=0))
    assert 1 - roc_auc_score(~truth, found.observed) < 0.5 * plain


def test_near_captions_that_are_nearly_right_say_nothing() -> None:
    """Right pairs only, a little above what nearly the same captions have: not a share of wrong ones."""
    near, observed = np.random.default_rng(0).normal(size=(2, 3000))
    for apart in (0.0, 0.3, 0.5, 1.0, 4.0):
        assert _near(observed + apart, near, near - 3, 0.0) is None
