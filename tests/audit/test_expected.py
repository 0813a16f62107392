"""What the scores alone let expect: the valley's model, checked against the valley and against the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cleanpairs.audit import expected_quality
from cleanpairs.audit.expected import _figures
from cleanpairs.correspondence.valley import find_valley
from cleanpairs.errors import ConfigError, DataError, RefusedError


@pytest.mark.parametrize("noise", [0.2, 0.4, 0.6])
def test_it_is_the_valleys_model(corpus: Callable[..., Any], noise: float) -> None:
    y, _ = corpus(20_000, noise)
    valley = find_valley(y)
    e = expected_quality(y)
    assert e.threshold == valley.threshold
    count = np.histogram(y, bins=100, range=(0, 1))[0].astype(float)
    assert np.isclose(_figures(count, np.array([0.5]), 1.0)[2], valley.noise_rate, atol=0.005)  # computed apart
    assert e.noise_rate.low < valley.noise_rate < e.noise_rate.value < e.noise_rate.high
    assert valley.threshold in [t.threshold for t in e.at_thresholds]
    recall = [t.recall.value for t in e.at_thresholds]
    precision = [t.precision.value for t in e.at_thresholds]
    assert recall == sorted(recall) and 0.98 < recall[-1] <= 1
    assert precision[0] > precision[-1]
    assert all(t.precision.low <= t.precision.value <= t.precision.high for t in e.at_thresholds)
    assert [t.flagged for t in e.at_thresholds] == [int((y < t.threshold).sum()) for t in e.at_thresholds]


@pytest.mark.parametrize("noise", [0.2, 0.4, 0.6])
def test_near_the_truth_where_the_model_holds(corpus: Callable[..., Any], noise: float) -> None:
    y, wrong = corpus(20_000, noise)
    e = expected_quality(y, thresholds=(0.1, 0.2, 0.3))
    assert e.noise_rate.low < wrong.mean() < e.noise_rate.high
    for t in e.at_thresholds:
        flagged = y < t.threshold
        assert t.precision.low - 0.01 < (wrong & flagged).sum() / flagged.sum() < t.precision.high + 0.01
        assert t.recall.low - 0.01 < (wrong & flagged).sum() / wrong.sum() < t.recall.high + 0.01


def test_fewer_pairs_are_less_sure(corpus: Callable[..., Any]) -> None:
    wide, narrow = (expected_quality(corpus(n)[0]).noise_rate for n in (300, 30_000))
    assert wide.high - wide.low > narrow.high - narrow.low > 0.005  # the model's doubt does not go with the pairs


def test_quarantined_pairs_are_left_out_and_the_seed_decides(corpus: Callable[..., Any]) -> None:
    y, _ = corpus()
    assert expected_quality(np.append(y, [np.nan] * 9), seed=3) == expected_quality(y, seed=3)
    assert expected_quality(y, seed=3) != expected_quality(y, seed=4)
    assert "cleanpairs audit" in str(expected_quality(y, threshold=0.33)) and "0.33*" in str(
        expected_quality(y, threshold=0.33)
    )


def test_refusals() -> None:
    rng = np.random.default_rng(0)
    for y in ([], [0.5], [0.1, 0.9], rng.beta(5, 2, 5_000), np.full(100, 0.5), rng.random(3_000)):
        with pytest.raises(RefusedError, match="do not separate"):
            expected_quality(y)
    with pytest.raises(DataError, match="finite values"):
        expected_quality([2.0] * 30)
    two = np.r_[rng.beta(1, 20, 400), rng.beta(20, 2, 600)]
    with pytest.raises(ConfigError, match=r"in \[0, 1\], found 3"):
        expected_quality(two, thresholds=(3.0,))
