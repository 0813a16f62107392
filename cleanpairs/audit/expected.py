"""What to expect of a threshold before anybody has labelled anything: from the scores' distribution alone.

The model is the valley's (:mod:`cleanpairs.correspondence.valley`), with one doubt more. With d(s) the density of the
scores, b the bottom of the valley and L = d(b), right pairs have the density u L left of b, and all above it is wrong:

    wrong(s) = d(s) - u L                                        for s <= b,
    wrong(s) = max(1 - u, 0) L (1 - s) / (1 - b)                 for s > b,

    precision(t) = wrong mass below t / mass below t,    recall(t) = wrong mass below t / wrong mass.

The valley takes u = 1: right pairs are as dense left of the valley as in it, where all are right. The scores cannot
tell. On 8,000 photograph captions of noise 0.4 right pairs were half as dense left of the valley as all pairs in it,
and u = 1 gave a noise rate of .335, and below 0.1 a recall of .97 where .825 is true. So the figures are those of
u = 3/4, and the intervals span u from 1/4 to 5/4, uniformly, together with a bootstrap of the pairs: there
.37 [.32, .45] and .89 [.76, .99].

They are the model's intervals. What it cannot see (wrong pairs that score like right ones, a whole heap of right ones
that score low) is in none of them. Only labels show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter1d

from cleanpairs.audit.estimate import Estimate, ThresholdEstimate
from cleanpairs.audit.evaluation import LADDER, threshold_table
from cleanpairs.correspondence.valley import BINS, WIDE, find_valley
from cleanpairs.errors import ConfigError, RefusedError

__all__ = ["ExpectedParts", "ExpectedQuality", "expected_parts", "expected_quality"]

DRAWS = 300
LIKELY, LEVELS = 0.75, (0.25, 1.25)  # u, and where it may lie


@dataclass(frozen=True)
class ExpectedQuality:
    """``noise_rate`` and, at each threshold, precision and recall as the model of the valley expects them."""

    threshold: float
    noise_rate: Estimate
    at_thresholds: tuple[ThresholdEstimate, ...]

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"expected noise rate   {self.noise_rate}\n\n{threshold_table(self.at_thresholds, mark=self.threshold)}\n\n"
            "expected from the scores' distribution alone; `cleanpairs audit --n 100` measures it with labels"
        )


def expected_quality(
    correspondence: ArrayLike, *, threshold: float | None = None, thresholds: Sequence[float] = LADDER, seed: int = 0
) -> ExpectedQuality:
    """Precision and recall to expect at several thresholds, without a label; assumptions in the module's head.

    Parameters
    ----------
    correspondence : (N,) float in [0, 1]
        NaN (quarantined) is left out.
    threshold : float, optional
        The run's; the valley's when None. It is among the thresholds of the result.
    thresholds : floats in [0, 1]
    seed : int
        Of the bootstrap.

    Raises
    ------
    ConfigError
        A threshold is not in [0, 1].
    DataError
        A value is outside [0, 1].
    RefusedError
        The scores do not separate into two groups.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    y = y[~np.isnan(y)]
    valley = find_valley(y)
    if not valley.separated:
        raise RefusedError(
            f"the {len(y):,} scores do not separate into two groups: without labels nothing can be said about a "
            "threshold; `cleanpairs audit --n 100` draws pairs to label"
        )
    run = valley.threshold if threshold is None else float(threshold)
    chosen = np.array(sorted({run, *map(float, thresholds)}))
    if chosen[0] < 0 or chosen[-1] > 1:
        raise ConfigError(f"thresholds must be in [0, 1], found {chosen[0] if chosen[0] < 0 else chosen[-1]:g}")
    count = np.histogram(y, bins=BINS, range=(0.0, 1.0))[0].astype(np.float64)
    precision, recall, rate = _figures(count, chosen, LIKELY)
    rng = np.random.default_rng(seed)
    draws = [
        _figures(rng.multinomial(len(y), count / len(y)).astype(np.float64), chosen, rng.uniform(*LEVELS))
        for _ in range(DRAWS)
    ]
    flagged = np.searchsorted(np.sort(y), chosen)
    rows = [
        ThresholdEstimate(
            float(t),
            int(flagged[k]),
            _estimate(precision[k], np.array([d[0][k] for d in draws])),
            _estimate(recall[k], np.array([d[1][k] for d in draws])),
        )
        for k, t in enumerate(chosen)
        if flagged[k]
    ]
    return ExpectedQuality(run, _estimate(rate, np.array([d[2] for d in draws])), tuple(rows))


@dataclass(frozen=True, eq=False)
class ExpectedParts:
    """How many pairs of each of B equal bins of [0, 1] the model of the valley takes for wrong, and for right.

    ``edges`` (B + 1,), ``mismatched`` (B,), ``matched`` (B,) float64; the last two add up to the pairs of the bin.
    """

    edges: np.ndarray
    mismatched: np.ndarray
    matched: np.ndarray


def expected_parts(correspondence: ArrayLike) -> ExpectedParts | None:
    """The division behind :func:`expected_quality`, to draw over a histogram; None where there are no two heaps.

    Parameters
    ----------
    correspondence : (N,) float in [0, 1]
        NaN (quarantined) is left out.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    y = y[~np.isnan(y)]
    if not find_valley(y).separated:
        return None
    count = np.histogram(y, bins=BINS, range=(0.0, 1.0))[0].astype(np.float64)
    mismatched = np.diff(_wrong_below(count, LIKELY))
    return ExpectedParts(np.arange(BINS + 1) / BINS, mismatched, count - mismatched)


def _wrong_below(count: np.ndarray, u: float) -> np.ndarray:
    """(BINS + 1,) never decreasing: wrong pairs below each edge, of binned scores (BINS,)."""
    density = gaussian_filter1d(count, WIDE, mode="reflect", truncate=4.0)  # the valley's own smoothing
    low = int(density[: BINS // 2].argmax())
    high = BINS // 2 + int(density[BINS // 2 :].argmax())
    bottom = low + int(density[low : high + 1].argmin())
    level = density[bottom]
    above = np.arange(BINS) - bottom
    right = np.where(above <= 0, u * level, count - max(1 - u, 0) * level * (1 - above / (BINS - bottom)))
    below = np.concatenate([[0], np.cumsum(count)])
    # counts, not the smoothed density: smoothing would carry the heap at 0 to the right of low thresholds
    return np.maximum.accumulate(np.minimum(np.maximum(below - np.concatenate([[0], np.cumsum(right)]), 0), below))


def _figures(count: np.ndarray, thresholds: np.ndarray, u: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Precision (T,), recall (T,) and noise rate, of binned scores (BINS,)."""
    wrong, below = _wrong_below(count, u), np.concatenate([[0], np.cumsum(count)])
    edges = np.arange(BINS + 1) / BINS
    wrong_below, all_below = np.interp(thresholds, edges, wrong), np.interp(thresholds, edges, below)
    total = float(wrong[-1])
    return wrong_below / np.maximum(all_below, 1e-12), wrong_below / max(total, 1e-12), total / count.sum()


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
