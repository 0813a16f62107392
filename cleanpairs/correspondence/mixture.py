r"""Two-component mixtures of N values in [0, 1], and the threshold between them.

GMM   ``sklearn.mixture.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4)``: NCR, REPAIR, PC2.
BMM   two beta distributions by EM with weighted moment matching (Arazo et al., ICML 2019): BiCro, L2RM, and here the
      soft correspondence itself, which is bounded and piles up at both ends.

A mixture always finds two components, so a split alone is no evidence: :class:`Split` says whether the components
are apart, and its user must ask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.errors import DataError

__all__ = ["GuardedSplit", "Split", "beta_split", "gaussian_split", "guarded_split"]

EDGE = 1e-4  # values are clipped to (EDGE, 1 - EDGE) for the beta mixture
BINS = 4096


@dataclass(frozen=True)
class Split:
    """Two components of N values.

    ``high`` (N,) float64: posterior of the component with the higher mean; ``weight``: that component's share;
    ``means`` of the low and the high component; ``threshold``: where the posterior crosses one half;
    ``separated``: the components differ enough to be believed.
    """

    high: np.ndarray
    weight: float
    means: tuple[float, float]
    threshold: float
    separated: bool


def _validated(values: ArrayLike) -> np.ndarray:
    x = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(x).all():
        raise DataError(f"a mixture needs finite values, found {int((~np.isfinite(x)).sum())} that are not")
    return x


def _degenerate(x: np.ndarray) -> Split:
    """All alike, or too few: one component, everything in the high one."""
    mean = float(x.mean()) if len(x) else 1.0
    return Split(np.ones(len(x)), 1.0, (mean, mean), float("-inf"), False)


def _crossing(grid: np.ndarray, posterior: np.ndarray, low: float, high: float) -> float:
    """Where the posterior first passes one half between the two means."""
    inside = (grid >= low) & (grid <= high)
    above = np.flatnonzero(inside & (posterior >= 0.5))
    return float(grid[above[0]]) if len(above) else float((low + high) / 2)


def gaussian_split(values: ArrayLike) -> Split:
    """GMM of N values, with the papers' settings; see :class:`Split`.

    Raises
    ------
    DataError
        A value is not finite.
    """
    from sklearn.mixture import GaussianMixture

    x = _validated(values)
    if len(x) < 4 or np.ptp(x) < 1e-6:
        return _degenerate(x)
    model = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(x[:, None])
    mean, std = model.means_.ravel(), np.sqrt(model.covariances_.ravel())
    top = int(mean.argmax())
    grid = np.linspace(x.min(), x.max(), BINS)
    low, high = float(mean[1 - top]), float(mean[top])
    threshold = _crossing(grid, model.predict_proba(grid[:, None])[:, top], low, high)
    apart = high - low > 2 * float(max(std))
    weight = float(model.weights_[top])
    return Split(model.predict_proba(x[:, None])[:, top], weight, (low, high), threshold, apart)


def _beta_moments(x: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Alpha and beta of the beta distribution with the weighted mean and variance of x."""
    total = weight.sum()
    mean = float((weight * x).sum() / total)
    variance = max(float((weight * (x - mean) ** 2).sum() / total), 1e-6)
    common = max(mean * (1 - mean) / variance - 1, 1e-2)
    return max(mean * common, 1e-2), max((1 - mean) * common, 1e-2)


def beta_split(values: ArrayLike, *, iterations: int = 100, tolerance: float = 1e-6) -> Split:
    """BMM of N values in [0, 1]; see :class:`Split`. EM runs on 4096 bins, so its cost does not grow with N.

    The components count as apart when their means differ by more than 0.25 and each holds at least a hundredth of the
    values.

    Raises
    ------
    DataError
        A value is not finite.
    """
    from scipy.special import betaln

    x = _validated(values)
    if len(x) < 4 or np.ptp(x) < 1e-6:
        return _degenerate(x)
    clipped = np.clip(x, EDGE, 1 - EDGE)
    count, edges = np.histogram(clipped, bins=BINS, range=(0.0, 1.0))
    grid = (edges[:-1] + edges[1:]) / 2
    log_x, log_1x = np.log(grid), np.log1p(-grid)

    middle = float((grid * count).sum() / count.sum())
    # Responsibility of the high component, (BINS,): a hard start. A share of the far heap in each component, as small
    # as a twentieth, gives both a U shape when the heaps are sharp, and EM then never tells them apart.
    resp = (grid >= middle).astype(np.float64)
    previous = -np.inf
    weight, params = 0.5, [(1.0, 2.0), (2.0, 1.0)]
    joint = np.zeros((2, BINS))
    for _ in range(iterations):
        share = np.stack([(1 - resp) * count, resp * count])  # low, high
        if share.sum(axis=1).min() < 1e-3:
            return _degenerate(x)
        weight = float(share[1].sum() / count.sum())
        params = [_beta_moments(grid, share[k]) for k in range(2)]
        for k, w in enumerate((1 - weight, weight)):
            a, b = params[k]
            joint[k] = np.log(w) + (a - 1) * log_x + (b - 1) * log_1x - betaln(a, b)
        top = joint.max(axis=0)
        log_total = top + np.log(np.exp(joint - top).sum(axis=0))
        resp = np.exp(joint[1] - log_total)
        likelihood = float((count * log_total).sum() / count.sum())
        if abs(likelihood - previous) < tolerance:
            break
        previous = likelihood
    means = [a / (a + b) for a, b in params]
    if means[0] > means[1]:
        means, weight, resp = means[::-1], 1 - weight, 1 - resp
    threshold = _crossing(grid, resp, means[0], means[1])
    bins = np.minimum((clipped * BINS).astype(np.int64), BINS - 1)
    apart = means[1] - means[0] > 0.25 and 0.01 < weight < 0.99
    return Split(resp[bins], weight, (means[0], means[1]), threshold, bool(apart))


@dataclass(frozen=True)
class GuardedSplit:
    """``clean`` (N,) float32: probability of being clean; ``refused``: why the split was not taken, or None."""

    clean: np.ndarray
    refused: str | None


JUMP = 0.35  # change of the clean share from one epoch to the next that no training explains
LEAST_CLEAN, MOST_CLEAN = 0.03, 0.995


def guarded_split(losses: ArrayLike, kind: str = "gaussian", previous: np.ndarray | None = None) -> GuardedSplit:
    """Clean probabilities out of N losses, or the previous ones where the split is implausible.

    The public codes' splits flip: clean shares of .77, .94, .01 and .95 over four epochs were seen, though the losses
    ranked the pairs as well as before. A split is refused that does not separate, that leaves nearly nothing on one
    side, or whose share jumps.

    Parameters
    ----------
    losses : (N,) float in [0, 1]
        Low = clean.
    kind : {"gaussian", "beta"}
    previous : (N,) float, optional
        Clean probabilities of the epoch before; without them all pairs count as clean where the split is refused.
    """
    x = np.asarray(losses, dtype=np.float64).ravel()
    split = (beta_split if kind == "beta" else gaussian_split)(x)
    clean = (1 - split.high).astype(np.float32)
    share = float((clean > 0.5).mean()) if len(clean) else 1.0
    refused = None
    if not split.separated:
        refused = "losses do not separate into two heaps"
    elif not LEAST_CLEAN <= share <= MOST_CLEAN:
        refused = f"a split with {share:.1%} clean pairs is implausible"
    elif previous is not None and abs(share - float((previous > 0.5).mean())) > JUMP:
        refused = f"the share of clean pairs jumps from {float((previous > 0.5).mean()):.1%} to {share:.1%}"
    if refused is None:
        return GuardedSplit(clean, None)
    kept = np.ones(len(x), dtype=np.float32) if previous is None else np.asarray(previous, dtype=np.float32)
    return GuardedSplit(kept, refused)
