r"""How many of the flagged pairs are mismatched, and how many of those that stay, by the decisions so far.

The probability that a pair belongs together is taken for a logistic function of what the run says of it,

    logit P(matched | x) = a + b max(x, 0) + c min(x, 0),

x the logit of the correspondence where that is a probability, else of its rank less the threshold's; a, b and c have
normal priors around 0, 1 and 1, narrow ones where it is, but for c: right pairs that look like any mismatched one are
what such probabilities know least about. Answers are labels; that doubtful pairs are asked first does no harm, as the
score alone decides on that. The posterior is approximated by a normal one (Laplace); shares are of pairs that were
decided, as decided, and of the others by draws of a, b, c and the luck of so many pairs.

Source: D. MacKay, The evidence framework applied to classification networks, Neural Computation 4, 1992.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from cleanpairs.correspondence.calibration import UNDETERMINED, Estimate

EDGE = 0.002  # no score is surer
PRIOR = (0.5, 0.2, 0.7)  # deviations of a, b and c where the score is a probability
WIDE = (2.0, 1.0, 1.0)
FLATTEST = 0.05  # a higher score is never a worse one
DRAWS = 400
BINS = 256


class Matched:
    """P(matched) of N pairs after some labels.

    - ``correspondence`` (N,) float: NaN where quarantined
    - ``probability``: whether the correspondence is calibrated
    - ``labels`` (k,) int64, (k,) bool: pairs that were asked about, and whether they are matched
    """

    def __init__(
        self, correspondence: ArrayLike, threshold: float, probability: bool, labels: tuple[np.ndarray, np.ndarray]
    ) -> None:
        y = np.asarray(correspondence, np.float64)
        known, scores = np.isfinite(y), [y, np.array(0.5)]
        if not probability:  # ranks, so that the threshold is where neither is likelier
            order = np.sort(y[known])
            scores = [(np.searchsorted(order, v) + 0.5) / (len(order) + 1) for v in (y, np.array(threshold))]
        odds, middle = (logit(np.clip(v, EDGE, 1 - EDGE)) for v in scores)
        x = np.where(known, odds - middle, 0.0)
        pairs, matched = labels
        centre, scale = np.array([0.0, 1.0, 1.0]), np.array(PRIOR if probability else WIDE)
        X, t = _features(x[pairs]), np.asarray(matched, np.float64)
        theta = centre.copy()
        for _ in range(50):
            p = expit(X @ theta)
            slope = X.T @ (t - p) - (theta - centre) / scale**2
            curve = (X.T * (p * (1 - p))) @ X + np.diag(1 / scale**2)
            step = np.linalg.solve(curve, slope)
            theta = theta + step / max(1.0, float(np.abs(step).max()))
            if np.abs(step).max() < 1e-8:
                break
        self.theta = theta
        theta[1:] = np.maximum(theta[1:], FLATTEST)
        draws = np.random.default_rng(0).multivariate_normal(theta, np.linalg.inv(curve), DRAWS)
        self._draws = np.concatenate([draws[:, :1], np.maximum(draws[:, 1:], FLATTEST)], axis=1)
        edges = np.unique(np.quantile(x[known], np.linspace(0, 1, BINS + 1))) if known.any() else np.zeros(1)
        self._bin = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 1)
        size = np.maximum(np.bincount(self._bin[known], minlength=len(edges)), 1)
        self._x = np.bincount(self._bin[known], weights=x[known], minlength=len(edges)) / size
        self.probability = np.where(known, expit(_features(x) @ theta), np.nan)

    def mismatched(self, among: np.ndarray, others: int = 0, wrong: float = 0, spread: float = 0) -> Estimate:
        """Share of mismatched pairs among ``among`` (k,), not yet decided, and ``others``; of those ``wrong`` are, a
        number with the variance ``spread``.
        """
        total = len(among) + others
        if not total:
            return UNDETERMINED
        count = np.bincount(self._bin[among], minlength=len(self._x))
        p = 1 - expit(self._draws @ _features(self._x).T)  # (B, bins)
        luck = np.random.default_rng(1).normal(size=DRAWS)
        found = p @ count + luck * np.sqrt((p * (1 - p)) @ count + spread)
        value = float((1 - self.probability[among]).sum()) + wrong
        low, high = np.quantile(np.clip(found + wrong, 0 if spread else wrong, len(among) + wrong), [0.025, 0.975])
        return Estimate(value / total, min(float(low), value) / total, max(float(high), value) / total)


def _features(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), np.maximum(x, 0), np.minimum(x, 0)], axis=1)
