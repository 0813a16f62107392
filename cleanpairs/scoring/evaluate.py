"""Retrieval recall and detection quality.

R@K, image to text: an image is a hit if any of its captions is among its K most similar texts. Text to image: a
caption is a hit if its image is among its K most similar images. Both in per cent. RSum is the sum of the six. Ties (to
within float32's rounding) and what is not finite count against us: a model that has collapsed finds nothing.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from cleanpairs.core import DataError, check_number
from cleanpairs.data.arrays import as_array, as_truths


@dataclass(frozen=True)
class Recall:
    """Share of images whose caption is among the nearest 1, 5 and 10 (i2t), and of captions (t2i), in per cent."""

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
        """Return the six recalls and ``rsum``."""
        return {**asdict(self), "rsum": self.rsum}


@dataclass(frozen=True)
class Detection:
    """How well mismatched pairs are found, from 0 to 1.

    Attributes
    ----------
    auroc, ap : float
        Area under the ROC curve, and average precision.
    precision, recall, f1 : float
        At the threshold.
    """

    auroc: float
    ap: float
    precision: float
    recall: float
    f1: float

    def to_dict(self) -> dict[str, float]:
        """Return all five figures."""
        return asdict(self)


def _owner(image_index: np.ndarray, m: int) -> np.ndarray:
    owner = np.asarray(image_index, dtype=np.int64)
    if m == 0 or not len(owner):
        raise DataError("recall needs at least one image and one caption")
    return owner


def _recall(m: int, owner: np.ndarray, own: np.ndarray, blocks: Iterable[np.ndarray]) -> Recall:
    """Of consecutive ``blocks`` (b, N) of images, by each text's ``own`` similarity (N,) float32. Counted is what is
    *not* below the right answer.
    """
    miss = np.iinfo(np.int64).max  # rank of what is no hit at any K
    rounding = np.float32(1e-6)  # of the similarity of two unit vectors. A matrix product and a sum differ by less
    rank_i, rank_t, s = np.full(m, miss), np.zeros(len(owner), np.int64), 0
    for S in blocks:
        right = owner == np.arange(s, s + len(S))[:, None]  # (b, N)
        best = np.where(right, S, -np.inf).max(axis=1)  # NaN stays
        with np.errstate(invalid="ignore"):
            above = ~(np.less(S, (best - rounding)[:, None]) | right)
            rank_t += (~(np.less(S, own - rounding) | right)).sum(axis=0)
        rank_i[s : s + len(S)] = np.where(np.isfinite(best), above.sum(axis=1), miss)
        s += len(S)
    rank_t[~np.isfinite(own)] = miss
    rank_i = rank_i[np.bincount(owner, minlength=m) > 0]
    return Recall(*(100.0 * float((rank < k).mean()) for rank in (rank_i, rank_t) for k in (1, 5, 10)))


def recall(z_image: np.ndarray, z_text: np.ndarray, image_index: np.ndarray, *, block: int = 128) -> Recall:
    """R@1, 5, 10 of M distinct images and N captions, unit vectors (M, E), (N, E) float32, ``block`` images at a time.

    ``image_index`` (N,) int64: image of each caption. Raises DataError: without any pair, or if it names no image.
    """
    owner = _owner(image_index, len(z_image))
    own = np.einsum("ij,ij->i", z_text, z_image[owner])
    blocks = (z_image[s : s + block] @ z_text.T for s in range(0, len(z_image), block))
    return _recall(len(z_image), owner, own, blocks)


def recall_of_similarity(S: np.ndarray, image_index: np.ndarray, *, block: int = 128) -> Recall:
    """Return :func:`recall` by similarities ``S`` (M, N)."""
    owner = _owner(image_index, len(S))
    own = np.asarray(S[owner, np.arange(len(owner))], dtype=np.float32)
    blocks = (np.asarray(S[s : s + block], dtype=np.float32) for s in range(0, len(S), block))
    return _recall(len(S), owner, own, blocks)


def detection(correspondence: np.ndarray, mismatched: np.ndarray, threshold: float) -> Detection:
    """Detection of mismatched pairs by low correspondence.

    Parameters
    ----------
    correspondence : (N,) float
        Scores. NaN (quarantined) pairs are left out.
    mismatched : (N,) bool
        The truth. Pairs where it is masked are left out.
    threshold : float
        Pairs below it are flagged.

    Returns
    -------
    Detection
        AUROC and AP are NaN when all pairs are alike in truth. Where nothing is mismatched, all figures are. Where
        nothing is flagged, the precision is.

    Raises
    ------
    ConfigError
        The threshold is no number.
    DataError
        The truths are not as many, or not True or False.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    check_number("detection", "threshold", threshold)
    if np.shape(mismatched) != np.shape(correspondence):
        raise DataError(f"{np.shape(correspondence)} scores need as many truths, found {np.shape(mismatched)}")
    y, (truth, unknown) = as_array("scores", correspondence, float), as_truths(mismatched)
    usable = np.isfinite(y) & ~unknown
    y, truth = y[usable], truth[usable]
    if not truth.any():
        return Detection(*[float("nan")] * 5)
    flagged = y < threshold
    hit, found, wrong = int((flagged & truth).sum()), int(flagged.sum()), int(truth.sum())
    auroc = ap = float("nan")
    precision = hit / found if found else float("nan")
    if not truth.all():
        auroc, ap = float(roc_auc_score(truth, -y)), float(average_precision_score(truth, -y))
    return Detection(auroc, ap, precision, hit / wrong, 2 * hit / (found + wrong))
