r"""Evidence of vectors of one space, before any training: normalised similarity, and what a linear map adds to it.

The normalised similarity n (:func:`cleanpairs.ops.normalised_similarity.balanced`) and a ridge regression r between the
sides, on pairs of other folds, are joined as n + c r, each in deviations of its null: c is the least within two
standard errors of the largest area of observed pairs that seem right against null ones. Rate and probability come from
the null; where it shows little wrong, near null pairs are asked about the rest. Reasons: docs/methods/auto.md.
"""

from dataclasses import dataclass

import numpy as np

from cleanpairs.correspondence.agreement import Agreement, Centred, ridge
from cleanpairs.correspondence.calibration import Calibration, calibrate, positions
from cleanpairs.ops.normalised_similarity import EXACT_UP_TO, VectorPairs, balanced, cosines
from cleanpairs.ops.search import top_k

LEAST_PAIRS = 80  # of fewer nothing is known
NULLS = 4  # null pairs, for each pair
MOST_NULLS = 100_000
FOLDS = 5
LEAST_Z = 5.0  # of the rank test
WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)  # of the regression's score
NEAR_SHARE = 0.2  # of near null pairs in the yardstick
NEAR_PAIRS = 20_000  # at most
FEW_WRONG = 0.03  # share within the estimate's error
FEW_RANDOM = 0.15  # share of random wrong pairs up to which near ones can be told beside them
SETTLED = 0.98  # area of right pairs against wrong ones (docs/log.md)
APART, NEAR_APART = 0.9, 0.75  # areas, of right pairs against null ones, where near noise can be told
TAIL, LEAST_TAIL = 0.2, 0.08  # quantile of the near null, and the share of observed pairs below it
LEAST_NEAR, MOST_NEAR = 0.2, 0.5  # share that near noise is told of


def null_pairs(image_group: np.ndarray, text_group: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (K,) of images and (K,) of captions that belong to different pairs, images and texts, of N pairs."""
    n, rng = len(image_group), np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(NULLS)]
    image, text = np.concatenate(orders), np.concatenate([np.roll(order, 1) for order in orders])
    different = (image_group[image] != image_group[text]) & (text_group[image] != text_group[text])
    return image[different][:MOST_NULLS], text[different][:MOST_NULLS]


def scores_and_null(pairs: VectorPairs, kind: str, tau: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Similarities (N,) of the pairs among themselves, and of null pairs (K,); cosines where ``kind`` is empty."""
    image, text = null_pairs(pairs.image_group, pairs.text_group, seed)
    observed = cosines(pairs.images, pairs.texts).astype(np.float64)
    null = cosines(pairs.images[image], pairs.texts[text]).astype(np.float64)
    if kind:
        of_image, of_text = pairs.shared(pairs, kind=kind, tau=tau)
        observed -= (of_image + of_text) / 2
        null -= (of_image[image] + of_text[text]) / 2
    return observed, null


@dataclass(frozen=True, kw_only=True)
class SimilarityEvidence(Agreement):
    """With the ``calibration`` of ``right`` and ``wrong``; ``separation`` in [0, 1]: the estimated area of right pairs
    against wrong ones; ``correction``: the regression's weight; ``near``: wrong captions are swapped with near ones.
    """

    calibration: Calibration
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
    near = _near_pairs(texts, image_group, text_group, seed)
    pairs = VectorPairs(images, texts, image_group, text_group)
    of_image, of_text = pairs.shared(pairs) if n > EXACT_UP_TO else balanced(pairs)

    def similarity(image: np.ndarray, text: np.ndarray) -> np.ndarray:
        return np.asarray(cosines(images[image], texts[text]) - (of_image[image] + of_text[text]) / 2)

    rows = np.arange(n)
    scores = [similarity(rows, rows), similarity(*null), similarity(*near)]
    if null.shape[1] < LEAST_PAIRS or not one_space(scores[0], scores[1]):
        return None
    calibration = calibrate(scores[0], scores[1], draws=0)
    assert calibration is not None
    right = 1 - calibration.mismatched(positions(scores[0], scores[0]))
    predicted = _predicted(pairs, right, fold, [np.stack([rows, rows]), null, near])
    scores, predicted = (_in_deviations(s) for s in (scores, predicted))
    joined = [[s + c * p for s, p in zip(scores, predicted, strict=True)] for c in WEIGHTS]
    best = _least_of_the_best([right * (_above(o, c) + NEAR_SHARE * _above(o, near)) for o, c, near in joined])
    observed, against, near_score = joined[best]
    calibration = calibrate(observed, against, by_score=True, seed=seed)
    assert calibration is not None
    rate = calibration.rate
    apart = _corrected(area(observed, against), rate)
    is_near = False
    if rate < FEW_RANDOM and apart >= APART:
        found = _near(observed, near_score, against, rate, seed)
        if found is not None:
            is_near, rate, calibration = True, found.rate, found
    separation = apart if rate < FEW_WRONG else calibration.separation
    right = 1 - calibration.mismatched(positions(observed, observed))
    return SimilarityEvidence(
        observed,
        against,
        rate,
        right,
        calibration=calibration,
        separation=separation,
        correction=WEIGHTS[best],
        near=is_near,
        similar=near_score[:0] if is_near else near_score,
    )


def _near_pairs(texts: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, seed: int) -> np.ndarray:
    """(2, k): rows of images, and of the captions of other images and texts that are most like theirs."""
    some = np.sort(np.random.default_rng(seed).permutation(len(texts))[:NEAR_PAIRS])
    found = top_k(texts[some], texts, min(16, len(texts))).indices
    other = (found >= 0) & (text_group[found] != text_group[some, None])
    other &= image_group[found] != image_group[some, None]
    there = other.any(axis=1)
    return np.stack([some[there], found[there, other[there].argmax(axis=1)]])


def _predicted(pairs: VectorPairs, right: np.ndarray, fold: np.ndarray, asked: list[np.ndarray]) -> list[np.ndarray]:
    """How well captions and images of each of ``asked`` (2, k) fit what the others predict, by the image's fold."""
    image, text = (x - x.mean(axis=0) for x in (pairs.images, pairs.texts))
    out = [np.zeros(rows.shape[1]) for rows in asked]
    for flipped, (x, t) in enumerate(((image, text), (text, image))):
        compare = Centred(t)
        for f in range(FOLDS):
            others = fold != f
            map_ = ridge(x[others], t[others], right[others])
            for scores, rows in zip(out, asked, strict=True):
                of = np.flatnonzero(fold[rows[0]] == f)
                asking, shown = rows[:, of] if not flipped else rows[::-1, of]
                scores[of] += compare.standing(x[asking] @ map_, shown)
    return out


def _in_deviations(scores: list[np.ndarray]) -> list[np.ndarray]:
    mean, spread = float(scores[1].mean()), max(float(scores[1].std()), 1e-12)
    return [(s - mean) / spread for s in scores]


def area(observed: np.ndarray, null: np.ndarray) -> float:
    """The probability that an observed score is above a null one."""
    from scipy.stats import rankdata

    if not len(null):
        return 0.5
    ranks = rankdata(np.concatenate([observed, null]))[: len(observed)]
    return float((ranks.mean() - (len(observed) + 1) / 2) / len(null))


def _above(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(null), observed) / max(len(null), 1)


def _least_of_the_best(worth: list[np.ndarray]) -> int:
    """The first of several choices that is within two standard errors of the best; (n,) each, of the same n pairs."""
    best = worth[int(np.argmax([w.mean() for w in worth]))]
    behind = [best - w for w in worth]
    return next(i for i, d in enumerate(behind) if d.mean() <= 2 * d.std() / np.sqrt(len(d)))


def one_space(observed: np.ndarray, null: np.ndarray) -> bool:
    """Whether observed scores are above null ones, by the rank test of Mann and Whitney."""
    deviation = float(np.sqrt((1 / max(len(observed), 1) + 1 / max(len(null), 1)) / 12))
    return (area(observed, null) - 0.5) / deviation >= LEAST_Z


def _corrected(area: float, rate: float) -> float:
    """The area of right pairs, where this is that of observed ones, of which a share is like the null."""
    return float(np.clip((area - rate / 2) / max(1 - rate, 1e-3), 0, 1))


def _near(observed: np.ndarray, near: np.ndarray, null: np.ndarray, random: float, seed: int = 0) -> Calibration | None:
    """The calibration where captions were swapped with near ones; None where their share cannot be told from none.

    ``random``: the share of pairs that look like random ones, by ``null``, whose part of the lower tail is none of it.
    """
    if len(near) < LEAST_PAIRS:
        return None
    cut = np.quantile(near, TAIL)
    tail, null_tail = (float((s < cut).mean()) for s in (observed, null))
    share = (tail - random * null_tail) / TAIL
    if share - np.sqrt(tail / len(observed)) / TAIL < LEAST_TAIL:
        return None
    drawn = np.random.default_rng(seed).choice(null, int(len(near) * random / share))
    found = calibrate(observed, np.concatenate([near, drawn]), by_score=True, seed=seed)
    if found is None or found.rate - random < LEAST_NEAR or found.rate > MOST_NEAR:
        return None
    return found if _corrected(area(observed, near), found.rate) >= NEAR_APART else None
