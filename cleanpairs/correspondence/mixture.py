r"""Two-component mixtures of N values in [0, 1], and the threshold between them.

GMM   two Gaussians, as ``sklearn.mixture.GaussianMixture(2, reg_covar=5e-4)``: NCR, REPAIR, PC2.
BMM   two beta distributions by EM with weighted moment matching (Arazo et al., ICML 2019): BiCro, L2RM.

Both densities are exponential in three features of x, so the log of the ratio of two of them is linear in these,

    log p_high(x) - log p_low(x) = c . phi(x)      GMM: phi = (1, x, x^2)      BMM: phi = (1, log x, log(1 - x)),

and both are refitted from the weighted mean and variance. One EM serves both; it runs on the counts of 4096 bins, so
that its cost does not grow with N, and the posterior is then taken at each value itself.

Departures. The papers' ten steps of the Gaussian mixture from k-means leave shares of modes of unlike size off by up
to 0.25, and a mode of 3 % unfound: here it is run to convergence. Their code starts the beta mixture from fixed betas,
where two clear modes may come out as one narrow mode and the rest, on both its sides: here it starts from the Gaussian
mixture, and stops after 10 iterations, as Arazo et al. do. Of both the posterior of the high component may not exceed
below the low mean what it is there, nor fall short above the high mean.

A mixture always finds two components, so a split alone is no evidence: :class:`Split` says whether the components
are apart, and its user must ask; :func:`guarded_split` asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.core.errors import DataError

BINS = 4096
CENTRES = (np.arange(BINS) + 0.5) / BINS
POWERS = np.stack([np.ones(BINS), CENTRES, CENTRES**2], axis=1)  # (BINS, 3)
COARSE = 256  # bins on which two components are compared with one
EDGE = 1e-4  # values are clipped to (EDGE, 1 - EDGE) for the beta mixture
REG_COVAR = 5e-4  # added to the variance of a Gaussian, as the papers have it
LEAST = 4  # values; fewer are no sample

APART = 2.35  # Ashman's D of the Gaussians; one skewed mode reaches 2.3, N(.2, .1) against N(.55, .15) is 2.75
APART_BETA = 2.0  # of the betas, which spread wider over the same modes
LEAST_SHARE, LEAST_COUNT = 0.02, 5  # what each component holds, else it is a tail or outliers

JUMP = 0.3  # change of the clean share from one epoch to the next that no training explains
LEAST_CLEAN, MOST_CLEAN = 0.03, 0.995

Density = Callable[[float, float], np.ndarray]  # mean, variance -> coefficients (3,) of the log density on phi


@dataclass(frozen=True)
class Split:
    """Two components of N values.

    ``high`` (N,) float64: posterior of the component with the higher mean; ``weight``: that component's share;
    ``means`` of the low and the high component; ``threshold``: where the posterior crosses one half;
    ``separated``: the components differ enough to be believed, which is

    - each holds at least 2 % of the values, and five of them;
    - two Gaussians have a lower BIC than one, and than one beta distribution with a single peak;
    - the means m are apart: sqrt(2) (m_high - m_low) / sqrt(v_high + v_low) >= 2.35 with the variances v (Ashman's D,
      of the Gaussian mixture run to convergence, whichever mixture is asked for; 2.0 for the betas themselves).

    Of 5,000 values that is right of all two modes and all single ones that were tried (docs/log.md); with 300 a third
    of the modes that overlap are refused, and one single mode in forty passes; with 100 values it is a guess.

    Where all values are alike, or fewer than four, all are in the high component, with the threshold at minus infinity.
    """

    high: np.ndarray
    weight: float
    means: tuple[float, float]
    threshold: float
    separated: bool

    @property
    def low(self) -> np.ndarray:
        """(N,) float64: posterior of the component with the lower mean; of losses, the probability of being clean."""
        return 1 - self.high


@dataclass(frozen=True)
class _Fit:
    """Weight of the high component, means and variances of the low and the high one."""

    weight: float
    means: tuple[float, float]
    variances: tuple[float, float]

    def coefficients(self, density: Density) -> np.ndarray:
        """c (3,) of the log odds c . phi(x) of the high component."""
        (m0, m1), (v0, v1) = self.means, self.variances
        c = density(m1, v1) - density(m0, v0)
        c[0] += np.log(self.weight / (1 - self.weight))
        return c

    def apart(self) -> float:
        """Ashman's D."""
        return float(np.sqrt(2) * (self.means[1] - self.means[0]) / np.sqrt(sum(self.variances)))


def _gaussian(mean: float, variance: float) -> np.ndarray:
    """On (1, x, x^2)."""
    return np.array([-0.5 * np.log(2 * np.pi * variance) - mean**2 / (2 * variance), mean / variance, -0.5 / variance])


def _shape(mean: float, variance: float) -> tuple[float, float]:
    """Alpha and beta of the beta distribution with this mean and variance."""
    common = max(mean * (1 - mean) / max(variance, 1e-6) - 1, 1e-2)
    return max(mean * common, 1e-2), max((1 - mean) * common, 1e-2)


def _beta(mean: float, variance: float) -> np.ndarray:
    """On (1, log x, log(1 - x))."""
    from scipy.special import betaln

    a, b = _shape(mean, variance)
    return np.array([-betaln(a, b), a - 1, b - 1])


def _odds_gaussian(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.asarray((x * c[2] + c[1]) * x + c[0])


def _odds_beta(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    x = np.clip(x, EDGE, 1 - EDGE)
    odds = np.log(x) * c[1]
    odds += c[2] * np.log1p(-x)
    odds += c[0]
    return np.asarray(odds)


@dataclass(frozen=True)
class _Family:
    """``density``: coefficients of a log density; ``odds``: c . phi(x); ``added`` to each variance."""

    density: Density
    odds: Callable[[np.ndarray, np.ndarray], np.ndarray]
    added: float

    def phi(self) -> np.ndarray:
        """Features (BINS, 3) of the centres."""
        return np.stack([self.odds(CENTRES, unit) for unit in np.eye(3)], axis=1)


GAUSSIAN = _Family(_gaussian, _odds_gaussian, REG_COVAR)
BETA = _Family(_beta, _odds_beta, 0.0)


def _sigmoid(odds: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-odds)), in place."""
    np.clip(odds, -500, 500, out=odds)
    np.negative(odds, out=odds)
    np.exp(odds, out=odds)
    odds += 1
    return np.reciprocal(odds, out=odds)


def _make_monotone(resp: np.ndarray, x: np.ndarray, family: _Family, fit: _Fit) -> None:
    """Hold the posterior at x below that at the low mean, and above that at the high one, beyond them; in place."""
    means = np.array(fit.means)
    order = means.argsort(kind="stable")
    low, high = means[order]
    at_low, at_high = _sigmoid(family.odds(means, fit.coefficients(family.density)))[order]
    np.minimum(resp, at_low, out=resp, where=x < low)
    np.maximum(resp, at_high, out=resp, where=x > high)


def _posterior(x: np.ndarray, family: _Family, fit: _Fit) -> np.ndarray:
    """Of the high component at each x."""
    resp = _sigmoid(family.odds(x, fit.coefficients(family.density)))
    _make_monotone(resp, x, family, fit)
    return resp


def _mean_variance(moments: np.ndarray, added: float) -> tuple[float, float]:
    """Out of the sums of w, w x, w x^2."""
    mean = float(moments[1] / moments[0])
    return mean, max(float(moments[2] / moments[0]) - mean**2 + added, 1e-6)


def _em(count: np.ndarray, family: _Family, resp: np.ndarray, *, iterations: int, monotone: bool) -> _Fit | None:
    """EM on the counts (BINS,), from the responsibilities (BINS,) of the high component; None if one is left empty."""
    phi = family.phi()
    moments = count[:, None] * POWERS
    total = moments.sum(axis=0)
    fit, previous = None, np.full(5, np.inf)
    for _ in range(iterations):
        of_high = resp @ moments
        of_low = total - of_high
        if min(of_high[0], of_low[0]) < 1e-3:
            return None
        (m0, v0), (m1, v1) = (_mean_variance(k, family.added) for k in (of_low, of_high))
        weight = of_high[0] / total[0]
        fit = _Fit(float(weight), (m0, m1), (v0, v1))
        state = np.array([weight, m0, m1, v0, v1])
        if np.abs(state - previous).max() < 1e-6:
            break
        previous = state
        resp = _sigmoid(phi @ fit.coefficients(family.density))
        if monotone:
            _make_monotone(resp, CENTRES, family, fit)
    if fit is not None and fit.means[0] > fit.means[1]:
        fit = _Fit(1 - fit.weight, fit.means[::-1], fit.variances[::-1])
    return fit


def _two_means(count: np.ndarray) -> np.ndarray:
    """(BINS,) 1.0 in the upper of the two clusters of k-means, exactly: Otsu's cut maximises the variance between."""
    n, s = np.cumsum(count), np.cumsum(count * CENTRES)
    inside = (n > 0) & (n < n[-1])
    between = np.full(BINS, -1.0)
    between[inside] = (s[inside] * n[-1] - s[-1] * n[inside]) ** 2 / (n[inside] * (n[-1] - n[inside]))
    return (np.arange(BINS) > between.argmax()).astype(np.float64)


def _fit_gaussians(count: np.ndarray) -> _Fit | None:
    """To convergence."""
    return _em(count, GAUSSIAN, _two_means(count), iterations=500, monotone=False)


def _believable(count: np.ndarray, fit: _Fit) -> bool:
    """Whether two Gaussians are there, and apart; see :class:`Split`."""
    from scipy.special import betainc, ndtr

    n = float(count.sum())
    share = min(fit.weight, 1 - fit.weight)
    if fit.apart() < APART or share < LEAST_SHARE or share * n < LEAST_COUNT:
        return False
    edges = np.linspace(0, 1, COARSE + 1)
    coarse = count.reshape(COARSE, -1).sum(axis=1)

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
    if min(a, b) > 0.85:  # one peak, or flat; a U is two modes
        one = max(one, log_likelihood(betainc(a, b, edges)))
    return two - one > 1.5 * np.log(n)  # BIC: five parameters against two


def _counted(values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Values (N,) float64 in [0, 1] and their counts (BINS,)."""
    x = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(x).all():
        raise DataError(f"a mixture needs finite values, found {int((~np.isfinite(x)).sum())} that are not")
    if len(x) and (x.min() < -1e-6 or x.max() > 1 + 1e-6):
        raise DataError(
            f"a mixture takes values in [0, 1], found {x.min():.4g} to {x.max():.4g}; scale them by minimum and maximum"
        )
    x = np.clip(x, 0.0, 1.0)
    bins = np.minimum((x * BINS).astype(np.int32), BINS - 1)
    return x, np.bincount(bins, minlength=BINS).astype(np.float64)


def _degenerate(x: np.ndarray) -> Split:
    """All alike, or too few: one component, everything in the high one."""
    mean = float(x.mean()) if len(x) else 1.0
    return Split(np.ones(len(x)), 1.0, (mean, mean), float("-inf"), False)


def _crossing(posterior: np.ndarray, means: tuple[float, float]) -> float:
    """Where the posterior (BINS,) first passes one half between the two means."""
    between = (means[0] <= CENTRES) & (means[1] >= CENTRES)
    above = np.flatnonzero(between & (posterior >= 0.5))
    return float(CENTRES[above[0]]) if len(above) else float(sum(means) / 2)


def gaussian_split(values: ArrayLike) -> Split:
    """GMM of N values in [0, 1], within 1e-3 of scikit-learn's run to convergence; see :class:`Split`.

    Raises DataError: a value is not finite or outside [0, 1].
    """
    x, count = _counted(values)
    fit = _fit_gaussians(count) if len(x) >= LEAST and np.ptp(x) >= 1e-6 else None
    if fit is None:
        return _degenerate(x)
    threshold = _crossing(_posterior(CENTRES, GAUSSIAN, fit), fit.means)
    return Split(_posterior(x, GAUSSIAN, fit), fit.weight, fit.means, threshold, _believable(count, fit))


def beta_split(values: ArrayLike, *, iterations: int = 10) -> Split:
    """BMM of N values in [0, 1]; see :class:`Split` and the module's head. EM on 4096 bins, from the Gaussian mixture.

    Raises DataError: a value is not finite or outside [0, 1].
    """
    x, count = _counted(values)
    start = _fit_gaussians(count) if len(x) >= LEAST and np.ptp(x) >= 1e-6 else None
    if start is None:
        return _degenerate(x)
    fit = _em(count, BETA, _posterior(CENTRES, GAUSSIAN, start), iterations=iterations, monotone=True)
    if fit is None:
        return _degenerate(x)
    threshold = _crossing(_posterior(CENTRES, BETA, fit), fit.means)
    separated = fit.apart() >= APART_BETA and _believable(count, start)
    return Split(_posterior(x, BETA, fit), fit.weight, fit.means, threshold, separated)


@dataclass(frozen=True)
class GuardedSplit:
    """``clean`` (N,) float32: probability of being clean; ``refused``: why the split was not taken, or None."""

    clean: np.ndarray
    refused: str | None

    @property
    def share(self) -> float:
        """Share of the values that count as clean, that is with a probability above one half; 1 without values."""
        return _clean_share(self.clean)


def _clean_share(clean: np.ndarray) -> float:
    return float((clean > 0.5).mean()) if len(clean) else 1.0


def guarded_split(losses: ArrayLike, kind: str = "gaussian", previous: np.ndarray | None = None) -> GuardedSplit:
    """Clean probabilities out of N losses in [0, 1] (low = clean), or the previous ones where the split is implausible.

    The public codes' splits flip: clean shares of .77, .94, .01 and .95 over four epochs were seen, though the losses
    ranked the pairs as well as before. A split is refused that does not separate (:class:`Split`), that leaves less
    than 3 % clean or 0.5 % noisy, or whose clean share is off the previous one by more than 0.3. Without ``previous``
    (N,), the epoch before's, all pairs count as clean where the split is refused.

    ``kind`` {"gaussian", "beta"}. Raises DataError: a loss is not finite or outside [0, 1].
    """
    split = {"gaussian": gaussian_split, "beta": beta_split}[kind](losses)
    clean = split.low.astype(np.float32)
    share = _clean_share(clean)
    refused = None
    if not split.separated:
        refused = "losses do not separate into two modes"
    elif not LEAST_CLEAN <= share <= MOST_CLEAN:
        refused = f"a split with {share:.1%} clean pairs is implausible"
    elif previous is not None and abs(share - _clean_share(previous)) > JUMP:
        refused = f"the share of clean pairs jumps from {_clean_share(previous):.1%} to {share:.1%}"
    if refused is None:
        return GuardedSplit(clean, None)
    kept = np.ones(len(clean), dtype=np.float32) if previous is None else np.asarray(previous, dtype=np.float32)
    return GuardedSplit(kept, refused)
