"""A stratified sample of pairs for a person to label.

The pairs are divided by score into H strata of N_h pairs, and n_h are drawn at random from each. A drawn pair stands
for N_h / n_h pairs. The threshold is always an edge: what is flagged and what is kept are estimated apart. How many
pairs a stratum gets follows Neyman's allocation,

    n_h  proportional to  N_h sqrt(p_h (1 - p_h)),

where p_h, the share of wrong pairs, is anticipated as falling from 1 to 0 around the threshold, and never taken for
surer than 3 %. So most pairs are drawn where decisions are: around the threshold, and below it.

Source: W. G. Cochran, Sampling Techniques, 3rd edition, 1977, section 5.5.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.core import DataError
from cleanpairs.core.parameters import check_number, check_seed, check_whole
from cleanpairs.data.arrays import check_correspondence

LEAST_LABELS = 4  # of every stratum, where n allows it


@dataclass(frozen=True, eq=False)
class AuditSample:
    """n pairs of N, drawn by strata of the correspondence. (n,) each.

    - ``stratum``: h where ``edges[h] <= correspondence < edges[h + 1]``. ``edges`` (H + 1,) increase from 0 to 1
    - ``weight``: how many pairs of its stratum each one stands for
    - ``matched``: a person's label: 1 matched, 0 mismatched, NaN not labelled
    """

    pair_id: np.ndarray
    stratum: np.ndarray
    edges: np.ndarray
    weight: np.ndarray
    correspondence: np.ndarray
    matched: np.ndarray

    @classmethod
    def of(cls, ids: np.ndarray, edges: np.ndarray, correspondence: np.ndarray, matched: np.ndarray) -> "AuditSample":
        """Pairs (n,) out of all, of ``correspondence`` (N,), NaN where quarantined, with their labels (n,)."""
        y = correspondence[ids]
        stratum = stratum_of(y, edges)
        size = np.bincount(stratum_of(correspondence[np.isfinite(correspondence)], edges), minlength=len(edges) - 1)
        return cls(ids, stratum, edges, size[stratum] / np.bincount(stratum)[stratum], y, matched)

    def __len__(self) -> int:
        return len(self.pair_id)

    @property
    def labelled(self) -> np.ndarray:
        """Which pairs have a label, (n,) bool."""
        return np.isfinite(self.matched)


def stratum_of(correspondence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the stratum of each correspondence (k,), int64. 1.0 is in the last one."""
    return np.clip(np.searchsorted(edges, correspondence, side="right") - 1, 0, len(edges) - 2).astype(np.int64)


def draw_sample(correspondence: ArrayLike, n: int, *, threshold: float, seed: int = 0) -> AuditSample:
    """Draw pairs for a person to label, in an order that tells nothing about their scores.

    Parameters
    ----------
    correspondence : (N,) array_like of float in [0, 1]
        NaN (quarantined) pairs are never drawn.
    n : int
        How many pairs, or all there are.
    threshold : float in [0, 1]
        Pairs below it are flagged.
    seed : int
        Seed of the draw.

    Returns
    -------
    AuditSample

    Raises
    ------
    ConfigError
        ``n`` or the threshold is out of range.
    DataError
        No pair has a score, or one is outside [0, 1].

    Notes
    -----
    The threshold separates two of at most eight strata. Two fifths of the strata hold flagged pairs, between quantiles
    of the scores. The others are narrower near the threshold.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    usable = np.flatnonzero(np.isfinite(y))
    check_whole("an audit", "n", n, 1)
    check_number("an audit", "threshold", threshold, least=0, most=1)
    check_seed("an audit", seed)
    if not len(usable):
        raise DataError("there is no pair with a score to audit: all are quarantined, or there are none")
    check_correspondence(y[usable])
    edges = _edges(y[usable], min(n, len(usable)), threshold)
    stratum = stratum_of(y[usable], edges)
    size = np.bincount(stratum, minlength=len(edges) - 1)
    count = _allocate(y[usable], stratum, size, min(n, len(usable)), threshold, edges)
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(usable[stratum == h], n_h, replace=False) for h, n_h in enumerate(count.tolist()) if n_h]
    ids = rng.permutation(np.concatenate(drawn)).astype(np.int64)
    return AuditSample.of(ids, edges, y, np.full(len(ids), np.nan))


def _edges(y: np.ndarray, n: int, threshold: float) -> np.ndarray:
    k, digits = max(1, min(8, n // LEAST_LABELS)), 4  # strata. Digits of an edge: what a CSV shows is what is used
    low, high = y[y < threshold], y[y >= threshold]
    k_low = 0 if not len(low) else k if not len(high) else max(1, round(0.4 * k))
    inner = {threshold}  # which is not rounded: it says which pairs are flagged
    for part, many, power in ((low, k_low, 1), (high, k - k_low, 2)):  # squared: they grow away from the threshold
        if len(part) and many > 1:
            found = np.round(np.quantile(part, (np.arange(1, many) / many) ** power), digits)
            inner.update(found[np.abs(found - threshold) > 10**-digits].tolist())
    keep = [0.0]
    for a in sorted(edge for edge in inner if 0 < edge < 1):  # strata without a pair go
        if a == threshold or (((y >= keep[-1]) & (y < a)).any() and (y >= a).any()):
            keep.append(a)
    return np.array([*keep, 1.0])


def _allocate(
    y: np.ndarray, of: np.ndarray, size: np.ndarray, n: int, threshold: float, edges: np.ndarray
) -> np.ndarray:
    """Return the number of pairs of each stratum (H,), at most its ``size``, n in all."""
    # The anticipated share of wrong pairs falls around the threshold, within some .1, and is never surer than .03.
    wrong = np.clip(1 / (1 + np.exp((y - threshold) / 0.1)), 0.03, 0.97)
    share = np.bincount(of, weights=np.sqrt(wrong * (1 - wrong)), minlength=len(size))
    flagged = edges[:-1] < threshold
    if share[flagged].sum() and share[~flagged].sum():
        part = max(share[flagged].sum() / share.sum(), 0.4)  # precision rests on the flagged pairs
        part = min(part, size[flagged].sum() / n)
        share[flagged] *= part / share[flagged].sum()
        share[~flagged] *= (1 - part) / share[~flagged].sum()
    count = np.minimum(size, min(LEAST_LABELS, n // max(1, int((size > 0).sum()))))
    while count.sum() < n:  # one at a time to the stratum furthest below its due. N is what a person can label
        due = np.where(count < size, share * n / share.sum() - count, -np.inf)
        count[int(due.argmax())] += 1
    return count.astype(np.int64)
