"""Precision, recall and the noise rate: exact where all is labelled, covered by their intervals where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cleanpairs.audit import draw_sample, evaluate_audit
from cleanpairs.audit.evaluation import LADDER, at_threshold, noise_estimate
from cleanpairs.core.errors import ConfigError, DataError


def truth(y: np.ndarray, wrong: np.ndarray, t: float) -> tuple[float, float]:
    flagged = y < t
    return (wrong & flagged).sum() / flagged.sum(), (wrong & flagged).sum() / wrong.sum()


def test_all_labelled_is_exact(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus(300)
    s = labelled(draw_sample(y, 300, threshold=0.1), wrong)
    r = evaluate_audit(s, y, threshold=0.1)
    for e in (r.at_threshold, *r.ladder):
        precision, recall = truth(y, wrong, e.threshold)
        assert np.isclose(e.precision.value, precision) and np.isclose(e.recall.value, recall)
        assert e.flagged == (y < e.threshold).sum()
    assert np.isclose(r.noise_rate.value, wrong.mean())
    from sklearn.metrics import average_precision_score, roc_auc_score

    assert np.isclose(r.auroc, roc_auc_score(wrong, -y)) and np.isclose(r.ap, average_precision_score(wrong, -y))


def test_the_estimates_are_unbiased(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    got = []
    for seed in range(150):
        s = labelled(draw_sample(y, 100, threshold=0.1, seed=seed), wrong)
        e = at_threshold(s, y, 0.3)  # no edge of a stratum
        got.append([e.precision.value, e.recall.value, noise_estimate(s, y).value])
    error = np.mean(got, axis=0) - [*truth(y, wrong, 0.3), wrong.mean()]
    assert np.abs(error).max() < 0.012  # recall is a ratio of two estimates: biased by less than its spread / 8


@pytest.mark.parametrize(
    ("noise", "n"),
    [
        (0.4, 100),
        pytest.param(0.1, 100, marks=pytest.mark.slow),
        pytest.param(0.4, 200, marks=pytest.mark.slow),
    ],
)
def test_the_intervals_cover_the_truth(
    corpus: Callable[..., Any], labelled: Callable[..., Any], noise: float, n: int
) -> None:
    hit: dict[str, list[bool]] = {}
    for seed in range(300):
        y, wrong = corpus(3_000, noise, seed)
        s = labelled(draw_sample(y, n, threshold=0.1, seed=seed), wrong)
        for t in (0.1, 0.5):
            e = at_threshold(s, y, t)
            for name, got, true in zip(
                ("precision", "recall"), (e.precision, e.recall), truth(y, wrong, t), strict=True
            ):
                hit.setdefault(f"{name} at {t}", []).append(got.low <= true <= got.high)
        rate = noise_estimate(s, y)
        hit.setdefault("noise", []).append(rate.low <= wrong.mean() <= rate.high)
    cover = {name: np.mean(h) for name, h in hit.items()}
    assert all(0.9 <= c <= 0.99 for c in cover.values()), cover


def test_unlabelled_pairs_are_left_out(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    s = labelled(draw_sample(y, 200, threshold=0.1), wrong)
    half = replace(s, matched=np.where(np.arange(200) % 2, s.matched, np.nan))
    r = evaluate_audit(half, y, threshold=0.1)
    assert (r.drawn, r.labelled) == (200, 100)
    assert r.noise_rate.low < wrong.mean() < r.noise_rate.high
    whole = evaluate_audit(s, y, threshold=0.1)
    assert r.noise_rate.high - r.noise_rate.low > whole.noise_rate.high - whole.noise_rate.low


def test_probabilities_of_all_pairs(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    y[5] = np.nan
    r = evaluate_audit(labelled(draw_sample(y, 200, threshold=0.1), wrong), y, threshold=0.1)
    known = np.isfinite(y)
    assert np.array_equal(np.isfinite(r.probability), known) and r.probability.dtype == np.float32
    order = np.argsort(y[known])
    assert (np.diff(r.probability[known][order]) >= 0).all()
    assert r.even_odds is not None and 0.01 < r.even_odds < 0.3
    assert abs(r.probability[known].mean() - (1 - wrong).mean()) < 0.08
    assert r.ece_after < r.ece_before and r.ece_chance > 0


@pytest.mark.parametrize("verdict", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_labels_that_are_all_alike(corpus: Callable[..., Any], verdict: float, n: int) -> None:
    y, _ = corpus()
    s = draw_sample(y, n, threshold=0.1)
    r = evaluate_audit(replace(s, matched=np.full(n, verdict)), y, threshold=0.1)
    assert np.isnan(r.auroc) and r.even_odds is None
    assert r.noise_rate.value == 1 - verdict
    assert r.noise_rate.high - r.noise_rate.low > 0.005  # a sample is never sure of all
    assert np.nanmin(r.probability) > 0 and np.nanmax(r.probability) < 1
    told = json.dumps(r.to_dict(), allow_nan=False)
    assert json.loads(told)["auroc"] is None
    assert "recall" in str(r)


def test_corpora_of_one_and_two_pairs() -> None:
    for y, matched in (([0.2], [1.0]), ([0.2, 0.9], [0.0, 1.0])):
        s = draw_sample(y, 100, threshold=0.5)
        r = evaluate_audit(replace(s, matched=np.array(matched)[s.pair_id]), y, threshold=0.5)
        assert r.at_threshold.flagged == 1
        assert r.at_threshold.precision.value == 1 - matched[0]


def test_the_table_marks_the_threshold(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    r = evaluate_audit(labelled(draw_sample(y, 100, threshold=0.17), wrong), y, threshold=0.17)
    lines = str(r).splitlines()
    assert [line.split()[0] for line in lines if "[" in line][1:] == [
        f"{t:g}{'*' * (t == 0.17)}" for t in sorted((0.17, *LADDER))
    ]
    assert max(len(line) for line in lines) <= 100 and not any(line.endswith(" ") for line in lines)


def test_refusals(corpus: Callable[..., Any], labelled: Callable[..., Any]) -> None:
    y, wrong = corpus()
    s = draw_sample(y, 20, threshold=0.1)
    with pytest.raises(DataError, match="labelled yet"):
        evaluate_audit(s, y, threshold=0.1)
    s = labelled(s, wrong)
    with pytest.raises(ConfigError, match=r"in \[0, 1\], found 7"):
        evaluate_audit(s, y, threshold=7.0)
    with pytest.raises(DataError, match="other scores"):
        evaluate_audit(s, 1 - y, threshold=0.1)
    with pytest.raises(DataError, match="the run has 3"):
        evaluate_audit(s, y[:3], threshold=0.1)
