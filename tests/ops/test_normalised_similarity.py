"""Normalised similarity against loops in float64, by a search against all pairs, and what must hold of it."""

from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from cleanpairs.ops import normalised_similarity as module
from cleanpairs.ops.normalised_similarity import NEIGHBOURS, TAU, Background, VectorPairs, balanced, cosines
from tests.helpers import distinct, unit


def scores(pairs: VectorPairs, background: VectorPairs | None = None, **how: Any) -> np.ndarray:
    """Normalised similarity (n,) of pairs, beside each other or a background."""
    return cosines(pairs.images, pairs.texts) - (background or pairs).shared(pairs, **how).mean(axis=0)


def corpus(n: int, dim: int = 24, seed: int = 0) -> VectorPairs:
    """Alike pairs in a cone, with hubs; every seventh image and every eleventh caption stands twice."""
    rng = np.random.default_rng(seed)
    topics = rng.normal(size=(max(2, n // 8), dim))[rng.integers(0, max(2, n // 8), n)]
    images = unit(1 + 0.7 * topics + 0.5 * rng.normal(size=(n, dim)))
    texts = unit(images + 0.05 * rng.normal(size=(n, dim)) - 0.1)
    of_image, of_text = np.arange(n), np.arange(n)
    of_image[6::7], of_text[10::11] = of_image[5::7][: len(of_image[6::7])], of_text[9::11][: len(of_text[10::11])]
    return VectorPairs(images[of_image], texts[of_text], of_image * 1000, of_text * 1000)


def alone(n: int) -> VectorPairs:
    """The corpus, of which no image and no caption counts as another one's duplicate."""
    pairs = corpus(n)
    return distinct(pairs.images, pairs.texts)


def naive(pairs: VectorPairs, background: VectorPairs, kind: str, tau: float) -> np.ndarray:
    out = []
    for i in range(len(pairs)):
        s, terms = float(pairs.images[i].astype(np.float64) @ pairs.texts[i]), []
        for mine, theirs, own, group in (
            (pairs.images, background.texts, pairs.text_group, background.text_group),
            (pairs.texts, background.images, pairs.image_group, background.image_group),
        ):
            every = np.append(theirs[group != own[i]].astype(np.float64) @ mine[i], s)
            terms.append(tau * logsumexp(every / tau) if kind == "softmax" else np.sort(every)[-NEIGHBOURS:].mean())
        out.append(s - sum(terms) / 2)
    return np.array(out)


@pytest.mark.parametrize("kind", ["softmax", "csls"])
@pytest.mark.parametrize("n", [1, 2, 5, 90])
def test_it_is_the_formula(kind: str, n: int) -> None:
    pairs, other = corpus(n), corpus(70, seed=1)
    np.testing.assert_allclose(scores(pairs, kind=kind), naive(pairs, pairs, kind, TAU), atol=2e-6)
    np.testing.assert_allclose(scores(pairs, other, kind=kind, tau=0.05), naive(pairs, other, kind, 0.05), atol=2e-6)


def test_small_blocks_and_halves_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = alone(300)
    want, halves = scores(pairs), scores(distinct(pairs.images.astype(np.float16), pairs.texts.astype(np.float16)))
    np.testing.assert_allclose(halves, want, atol=2e-3)
    monkeypatch.setattr(module, "_BLOCK_ENTRIES", 1)
    np.testing.assert_allclose(scores(pairs), want, atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "csls"])
@pytest.mark.parametrize("tau", [0.01, 0.05])
def test_a_search_finds_the_sum(kind: str, tau: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest and a sample against all; with tau .05 most of the sum is not among the nearest."""
    pairs = corpus(1500)
    want = scores(pairs, kind=kind, tau=tau)
    monkeypatch.setattr(module, "EXACT_UP_TO", 600)
    got = scores(pairs, kind=kind, tau=tau)
    assert np.abs(got - want).max() < (0.01 * tau if kind == "softmax" else 1e-6) + 0.05 * tau * (tau > TAU)


def test_balancing_is_the_transport_of_all_images_and_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is the softmax; many make every row and column of the plan sum to 1; few kept ones do, too."""
    pairs = alone(150)
    np.testing.assert_allclose(balanced(pairs, tau=0.1, steps=1), pairs.shared(pairs, tau=0.1), atol=2e-6)
    last = 2 * balanced(pairs, tau=0.1, steps=400) - balanced(pairs, tau=0.1, steps=1)
    S = pairs.images.astype(np.float64) @ pairs.texts.T.astype(np.float64)
    plan = np.exp((S - (last[0][:, None] + last[1]) / 2) / 0.1)
    np.testing.assert_allclose([plan.sum(axis=0), plan.sum(axis=1)], 1, atol=1e-3)
    want = balanced(pairs)
    monkeypatch.setattr(module, "_KEPT", 150 * 40)
    assert np.abs(balanced(pairs) - want).max() < 0.5 * TAU


def test_of_a_background_a_pair_is_scored_as_one_more_among_them() -> None:
    """The equations of the added pair, iterated; of the background's own pairs what the balancing finds."""
    pairs, tau = alone(150), 0.1
    background = Background.of(pairs, tau=tau)
    found = cosines(pairs.images, pairs.texts) - background.similarity(pairs)
    np.testing.assert_allclose(found, background.shared.mean(axis=(0, 1)), atol=0.05 * tau)
    added = corpus(40, seed=1)
    other = VectorPairs(added.images, added.texts, np.arange(150, 190), np.arange(150, 190))
    u, v = background.potentials
    x, t = other.images.astype(np.float64), other.texts.astype(np.float64)
    logits = x @ pairs.texts.T / tau, t @ pairs.images.T / tau
    own, mine = (x * t).sum(axis=1) / tau, np.zeros((2, 40))
    for _ in range(500):
        for side, (logit, worth) in enumerate(zip(logits, (v, u), strict=True)):
            mine[side] = -np.logaddexp(logsumexp(logit + worth, axis=1), own + mine[1 - side])
    softmax = np.stack([np.logaddexp(logsumexp(logit, axis=1), own) for logit in logits])
    got = cosines(other.images, other.texts) - background.similarity(other)
    np.testing.assert_allclose(2 * got, tau * (softmax.sum(axis=0) / 2 - mine.sum(axis=0)), atol=1e-3)


def test_the_balance_of_a_background_tells_the_sums_over_its_other_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half precision, and few kept similarities, cost little. A pair that nobody claims has far more worth than others,
    whose worth then counts as the least that is allowed."""
    pairs = corpus(300)
    lonely = np.where(np.arange(300)[:, None] < 3, -pairs.images, pairs.images)
    pairs = VectorPairs(lonely, pairs.texts, np.arange(300), pairs.text_group)
    for kept in (module._KEPT, 300 * 60):
        monkeypatch.setattr(module, "_KEPT", kept)
        background = Background.of(pairs)
        assert np.ptp(background.potentials, axis=1).max() > 60
        np.testing.assert_allclose(background.others_and_all[0], background.sums(pairs), atol=0.05)


@pytest.mark.parametrize("tau", [0.01, 0.004])
def test_sums_where_exponentials_leave_the_range_of_float32(tau: float) -> None:
    pairs, worth = corpus(150), np.random.default_rng(0).normal(size=(2, 150))
    got = Background(pairs, worth, tau=tau).sums(pairs)
    logits, groups = pairs.images.astype(np.float64) @ pairs.texts.T / tau, (pairs.text_group, pairs.image_group)
    for found, S, group, v in zip(got, (logits, logits.T), groups, worth[::-1], strict=True):
        S = np.where(group == group[:, None], -np.inf, S)
        np.testing.assert_allclose(found, [logsumexp(S, axis=1), logsumexp(S + v, axis=1)], atol=1e-4)


def test_an_image_is_compared_with_its_other_captions_and_a_caption_with_its_other_images() -> None:
    image, own = np.array([1, 0], np.float32), np.array([0.6, 0.8], np.float32)
    pairs = VectorPairs(np.stack([image, image]), np.stack([own, image]), np.zeros(2, np.int64), np.arange(2))
    of_image, of_text = pairs.shared(pairs, kind="csls")
    np.testing.assert_allclose(of_image, [0.8, 0.8], atol=1e-6)  # both captions: .6 and 1
    np.testing.assert_allclose(of_text, [0.6, 1.0], atol=1e-6)  # the same image once
