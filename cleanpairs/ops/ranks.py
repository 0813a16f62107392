r"""Ranks and Spearman correlations of many rows at once, ties averaged.

    c = sum (r - r_mean) (s - s_mean) / sqrt(sum (r - r_mean)^2  sum (s - s_mean)^2),    r, s the average ranks

On a CPU a row is put in order by a radix sort of 16 bits: x -> floor(65000 (x - min) / (max - min)) does not decrease
with x, so that only values that share one of the 65,000 bins can come out in the wrong order; they are neighbours, and
a few exchanges put them right. That is exact for every float. A row of which too many values share bins (one far
outlier) is sorted by comparisons. A GPU sorts.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.errors import DataError

__all__ = ["average_ranks", "rank_correlation", "spearman"]

Array = TypeVar("Array", np.ndarray, Tensor)

BLOCK = 1 << 18  # entries that are ranked at a time, half as many in float64: they stay in the cache
PRODUCT = 1 << 21  # distances that are computed at a time: a matrix product wants many rows
BINS = 65_000  # below 2^16 by more than rounding can add
FEW = 1 / 1024  # of the places: descents beside which alone one looks for others
CROWDED = 0.1  # of a row's neighbours in the wrong order after the radix sort: sort it by comparisons


def average_ranks(x: Array) -> Array:
    """Ranks of every row, from 1; equal values share the mean of their ranks.

    Parameters
    ----------
    x : array or Tensor (n, m)
        Infinities are values like others.

    Returns
    -------
    (n, m) float32, float64 from m = 2^23; of the kind of ``x`` and on its device
        As ``scipy.stats.rankdata(x, axis=1)``, exact.

    Raises
    ------
    DataError
        For NaN, and for what is not a matrix.
    """
    if isinstance(x, Tensor):
        if x.device.type != "cpu":
            return _ranks_by_torch(x)
        return torch.from_numpy(average_ranks(_as_numpy(x)))
    return _average_ranks(_matrix(x, "x"))


def _average_ranks(x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, dtype=np.float32 if x.shape[1] < 1 << 23 else np.float64)
    for rows in _blocks(len(x), x.shape[1], BLOCK):
        _rank(x[rows], None, out[rows])
    return out


def spearman(a: Array, b: Array) -> Array:
    """Spearman's correlation of each row of ``a`` with the same row of ``b``.

    Parameters
    ----------
    a, b : array or Tensor (n, m)

    Returns
    -------
    (n,) float64, of the kind of ``a``
        As ``scipy.stats.spearmanr`` of the two rows; 0 where one of them is constant or has fewer than two values.

    Raises
    ------
    DataError
        For NaN, and for shapes that differ.
    """
    if a.shape != b.shape:
        raise DataError(f"spearman needs two matrices of one shape; found {tuple(a.shape)} and {tuple(b.shape)}")
    if isinstance(a, Tensor):
        if a.device.type != "cpu":
            return _pearson(torch, _centred(_ranks_by_torch(a)), _centred(_ranks_by_torch(b)))
        return torch.from_numpy(spearman(_as_numpy(a), _as_numpy(b)))
    return _spearman(_matrix(a, "a"), _matrix(b, "b"))


def _spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.zeros(len(a))
    for rows in _blocks(len(a), a.shape[1], BLOCK // 2):
        r, s = np.empty(a[rows].shape), np.empty(a[rows].shape)
        _rank(a[rows], None, r)
        _rank(b[rows], None, s)
        out[rows] = _correlation(r, s, None)
    return out


def rank_correlation(
    x_image: Array,
    x_text: Array,
    bank_image: Array,
    bank_text: Array,
    *,
    exclude: Array | None = None,
    block: int = PRODUCT,
) -> Array:
    """Spearman's correlation between a pair's image distances and its text distances to the pairs of a bank.

    REPAIR (Zheng et al., 2024), eq. 6 to 9. Distances are Euclidean. Only their ranks count, so |b|^2 / 2 - <x, b> will
    do: a matrix product. Equal vectors of the bank (an image with five captions) are compared once and tie exactly.

    Parameters
    ----------
    x_image, x_text : array or Tensor (n, E), (n, F)
        The pairs; rows of any norm.
    bank_image, bank_text : (m, E), (m, F)
        The bank's pairs.
    exclude : (n,) int64, optional
        Position in the bank that is left out of each row's correlation (the pair's own entry); -1 for none.
    block : int
        Distances that are held at a time, for images and texts each.

    Returns
    -------
    (n,) float64, of the kind of ``x_image``
        In [-1, 1]; 0 where all distances to images or to texts are equal, or fewer than two entries remain.

    Raises
    ------
    DataError
        For distances that are NaN, shapes that do not fit, and positions outside the bank.
    """
    _check_shapes(x_image, x_text, bank_image, bank_text, exclude)
    if isinstance(x_image, Tensor):
        if x_image.device.type != "cpu":
            return _rank_correlation_by_torch(x_image, x_text, bank_image, bank_text, exclude, block)
        tensors = (x_image, x_text, bank_image, bank_text)
        out_of = None if exclude is None else _as_numpy(exclude)
        return torch.from_numpy(rank_correlation(*map(_as_numpy, tensors), exclude=out_of, block=block))
    n, m = len(x_image), len(bank_image)
    out = np.zeros(n)
    if m < 2:
        return out
    images, texts = _Bank(bank_image), _Bank(bank_text)
    for big in _blocks(n, m, block):
        d_image, d_text = images.distances(x_image[big]), texts.distances(x_text[big])
        for small in _blocks(len(d_image), m, BLOCK // 2):
            r, s = images.ranks(d_image[small]), texts.ranks(d_text[small])
            left_out = None if exclude is None else exclude[big][small]
            out[big][small] = _correlation(r, s, left_out)
    return out


def _correlation(r: np.ndarray, s: np.ndarray, left_out: np.ndarray | None) -> np.ndarray:
    """Of average ranks (n, m), which it overwrites; ``left_out`` (n,) is the column that does not count, or -1."""
    rows = np.flatnonzero(left_out >= 0) if left_out is not None else np.zeros(0, dtype=np.int64)
    if left_out is None or not len(rows):
        return np.asarray(_pearson(np, _centred(r), _centred(s)))
    without = _pearson(np, *(_centred_without(y[rows], left_out[rows]) for y in (r, s)))
    out = np.asarray(_pearson(np, _centred(r), _centred(s)))
    out[rows] = without
    return out


class _Bank:
    """Ranks of the distances to the rows of a bank (m, E); equal rows are one column with a count."""

    def __init__(self, bank: np.ndarray) -> None:
        bank = np.ascontiguousarray(bank)
        self.column: np.ndarray | None = None  # (m,) of each row, among the distinct ones
        self.count: np.ndarray | None = None
        first, column = _distinct(bank)
        self.m = len(bank)
        if len(first) < len(bank):
            bank, self.column, self.count = bank[first], column, np.bincount(column)
        self.vectors_t = bank.T
        self.half = np.einsum("ij,ij->i", bank, bank) / 2

    def distances(self, x: np.ndarray) -> np.ndarray:
        """(n, distinct): half the squared distances of x (n, E), less what a row has in common."""
        distance = x @ self.vectors_t
        return np.subtract(self.half, distance, out=distance)

    def ranks(self, distance: np.ndarray) -> np.ndarray:
        """Average ranks (n, m) float64 of distances (n, distinct)."""
        out = np.empty(distance.shape)
        _rank(distance, self.count, out)
        return out if self.column is None else out.take(self.column, axis=1)


def _distinct(bank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of the first of each distinct row of (m, E) float, and the number (m,) of the distinct row of each."""
    m = len(bank)
    if not bank.shape[1]:
        return np.arange(min(m, 1)), np.zeros(m, dtype=np.int64)
    if len(np.unique(bank[:, 0])) == m:  # the common case of texts, and a cheap look
        return np.arange(m), np.arange(m)
    seen: dict[bytes, int] = {}  # 15 times faster than np.unique(axis=0), which sorts
    column = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in bank + 0.0])  # -0 + 0 is 0
    return np.unique(column, return_index=True)[1], column


def _blocks(n: int, m: int, entries: int) -> list[slice]:
    """Slices of n rows of m entries, ``entries`` at a time and at least one row."""
    step = max(1, entries // max(m, 1))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _rank(x: np.ndarray, count: np.ndarray | None, out: np.ndarray) -> None:
    """Average ranks of the rows of x (n, m) into ``out``; column j stands for ``count[j]`` equal ones (else one)."""
    n, m = x.shape
    if not x.size:
        return
    x = np.ascontiguousarray(x)
    order, ordered = _in_order(x)  # (n m,) positions in x, row by row, and their values
    if count is None:
        rank = np.tile(np.arange(1, m + 1, dtype=out.dtype), n)
        size = np.ones(1, dtype=np.int64)
    else:
        size = count[order.reshape(n, m) % m]  # (n, m)
        rank = (size.cumsum(axis=1) - (size - 1) / 2).ravel().astype(out.dtype)
    tied = ordered[1:] == ordered[:-1]
    tied[m - 1 :: m] = False  # the last of a row and the first of the next
    at = np.flatnonzero(tied)
    if len(at):
        gap = np.diff(at) > 1
        begin, end = at[np.append(True, gap)], at[np.append(gap, True)] + 1  # of each run of equal values
        length = end - begin + 1
        size = np.broadcast_to(size.ravel() if count is not None else size, n * m)
        mean = (rank[begin] - (size[begin] - 1) / 2 + rank[end] + (size[end] - 1) / 2) / 2
        inside = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        rank[np.repeat(begin, length) + inside] = np.repeat(mean, length)
    out_flat = out.reshape(-1)
    out_flat[order] = rank
    if not np.shares_memory(out_flat, out):
        out[:] = out_flat.reshape(n, m)


def _in_order(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions (n m,) int64 of the rows of x (n, m) in ascending order, row after row, and the values."""
    n, m = x.shape
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    if np.isnan(low).any():
        raise DataError("ranks need values that can be ordered; found NaN")
    with np.errstate(all="ignore"):
        scale = BINS / (high - low).astype(x.dtype if x.dtype.kind == "f" else np.float64)
        hopeless = ~np.isfinite(scale) & (high > low)
        scale[~np.isfinite(scale)] = 0
        key = ((x - low) * scale).astype(np.uint16)
    first = np.arange(0, n * m, m)[:, None]
    order = np.argsort(key, axis=1, kind="stable")  # numpy's radix sort, for 16 bits and fewer
    order += first
    order = order.ravel()
    ordered = x.ravel().take(order)
    at = _descents(ordered, m)
    crowded = hopeless[:, 0] | (np.bincount(at // m, minlength=n) > CROWDED * m)
    if crowded.any():
        rows = np.flatnonzero(crowded)
        order.reshape(n, m)[rows] = np.argsort(x[rows], axis=1) + first[rows]
        ordered = x.ravel().take(order)
        at = _descents(ordered, m)
    while len(at):  # exchange neighbours, of adjoining descents the first only
        keep = np.append(True, np.diff(at) > 1)
        later, at = at[~keep], at[keep]
        for a in (order, ordered):
            a[at], a[at + 1] = a[at + 1], a[at]
        if len(at) > FEW * n * m:  # a look at all is cheaper than to sort many places
            at = _descents(ordered, m)
            continue
        beside = np.concatenate([at - 1, at + 1, later])
        beside = beside[(beside >= 0) & (beside % m < m - 1)]
        at = np.unique(beside[ordered[beside + 1] < ordered[beside]])
    return order, ordered


def _descents(ordered: np.ndarray, m: int) -> np.ndarray:
    """Positions i of a flat array of rows of m with ``ordered[i + 1] < ordered[i]`` within a row."""
    wrong = ordered[1:] < ordered[:-1]
    wrong[m - 1 :: m] = False
    return np.flatnonzero(wrong)


def _centred(ranks: Any) -> Any:
    """Average ranks (n, m) less their mean, which is (m + 1) / 2 with ties or without; in place for float64 arrays."""
    ranks -= (ranks.shape[1] + 1) / 2
    return ranks


def _centred_without(ranks: Any, column: Any) -> Any:
    """Ranks (n, m) as if row i did not have column ``column[i]``, centred, and 0 there."""
    xp: Any = torch if isinstance(ranks, Tensor) else np
    at = xp.arange(len(column)) if xp is np else xp.arange(len(column), device=ranks.device)
    own = ranks[at, column][:, None]
    ranks = ranks - (xp.sign(ranks - own) + 1) / 2  # larger ones fall by one, its equals by a half
    ranks -= ranks.shape[1] / 2
    ranks[at, column] = 0
    return ranks


def _pearson(xp: Any, r: Any, s: Any) -> Any:
    """Correlation (n,) of centred ranks (n, m) float64; 0 where one is constant."""

    def dot(a: Any, b: Any) -> Any:  # (n,); a product of matrices is three times faster than einsum
        return (a[:, None, :] @ b[:, :, None])[:, 0, 0]

    product, size = dot(r, s), dot(r, r) * dot(s, s)
    return xp.where(size > 0, product / xp.sqrt(xp.where(size > 0, size, 1.0)), 0.0).clip(-1, 1)


def _ranks_by_torch(x: Tensor) -> Tensor:
    if x.ndim != 2 or bool(x.isnan().any()):
        raise DataError(f"ranks need a matrix without NaN; found shape {tuple(x.shape)}")
    ordered = x.sort(dim=1).values.contiguous()
    below, up_to = (torch.searchsorted(ordered, x.contiguous(), right=right) for right in (False, True))
    return (below + up_to + 1).double() / 2


def _rank_correlation_by_torch(
    x_image: Tensor, x_text: Tensor, bank_image: Tensor, bank_text: Tensor, exclude: Tensor | None, block: int
) -> Tensor:
    n, m = len(x_image), len(bank_image)
    out = torch.zeros(n, dtype=torch.float64, device=x_image.device)
    if m < 2:
        return out
    distinct = [torch.unique(bank, dim=0, return_inverse=True) for bank in (bank_image, bank_text)]
    for rows in _blocks(n, m, block):
        r, s = (
            _ranks_by_torch((bank.square().sum(dim=1) / 2 - x[rows] @ bank.T)[:, column])
            for x, (bank, column) in zip((x_image, x_text), distinct, strict=True)
        )
        if exclude is None:
            out[rows] = _pearson(torch, _centred(r), _centred(s))
            continue
        column = exclude[rows]
        own = column.clamp_min(0)
        without = _pearson(torch, _centred_without(r, own), _centred_without(s, own))
        out[rows] = torch.where(column >= 0, without, _pearson(torch, _centred(r), _centred(s)))
    return out


def _check_shapes(x_image: Any, x_text: Any, bank_image: Any, bank_text: Any, exclude: Any) -> None:
    for what, x, bank in (("image", x_image, bank_image), ("text", x_text, bank_text)):
        if x.ndim != 2 or bank.ndim != 2 or (len(x) and len(bank) and x.shape[1] != bank.shape[1]):
            raise DataError(
                f"x_{what} and bank_{what} must be matrices with equally many columns; found {tuple(x.shape)} and "
                f"{tuple(bank.shape)}"
            )
    if len(x_image) != len(x_text) or len(bank_image) != len(bank_text):
        raise DataError(
            f"images and texts must be equally many; found {len(x_image)} and {len(x_text)} pairs, a bank of "
            f"{len(bank_image)} and {len(bank_text)}"
        )
    if exclude is None:
        return
    if tuple(exclude.shape) != (len(x_image),):
        raise DataError(f"exclude must have one position a pair, ({len(x_image)},); found {tuple(exclude.shape)}")
    if len(exclude) and (int(exclude.min()) < -1 or int(exclude.max()) >= len(bank_image)):
        raise DataError(
            f"exclude must be -1 or a position in the bank of {len(bank_image)}; found {int(exclude.min())} to "
            f"{int(exclude.max())}"
        )


def _matrix(x: np.ndarray, name: str) -> np.ndarray:
    """``x`` in a dtype that is ordered exactly by float arithmetic: float32 or float64."""
    x = np.asarray(x)
    if x.ndim != 2:
        raise DataError(f"{name} must be a matrix (n, m); found shape {x.shape}")
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def _as_numpy(x: Tensor) -> np.ndarray:
    x = x.detach()
    array: np.ndarray = (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x).numpy()
    return array
