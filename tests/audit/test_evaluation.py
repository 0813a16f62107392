"""Precision, recall, the noise rate and the probabilities: exact where all is labelled, else near the truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from cleanpairs.audit import draw_sample, evaluate_audit
from cleanpairs.audit.evaluation import LADDER, at_threshold, noise_estimate
from cleanpairs.core.errors import ConfigError, DataError


def truth(y: np.ndarray, wrong: np.ndarray, t: float) -> tuple[float, float]:
    flagged = y < t
    return (wrong & flagged).sum() / flagged.sum(), (wrong & flagged).sum() / wrong.sum()


def test_all_labelled_is_exact(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus(300)
    r = evaluate_audit(labelled(draw_sample(y, 300, threshold=0.17), wrong), y, threshold=0.17)
    for e in (r.at_threshold, *r.ladder):
        precision, recall = truth(y, wrong, e.threshold)
        assert np.isclose(e.precision.value, precision) and np.isclose(e.recall.value, recall)
        assert e.flagged == (y < e.threshold).sum()
    assert np.isclose(r.noise_rate.value, wrong.mean())
    assert np.isclose(r.auroc, roc_auc_score(wrong, -y)) and np.isclose(r.ap, average_precision_score(wrong, -y))
    lines = str(r).splitlines()  # the table marks the threshold of the run
    thresholds = [line.split()[0] for line in lines if "[" in line][1:]
    assert thresholds == [f"{t:g}{'*' * (t == 0.17)}" for t in sorted((0.17, *LADDER))]
    assert max(len(line) for line in lines) <= 100 and not any(line.endswith(" ") for line in lines)


def test_the_estimates_are_unbiased(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    got = []
    for seed in range(150):
        s = labelled(draw_sample(y, 100, threshold=0.1, seed=seed), wrong)
        e = at_threshold(s, y, 0.3)  # no edge of a stratum
        got.append([e.precision.value, e.recall.value, noise_estimate(s, y).value])
    error = np.mean(got, axis=0) - [*truth(y, wrong, 0.3), wrong.mean()]
    assert np.abs(error).max() < 0.012  # recall is a ratio of two estimates: biased by less than its spread / 8


@pytest.mark.parametrize(("noise", "n"), [(0.4, 100), pytest.param(0.1, 100, marks=pytest.mark.slow)])
def test_the_intervals_cover_the_truth(
    corpus: Callable[..., Any], labelled: Callable[..., Any], noise: float, n: int
) -> None:
    hit: dict[str, list[bool]] = {}
    for seed in range(300):
        y, wrong = corpus(3_000, noise, seed)
        s = labelled(draw_sample(y, n, threshold=0.1, seed=seed), wrong)
        found = [("noise", noise_estimate(s, y), wrong.mean())]
        for t in (0.1, 0.5):
            e, (precision, recall) = at_threshold(s, y, t), truth(y, wrong, t)
            found += [(f"precision at {t}", e.precision, precision), (f"recall at {t}", e.recall, recall)]
        for name, estimate, true in found:
            hit.setdefault(name, []).append(estimate.low <= true <= estimate.high)
    cover = {name: np.mean(h) for name, h in hit.items()}
    assert all(0.9 <= c <= 0.99 for c in cover.values()), cover


def test_unlabelled_pairs_are_left_out(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    whole = labelled(draw_sample(y, 200, threshold=0.1), wrong)
    half = replace(whole, matched=np.where(np.arange(200) % 2, whole.matched, np.nan))
    few, all_ = (evaluate_audit(s, y, threshold=0.1) for s in (half, whole))
    assert (few.drawn, few.labelled) == (200, 100) and few.noise_rate.low < wrong.mean() < few.noise_rate.high
    assert few.noise_rate.high - few.noise_rate.low > all_.noise_rate.high - all_.noise_rate.low


@pytest.mark.parametrize("verdict", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_labels_that_are_all_alike(corpus: Callable[..., Any], verdict: float, n: int) -> None:
    y, _ = corpus()
    r = evaluate_audit(replace(draw_sample(y, n, threshold=0.1), matched=np.full(n, verdict)), y, threshold=0.1)
    assert np.isnan(r.auroc) and r.noise_rate.value == 1 - verdict
    assert r.noise_rate.high - r.noise_rate.low > 0.005  # a sample is never sure of all
    assert json.loads(json.dumps(r.to_dict(), allow_nan=False))["auroc"] is None and "recall" in str(r)


@pytest.mark.parametrize(("y", "matched"), [([0.2], [1.0]), ([0.2, 0.9], [0.0, 1.0])])
def test_corpora_of_one_and_two_pairs(y: list[float], matched: list[float]) -> None:
    s = draw_sample(y, 100, threshold=0.5)
    r = evaluate_audit(replace(s, matched=np.array(matched)[s.pair_id]), y, threshold=0.5)
    assert r.at_threshold.flagged == 1 and r.at_threshold.precision.value == 1 - matched[0]


def test_refusals(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    s = draw_sample(y, 20, threshold=0.1)
    for sample, scores, threshold, error, words in (
        (s, y, 0.1, DataError, "labelled yet"),
        (labelled(s, wrong), y, 7.0, ConfigError, ">= 0 and <= 1, found 7"),
        (labelled(s, wrong), 1 - y, 0.1, DataError, "other scores"),
        (labelled(s, wrong), y[:3], 0.1, DataError, "the run has 3"),
    ):
        with pytest.raises(error, match=words):
            evaluate_audit(sample, scores, threshold=threshold)
