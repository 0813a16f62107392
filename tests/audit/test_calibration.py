"""Maps from score to probability: increasing, never sure, and right on corpora whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from cleanpairs.audit import draw_sample
from cleanpairs.audit.evaluation import calibrate, calibration_error, fit_isotonic, fit_logistic


def labels(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    score = rng.random(n)
    return score, rng.random(n) < score**0.5, rng.uniform(1, 30, n)


def test_isotonic_agrees_with_scikit_learn_at_the_centres_of_its_steps() -> None:
    score, matched, weight = labels()
    n1, n0 = matched.sum(), (~matched).sum()
    target = np.where(matched, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    oracle = IsotonicRegression(out_of_bounds="clip").fit(score, target, sample_weight=weight).predict(score).round(9)
    got = fit_isotonic(score, matched, weight)
    assert len(set(oracle)) > 4
    for value in set(oracle):
        step = oracle == value
        centre = np.average(score[step], weights=weight[step])
        assert np.isclose(got(np.array([centre]))[0], value, atol=1e-8)


def test_logistic_agrees_with_scikit_learn() -> None:
    score, matched, weight = labels()
    n1, n0 = matched.sum(), (~matched).sum()
    target = np.where(matched, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    x = np.log(score.clip(1e-3, 1 - 1e-3) / (1 - score.clip(1e-3, 1 - 1e-3)))[:, None]
    w = weight * len(weight) / weight.sum()
    oracle = LogisticRegression(C=1e6, tol=1e-10, max_iter=1_000)  # a soft target is a weighted label of each kind
    oracle.fit(np.r_[x, x], np.r_[np.ones(120), np.zeros(120)], sample_weight=np.r_[w * target, w * (1 - target)])
    assert np.allclose(fit_logistic(score, matched, weight)(score), oracle.predict_proba(x)[:, 1], atol=2e-3)


@pytest.mark.parametrize("fit", [fit_isotonic, fit_logistic])
@pytest.mark.parametrize("case", ["mixed", "one", "two", "all matched", "none matched", "upside down", "separated"])
def test_never_decreasing_and_never_sure(fit: Callable[..., Any], case: str) -> None:
    score, matched, weight = labels()
    if case in ("one", "two"):
        k = 1 if case == "one" else 2
        score, matched, weight = score[:k], np.array([True, False])[:k], weight[:k]
    elif case != "mixed":
        verdicts = {"all matched": score >= 0, "none matched": score < 0}
        matched = verdicts.get(case, score > 0.5 if case == "separated" else score < 0.5)
    p = fit(score, matched, weight)(np.linspace(0, 1, 1001))
    assert (np.diff(p) >= -1e-12).all()
    assert p.min() > 0 and p.max() < 1
    if fit is fit_isotonic:
        assert p.min() >= 1 / (len(score) + 2) - 1e-12 and p.max() <= 1 - 1 / (len(score) + 2) + 1e-12
    if case == "upside down":  # a score that says the opposite says nothing, rather than the opposite
        assert np.ptp(p) < 1e-6


def test_leaving_out_is_what_it_says() -> None:
    score, matched, weight = labels(30)
    (chosen, _, found, said), losses = calibrate(score, matched, weight), {}
    for kind, fit in (("isotonic", fit_isotonic), ("logistic", fit_logistic)):
        rest = [np.arange(30) != i for i in range(30)]
        left_out = [fit(score[r], matched[r], weight[r])(score[~r])[0] for r in rest]
        losses[kind] = -(weight * np.log(np.where(matched, left_out, 1 - np.array(left_out)))).sum() / weight.sum()
        if kind == chosen:
            np.testing.assert_array_equal(found, left_out)
    assert chosen == min(losses, key=losses.__getitem__) and said == pytest.approx(losses)


def test_calibration_error_by_hand() -> None:
    p = np.array([0.1, 0.1, 0.9, 0.9])
    assert np.isclose(calibration_error(p, np.array([0, 0, 1, 1], bool), bins=2), 0.1)
    assert np.isclose(calibration_error(p, np.array([1, 1, 0, 0], bool), bins=2), 0.9)
    assert np.isclose(calibration_error(p, np.array([1, 0, 1, 0], bool), np.array([1, 9, 9, 1]), bins=2), 0.0)
    rng = np.random.default_rng(0)
    q = rng.random(20_000)
    assert calibration_error(q, rng.random(20_000) < q) < 0.01


def test_two_hundred_labels_calibrate_to_within_a_twentieth(corpus: Callable[..., Any]) -> None:
    """Against the truth of all pairs; averaged over corpora of noise 0.1 to 0.6."""
    after, before = [], []
    for k, noise in enumerate([0.1, 0.2, 0.4, 0.6] * 2):
        y, wrong = corpus(noise=noise, seed=k)
        s = draw_sample(y, 200, threshold=0.1, seed=k)
        probability = calibrate(s.correspondence, ~wrong[s.pair_id], s.weight)[1]
        before.append(calibration_error(y, ~wrong))
        after.append(calibration_error(probability(y.astype(float)), ~wrong))
    assert np.mean(after) < 0.04 < 0.15 < np.mean(before)
    assert np.max(after) < 0.1
