"""Retrieval recall and detection quality.

R@K, image to text: an image is a hit if any of its captions is among its K most similar texts. Text to image: a
caption is a hit if its image is among its K most similar images. Both in per cent; rSum is the sum of the six (R@1,
R@5, R@10, both ways), 600 at most. Ties count against us: an equal similarity (to within float32's rounding, which
depends on how it was summed) ranks before the right one, and so does anything that is not finite. A model that has
collapsed to one vector or diverged thus finds nothing, instead of everything.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from cleanpairs.errors import DataError

__all__ = ["Detection", "Recall", "detection", "recall", "recall_of_similarity"]

ROUNDING = 1e-6  # of the similarity of two unit vectors in float32; a matrix product and a sum differ by less


@dataclass(frozen=True)
class Recall:
    """Recall in per cent, both directions."""

    i2t_r1: float
    i2t_r5: float
    i2t_r10: float
    t2i_r1: float
    t2i_r5: float
    t2i_r10: float

    @property
    def rsum(self) -> float:
        """Sum of the six recalls, at most 600."""
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, float]:
        """The six recalls and ``rsum``."""
        return {**asdict(self), "rsum": self.rsum}


@dataclass(frozen=True)
class Detection:
    """How well mismatched pairs are found; ``precision``, ``recall`` and ``f1`` at the threshold, 0 to 1."""

    auroc: float
    ap: float
    precision: float
    recall: float
    f1: float

    def to_dict(self) -> dict[str, float]:
        """All five figures."""
        return asdict(self)


@torch.inference_mode()
def recall(z_image: np.ndarray, z_text: np.ndarray, image_index: np.ndarray, *, block: int = 1024) -> Recall:
    """R@1, 5, 10 of M images and N captions, by counting the more similar ones; no sort, bounded memory.

    Parameters
    ----------
    z_image : (M, E) float32
        Unit vectors of the distinct images.
    z_text : (N, E) float32
        Unit vectors of the captions.
    image_index : (N,) int64
        Image of each caption.

    Raises
    ------
    DataError
        Without any pair.
    """
    m, n = len(z_image), len(z_text)
    if m == 0 or n == 0:
        raise DataError("recall needs at least one image and one caption")
    zi, zt = torch.from_numpy(z_image), torch.from_numpy(z_text)
    owner = torch.from_numpy(np.asarray(image_index, dtype=np.int64))
    own = torch.empty(n)  # similarity of each caption to its own image
    for s in range(0, n, block):
        own[s : s + block] = (zt[s : s + block] * zi[owner[s : s + block]]).sum(1)
    best = torch.full((m,), float("-inf")).scatter_reduce(0, owner, own, "amax")  # best own caption of an image

    rank_t = np.empty(n, dtype=np.int64)
    for s in range(0, n, block):
        sim = zt[s : s + block] @ zi.T  # (b, M)
        mine = owner[s : s + block]
        sim[torch.arange(len(mine)), mine] = float("-inf")
        rank_t[s : s + block] = (~(sim < own[s : s + block, None] - ROUNDING)).sum(1).numpy()
    has_caption = np.bincount(owner.numpy(), minlength=m) > 0
    rank_i = np.empty(m, dtype=np.int64)
    for s in range(0, m, block):
        sim = zi[s : s + block] @ zt.T  # (b, N)
        theirs = owner[None, :] == torch.arange(s, min(s + block, m))[:, None]
        sim[theirs] = float("-inf")
        rank_i[s : s + block] = (~(sim < best[s : s + block, None] - ROUNDING)).sum(1).numpy()
    rank_i = rank_i[has_caption]
    i2t = [100.0 * float((rank_i < k).mean()) for k in (1, 5, 10)]
    t2i = [100.0 * float((rank_t < k).mean()) for k in (1, 5, 10)]
    return Recall(*i2t, *t2i)


def recall_of_similarity(S: np.ndarray, image_index: np.ndarray) -> Recall:
    """R@1, 5, 10 of M images and N captions, for models whose similarity is no dot product.

    Parameters
    ----------
    S : (M, N) float32
        Similarities.
    image_index : (N,) int64
        Image of each caption.

    Raises
    ------
    DataError
        Without any pair.
    """
    m, n = S.shape
    if m == 0 or n == 0:
        raise DataError("recall needs at least one image and one caption")
    owner = np.asarray(image_index, dtype=np.int64)
    own = S[owner, np.arange(n)]  # (N,)
    best = np.full(m, -np.inf, dtype=S.dtype)
    np.maximum.at(best, owner, own)
    theirs = owner[None, :] == np.arange(m)[:, None]  # (M, N)
    rank_t = (~(own[None, :] - ROUNDING > S) & ~theirs).sum(axis=0)
    rank_i = (~(best[:, None] - ROUNDING > S) & ~theirs).sum(axis=1)[np.bincount(owner, minlength=m) > 0]
    i2t = [100.0 * float((rank_i < k).mean()) for k in (1, 5, 10)]
    t2i = [100.0 * float((rank_t < k).mean()) for k in (1, 5, 10)]
    return Recall(*i2t, *t2i)


def detection(correspondence: np.ndarray, mismatched: np.ndarray, threshold: float) -> Detection:
    """Detection of mismatched pairs by low correspondence.

    Parameters
    ----------
    correspondence : (N,) float in [0, 1]
        NaN (quarantined) pairs are left out.
    mismatched : (N,) bool
        The truth.
    threshold : float
        Pairs below it are flagged.

    Returns
    -------
    Detection
        AUROC and AP are NaN when all pairs are alike in truth.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    usable = np.isfinite(correspondence)
    y, truth = np.asarray(correspondence)[usable], np.asarray(mismatched, dtype=bool)[usable]
    flagged = y < threshold
    hit = int((flagged & truth).sum())
    precision = hit / max(int(flagged.sum()), 1)
    found = hit / max(int(truth.sum()), 1)
    f1 = 2 * precision * found / max(precision + found, 1e-12)
    mixed = bool(truth.any()) and not bool(truth.all())
    auroc = float(roc_auc_score(truth, -y)) if mixed else float("nan")
    ap = float(average_precision_score(truth, -y)) if mixed else float("nan")
    return Detection(auroc, ap, precision, found, f1)
