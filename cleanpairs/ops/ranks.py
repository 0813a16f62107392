r"""Spearman's correlation of a pair's distances to the images and to the texts of other pairs, many pairs at once.

    c = sum (r - r_mean) (s - s_mean) / sqrt(sum (r - r_mean)^2  sum (s - s_mean)^2),    r, s the average ranks

Distances are one matrix product. On a CPU SciPy ranks them, which is twice as fast as PyTorch there.
"""

import torch
from scipy.stats import rankdata
from torch import Tensor

from cleanpairs.core import DataError

BLOCK = 1 << 20  # distances in memory at a time, for images and texts each


def average_ranks(x: Tensor) -> Tensor:
    """Ranks (n, m) float64 of every row of ``x`` (n, m), from 1. Equal values share the mean of their ranks, as in
    ``scipy.stats.rankdata(x, axis=1)``. Raises DataError: for NaN.
    """
    if x.isnan().any():
        raise DataError("ranks need values that can be ordered; found NaN")
    if x.device.type != "cpu":
        ordered = x.sort(dim=1).values
        below, up_to = (torch.searchsorted(ordered, x.contiguous(), right=right) for right in (False, True))
        return (below + up_to + 1).double() / 2
    return torch.from_numpy(rankdata(x.numpy(), axis=1))


def rank_correlation(
    x_image: Tensor,
    x_text: Tensor,
    other_image: Tensor,
    other_text: Tensor,
    *,
    exclude: Tensor | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Spearman's correlation (n,) float64 between a pair's image distances and its text distances to other pairs.

    REPAIR (Zheng et al., 2024), eq. 6 to 9. Distances are Euclidean. Only their ranks count, so |b|^2 / 2 - <x, b> will
    do. Equal vectors of these (an image with five captions) are compared once and tie exactly. It is 0 where all
    distances to images or to texts are equal, or fewer than two entries remain.

    - ``x_image``, ``x_text`` (n, E), (n, F). ``other_image``, ``other_text`` (m, E), (m, F): rows of any norm
    - ``exclude`` (n,) int64: position in these that is left out of a row's correlation. -1 for none
    - ``block``: distances in memory at a time, for images and texts each

    Raises DataError: for distances that are NaN.
    """
    n, m = len(x_image), len(other_image)
    out = torch.zeros(n, dtype=torch.float64, device=x_image.device)
    if m < 2:
        return out
    distinct = [torch.unique(other, dim=0, return_inverse=True) for other in (other_image, other_text)]
    for rows in torch.arange(n, device=x_image.device).split(max(1, block // m)):
        r, s = (
            average_ranks((other.square().sum(dim=1) / 2 - x[rows] @ other.T)[:, column]) - (m + 1) / 2
            for x, (other, column) in zip((x_image, x_text), distinct, strict=True)
        )
        if exclude is not None:
            r, s = _without(r, exclude[rows]), _without(s, exclude[rows])
        size = ((r * r).sum(dim=1) * (s * s).sum(dim=1)).sqrt()
        out[rows] = torch.where(size > 0, (r * s).sum(dim=1) / size.where(size > 0, 1.0), 0.0).clip(-1, 1)
    return out


def _without(ranks: Tensor, column: Tensor) -> Tensor:
    """Centred ranks (n, m) as if row i did not have ``column[i]`` (-1: as they are): centred again, and 0 there."""
    own = ranks.gather(1, column.clamp_min(0)[:, None])
    fewer = ranks - (ranks - own).sign() / 2  # larger ones fall by one, equals by a half, and so does the mean
    fewer.scatter_(1, column.clamp_min(0)[:, None], 0.0)
    return torch.where((column >= 0)[:, None], fewer, ranks)
