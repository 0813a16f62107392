"""Thresholds for a purity, or a share, that is asked for."""

import numpy as np
import pytest

from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.correspondence.calibration import Calibration, calibrate, positions
from cleanpairs.estimators.cut import Cut, cut_at
from tests.helpers import assert_raises

Scored = tuple[np.ndarray, np.ndarray, Calibration]


@pytest.fixture(scope="module")
def scored() -> Scored:
    """P(matched) (6000,), the truth, and the calibration."""
    rng = np.random.default_rng(8)
    wrong = rng.random(6000) < 0.4
    s = np.where(wrong, rng.normal(0, 1, 6000), rng.normal(3, 1.2, 6000))
    found = calibrate(s, rng.normal(0, 1, 1500), draws=30)
    return 1 - found.mismatched(positions(s, s)), wrong, found


@pytest.mark.parametrize("most", [0.05, 0.02])
def test_the_kept_are_as_pure_as_asked_and_many(scored: Scored, most: float) -> None:
    y, wrong, calibration = scored
    cut = cut_at(y, calibration, "auto", max_wrong=most, keep=None)
    kept = y >= cut.threshold
    assert cut.kept == kept.sum() and cut.share is not None and cut.not_kept is not None
    assert wrong[kept].mean() <= 1.5 * most and cut.share.value <= most
    assert cut.share.low <= wrong[kept].mean() <= cut.share.high
    assert abs(cut.not_kept - (~wrong & ~kept).sum() / (~wrong).sum()) < 0.06
    best = np.cumsum(wrong[np.argsort(-y)]) / np.arange(1, 6001)
    oracle = np.flatnonzero(best <= most)[-1] + 1
    assert cut.kept > 0.8 * oracle
    assert f"{cut.kept:,} of 6,000" in str(cut) and "fit no better than captions of other images  (95 %" in str(cut)


@pytest.mark.parametrize("step", [1, 2])
def test_of_equal_scores_all_are_kept_and_count(step: int) -> None:
    """Scores on a few levels, as of copied pairs: the kept end with one, and are as pure as asked."""
    rng = np.random.default_rng(0)
    score = np.round(np.concatenate([rng.normal(3, 1, 800), rng.normal(0, 1, 200)]) / step)
    calibration = calibrate(score, np.round(rng.normal(size=400) / step), draws=30)
    y = 1 - calibration.mismatched(positions(score, score))
    cut = cut_at(y, calibration, "auto", max_wrong=0.05, keep=None)
    assert cut.share is not None and cut.share.value <= 0.05 and cut.share.high <= 0.075


def test_a_share_is_kept_by_any_score(scored: Scored) -> None:
    y, _, calibration = scored
    cut = cut_at(np.linspace(0, 1, 50), None, "crcl", max_wrong=None, keep=0.8)
    assert cut == Cut(cut.threshold, 40, 50, None, None) and "undetermined" in str(cut)
    known = cut_at(y, calibration, "auto", max_wrong=None, keep=0.5)
    assert known.kept == 3000 and known.share is not None and calibration.shares(np.zeros(9), [9])[0].value == 1
    assert cut_at(np.full(9, 0.7), None, "crcl", max_wrong=None, keep=0.5).kept == 9  # equal ones are all kept
    for displaced, kept in ((4, 5), (9, 0)):  # no plan keeps these rows
        given = np.where(np.arange(9) < displaced, 0, 0.7), calibration, "crcl"
        cut = cut_at(*given, max_wrong=None, keep=0.9, displaced=True)
        assert cut.kept == kept == (given[0] >= cut.threshold).sum() and f"{kept} of 9 pairs" in str(cut)


def test_what_is_out_of_range_or_cannot_be_known_is_refused(scored: Scored) -> None:
    y, _, calibration = scored
    wrong = ({}, {"max_wrong": 0.1, "keep": 0.5}, {"keep": 0.0}, {"keep": 1.1}, {"max_wrong": 1.0})
    for given, known, asked, error, message in (
        *((y, None, asked, ConfigError, "keep|max_wrong") for asked in wrong),
        (np.empty(0), None, {"keep": 0.5}, ConfigError, "a loaded model has none; give `correspondence`"),
        (np.array([40, 90]), None, {"keep": 0.5}, DataError, r"in \[0, 1\], found 40 to 90"),
        (y, None, {"max_wrong": 0.05}, RefusedError, "no calibrated probabilities"),
        (y, calibration, {"max_wrong": 1e-5}, RefusedError, "of the best 30 pairs"),
    ):
        assert_raises(error, message, cut_at, given, known, "crcl", **{"max_wrong": None, "keep": None, **asked})
