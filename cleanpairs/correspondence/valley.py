"""A threshold between two heaps of soft correspondences: the valley of their density.

A trained method piles wrong pairs up near 0 and spreads right ones over the upper half, with a long lower tail that no
simple mixture fits (a two-component beta mixture takes that tail for noise and overestimates it by .07 to .2 on
photographs; docs/log.md). The lowest point between the two heaps needs no family of distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.errors import DataError

__all__ = ["Valley", "find_valley"]

BINS = 100
BANDWIDTH = 4.0  # bins: the smoothing of the density, 0.04
DEPTH = 0.7  # the valley is at most this share of the lower heap, else there are no two heaps
LEAST_HEAP = 0.005  # share of the pairs that each heap holds at least


@dataclass(frozen=True)
class Valley:
    """``threshold`` in (0, 1): the lowest density between the heaps; ``low``: share of pairs below it.

    ``separated``: there are two heaps with a valley between. Otherwise the threshold means nothing, and ``low`` is 0.
    """

    threshold: float
    low: float
    separated: bool


def find_valley(values: ArrayLike) -> Valley:
    """The valley of N soft correspondences in [0, 1].

    Raises
    ------
    DataError
        A value is not finite or outside [0, 1].
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(x).all() or (len(x) and not 0 <= x.min() <= x.max() <= 1):
        raise DataError("a valley is looked for among finite values in [0, 1]")
    none = Valley(0.5, 0.0, False)
    if len(x) < 20:
        return none
    density = _density(x)
    low_peak = int(density[: BINS // 2].argmax())
    high_peak = BINS // 2 + int(density[BINS // 2 :].argmax())
    between = density[low_peak : high_peak + 1]
    at = low_peak + int(between.argmin())
    threshold = (at + 0.5) / BINS
    low = float((x < threshold).mean())
    deep = density[at] <= DEPTH * min(density[low_peak], density[high_peak])
    if not deep or not LEAST_HEAP <= low <= 1 - LEAST_HEAP:
        return none
    return Valley(threshold, low, True)


def _density(x: np.ndarray) -> np.ndarray:
    """Smoothed histogram (BINS,) of values in [0, 1], mirrored at both ends so that the heaps there keep their mass."""
    count = np.histogram(x, bins=BINS, range=(0.0, 1.0))[0].astype(np.float64)
    mirrored = np.concatenate([count[::-1], count, count[::-1]])
    offsets = np.arange(-3 * int(BANDWIDTH), 3 * int(BANDWIDTH) + 1)
    kernel = np.exp(-0.5 * (offsets / BANDWIDTH) ** 2)
    smooth = np.convolve(mirrored, kernel / kernel.sum(), mode="same")
    return np.asarray(smooth[BINS : 2 * BINS])
