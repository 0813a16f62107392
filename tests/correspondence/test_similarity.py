"""Evidence of vectors of one space, on corpora whose truth is known: what it finds, and when it has nothing to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cleanpairs.correspondence import similarity
from cleanpairs.correspondence.similarity import SimilarityModel, _near, similarity_agreement
from cleanpairs.ops.normalised_similarity import VectorPairs, cosines
from tests.helpers import unit


def corpus(n: int, wrong: float, *, spread: float = 0.7, hubs: float = 0.0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Vectors in a cone with topics, captions of which some rotate, the captions' numbers, and which are wrong."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 64)) * np.exp(-np.arange(64) / 20) * 2 + rng.normal(size=(20, 64))[rng.integers(0, 20, n)]
    images, texts = (z + spread * rng.normal(size=z.shape) + shift for shift in (0.8, -0.8))
    images = unit(images) + hubs * rng.exponential(size=(n, 1)) * unit(texts).mean(axis=0)
    at = np.arange(n)
    moved = rng.permutation(n)[: round(wrong * n)]
    at[moved] = np.roll(moved, 1)
    return unit(images), unit(texts)[at], at, at != np.arange(n)


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.4, 0.6])
def test_rate_and_probabilities_without_a_training(wrong: float) -> None:
    images, texts, at, truth = corpus(800, wrong)
    found = similarity_agreement(VectorPairs(images, texts, np.arange(800), at))
    assert found is not None and abs(found.noise_rate - truth.mean()) < 0.04
    assert abs(float(1 - found.matched.mean()) - truth.mean()) < 0.05
    flagged = found.matched < 0.5
    if not wrong:
        assert flagged.mean() <= 0.005
        return
    assert roc_auc_score(~truth, found.observed) > 0.98
    assert 2 * (flagged & truth).sum() / (flagged.sum() + truth.sum()) > 0.9


def test_what_hubs_have_spoiled_is_mended_by_the_pairs() -> None:
    images, texts, at, truth = corpus(800, 0.4, hubs=3.0)
    found = similarity_agreement(VectorPairs(images, texts, np.arange(800), at))
    pairs = VectorPairs(images, texts, np.arange(800), np.arange(800))
    plain = 1 - roc_auc_score(~truth, cosines(images, texts) - pairs.shared(pairs).mean(axis=0))
    assert 1 - roc_auc_score(~truth, found.observed) < 0.5 * plain


@pytest.mark.parametrize("n", [200, 600])
def test_of_two_spaces_nothing_is_said(n: int) -> None:
    """Of equal dimensions, and with all that relates images and captions still there."""
    images, texts, at, _ = corpus(n, 0.2)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(64, 64)))[0].astype(np.float32)
    groups = np.arange(n), at
    assert similarity_agreement(VectorPairs(images, texts @ turn, *groups)) is None
    assert similarity_agreement(VectorPairs(images[:, :32], texts, *groups)) is None
    assert similarity_agreement(VectorPairs(images, texts, *groups)) is not None
    assert similarity_agreement(VectorPairs(images[:50], texts[:50], groups[0][:50], at[:50])) is None


def test_captions_swapped_with_the_nearest_are_told() -> None:
    images, texts, _, _ = corpus(800, 0.0, spread=0.5, seed=3)
    S = texts @ texts.T
    np.fill_diagonal(S, -1)
    at, free = np.arange(800), np.ones(800, bool)
    for i in np.random.default_rng(0).permutation(800):
        j = next((j for j in np.argsort(-S[i])[:5] if free[j]), i)
        if free[i] and free.mean() > 0.7:
            at[i], at[j], free[i], free[j] = j, i, False, False
    wrong = at != np.arange(800)
    found = similarity_agreement(VectorPairs(images, texts[at], np.arange(800), at))
    assert found is not None and found.near and found.settled
    flagged = found.matched < 0.5
    assert 2 * (flagged & wrong).sum() / (flagged.sum() + wrong.sum()) > 0.75
    clean = similarity_agreement(VectorPairs(images, texts, np.arange(800), np.arange(800)))
    assert clean is not None and not clean.near and (clean.matched < 0.5).mean() <= 0.005


@pytest.mark.parametrize("apart", [0.0, 0.3, 0.5, 1.0, 4.0])
def test_near_captions_that_are_nearly_right_say_nothing(apart: float) -> None:
    """Right pairs only, a little above what nearly the same captions have: not a share of wrong ones."""
    rng = np.random.default_rng(0)
    near = rng.normal(size=3000)
    assert _near(rng.normal(size=3000) + apart, near, near - 3, 0.0) is None


def test_a_sample_tells_of_all_pairs_what_their_comparison_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample's own pairs keep their scores; those of half precision and any length score as the others do."""
    images, texts, at, truth = corpus(1600, 0.3, hubs=3.0, seed=2)
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


def test_what_was_learned_of_pairs_judges_others_after_it_was_stored() -> None:
    images, texts, at, truth = corpus(1400, 0.3, seed=4)
    numbers = np.arange(1400)
    some = similarity_agreement(VectorPairs(images[:800], texts[:800], numbers[:800], at[:800]))
    assert some is not None
    stored = SimilarityModel.from_arrays(some.model.arrays())
    others = VectorPairs(images[800:], texts[800:], numbers[800:], at[800:])
    got = stored(others)
    np.testing.assert_array_equal(got, some.model(others))
    assert roc_auc_score(~truth[800:], got) > 0.98 and abs(1 - got.mean() - truth[800:].mean()) < 0.05
    known = VectorPairs(images[:50], texts[:50], numbers[:50], at[:50])
    np.testing.assert_allclose(stored(known), some.matched[:50], atol=1e-5)
