r"""Two-component mixtures of N values in [0, 1], and the threshold between them.

GMM   two Gaussians, as ``sklearn.mixture.GaussianMixture(2, reg_covar=5e-4)``: NCR, REPAIR, PC2.
BMM   two beta distributions by EM with weighted moment matching (Arazo et al., ICML 2019): BiCro, L2RM.

The log of the ratio of both densities is linear in three features of x,

    log p_high(x) - log p_low(x) = c . phi(x)      GMM: phi = (1, x, x^2)      BMM: phi = (1, log x, log(1 - x)),

and both are refitted from the weighted mean and variance, on the counts of 4096 bins.

Departures. The Gaussian mixture is run to convergence: the papers' ten steps leave shares off by up to 0.25. The beta
mixture starts from it, not from fixed betas, and stops after 10 iterations, as Arazo et al. do. Beyond the means of the
components the posterior is what it is there, or beyond.

A mixture always finds two components. :func:`guarded_split` refuses those that are not apart by :class:`Split`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.core import DataError, percent

BINS = 4096
CENTRES = (np.arange(BINS) + 0.5) / BINS
EDGE = 1e-4  # values are clipped to (EDGE, 1 - EDGE) for the beta mixture
REG_COVAR = 5e-4  # added to the variance of a Gaussian, as the papers have it


@dataclass(frozen=True)
class Split:
    """Two components of values. Fewer than four values, or values that are all alike, are all in the high one.

    Parameters
    ----------
    high : (N,) float64
        Posterior of the high component.
    weight : float in [0, 1]
        Its share.
    means : (float, float)
        Means of the low and the high component.
    separated : bool
        Whether the components differ enough.

    Notes
    -----
    Components are separated if all of this holds:

    - Each holds at least 2 % of the values, and five of them.
    - Two Gaussians have a lower BIC than one, and than one beta distribution with a single peak.
    - Ashman's D of the two Gaussians, sqrt(2) (m_high - m_low) / sqrt(v_high + v_low), is at least 2.35, and that of
      two betas at least 2.0. One skewed mode reaches 2.3, N(.2, .1) and N(.55, .15) have 2.75.
    """

    high: np.ndarray
    weight: float
    means: tuple[float, float]
    separated: bool

    @property
    def low(self) -> np.ndarray:
        """(N,) float64: posterior of the component with the lower mean. Of losses, the probability of being clean."""
        return 1 - self.high


def _gaussian(mean: float, variance: float) -> np.ndarray:
    return np.array([-0.5 * np.log(2 * np.pi * variance) - mean**2 / (2 * variance), mean / variance, -0.5 / variance])


def _shape(mean: float, variance: float) -> tuple[float, float]:
    common = max(mean * (1 - mean) / max(variance, 1e-6) - 1, 1e-2)
    return max(mean * common, 1e-2), max((1 - mean) * common, 1e-2)


def _beta(mean: float, variance: float) -> np.ndarray:
    from scipy.special import betaln

    a, b = _shape(mean, variance)
    return np.array([-betaln(a, b), a - 1, b - 1])


def _odds_gaussian(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.asarray((x * c[2] + c[1]) * x + c[0])


def _odds_beta(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    x = np.clip(x, EDGE, 1 - EDGE)
    return np.asarray(np.log(x) * c[1] + c[2] * np.log1p(-x) + c[0])


class _Family(NamedTuple):
    density: Callable[[float, float], np.ndarray]  # coefficients by mean and variance
    odds: Callable[[np.ndarray, np.ndarray], np.ndarray]  # c . phi(x)
    added: float  # to each variance
    iterations: int  # of EM, at most
    monotone: bool  # the posterior within these


GAUSSIAN = _Family(_gaussian, _odds_gaussian, REG_COVAR, iterations=500, monotone=False)  # to convergence
BETA = _Family(_beta, _odds_beta, 0.0, iterations=10, monotone=True)


@dataclass(frozen=True)
class _Fit:
    family: _Family
    weight: float
    means: tuple[float, float]
    variances: tuple[float, float]

    def coefficients(self) -> np.ndarray:
        low, high = (self.family.density(m, v) for m, v in zip(self.means, self.variances, strict=True))
        c = high - low
        c[0] += np.log(self.weight / (1 - self.weight))
        return np.asarray(c)

    def posterior(self, x: np.ndarray) -> np.ndarray:
        return self.monotone(_sigmoid(self.family.odds(x, self.coefficients())), x)

    def monotone(self, posterior: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The posterior at x, beyond the low mean no higher than there, beyond the high one no lower. In place."""
        means = np.sort(self.means)
        at_low, at_high = _sigmoid(self.family.odds(means, self.coefficients()))
        np.minimum(posterior, at_low, out=posterior, where=x < means[0])
        return np.maximum(posterior, at_high, out=posterior, where=x > means[1])

    def apart(self) -> float:
        return float(np.sqrt(2) * (self.means[1] - self.means[0]) / np.sqrt(sum(self.variances)))


def _sigmoid(odds: np.ndarray) -> np.ndarray:
    """In place: there may be millions."""
    np.negative(np.clip(odds, -500, 500, out=odds), out=odds)
    np.exp(odds, out=odds)
    odds += 1
    return np.reciprocal(odds, out=odds)


def _em(count: np.ndarray, family: _Family, resp: np.ndarray) -> _Fit | None:
    """EM on the counts (BINS,), from the responsibilities (BINS,) of the high component. None if one is left empty."""
    phi = np.stack([family.odds(CENTRES, unit) for unit in np.eye(3)], axis=1)  # (BINS, 3)
    moments = count[:, None] * CENTRES[:, None] ** np.arange(3)
    total = moments.sum(axis=0)
    previous = np.full(5, np.inf)
    for _ in range(family.iterations):
        of_high = resp @ moments
        of_low = total - of_high
        if min(of_high[0], of_low[0]) < 1e-3:
            return None
        m0, m1 = (float(w[1] / w[0]) for w in (of_low, of_high))
        v0, v1 = (max(float(w[2] / w[0]) - m**2 + family.added, 1e-6) for w, m in ((of_low, m0), (of_high, m1)))
        fit = _Fit(family, float(of_high[0] / total[0]), (m0, m1), (v0, v1))
        state = np.array([fit.weight, m0, m1, v0, v1])
        if np.abs(state - previous).max() < 1e-6:
            break
        previous = state
        resp = _sigmoid(phi @ fit.coefficients())
        if family.monotone:
            fit.monotone(resp, CENTRES)
    return fit if m0 <= m1 else _Fit(family, 1 - fit.weight, (m1, m0), (v1, v0))


def _two_means(count: np.ndarray) -> np.ndarray:
    """(BINS,) 1.0 in the upper of the two clusters of k-means, exactly: Otsu's cut maximises the variance between."""
    n, s = np.cumsum(count), np.cumsum(count * CENTRES)
    inside = (n > 0) & (n < n[-1])
    between = np.full(BINS, -1.0)
    between[inside] = (s[inside] * n[-1] - s[-1] * n[inside]) ** 2 / (n[inside] * (n[-1] - n[inside]))
    return (np.arange(BINS) > between.argmax()).astype(np.float64)


def _believable(count: np.ndarray, fit: _Fit) -> bool:
    from scipy.special import betainc, ndtr

    n = float(count.sum())
    share = min(fit.weight, 1 - fit.weight)
    if fit.apart() < 2.35 or share < 0.02 or share * n < 5:
        return False
    bins = 256  # on which two components are compared with one
    edges = np.linspace(0, 1, bins + 1)
    coarse = count.reshape(bins, -1).sum(axis=1)

    def log_likelihood(cumulative: np.ndarray) -> float:
        return float(coarse @ np.log(np.maximum(np.diff(cumulative), 1e-9)))

    def normal(mean: float, variance: float) -> np.ndarray:
        return np.asarray(ndtr((edges - mean) / np.sqrt(variance)))

    components = [normal(m, v) for m, v in zip(fit.means, fit.variances, strict=True)]
    two = log_likelihood((1 - fit.weight) * components[0] + fit.weight * components[1])
    mean = float(count @ CENTRES) / n
    variance = max(float(count @ (CENTRES - mean) ** 2) / n, 1e-6)
    one = log_likelihood(normal(mean, variance))
    a, b = _shape(mean, variance)
    if min(a, b) > 0.85:  # one peak, or flat. A U is two modes
        one = max(one, log_likelihood(betainc(a, b, edges)))
    return two - one > 1.5 * np.log(n)  # BIC: five parameters against two


def split_in_two(values: ArrayLike, kind: str = "gaussian") -> Split:
    """Fit a mixture of two components.

    Parameters
    ----------
    values : (N,) array_like in [0, 1]
        What is split.
    kind : {"gaussian", "beta"}
        Kind of the components.

    Returns
    -------
    Split
        The posterior of each value.

    Raises
    ------
    DataError
        A value is not finite or outside [0, 1].

    Notes
    -----
    Arazo et al., Unsupervised Label Noise Modeling and Loss Correction, ICML 2019, for the betas.
    """
    family = {"gaussian": GAUSSIAN, "beta": BETA}[kind]
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) and not -1e-6 <= x.min() <= x.max() <= 1 + 1e-6:  # NaN too
        raise DataError(
            f"a mixture takes finite values in [0, 1], found {x.min():.4g} to {x.max():.4g}; scale them by minimum and "
            "maximum"
        )
    x = np.clip(x, 0.0, 1.0)
    count = np.bincount(np.minimum((x * BINS).astype(np.int32), BINS - 1), minlength=BINS).astype(np.float64)
    gaussians = _em(count, GAUSSIAN, _two_means(count)) if len(x) >= 4 and np.ptp(x) >= 1e-6 else None
    fit = gaussians
    if gaussians is not None and family is BETA:
        fit = _em(count, BETA, gaussians.posterior(CENTRES))
    if gaussians is None or fit is None:
        mean = float(x.mean()) if len(x) else 1.0
        return Split(np.ones(len(x)), 1.0, (mean, mean), False)
    separated = (family is GAUSSIAN or fit.apart() >= 2) and _believable(count, gaussians)
    return Split(fit.posterior(x), fit.weight, fit.means, separated)


@dataclass(frozen=True)
class GuardedSplit:
    """A split that was taken or refused.

    Parameters
    ----------
    clean : (N,) float32
        Probability of being clean.
    refused : str or None
        Why the split was not taken.
    """

    clean: np.ndarray
    refused: str | None


def _clean_share(clean: np.ndarray) -> float:
    return float((clean > 0.5).mean()) if len(clean) else 1.0


def guarded_split(losses: ArrayLike, kind: str = "gaussian", previous: np.ndarray | None = None) -> GuardedSplit:
    """Clean probabilities by losses, or the previous ones where the split is implausible.

    Parameters
    ----------
    losses : (N,) array_like in [0, 1]
        Low ones are clean.
    kind : {"gaussian", "beta"}
        Kind of the components.
    previous : (N,) float, optional
        Clean probabilities of the epoch before. Without them all pairs count as clean if the split is refused.

    Returns
    -------
    GuardedSplit
        A split is refused if its components are not separated. It is refused if it leaves less than 3 % clean or .5 %
        noisy, or if its clean share differs from the previous one by more than .3. Splits of the public codes flip
        from one epoch to the next.

    Raises
    ------
    DataError
        A loss is not finite or outside [0, 1].
    """
    split = split_in_two(losses, kind)
    clean = split.low.astype(np.float32)
    share = _clean_share(clean)
    refused = None
    if not split.separated:
        refused = "losses do not separate into two modes"
    elif not 0.03 <= share <= 0.995:
        refused = f"a split with {percent(share)} clean pairs is implausible"
    elif previous is not None and abs(share - _clean_share(previous)) > 0.3:
        refused = f"the share of clean pairs jumps from {percent(_clean_share(previous))} to {percent(share)}"
    if refused is None:
        return GuardedSplit(clean, None)
    kept = np.ones(len(clean), dtype=np.float32) if previous is None else np.asarray(previous, dtype=np.float32)
    return GuardedSplit(kept, refused)
