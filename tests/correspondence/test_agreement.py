"""Neighbours' agreement: against loops, what it finds, what it says of the noise rate."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cleanpairs.correspondence.agreement import (
    TAU,
    Agreement,
    _answers,
    neighbours_agreement,
    posterior,
    wrong_share,
)  # fmt: skip
from cleanpairs.correspondence.witnesses import calibrated_by, joined


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


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


def ask(images: np.ndarray, texts: np.ndarray, **settings: int) -> Agreement:
    n = len(images)
    return neighbours_agreement(images, texts, np.arange(n), np.arange(n), **settings)


@pytest.mark.parametrize("bank", [60, 200])
def test_answers_are_those_of_a_loop(bank: int) -> None:
    rng = np.random.default_rng(1)
    n = 90
    x, t = unit(rng.normal(size=(n, 5))), unit(rng.normal(size=(n, 4)))
    group, weight = rng.integers(0, 40, n), rng.random(n).astype(np.float32)
    asked = np.sort(rng.permutation(n)[:bank])
    said, mass = _answers(x, t, group, asked, weight, TAU)
    for i in range(n):
        total, sum_of = np.zeros(4), 0.0
        for j in range(n):
            if j == i or (j not in asked and group[j] != group[i]):
                continue
            k = weight[j] * (np.exp((float(x[i] @ x[j]) - 1) / TAU) if j in asked else 1.0)
            total += k * t[j]
            sum_of += k
        np.testing.assert_allclose(said[i], total, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(mass[i], sum_of, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8])
def test_it_finds_wrong_pairs_and_their_share_without_a_label(rate: float) -> None:
    images, texts, wrong = corpus(3000, rate)
    found = ask(images, texts)
    assert abs(found.wrong - wrong.mean()) < 0.05
    assert abs(found.right.mean() - (1 - wrong.mean())) < 0.06
    if rate:
        assert roc_auc_score(~wrong, found.own) > 0.9
    else:
        assert (found.right < 0.5).mean() < 0.02


def test_independent_sides_are_all_wrong() -> None:
    rng = np.random.default_rng(0)
    found = ask(unit(rng.normal(size=(2000, 20))), unit(rng.normal(size=(2000, 20))))
    assert found.wrong > 0.85


def test_a_bank_of_some_says_nearly_the_same() -> None:
    images, texts, wrong = corpus(3000, 0.4)
    few = ask(images, texts, bank=800)
    assert roc_auc_score(~wrong, few.own) > 0.9 and abs(few.wrong - 0.4) < 0.05


@pytest.mark.parametrize("n", [0, 1, 2, 79])
def test_too_few_pairs_are_all_right(n: int) -> None:
    found = ask(np.ones((n, 3), np.float32), np.ones((n, 3), np.float32))
    assert found.wrong == 0 and found.right.tolist() == [1.0] * n


def test_rows_all_alike_are_finite() -> None:
    found = neighbours_agreement(np.ones((200, 3)), np.ones((200, 3)), np.zeros(200), np.zeros(200))
    assert np.isfinite(found.own).all() and np.isfinite(found.right).all()


def test_share_and_posterior_of_a_known_mixture() -> None:
    rng = np.random.default_rng(0)
    control = rng.normal(size=20_000)
    own = np.concatenate([rng.normal(size=6_000), 4 + rng.normal(size=14_000)])
    share = wrong_share(own, control)
    assert abs(share - 0.3) < 0.02
    p = posterior(own, control, share)
    truth = 0.3 * np.exp(-(own**2) / 2) / (0.3 * np.exp(-(own**2) / 2) + 0.7 * np.exp(-((own - 4) ** 2) / 2))
    assert np.abs(p - truth).mean() < 0.02
    assert (np.diff(p[np.argsort(own)]) <= 1e-12).all()  # the more agreement, the less likely wrong


def test_a_score_of_any_scale_becomes_a_probability() -> None:
    rng = np.random.default_rng(0)
    witness = rng.beta(0.6, 0.4, size=20_000)  # is right as often as it says
    right = rng.random(20_000) < witness
    score = np.exp(3 * (right + rng.normal(size=20_000)))  # of a model that errs by itself
    g = calibrated_by(score, witness)
    edges = np.quantile(g, np.linspace(0, 1, 11))
    which = np.clip(np.searchsorted(edges, g) - 1, 0, 9)
    for k in range(10):
        if (which == k).any():
            assert abs(g[which == k].mean() - right[which == k].mean()) < 0.06
    w = joined(witness, [score], 0.4)
    assert abs(w.mean() - 0.6) < 1e-6
    assert roc_auc_score(right, w) > max(roc_auc_score(right, score), roc_auc_score(right, witness)) - 1e-3


def test_a_witness_that_knows_nothing_leaves_the_rate() -> None:
    g = calibrated_by(np.arange(100.0), np.full(100, 0.7))
    np.testing.assert_allclose(g, 0.7)
