r"""Two witnesses of one question, joined without labels: neighbours' agreement and a trained model's score.

The agreement (:mod:`cleanpairs.correspondence.agreement`) gives a probability u_i that pair i is right. A model's score
p_i has no scale of its own: it is calibrated by the other witness, with which it shares no error. Over bins of p,

    m(p) = E[u | p],    hi = sum u^2 / sum u,    lo = sum u (1 - u) / sum (1 - u)
    g(p) = (m(p) - lo) / (hi - lo)

where hi and lo are what u says on average of right and of wrong pairs by its own account, so that m, which is blurred
by u's errors, is stretched back; m is made monotone first. If the two are independent given the truth, then

    logit w = logit u + logit g - logit(1 - pi) + shift

with the shift for which the mean of w is 1 - pi, pi the share of wrong pairs that the agreement estimates.

Bins are coarse, and a saturated one has no order. Where the order is known better than the probability, w keeps its
distribution and takes that order (:func:`in_order`).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata
from sklearn.isotonic import IsotonicRegression

__all__ = ["calibrated_by", "in_order", "joined"]

BINS = 40
LEAST = 0.003  # no witness is surer than this
ORDER = 0.5  # logits between the lowest and the highest score: what is equally right keeps its order


def logit(p: np.ndarray) -> np.ndarray:
    """Log odds, bounded by :data:`LEAST`."""
    p = np.clip(p, LEAST, 1 - LEAST)
    return np.asarray(np.log(p / (1 - p)))


def ranks(score: np.ndarray) -> np.ndarray:
    """(N,) in (0, 1); equal scores have equal ranks."""
    return np.asarray((rankdata(score) - 0.5) / max(len(score), 1))


def calibrated_by(score: np.ndarray, right: np.ndarray, bins: int = BINS) -> np.ndarray:
    """g (N,) in (0, 1): a score (N,) of any scale as the probability of being right, by another witness's ``right``."""
    n, rank = len(score), ranks(score)
    which = np.minimum((rank * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = np.bincount(which, right, minlength=bins) / np.maximum(count, 1)
    mean = IsotonicRegression().fit_transform(np.arange(bins), mean, sample_weight=count + 1e-9)
    high = (right**2).sum() / max(right.sum(), 1e-12)
    low = (right * (1 - right)).sum() / max((1 - right).sum(), 1e-12)
    if high - low < 0.05:  # the other witness knows nothing
        return np.full(n, float(np.clip(right.mean(), LEAST, 1 - LEAST)))
    stretched = np.clip((mean - low) / (high - low), LEAST, 1 - LEAST)
    return np.asarray(np.interp(rank, (np.arange(bins) + 0.5) / bins, stretched))


def joined(right: np.ndarray, scores: list[np.ndarray], wrong: float) -> np.ndarray:
    """w (N,) in (0, 1) out of the agreement's ``right`` (N,) and a model's scores, (N,) each.

    Several scores are of one model, and so one witness: the mean of their calibrated logits counts.
    """
    rate = float(np.clip(1 - wrong, LEAST, 1 - LEAST))
    model = np.mean([logit(calibrated_by(score, right)) for score in scores], axis=0)
    odds = logit(right) + model - logit(np.array(rate)) + ORDER * np.mean([ranks(score) for score in scores], axis=0)
    return with_mean(odds, rate)


def in_order(w: np.ndarray, score: np.ndarray, wrong: float, bins: int = 4 * BINS) -> np.ndarray:
    """w (N,) in (0, 1) in the order of ``score`` (N,): the mean log odds of each bin of it, never falling."""
    n, rank = len(w), ranks(score)
    bins = max(1, min(bins, n // 8))
    which = np.minimum((rank * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = logit(np.bincount(which, w, minlength=bins) / np.maximum(count, 1))
    mean = IsotonicRegression().fit_transform(np.arange(bins), mean, sample_weight=count + 1e-9)
    odds = np.interp(rank, (np.arange(bins) + 0.5) / bins, mean) + ORDER * rank
    return with_mean(odds, float(np.clip(1 - wrong, LEAST, 1 - LEAST)))


def with_mean(odds: np.ndarray, rate: float) -> np.ndarray:
    """Probabilities (N,) of log odds (N,), which are shifted until the mean is ``rate``."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(odds + middle)))).mean() < rate:
            low = middle
        else:
            high = middle
    return np.asarray(1 / (1 + np.exp(-(odds + (low + high) / 2))))
