"""From correspondence to the probability of being matched, learnt from an audit's labels.

Two maps, both increasing in the score s, both fitted to Platt's targets instead of hard labels,

    t+ = (n+ + 1) / (n+ + 2)  for the n+ matched pairs,     t- = 1 / (n- + 2)  for the n- mismatched ones,

so that no hundred labels give a probability of 0 or 1:

    isotonic    the increasing step function of least weighted squares, drawn through the centres of its steps
    logistic    1 / (1 + exp(-(a logit(s) + b))),  a >= 0,  by weighted maximum likelihood

Which one is better is asked of the labels themselves: each is predicted by the map fitted to all others, and the lower
weighted log loss wins. Weights are the pairs that a label stands for.

Sources: J. Platt, Probabilistic Outputs for Support Vector Machines, 1999 (targets, logistic); A. P. Oron and
N. Flournoy, Centered Isotonic Regression, 2017 (centres of steps); M. P. Naeini et al., Obtaining Well Calibrated
Probabilities Using Bayesian Binning, 2015 (expected calibration error).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

CLIP = 1e-3  # scores nearer to 0 and 1 than this are alike: a logit of float32 rounding says nothing
RIDGE = 1e-3  # on both coefficients, in labels: only where the labels leave them open

Calibrator = Callable[[np.ndarray], np.ndarray]  # from scores (k,) in [0, 1] to probabilities (k,), never decreasing


@dataclass(frozen=True, eq=False)
class Calibration:
    """The map chosen, and how it fares on labels that it has not seen.

    - ``left_out`` (k,) float64: of each labelled pair, by the map fitted to the others
    - ``log_loss``: kind -> weighted log loss of those, nats
    """

    kind: str
    probability: Calibrator
    left_out: np.ndarray
    log_loss: dict[str, float]


def _targets(matched: np.ndarray) -> np.ndarray:
    positive = int(matched.sum())
    return np.where(matched, (positive + 1) / (positive + 2), 1 / (len(matched) - positive + 2))


def fit_isotonic(score: np.ndarray, matched: np.ndarray, weight: np.ndarray) -> Calibrator:
    """Isotonic regression of k labels; ``score`` (k,), ``matched`` (k,) bool, ``weight`` (k,) positive."""
    from sklearn.isotonic import isotonic_regression

    s, at = np.unique(score, return_inverse=True)  # equal scores have one probability
    w = np.bincount(at, weights=weight)
    t = np.bincount(at, weights=weight * _targets(matched)) / w
    fitted = isotonic_regression(t, sample_weight=w)
    step = np.concatenate([[0], np.cumsum(np.diff(fitted) > 1e-12)])
    mass = np.bincount(step, weights=w)
    centres, heights = np.bincount(step, weights=w * s) / mass, np.bincount(step, weights=w * fitted) / mass
    return lambda score: np.interp(score, centres, heights)


def fit_logistic(score: np.ndarray, matched: np.ndarray, weight: np.ndarray) -> Calibrator:
    """Platt scaling of k labels on the logit of the score; arguments as :func:`fit_isotonic`."""
    x, t = logit(np.clip(score, CLIP, 1 - CLIP)), _targets(matched)
    w = weight * len(weight) / weight.sum()

    def loss(c: np.ndarray) -> tuple[float, np.ndarray]:
        z = c[0] * x + c[1]
        wrong = w * (expit(z) - t)
        value = float((w * (np.logaddexp(0, z) - t * z)).sum() + 0.5 * RIDGE * (c @ c))
        return value, np.array([wrong @ x, wrong.sum()]) + RIDGE * c

    a, b = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]).x
    return lambda s: np.asarray(expit(a * logit(np.clip(s, CLIP, 1 - CLIP)) + b))


FITS = {"isotonic": fit_isotonic, "logistic": fit_logistic}


def calibrate(score: np.ndarray, matched: np.ndarray, weight: np.ndarray) -> Calibration:
    """Fit both maps to k labels, arguments as :func:`fit_isotonic`, and choose."""
    from sklearn.metrics import log_loss

    left_out = {name: _leave_one_out(fit, score, matched, weight) for name, fit in FITS.items()}
    losses = {name: log_loss(matched, p, sample_weight=weight, labels=[False, True]) for name, p in left_out.items()}
    chosen = min(losses, key=losses.__getitem__)
    return Calibration(chosen, FITS[chosen](score, matched, weight), left_out[chosen], losses)


def _leave_one_out(
    fit: Callable[..., Calibrator], score: np.ndarray, matched: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """(k,) float64; 1/2 for a label that is the only one."""
    out = np.full(len(score), 0.5)
    for i in range(len(score) if len(score) > 1 else 0):
        rest = np.arange(len(score)) != i
        out[i] = fit(score[rest], matched[rest], weight[rest])(score[i : i + 1])[0]
    return out


def calibration_error(
    probability: np.ndarray, matched: np.ndarray, weight: np.ndarray | None = None, *, bins: int = 10
) -> float:
    """Expected calibration error: mean distance of share ``matched`` (k,), bool or in [0, 1], and mean ``probability``
    (k,), over bins of equal ``weight`` (k,); pairs of equal probability are in one bin.
    """
    w = np.ones(len(probability)) if weight is None else np.asarray(weight, dtype=np.float64)
    at = np.unique(probability, return_inverse=True)[1]
    mass = np.bincount(at, weights=w)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bin_of = np.minimum((middle * bins).astype(int), bins - 1)[at]
    gap = np.bincount(bin_of, weights=w * (np.asarray(matched, dtype=np.float64) - probability), minlength=bins)
    return float(np.abs(gap).sum() / w.sum())
