"""Bidirectional matching probability of a similarity matrix.

    P_ij = exp(S_ij / tau) / sum_l exp(S_il / tau)        image i to text j   (CRCL eq. 3)
    Q_ij = exp(S_ij / tau) / sum_l exp(S_lj / tau)        text j to image i
    p_i  = (P_ii + Q_ii) / 2                              matching probability of pair i

Excluded negatives (duplicates of the pair's own image or text) take no part in either sum.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class LogProbabilities(NamedTuple):
    """(B, B) each, of exponentials whose rows, and whose columns, sum to one."""

    log_p: Tensor  # image to text
    log_q: Tensor  # text to image


def duplicate_mask(image_group: Tensor, text_group: Tensor) -> Tensor | None:
    """Which off-diagonal entries (B, B) share the image or the text, by groups (B,) int64. None if none does."""
    same = image_group[:, None] == image_group[None, :]  # (B, B)
    same |= text_group[:, None] == text_group[None, :]
    same.fill_diagonal_(False)
    return same if bool(same.any()) else None


def no_negatives(S: Tensor, excluded: Tensor | None) -> Tensor:
    """Which entries of S (B, B) are no negatives: the diagonal, and those ``excluded``."""
    diagonal = torch.eye(len(S), dtype=torch.bool, device=S.device)
    return diagonal if excluded is None else diagonal | excluded


def log_probabilities(S: Tensor, tau: float, excluded: Tensor | None = None) -> LogProbabilities:
    """Log-softmax of ``S / tau`` (B, B) along both directions. Entries ``excluded``, never the diagonal, are -inf."""
    logits = S / tau  # (B, B)
    if excluded is not None:
        logits = logits.masked_fill(excluded, float("-inf"))
    return LogProbabilities(logits.log_softmax(dim=1), logits.log_softmax(dim=0))


def matching_probability(S: Tensor, tau: float, excluded: Tensor | None = None) -> Tensor:
    """Return p_i = (P_ii + Q_ii) / 2 of a batch: (B,) in [0, 1]. No gradient flows through it."""
    with torch.no_grad():
        log = log_probabilities(S, tau, excluded)
        return (log.log_p.diagonal().exp() + log.log_q.diagonal().exp()) / 2


def as_floats(x: np.ndarray) -> np.ndarray:
    """A copy of an array as float32. NumPy takes four times as long for halves as PyTorch."""
    if x.dtype != np.float16:
        return np.array(x, np.float32)
    return np.asarray(torch.from_numpy(np.require(x, np.float16, "W")).float())


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1. Zero rows, and those that are not finite (the reader quarantines them), become zero."""
    x = as_floats(x)
    length = np.sqrt(np.einsum("nd,nd->n", x, x))
    odd = np.flatnonzero(~((length > 1e-12) & (length < np.inf)))  # float32 cannot square them, or they are zero
    exact = x[odd].astype(np.float64)
    length[odd] = 1
    size = np.sqrt(np.einsum("nd,nd->n", exact, exact))
    scalable = (size > 0) & np.isfinite(size)
    x[odd] = np.divide(exact, size[:, None], out=np.zeros_like(exact), where=scalable[:, None])
    return np.divide(x, length[:, None], out=x)


def token_counts(ids: np.ndarray, offsets: np.ndarray, most: int) -> Any:
    """Sparse (n, most) float32: how often each of n sequences ``ids[offsets[i]:offsets[i + 1]]`` has each number."""
    from scipy.sparse import csr_array

    ones = np.ones(len(ids), np.float32)
    counts = csr_array((ones, ids, offsets), shape=(len(offsets) - 1, most), copy=True)  # summed in place
    counts.sum_duplicates()
    return counts


def places(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The place of each of ``wanted``, of any shape, in ``known`` (n,) of distinct entries. -1 where it has none."""
    if not len(known):
        return np.full(wanted.shape, -1)
    order = np.argsort(known, kind="stable")
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, order[at], -1)
