"""What to expect of a threshold before anybody has labelled anything: from the scores' distribution alone.

The model is the valley's (:mod:`cleanpairs.correspondence.valley`). With d(s) the smoothed density of the scores, b the
bottom of the valley and L = d(b), right pairs have the density u L left of b, all that is above it is wrong:

    wrong(s) = max(d(s) - u L, 0)                                for s <= b,
    wrong(s) = max(1 - u, 0) L (1 - s) / (1 - b)                 for s > b,

    precision(t) = wrong mass below t / mass below t,    recall(t) = wrong mass below t / wrong mass.

The figures given are those of u = 1, where all that lies on the right of the valley is right. How dense right pairs are
left of the valley the scores cannot tell; the intervals therefore span u from 1/2 to 3/2, uniformly, together with a
bootstrap of the pairs. They are the model's: what the model cannot see (wrong pairs that score like right ones, a whole
heap of right ones that score low) is in no interval. Only labels show that.
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

__all__ = ["ExpectedQuality", "expected_quality"]

DRAWS = 300
LEVELS = (0.5, 1.5)  # u


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
    precision, recall, rate = _figures(count, chosen, 1.0)
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


def _figures(count: np.ndarray, thresholds: np.ndarray, u: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Precision (T,), recall (T,) and noise rate, of binned scores (BINS,)."""
    density = gaussian_filter1d(count, WIDE, mode="reflect", truncate=4.0)  # the valley's own smoothing
    low = int(density[: BINS // 2].argmax())
    high = BINS // 2 + int(density[BINS // 2 :].argmax())
    bottom = low + int(density[low : high + 1].argmin())
    level = density[bottom]
    right_of = np.arange(BINS) > bottom
    fading = max(1 - u, 0) * level * (BINS - np.arange(BINS) - 0.5) / (BINS - bottom)
    wrong = np.where(right_of, np.minimum(fading, density), np.maximum(density - u * level, 0))
    edges = np.arange(BINS + 1) / BINS
    wrong_below = np.interp(thresholds, edges, np.concatenate([[0], np.cumsum(wrong)]))
    # over the smoothed mass, as the wrong one is: the raw count of a bin may be less than its smoothed wrong part
    below = np.interp(thresholds, edges, np.concatenate([[0], np.cumsum(density)]))
    total = float(wrong.sum())
    return wrong_below / np.maximum(below, 1e-12), wrong_below / max(total, 1e-12), total / count.sum()


def _estimate(value: float, draws: np.ndarray) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
