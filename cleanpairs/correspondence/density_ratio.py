"""The noise rate, and P(mismatched) of scores, by the densities of observed and null scores. There are no intervals.

Null scores are those of pairs that are known to be mismatched, and in all else are like the observed ones. See
:mod:`cleanpairs.correspondence.calibration`, which has intervals, and needs fewer null scores.
"""

import numpy as np


def noise_rate_by_tails(observed: np.ndarray, null: np.ndarray) -> float:
    """The noise rate by the lower tails of scores.

    Parameters
    ----------
    observed, null : (N,) and (K,) float
        Scores.

    Returns
    -------
    float in [0, 1]
        The ratio of both tails, taken to where they begin.
    """
    q = np.linspace(0.05, 0.8, 76)  # quantiles of the null
    cuts, observed, null = np.quantile(null, q), np.sort(observed), np.sort(null)
    below = np.searchsorted(observed, cuts, side="right") / len(observed)
    level = np.searchsorted(null, cuts, side="right") / len(null)
    ratio = below / level
    # The ratio's variance falls as 1 / q. Matched pairs have more and more mass, never less.
    slope, start = np.polyfit(q**2, ratio, 1, w=np.sqrt(q))
    return float(np.clip(start if slope > 0 else np.average(ratio, weights=q), 0, 1))


def mismatched_by_density(
    observed: np.ndarray, null: np.ndarray, rate: float, at: np.ndarray | None = None
) -> np.ndarray:
    """P(mismatched) of scores: the ratio of two densities, which must fall.

    Parameters
    ----------
    observed, null : (N,) and (K,) float
        Scores.
    rate : float
        The noise rate.
    at : (k,) float, optional
        Scores that are judged. None: the observed ones.

    Returns
    -------
    (k,) float

    Notes
    -----
    It has no intervals, and needs thousands of null scores. Where both sides overlap it is better calibrated than
    :func:`cleanpairs.correspondence.calibration.calibrate`.
    """
    from sklearn.isotonic import IsotonicRegression

    at = observed if at is None else at
    edges = np.unique(np.quantile(np.concatenate([observed, null]), np.linspace(0, 1, 41)))
    if len(edges) < 3:
        return np.full(len(at), rate)
    share, null_share = (np.histogram(score, edges)[0] / len(score) for score in (observed, null))
    ratio = np.clip(rate * null_share / np.maximum(share, 1e-9), 0, 1)
    fall = IsotonicRegression(increasing=False)
    falling = fall.fit_transform(np.arange(len(ratio)), ratio, sample_weight=share + 1e-9)
    return np.asarray(np.interp(at, (edges[1:] + edges[:-1]) / 2, falling))
