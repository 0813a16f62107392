r"""What vectors of one space tell before any training: normalised similarity, and what a linear map adds to it.

The normalised similarity n (:func:`cleanpairs.ops.normalised_similarity.balanced`) and a ridge regression r between the
sides, on pairs of other folds, are joined as n + c r, each in deviations of its null. c is the least within two
standard errors of the largest area of observed pairs that seem matched against null ones. Rate and probability come
from the null. Where it shows few mismatches, near null pairs, with the captions most like theirs, tell of others.
Reasons: docs/methods/auto.md.
"""

from dataclasses import dataclass

import numpy as np

from cleanpairs.correspondence.agreement import Centred, NeighbourAgreement, ridge
from cleanpairs.correspondence.calibration import Calibration, calibrate, positions
from cleanpairs.ops.normalised_similarity import EXACT_UP_TO, VectorPairs, balanced, cosines
from cleanpairs.ops.search import top_k

LEAST_PAIRS = 80  # of fewer nothing is known


@dataclass(frozen=True)
class SimilarityNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    folds : int
        Of the regression.
    weights : tuple of float
        Of the regression's score, tried in this order.
    near_share, near_pairs : float, int
        Share of near null pairs in the comparison of these weights, and how many there are at most.
    few_wrong : float
        A noise rate within the estimate's error.
    few_random : float
        Share of random-like mismatches up to which near ones can be told beside them.
    apart, near_apart : float
        Areas of matched pairs against null ones, and against near ones, where near mismatches can be told.
    tail, least_tail : float
        A quantile of the near null, and the share of observed pairs below it that tells of near mismatches.
    least_near, most_near : float
        Noise rates that are believed of near mismatches.
    settled : float
        Area of matched pairs against mismatched ones, above which networks have next to nothing to add.
    """

    folds: int = 5
    weights: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
    near_share: float = 0.2
    near_pairs: int = 20_000
    few_wrong: float = 0.03
    few_random: float = 0.15
    apart: float = 0.9
    near_apart: float = 0.75
    tail: float = 0.2
    least_tail: float = 0.08
    least_near: float = 0.2
    most_near: float = 0.5
    settled: float = 0.98


NUMBERS = SimilarityNumbers()


def null_pairs(
    image_group: np.ndarray, text_group: np.ndarray, seed: int = 0, *, each: int = 4, most: int = 100_000
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (K,) of images and (K,) of captions that belong to different pairs, images and texts, of N pairs.

    ``each``: null pairs for each pair; ``most``: of all together.
    """
    n, rng = len(image_group), np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(each)]
    image, text = np.concatenate(orders), np.concatenate([np.roll(order, 1) for order in orders])
    different = (image_group[image] != image_group[text]) & (text_group[image] != text_group[text])
    return image[different][:most], text[different][:most]


@dataclass(frozen=True, kw_only=True)
class SimilarityAgreement(NeighbourAgreement):
    """As :class:`NeighbourAgreement`, of vectors of one space.

    Parameters
    ----------
    calibration : Calibration
        Of ``matched`` and ``noise_rate``.
    separation : float in [0, 1]
        Estimated area of matched pairs against mismatched ones.
    correction : float
        The regression's weight.
    near : bool
        Whether wrong captions are those of near pairs.
    """

    calibration: Calibration
    separation: float = 1.0
    correction: float = 0.0
    near: bool = False

    @property
    def settled(self) -> bool:
        """Whether networks that are trained on these pairs have next to nothing to add."""
        return self.near or self.separation >= NUMBERS.settled


def similarity_agreement(pairs: VectorPairs, *, seed: int = 0) -> SimilarityAgreement | None:
    """Of N pairs of unit vectors; None where they lie in no common space, or are too few to tell."""
    n, images, texts = len(pairs), pairs.images, pairs.texts
    if images.shape != texts.shape or n < LEAST_PAIRS:
        return None
    numbers = NUMBERS
    number = np.unique(pairs.image_group, return_inverse=True)[1]
    fold = np.random.default_rng(seed).permutation(n)[number] % numbers.folds
    folds = [np.flatnonzero(fold == f) for f in range(numbers.folds)]
    nulls = [
        np.stack([rows[r] for r in null_pairs(pairs.image_group[rows], pairs.text_group[rows], seed)]) for rows in folds
    ]
    null = np.concatenate(nulls, axis=1)
    near = _near_pairs(pairs, seed)
    of_image, of_text = pairs.shared(pairs) if n > EXACT_UP_TO else balanced(pairs)

    def similarity(image: np.ndarray, text: np.ndarray) -> np.ndarray:
        return np.asarray(cosines(images[image], texts[text]) - (of_image[image] + of_text[text]) / 2)

    rows = np.arange(n)
    scores = [similarity(rows, rows), similarity(*null), similarity(*near)]
    if null.shape[1] < LEAST_PAIRS or not one_space(scores[0], scores[1]):
        return None
    calibration = calibrate(scores[0], scores[1], draws=0)
    assert calibration is not None
    matched = 1 - calibration.mismatched(positions(scores[0], scores[0]))
    predicted = _predicted(pairs, matched, fold, [np.stack([rows, rows]), null, near])
    scores, predicted = (_in_deviations(s) for s in (scores, predicted))
    joined = [[s + c * p for s, p in zip(scores, predicted, strict=True)] for c in numbers.weights]
    best = _first_within_two_standard_errors(
        [matched * (_above(o, c) + numbers.near_share * _above(o, near)) for o, c, near in joined]
    )
    observed, of_null, of_near = joined[best]
    calibration = calibrate(observed, of_null, by_score=True, seed=seed)
    assert calibration is not None
    rate = calibration.rate
    apart = _corrected(area(observed, of_null), rate)
    is_near = False
    if rate < numbers.few_random and apart >= numbers.apart:
        found = _near(observed, of_near, of_null, rate, seed)
        if found is not None:
            is_near, rate, calibration = True, found.rate, found
    return SimilarityAgreement(
        observed,
        of_null,
        rate,
        1 - calibration.mismatched(positions(observed, observed)),
        calibration=calibration,
        separation=apart if rate < numbers.few_wrong else calibration.separation,
        correction=numbers.weights[best],
        near=is_near,
        similar=of_near[:0] if is_near else of_near,
    )


def _near_pairs(pairs: VectorPairs, seed: int) -> np.ndarray:
    """(2, k): rows of images, and of the captions of other images and texts that are most like theirs."""
    texts = pairs.texts
    some = np.sort(np.random.default_rng(seed).permutation(len(texts))[: NUMBERS.near_pairs])
    found = top_k(texts[some], texts, min(16, len(texts))).indices
    other = (found >= 0) & (pairs.text_group[found] != pairs.text_group[some, None])
    other &= pairs.image_group[found] != pairs.image_group[some, None]
    exists = other.any(axis=1)
    return np.stack([some[exists], found[exists, other[exists].argmax(axis=1)]])


def _predicted(pairs: VectorPairs, matched: np.ndarray, fold: np.ndarray, judged: list[np.ndarray]) -> list[np.ndarray]:
    """How well captions and images of each of ``judged`` (2, k) fit what the others predict, by the image's fold."""
    image, text = (x - x.mean(axis=0) for x in (pairs.images, pairs.texts))
    out = [np.zeros(rows.shape[1]) for rows in judged]
    for flipped, (x, t) in enumerate(((image, text), (text, image))):
        space = Centred(t)
        for f in range(NUMBERS.folds):
            others = fold != f
            map_ = ridge(x[others], t[others], matched[others])
            for scores, rows in zip(out, judged, strict=True):
                of = np.flatnonzero(fold[rows[0]] == f)
                asking, shown = rows[:, of] if not flipped else rows[::-1, of]
                scores[of] += space.standardised(x[asking] @ map_, shown)
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


def _first_within_two_standard_errors(worth: list[np.ndarray]) -> int:
    """The first of several choices that is within two standard errors of the best; (n,) each, of the same n pairs."""
    best = worth[int(np.argmax([w.mean() for w in worth]))]
    behind = [best - w for w in worth]
    return next(i for i, d in enumerate(behind) if d.mean() <= 2 * d.std() / np.sqrt(len(d)))


def one_space(observed: np.ndarray, null: np.ndarray, *, least_z: float = 5.0) -> bool:
    """Whether observed scores are above null ones, by the rank test of Mann and Whitney."""
    deviation = float(np.sqrt((1 / max(len(observed), 1) + 1 / max(len(null), 1)) / 12))
    return (area(observed, null) - 0.5) / deviation >= least_z


def _corrected(area: float, rate: float) -> float:
    """The area of matched pairs, where this is that of observed ones, of which a share is like the null."""
    return float(np.clip((area - rate / 2) / max(1 - rate, 1e-3), 0, 1))


def _near(observed: np.ndarray, near: np.ndarray, null: np.ndarray, random: float, seed: int = 0) -> Calibration | None:
    """The calibration where captions were swapped with near ones; None where their share cannot be told from none.

    ``random``: the share of pairs that look like random ones, by ``null``, whose part of the lower tail is none of it.
    """
    numbers = NUMBERS
    if len(near) < LEAST_PAIRS:
        return None
    cut = np.quantile(near, numbers.tail)
    tail, null_tail = (float((s < cut).mean()) for s in (observed, null))
    share = (tail - random * null_tail) / numbers.tail
    if share - np.sqrt(tail / len(observed)) / numbers.tail < numbers.least_tail:
        return None
    drawn = np.random.default_rng(seed).choice(null, int(len(near) * random / share))
    found = calibrate(observed, np.concatenate([near, drawn]), by_score=True, seed=seed)
    if found is None or found.rate - random < numbers.least_near or found.rate > numbers.most_near:
        return None
    return found if _corrected(area(observed, near), found.rate) >= numbers.near_apart else None
