"""Exact nearest neighbours by inner product: a flat FAISS index, or blocked matrix products where FAISS is absent.

    S = queries @ bank.T                                   (n, m)
    indices_i = the k largest entries of S_i, scores_i = their values, in falling order

With unit vectors the inner product is the cosine. The search is exact either way; both ways agree up to rounding and
to the order of exact ties.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import ModuleType

import numpy as np

__all__ = ["TopK", "top_k"]

# Rows of the score block that the fall-back holds at once, in entries: 64 MiB of float32.
_BLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class TopK:
    """The ``k`` nearest bank rows of every query, best first.

    Attributes
    ----------
    scores : (n, k) float32
        Inner products, falling along a row; ``-inf`` where the bank has fewer than ``k`` rows.
    indices : (n, k) int64
        Bank rows; ``-1`` where there is none.
    """

    scores: np.ndarray
    indices: np.ndarray


def top_k(queries: np.ndarray, bank: np.ndarray, k: int) -> TopK:
    """The ``k`` bank rows of largest inner product with each query.

    Parameters
    ----------
    queries : (n, d) float
    bank : (m, d) float
        May be empty.
    k : int
        At least 1; where ``m < k`` the rest is padded by -1 and -inf.

    Returns
    -------
    TopK

    Raises
    ------
    ValueError
        If ``k`` < 1, or the arrays are not two-dimensional with the same ``d``.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if queries.ndim != 2 or bank.ndim != 2 or queries.shape[1] != bank.shape[1]:
        raise ValueError(f"queries (n, d) and bank (m, d) must share d, got {queries.shape} and {bank.shape}")
    n, m = len(queries), len(bank)
    scores = np.full((n, k), -np.inf, np.float32)
    indices = np.full((n, k), -1, np.int64)
    found = min(k, m)
    if n and found:
        left = np.ascontiguousarray(queries, np.float32)
        right = np.ascontiguousarray(bank, np.float32)
        faiss = _faiss()
        search = _search_blocked if faiss is None else _search_faiss
        scores[:, :found], indices[:, :found] = _ordered(*search(left, right, found))
    return TopK(scores, indices)


def _ordered(scores: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Falling scores, ties by the smaller index: FAISS's heap and ``argpartition`` leave the order open."""
    order = np.lexsort((indices, -scores), axis=1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)


def _search_faiss(queries: np.ndarray, bank: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    faiss = _faiss()
    assert faiss is not None
    index = faiss.IndexFlatIP(bank.shape[1])
    index.add(bank)
    scores, indices = index.search(queries, k)
    return scores, indices


def _search_blocked(queries: np.ndarray, bank: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of queries against blocks of the bank, the best ``k`` so far carried along."""
    n, m = len(queries), len(bank)
    scores = np.full((n, k), -np.inf, np.float32)
    indices = np.full((n, k), -1, np.int64)
    columns = min(m, 1 << 15)
    rows = max(1, _BLOCK_ENTRIES // columns)
    for start in range(0, n, rows):
        part = slice(start, start + rows)
        for first in range(0, m, columns):
            S = queries[part] @ bank[first : first + columns].T  # (rows, columns)
            width = min(k, S.shape[1])
            best = np.argpartition(-S, width - 1, axis=1)[:, :width]
            merged = np.concatenate([scores[part], np.take_along_axis(S, best, 1)], axis=1)
            names = np.concatenate([indices[part], best + first], axis=1)
            keep = np.argpartition(-merged, k - 1, axis=1)[:, :k]
            scores[part] = np.take_along_axis(merged, keep, 1)
            indices[part] = np.take_along_axis(names, keep, 1)
    return scores, indices


def _faiss() -> ModuleType | None:
    """FAISS, imported at the first search, or None where it is not installed."""
    _choose_openblas_kernel()
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _choose_openblas_kernel() -> None:
    """Name the kernel for the OpenBLAS inside FAISS's wheel, unless the user has.

    It reads ``OPENBLAS_CORETYPE`` when it is loaded. Processors that it does not know by name (AMD Zen among them in
    some builds) otherwise get a generic kernel that is several times slower.
    """
    if "OPENBLAS_CORETYPE" in os.environ:
        return
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return
    if "avx512f" in flags:
        os.environ["OPENBLAS_CORETYPE"] = "SKYLAKEX"
    elif "avx2" in flags:
        os.environ["OPENBLAS_CORETYPE"] = "HASWELL"
