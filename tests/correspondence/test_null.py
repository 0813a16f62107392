"""A noise rate and probabilities from null scores, on mixtures whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs.correspondence.calibration import ScoreProbability
from cleanpairs.correspondence.similarity import LEAST_PAIRS, null_pairs


def mixture(n: int, wrong: float, apart: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observed scores, which are wrong, and null scores."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(n) < wrong
    return rng.normal(size=n) + np.where(is_wrong, 0, apart), is_wrong, rng.normal(size=4 * n)


@pytest.mark.parametrize(
    ("wrong", "apart"), [(0.0, 2.5), (0.0, 5.0), (0.05, 2.5), (0.2, 5.0), (0.4, 2.5), (0.6, 2.5), (0.6, 5.0)]
)
def test_the_rate_and_the_probabilities_are_right(wrong: float, apart: float) -> None:
    observed, is_wrong, null = mixture(4000, wrong, apart)
    found = ScoreProbability.of(observed, null)
    assert found is not None and abs(found.noise_rate - is_wrong.mean()) < 0.03
    p = 1 - found(observed)
    bins = np.minimum((p * 10).astype(int), 9)
    error = [abs((p - is_wrong)[bins == k].sum()) for k in range(10)]
    assert sum(error) / len(p) < 0.03
    odds = np.log(max(wrong, 1e-9) / max(1 - wrong, 1e-9))
    best = (observed < apart / 2 + odds / apart) != is_wrong
    assert ((p > 0.5) != is_wrong).mean() <= best.mean() + 0.015
    if wrong == 0:
        assert (p > 0.5).mean() <= 0.005
    assert (p > 0.5).sum() == (observed < found.threshold()).sum()


def test_neither_unit_nor_origin_of_the_scores_counts() -> None:
    observed, _, null = mixture(1000, 0.3)
    plain, mapped = ScoreProbability.of(observed, null), ScoreProbability.of(7 * observed - 3, 7 * null - 3)
    assert plain.noise_rate == pytest.approx(mapped.noise_rate, abs=1e-6)
    np.testing.assert_allclose(plain(observed), mapped(7 * observed - 3), atol=1e-5)


def test_the_threshold_lies_in_the_gap_of_few_pairs() -> None:
    errors = []
    for seed in range(12):
        observed, is_wrong, null = mixture(200, 0.2, apart=7.0, seed=seed)
        found = ScoreProbability.of(observed, null)
        assert found is not None
        errors.append(int(((found(observed) < 0.5) != is_wrong).sum()))
    assert sum(errors) <= 4  # by quantiles alone, 7


def test_probabilities_rise_strictly_also_beyond_what_was_seen() -> None:
    observed, _, null = mixture(500, 0.3)
    found = ScoreProbability.of(observed, null)
    assert found is not None
    at = np.linspace(observed.min() - 2, observed.max() + 2, 400)
    p = found(at)
    assert (np.diff(p) > 0).all() and p.min() > 0 and p.max() < 1


def test_few_pairs_tell_nothing() -> None:
    assert ScoreProbability.of(np.zeros(LEAST_PAIRS - 1), np.zeros(1000)) is None
    constant = ScoreProbability.of(np.zeros(200), np.zeros(800))
    assert constant is not None and np.isfinite(constant(np.zeros(3))).all()


def test_null_pairs_share_neither_image_nor_text() -> None:
    image_group, text_group = np.arange(300) // 3, np.arange(300) % 50
    image, text = null_pairs(image_group, text_group)
    assert len(image) > 1000
    assert (image_group[image] != image_group[text]).all() and (text_group[image] != text_group[text]).all()
    assert len(null_pairs(np.zeros(100, int), np.arange(100))[0]) == 0
