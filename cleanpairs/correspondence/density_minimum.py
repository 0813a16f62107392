"""A threshold between two modes of soft correspondences, and the size of the lower one.

Right pairs, whose lower tail no simple mixture fits (dev/LOG.md), are assumed to be about as dense left of the density
minimum between the modes as they are in it. Then

    threshold     where the density falls to twice that of the density minimum: a pair there is as likely right as wrong
    lower mode    what it holds above the level of the density minimum. Of trained networks that is no noise rate:
                  on clean clip art it is .19 to .41 with four methods
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.core import DataError


@dataclass(frozen=True)
class DensityMinimum:
    """Threshold by the density of a correspondence.

    Parameters
    ----------
    threshold : float in (0, 1)
        Between the modes.
    lower_mode : float in [0, 1]
        Share of the pairs in the lower mode.
    separated : bool
        Whether there are two modes. Else the two numbers mean nothing.
    right : bool
        Whether there is one mode, in the upper half: no pair looks mismatched.
    """

    threshold: float
    lower_mode: float
    separated: bool
    right: bool = False

    def at_most(self, threshold: float) -> float:
        """A fixed threshold, or this one where it is lower and the pairs hold little noise.

        Parameters
        ----------
        threshold : float in [0, 1]
            The fixed one. Where the lower mode holds less than .1 of the pairs, it takes matched pairs for wrong ones.

        Returns
        -------
        float
            The threshold to use.
        """
        return min(threshold, self.threshold) if self.separated and self.lower_mode < 0.1 else threshold


def find_density_minimum(values: ArrayLike) -> DensityMinimum:
    """Find the two modes of a soft correspondence, and the density minimum between them.

    Parameters
    ----------
    values : (N,) array_like in [0, 1]
        The correspondence.

    Returns
    -------
    DensityMinimum
        Not separated where the minimum is above .7 of the lower mode, or chance alone may make it. Nor where a mode
        holds less than .5 % of the pairs.

    Raises
    ------
    DataError
        A value is not finite or outside [0, 1].
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(x).all() or (len(x) and not 0 <= x.min() <= x.max() <= 1):
        raise DataError("a density minimum is looked for among finite values in [0, 1]")
    none = DensityMinimum(0.5, 0.0, False)
    if len(x) < 20:
        return none
    bins = 100
    wide = _density(x, bins, 4.0)  # finds the minimum
    low_peak = int(wide[: bins // 2].argmax())
    high_peak = bins // 2 + int(wide[bins // 2 :].argmax())
    if wide[high_peak] >= 3 * wide[low_peak] and np.mean(x < 0.5) < 0.5 and np.ptp(x) > 1 / bins:
        none = DensityMinimum(0.5, 0.0, False, right=True)
    bottom = low_peak + int(wide[low_peak : high_peak + 1].argmin())
    level, peak = float(wide[bottom]), float(min(wide[low_peak], wide[high_peak]))
    spread = np.sqrt((peak + level) / (2 * np.sqrt(np.pi) * 4.0))  # of Poisson's counts, smoothed
    if level > 0.7 * peak or peak - level < 3 * spread:
        return none
    narrow = _density(x, bins, 1.5)  # finds the crossing
    falls = np.flatnonzero(narrow[low_peak : bottom + 1] <= 2 * level)
    threshold = (low_peak + (int(falls[0]) if len(falls) else bottom - low_peak) + 0.5) / bins
    lower_mode = float(np.maximum(wide[: bottom + 1] - level, 0).sum() / len(x))
    if not 0.005 <= lower_mode <= 0.995:
        return none
    return DensityMinimum(threshold, lower_mode, True)


def _density(x: np.ndarray, bins: int, bandwidth: float) -> np.ndarray:
    """Smoothed counts (bins,) of values in [0, 1], mirrored at both ends so that the modes there keep their mass."""
    from scipy.ndimage import gaussian_filter1d

    count = np.histogram(x, bins=bins, range=(0.0, 1.0))[0].astype(np.float64)
    return np.asarray(gaussian_filter1d(count, bandwidth, mode="reflect"))
