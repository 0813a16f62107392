r"""Ranks and rank correlations of many rows at once.

    c = 1 - 6 sum d^2 / (m (m^2 - 1)) without ties; with ties, Pearson's correlation of the average ranks

On the CPU a row is sorted as integers: the bits of a float32, made order-preserving, with the position in the low
half of a 64-bit key, so that one sort gives values and positions both.
"""

from __future__ import annotations

import numpy as np

from cleanpairs.errors import DataError

__all__ = ["average_ranks", "rank_correlation", "spearman"]

BLOCK = 1 << 19  # entries that are ranked at a time


def _keys(x: np.ndarray) -> np.ndarray:
    """Order-preserving uint64 keys of float32 values (n, m), with the column in the low 32 bits."""
    bits = np.ascontiguousarray(x + np.float32(0)).view(np.int32)  # -0 becomes +0
    mask = (bits >> 31) | np.int32(-0x80000000)  # all bits of a negative number turn, the sign of the others
    keys = np.empty((*x.shape, 2), dtype=np.uint32)  # little endian: the low half first
    keys[..., 0] = np.arange(x.shape[1], dtype=np.uint32)
    np.bitwise_xor(bits, mask, out=keys[..., 1].view(np.int32))
    return keys.view(np.uint64)[..., 0]


def _ranks_of_block(x: np.ndarray, out: np.ndarray) -> None:
    """Ranks of the rows of ``x`` (n, m) into ``out``. Row by row: one row's keys stay in the nearest cache."""
    m = x.shape[1]
    position = np.arange(1, m + 1, dtype=np.float32)
    low = np.uint64(0xFFFFFFFF)
    keys = _keys(x) if x.dtype == np.float32 else None
    for i in range(len(x)):
        if keys is not None:
            row = keys[i]
            row.sort()
            order = (row & low).view(np.int64)
            row >>= np.uint64(32)
        else:
            order = np.argsort(x[i])
            row = x[i][order]
        new = row[1:] != row[:-1]
        if new.all():
            out[i][order] = position
            continue
        first = np.flatnonzero(np.concatenate([[True], new]))  # where runs of equal values begin
        length = np.diff(np.append(first, m))
        out[i][order] = np.repeat(first + (length + 1) / 2, length)


def average_ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 1 of every row (n, m) float, ties sharing their mean: (n, m) float32.

    As ``scipy.stats.rankdata(x, axis=1)``; exact for m up to 2^23.

    Raises
    ------
    DataError
        A value is NaN.
    """
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    if np.isnan(x).any():
        raise DataError("ranks need values, found NaN")
    n, m = x.shape
    if m < 2:
        return np.ones((n, m), dtype=np.float32)
    out = np.empty((n, m), dtype=np.float32)
    step = max(1, BLOCK // m)
    for start in range(0, n, step):
        _ranks_of_block(x[start : start + step], out[start : start + step])
    return out


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation (n,) float64 of the rows of a and b, (n, m) each; 0 where a row is constant."""
    return _correlation(average_ranks(a), average_ranks(b))


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation (n,) of rows of ranks: their mean is (m + 1) / 2 with ties or without."""
    m = a.shape[1]
    if m < 2:
        return np.zeros(len(a))
    middle = np.float32((m + 1) / 2)
    a, b = a - middle, b - middle
    product = np.einsum("ij,ij->i", a, b, dtype=np.float64)
    size = np.einsum("ij,ij->i", a, a, dtype=np.float64) * np.einsum("ij,ij->i", b, b, dtype=np.float64)
    return np.where(size > 0, product / np.sqrt(np.where(size > 0, size, 1)), 0.0)


def rank_correlation(
    x_image: np.ndarray,
    x_text: np.ndarray,
    bank_image: np.ndarray,
    bank_text: np.ndarray,
    *,
    exclude: np.ndarray | None = None,
) -> np.ndarray:
    """Spearman's correlation (n,) between a pair's image distances and its text distances to the pairs of a bank.

    REPAIR (Zheng et al., 2024), eq. 6-7. Distances are Euclidean; only their ranks count, so squares are enough.

    Parameters
    ----------
    x_image, x_text : (n, E), (n, F) float32
    bank_image, bank_text : (m, E), (m, F) float32
    exclude : (n,) int64, optional
        Position of the bank's entry that is left out of each row, -1 for none.
    """
    n, m = len(x_image), len(bank_image)
    out = np.zeros(n)
    if m < 2:
        return out
    half = [(bank**2).sum(axis=1, dtype=np.float32) / 2 for bank in (bank_image, bank_text)]
    step = max(1, BLOCK // m)
    for start in range(0, n, step):
        s = slice(start, start + step)
        a = average_ranks(half[0] - x_image[s] @ bank_image.T)  # |x - b|^2 / 2 without |x|^2 / 2
        b = average_ranks(half[1] - x_text[s] @ bank_text.T)
        whole = _correlation(a, b)
        if exclude is not None:
            rows = np.flatnonzero(exclude[s] >= 0)
            if len(rows):
                whole[rows] = _without(a[rows], b[rows], exclude[s][rows])
        out[s] = whole
    return out


def _without(a: np.ndarray, b: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Correlation of rows of ranks when one column of each is left out: the ranks above it fall by one."""
    at = np.arange(len(a))
    kept = np.ones(a.shape, dtype=bool)
    kept[at, column] = False
    m = a.shape[1]
    pulled = []
    for ranks in (a, b):
        own = ranks[at, column][:, None]
        pulled.append((ranks - (ranks > own) - 0.5 * (ranks == own))[kept].reshape(len(a), m - 1))
    return _correlation(*pulled)
