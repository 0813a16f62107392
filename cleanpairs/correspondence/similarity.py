r"""Evidence of vectors of one space, before any training: normalised similarity, and what a linear map adds to it.

1. Whether both sides lie in one space: observed similarities are above those of null pairs (image i, caption of a
   random j) by a rank test. Equal dimensions alone say nothing.
2. n_i, the normalised similarity (:mod:`cleanpairs.ops.normalised_similarity`), and its probability p_i.
3. A ridge regression of captions on images, and the other way round, on the pairs of other folds with the weights p:
   how well t_i fits what x_i predicts, in deviations of how all captions would. It mends a space that hubs or noise
   have spoiled, and is blind to captions that were swapped with near ones.
4. Both are joined as n + c r, each in deviations of its null; c has the largest area under the ROC curve of observed
   against null pairs, where null pairs that are near (image i, the caption that is most like caption i) count a fifth:
   the yardstick asks for no label, and is of held-out folds.
5. Rate and probability from the null (:mod:`cleanpairs.correspondence.null`). Where it shows next to nothing wrong, the
   near null is asked in its place; it is believed only where right pairs are clearly apart from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from cleanpairs.correspondence.agreement import Agreement, _Compare
from cleanpairs.correspondence.null import LEAST_PAIRS, Calibration, null_pairs
from cleanpairs.ops.normalised_similarity import TAU, Background, cosines
from cleanpairs.ops.search import top_k

__all__ = ["SimilarityEvidence", "area", "one_space", "similarity_evidence"]

FOLDS = 5
LEAST_Z = 5.0  # of the rank test
WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)  # of the regression's score
NEAR_SHARE = 0.2  # of near null pairs in the yardstick
NEAR_PAIRS = 20_000  # at most
FEW_WRONG = 0.03  # share within the estimate's error: the near null is asked
SETTLED = 0.98  # area of right pairs against wrong ones (docs/log.md)
APART, NEAR_APART = 0.97, 0.8  # areas, of right pairs against null ones, where near noise can be told
LEAST_NEAR, MOST_NEAR = 0.13, 0.5


@dataclass(frozen=True)
class SimilarityEvidence(Agreement):
    """As :class:`cleanpairs.correspondence.agreement.Agreement`.

    ``separation`` in [0, 1]: the estimated area under the ROC curve of right pairs against wrong ones; ``correction``:
    the weight of the regression; ``near``: whether the wrong share is that of captions swapped with near ones.
    """

    separation: float = 1.0
    correction: float = 0.0
    near: bool = False

    @property
    def settled(self) -> bool:
        """Whether networks that are trained on these pairs have next to nothing to add."""
        return self.near or self.separation >= SETTLED


def similarity_evidence(
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    tau: float = TAU,
    seed: int = 0,
) -> SimilarityEvidence | None:
    """Evidence of N pairs of unit vectors (N, d); None where they lie in no common space, or are too few to tell.

    ``image_group``, ``text_group`` (N,) int64: equal numbers are the same image, the same text.
    """
    n = len(images)
    if images.shape != texts.shape or n < LEAST_PAIRS:
        return None
    fold = np.random.default_rng(seed).permutation(n)[np.unique(image_group, return_inverse=True)[1]] % FOLDS
    folds = [np.flatnonzero(fold == f) for f in range(FOLDS)]
    nulls = [np.stack([rows[r] for r in null_pairs(image_group[rows], text_group[rows], seed)]) for rows in folds]
    null = np.concatenate(nulls, axis=1)
    near = _near(texts, image_group, text_group, seed)
    pairs = Background(images, texts, image_group, text_group)
    of_image, of_text = pairs.shared(pairs, tau=tau)

    def similarity(image: np.ndarray, text: np.ndarray) -> np.ndarray:
        return np.asarray(cosines(images[image], texts[text]) - (of_image[image] + of_text[text]) / 2)

    rows = np.arange(n)
    scores = [similarity(rows, rows), similarity(*null), similarity(*near)]
    if null.shape[1] < LEAST_PAIRS or not one_space(scores[0], scores[1]):
        return None
    calibration = Calibration.of(scores[0], scores[1])
    assert calibration is not None
    predicted = _predicted(pairs, calibration(scores[0]), fold, [np.stack([rows, rows]), null, near])
    scores, predicted = (_in_deviations(s) for s in (scores, predicted))
    joined = [[s + c * p for s, p in zip(scores, predicted, strict=True)] for c in WEIGHTS]
    worth = [area(o, c) + NEAR_SHARE * area(o, near) for o, c, near in joined]
    best = int(np.argmax(worth))
    observed, against, near_score = joined[best]
    calibration = Calibration.of(observed, against)
    assert calibration is not None
    rate = calibration.noise_rate
    separation = _corrected(area(observed, against), rate)
    is_near = False
    if rate < FEW_WRONG and separation >= APART:
        by_near = _near_rate(observed, near_score)
        found = None if by_near is None else Calibration.of(observed, near_score, by_near)
        if found is not None:
            is_near, rate, calibration = True, found.noise_rate, found
    return SimilarityEvidence(
        observed, against, rate, calibration(observed), separation=separation, correction=WEIGHTS[best], near=is_near
    )


def _near(texts: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, seed: int) -> np.ndarray:
    """(2, k): rows of images, and of the captions of other images and texts that are most like theirs."""
    some = np.sort(np.random.default_rng(seed).permutation(len(texts))[:NEAR_PAIRS])
    found = top_k(texts[some], texts, min(16, len(texts))).indices
    other = (found >= 0) & (text_group[found] != text_group[some, None])
    other &= image_group[found] != image_group[some, None]
    there = other.any(axis=1)
    return np.stack([some[there], found[there, other[there].argmax(axis=1)]])


def _predicted(pairs: Background, right: np.ndarray, fold: np.ndarray, asked: list[np.ndarray]) -> list[np.ndarray]:
    """How well captions and images of each of ``asked`` (2, k) fit what the others predict, by the image's fold."""
    image, text = (x - x.mean(axis=0) for x in (pairs.images, pairs.texts))
    out = [np.zeros(rows.shape[1]) for rows in asked]
    for flipped, (x, t) in enumerate(((image, text), (text, image))):
        compare = _Compare.with_all(t)
        weighted = x * right[:, None].astype(np.float32)
        for f in range(FOLDS):
            others = fold != f
            gram = weighted[others].T @ x[others]
            gram += np.eye(len(gram), dtype=np.float32) * (np.trace(gram) / len(gram) + np.float32(1e-6))
            map_ = np.linalg.solve(gram, weighted[others].T @ t[others])
            for scores, rows in zip(out, asked, strict=True):
                of = np.flatnonzero(fold[rows[0]] == f)
                asking, shown = rows[:, of] if not flipped else rows[::-1, of]
                scores[of] += compare.standing(x[asking] @ map_, shown)
    return out


def _in_deviations(scores: list[np.ndarray]) -> list[np.ndarray]:
    """Observed, null and near scores, around the mean and in the deviation of the null."""
    mean, spread = float(scores[1].mean()), max(float(scores[1].std()), 1e-12)
    return [(s - mean) / spread for s in scores]


def area(observed: np.ndarray, null: np.ndarray) -> float:
    """The probability that an observed score is above a null one."""
    if not len(null):
        return 0.5
    ranks = rankdata(np.concatenate([observed, null]))[: len(observed)]
    return float((ranks.mean() - (len(observed) + 1) / 2) / len(null))


def one_space(observed: np.ndarray, null: np.ndarray) -> bool:
    """Whether observed scores are above null ones, by the rank test of Mann and Whitney."""
    deviation = float(np.sqrt((1 / max(len(observed), 1) + 1 / max(len(null), 1)) / 12))
    return (area(observed, null) - 0.5) / deviation >= LEAST_Z


def _corrected(area: float, rate: float) -> float:
    """The area of right pairs, where this is that of observed ones, of which a share is like the null."""
    return float(np.clip((area - rate / 2) / max(1 - rate, 1e-3), 0, 1))


def _near_rate(observed: np.ndarray, near: np.ndarray) -> float | None:
    """The share that was swapped with near ones; None where it cannot be told from none.

    The least of the ratios of the lower tails, each less its deviation.
    """
    if len(near) < LEAST_PAIRS:
        return None
    calibration = Calibration.of(observed, near)
    assert calibration is not None
    rate = calibration.noise_rate
    q = np.array([0.1, 0.2])  # below, the null is of captions to which none is near
    tails = np.array([(observed < cut).mean() for cut in np.quantile(near, q)])
    surely = float(((tails - np.sqrt(tails / len(observed))) / q).min())
    if surely < LEAST_NEAR or rate > MOST_NEAR or _corrected(area(observed, near), rate) < NEAR_APART:
        return None
    return rate
