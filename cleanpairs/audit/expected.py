"""What to expect of a threshold before anybody has labelled anything: from calibrated probabilities alone.

With p_i the probability that pair i is mismatched (:mod:`cleanpairs.correspondence.calibration`),

    precision(t) = mean of p_i below t,    recall(t) = sum of p_i below t / sum of all

with the intervals of the calibration's bootstrap, and the chance by which so many pairs hold more or fewer mismatched
ones. Scores that nobody has calibrated let expect nothing: only labels show what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.audit.estimate import Estimate, ThresholdEstimate
from cleanpairs.audit.evaluation import LADDER, threshold_table
from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.correspondence.calibration import Calibration


@dataclass(frozen=True)
class ExpectedQuality:
    """``noise_rate`` and, at each threshold, precision and recall as the probabilities let expect them."""

    threshold: float
    noise_rate: Estimate
    at_thresholds: tuple[ThresholdEstimate, ...]

    def __str__(self) -> str:
        return (
            f"expected noise rate   {self.noise_rate}\n\n{threshold_table(self.at_thresholds, mark=self.threshold)}\n\n"
            "expected from the calibrated scores alone; `cleanpairs audit --n 100` measures it with labels"
        )


def expected_quality(
    correspondence: ArrayLike,
    calibration: Calibration | None,
    *,
    threshold: float = 0.5,
    thresholds: Sequence[float] = LADDER,
) -> ExpectedQuality:
    """Precision and recall to expect at several thresholds, the run's among them, without a label.

    ``correspondence`` (N,) float in [0, 1]: P(matched), NaN left out; ``calibration``: of the fitted method.
    Raises ConfigError: a threshold is not in [0, 1]; DataError: a value is outside [0, 1]; RefusedError: the scores are
    not calibrated, or their noise rate is undetermined.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    y = y[~np.isnan(y)]
    if calibration is None or not len(y):
        raise RefusedError(
            f"of the {len(y):,} scores nothing can be expected: the method gives no calibrated probabilities, or its "
            "noise rate is undetermined; `cleanpairs audit --n 100` draws pairs to label"
        )
    if not 0 <= y.min() <= y.max() <= 1:
        raise DataError("the correspondence must be in [0, 1]")
    chosen = np.array(sorted({float(threshold), *map(float, thresholds)}))
    if chosen[0] < 0 or chosen[-1] > 1:
        raise ConfigError(f"thresholds must be in [0, 1], found {chosen[0] if chosen[0] < 0 else chosen[-1]:g}")
    rows = []
    for t in chosen:
        below = y < t
        if below.any():
            precision, recall = calibration.below(y, below)
            rows.append(ThresholdEstimate(float(t), int(below.sum()), precision, recall))
    return ExpectedQuality(float(threshold), calibration.shares(y, [len(y)])[0], tuple(rows))
