r"""Agreement of vectors of one space before any training: normalised similarity, and what a linear map adds to it.

The score of a pair is n + c r. n is the normalised similarity (:func:`cleanpairs.ops.normalised_similarity.balanced`).
r is the cosine with what a ridge regression between the sides predicts, which was fitted to other folds. Each is in
standard deviations over null pairs. These are random wrong pairs.

- The balanced part of n has the larger weight, the more mismatched pairs have their right partners in the data.
- c is the smallest weight whose AUC is within two standard errors of the largest. The AUC compares pairs that seem
  matched with null pairs.
- Null pairs calibrate the noise rate and the probabilities. Those that resemble mismatched pairs count more.
- If few pairs look like null pairs, *near* null pairs are asked, too. Their captions are the most similar ones of other
  images. They tell captions that were exchanged with similar ones.

Reasons: docs/methods/auto.md.

All pairs are compared with each other, up to some thousand. Of more pairs a sample is compared, and the result scores
the others one by one, as it scores pairs of other data (:class:`SimilarityModel`). Some of these others calibrate it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cleanpairs.core import one_thread
from cleanpairs.core.plain import part_of
from cleanpairs.correspondence.agreement import Centred, NeighbourAgreement, products, solved
from cleanpairs.correspondence.calibration import Calibration, ScoreProbability, calibrate, cautious, positions
from cleanpairs.correspondence.pair_probability import mixture_share
from cleanpairs.ops.mapped import blocks, release
from cleanpairs.ops.matching import places, unit_rows
from cleanpairs.ops.normalised_similarity import Background, VectorPairs, cosines
from cleanpairs.ops.search import top_k

LEAST_PAIRS = 80  # of fewer nothing is known


@dataclass(frozen=True)
class SimilarityNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    exact : int
        So many pairs are compared with each other. If there are more, all are compared with a sample of this size.

    others : int
        So many other pairs calibrate at most, where there is such a sample.

    folds : int
        Folds of the regression.

    weights : tuple of float
        Weights of the regression's score, tried in this order.

    directions : int
        Main directions of a side's vectors by which its mismatched pairs are told from others.

    near_share : float
        Share of near null pairs in the comparison of these weights.

    few_wrong : float
        A noise rate within the estimate's error.

    few_random : float
        Largest share of random-like mismatches with which near ones can be detected.

    apart, near_apart : float
        Least areas under the curve of matched pairs against null ones, and against near ones, where near mismatches
        can be detected.

    tail, least_tail : float
        A quantile of the near null, and the least share of near mismatches that the pairs below it must show.

    least_near, most_near : float
        Least share of near mismatches whose right partners are not found, and the largest noise rate.

    settled, weak : float
        Above the first area of matched pairs against mismatched ones, networks add next to nothing. Below the second,
        some matched pairs score as low as mismatched ones.
    """

    exact: int = 8192
    others: int = 32_768
    folds: int = 5
    weights: tuple[float, ...] = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)
    directions: int = 2
    near_share: float = 0.2
    few_wrong: float = 0.03
    few_random: float = 0.15
    apart: float = 0.9
    near_apart: float = 0.75
    tail: float = 0.2
    least_tail: float = 0.03
    least_near: float = 0.2
    most_near: float = 0.5
    settled: float = 0.98
    weak: float = 0.97


NUMBERS = SimilarityNumbers()


def null_pairs(
    image_group: np.ndarray, text_group: np.ndarray, seed: int = 0, *, each: int = 4, most: int = 100_000
) -> tuple[np.ndarray, np.ndarray]:
    """Draw random wrong pairs.

    Parameters
    ----------
    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.
    seed : int
        Seed of the draw.
    each : int
        Wrong pairs for each pair.
    most : int
        Most of all.

    Returns
    -------
    (K,) int64, (K,) int64
        Rows of images, and of captions of other images and texts.
    """
    n, rng = len(image_group), np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(each)]
    image, text = np.concatenate(orders), np.concatenate([np.roll(order, 1) for order in orders])
    different = (image_group[image] != image_group[text]) & (text_group[image] != text_group[text])
    return image[different][:most], text[different][:most]


def weights_by_twins(
    image_group: np.ndarray, text_group: np.ndarray, captions: np.ndarray, matched: np.ndarray
) -> np.ndarray:
    """Weights of pairs that are known to be mismatched, by which copied captions are as frequent as among all of these.

    Parameters
    ----------
    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.
    captions : (m,) int64
        Whose caption each of them has.
    matched : (N,) float
        Probability of a match.

    Returns
    -------
    (m,) float
        Weights with the mean 1. All are 1 where fewer than 10 of their captions have several images, or one.

    Notes
    -----
    Where captions are copied, most mismatched pairs have a caption of several images, and score lower than others.
    """
    captioned = np.unique(np.stack([text_group, image_group]), axis=1)[0]  # the caption of each image once
    texts, images = np.unique(captioned, return_counts=True)
    several = images[np.searchsorted(texts, text_group)] > 1
    of_known, prior = several[captions], 10
    if min(of_known.sum(), (~of_known).sum()) < prior:
        return np.ones(len(captions))
    share = ((1 - matched) @ several + prior * several.mean()) / ((1 - matched).sum() + prior)
    return np.where(of_known, share / of_known.mean(), (1 - share) / (1 - of_known.mean()))


@dataclass(frozen=True, kw_only=True)
class SimilarityAgreement(NeighbourAgreement):
    """A :class:`NeighbourAgreement` of vectors of one space.

    Parameters
    ----------
    calibration : Calibration
        What ``matched`` and ``noise_rate`` come from.

    separation : float in [0, 1]
        Estimated area of matched pairs against mismatched ones.

    near : bool
        Whether wrong captions are those of near pairs.

    model : SimilarityModel
        What scores other pairs of this space.
    """

    calibration: Calibration
    model: "SimilarityModel"
    separation: float = 1.0
    near: bool = False

    def of_all(self, observed: np.ndarray, matched: np.ndarray) -> "SimilarityAgreement":
        """Of N pairs of which these are a sample, by their scores and P(matched) (N,)."""
        rate, known = float(1 - matched.mean()), self.calibration
        if cautious(known, len(self.observed)) is None:
            known = known.moved(rate)
        return replace(self, observed=observed, noise_rate=rate, matched=matched, calibration=known)

    @property
    def settled(self) -> bool:
        """Whether networks that are trained on these pairs have next to nothing to add."""
        return self.near or self.separation >= NUMBERS.settled


@dataclass(frozen=True)
class SimilarityModel:
    """P(matched) of single pairs of one space, by pairs that are known.

    Parameters
    ----------
    background : Background
        The pairs with which a pair is compared.

    maps : (2, d, d) float32
        From images to captions and back, less the ``means``.

    means : (2, d) float32
        Means of images and of captions.

    covariances : (2, d, d) float32
        Covariances of images and of captions.

    scales : (2, 2) float
        Mean and deviation of the null, of similarity and of regression.

    correction : float
        The regression's weight.

    of_score : ScoreProbability
        Probabilities by the sum of both.

    known : (m,) float
        P(matched) of the background's own pairs, which the maps have seen.
    """

    background: Background
    maps: np.ndarray
    means: np.ndarray
    covariances: np.ndarray
    scales: np.ndarray
    correction: float
    of_score: ScoreProbability
    known: np.ndarray

    def __call__(self, pairs: VectorPairs) -> np.ndarray:
        """P(matched) (n,) float32 of n pairs of unit vectors."""
        return self.judge(pairs, self.scores(pairs))

    def score_pairs(
        self, images: Any, texts: Any, image_group: np.ndarray, text_group: np.ndarray,
        image_of: np.ndarray | None = None, text_of: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """P(matched) (e,) float32 of e pairs of embeddings. The arguments are those of a bank
        (:class:`cleanpairs.scoring.Bank`).
        """
        image_of, text_of = (np.arange(len(images)) if given is None else given for given in (image_of, text_of))
        out = np.empty(len(image_of), np.float32)
        for rows in blocks(len(out), 4096):
            i, t = image_of[rows], text_of[rows]
            out[rows] = self(VectorPairs(images.vectors[i], texts.vectors[t], image_group[i], text_group[t]))
        return out

    def judge(self, pairs: VectorPairs, scores: np.ndarray) -> np.ndarray:
        """P(matched) (n,) float32 of n pairs by their :meth:`scores`. The background's own pairs keep theirs."""
        own = places(_numbers(self.background.pairs), _numbers(pairs))
        return np.where(own < 0, self.of_score(scores), self.known[own]).astype(np.float32)

    def scores(
        self, pairs: VectorPairs, sums: np.ndarray | None = None, image: Any = slice(None), text: Any = slice(None)
    ) -> np.ndarray:
        """Similarity and regression (k,) float64 of images and texts in rows (k,) of n pairs of unit vectors, in
        deviations of the null. ``sums``: as :meth:`Background.sums` of the pairs.
        """
        score = (self.background.similarity(pairs, sums, image, text) - self.scales[0, 0]) / self.scales[0, 1]
        if self.correction:
            sides, at = (pairs.images - self.means[0], pairs.texts - self.means[1]), (image, text)
            both = zip(sides, sides[::-1], at, at[::-1], self.maps, self.covariances[::-1], strict=True)
            found = sum(cosines(_in_spread(x @ map_, C)[i], t[j]) for x, t, i, j, map_, C in both)
            score += self.correction * (found - self.scales[1, 0]) / self.scales[1, 1]
        return np.asarray(score)

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays of the model, by name."""
        found = {f"background.{name}": value for name, value in vars(self.background.pairs).items()}
        found |= {f"of_score.{name}": np.atleast_1d(value) for name, value in vars(self.of_score).items()}
        found["potentials"] = self.background.potentials
        own = ("maps", "means", "covariances", "scales", "correction", "known")
        return found | {name: np.atleast_1d(getattr(self, name)) for name in own}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "SimilarityModel":
        """The model that :meth:`arrays` stored."""
        of_score = part_of(arrays, "of_score.")
        rate = float(of_score.pop("noise_rate")[0])
        return cls(
            background=Background(VectorPairs(**part_of(arrays, "background.")), arrays["potentials"]),
            correction=float(arrays["correction"][0]),
            of_score=ScoreProbability(rate, **of_score),
            **{name: arrays[name] for name in ("maps", "means", "covariances", "scales", "known")},
        )


def _numbers(pairs: VectorPairs) -> np.ndarray:
    """A number (n,) int64 for each pair. Pairs with the same image and the same text have the same number."""
    return np.asarray(pairs.image_group * np.int64(1_000_003) + pairs.text_group)


def _in_spread(c: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Vectors (n, d) in deviations of their products with those of a covariance (d, d)."""
    return np.asarray(c / np.sqrt(np.maximum(np.einsum("ij,ij->i", c @ covariance, c), 1e-20))[:, None])


def similarity_agreement(pairs: VectorPairs, *, seed: int = 0) -> SimilarityAgreement | None:
    """Agreement of pairs of vectors that may lie in one space. See the module's head.

    Parameters
    ----------
    pairs : VectorPairs
        N pairs. Vectors have any length.
    seed : int
        Seed of folds, null pairs and samples.

    Returns
    -------
    SimilarityAgreement or None
        None where they lie in no common space, or are too few.
    """
    n = len(pairs)
    if pairs.images.shape != pairs.texts.shape or n < LEAST_PAIRS:
        return None
    if n <= NUMBERS.exact:
        return _agreement(unit_pairs(pairs), seed)
    order = np.random.default_rng(seed).permutation(n)
    rows, more, _ = map(np.sort, np.split(order, [NUMBERS.exact, NUMBERS.exact + NUMBERS.others]))
    found = _agreement(unit_pairs(pairs.take(rows)), seed, sample=True)
    if found is None:
        return None
    observed = np.empty(n)
    observed[rows] = found.observed
    if len(more) >= NUMBERS.exact / 2 and not found.near:
        found, observed[more] = _calibrated(found, unit_pairs(pairs.take(more)), seed)
        rows = np.concatenate([rows, more])
    others = np.setdiff1d(np.arange(n), rows)
    for at in blocks(len(others), 4096):
        block = others[at]
        observed[block] = found.model.scores(unit_pairs(pairs.take(block)))
        release(pairs.images, pairs.texts)
    matched = found.model.judge(pairs, observed).astype(np.float64)
    return found.of_all(observed, matched)


@one_thread()
def _calibrated(found: SimilarityAgreement, pairs: VectorPairs, seed: int) -> tuple[SimilarityAgreement, np.ndarray]:
    """What was ``found`` of a sample, calibrated by m other pairs, and their scores (m,).

    The balance suits the sample's own pairs, so they score a little higher than all others.
    """
    model, sums = found.model, found.model.background.sums(pairs)
    null = np.stack(null_pairs(pairs.image_group, pairs.text_group, seed))
    scores, of_null = model.scores(pairs, sums), model.scores(pairs, sums, *null)
    sides = [Centred(side) for side in (pairs.images, pairs.texts)]
    weight = _likely_mismatched(pairs, sides, null, scores, of_null, model.of_score(scores))
    calibration = calibrate(scores, of_null, weight=weight, by_score=True, weak=NUMBERS.weak, seed=seed)
    assert calibration is not None
    of_score = ScoreProbability.from_calibration(cautious(calibration, len(pairs)) or calibration, scores)
    return replace(found, calibration=calibration, model=replace(model, of_score=of_score)), scores


def unit_pairs(pairs: VectorPairs) -> VectorPairs:
    """The pairs with vectors of length 1."""
    return replace(pairs, images=unit_rows(pairs.images), texts=unit_rows(pairs.texts))


@one_thread()
def _agreement(pairs: VectorPairs, seed: int, sample: bool = False) -> SimilarityAgreement | None:
    """Agreement of N pairs of unit vectors, each compared with all others.

    A mismatched pair scores lower if another pair has its right partner. So a share of the null pairs is scored with
    their right partners among the others. This share is a lower bound, see :func:`_share_present`.
    ``sample``: they are a sample of more pairs. Each is scored as the rest will be, added alone to the others.
    """
    fold, null = _folds_and_null(pairs, seed)
    background, rows = Background.of(pairs), np.arange(len(pairs))
    judged = (np.stack([rows, rows]), null, _near_pairs(pairs))
    without, among = background.others_and_all  # where a pair is added, its image and its caption are not there
    alone = [background.similarity(pairs, without, *each) for each in judged]
    beside = alone if sample else [_within(pairs, background.shared.mean(axis=0), *each) for each in judged]
    if null.shape[1] < LEAST_PAIRS or not (one_space_by_cosine(pairs, null) if sample else one_space(*beside[:2])):
        return None
    calibration = calibrate(beside[0], beside[1], draws=0)
    assert calibration is not None
    matched = 1 - calibration.mismatched(positions(beside[0], beside[0]))
    share = 0.0 if sample else _share_present(pairs, background, matched, 1 - matched)
    shared = np.average(background.shared, axis=0, weights=[1 - share, 1 + share])
    scores = alone if sample else [_within(pairs, shared, *each) for each in judged]
    maps, predicted = _predicted(pairs, matched, fold, list(judged))
    scales = np.stack([_scale(each[1]) for each in (alone, predicted)])
    (mean, spread), (mean_of_map, spread_of_map) = _scale(scores[1]), scales[1]
    scores, predicted = [(s - mean) / spread for s in scores], [(p - mean_of_map) / spread_of_map for p in predicted]
    joined = [[s + c * p for s, p in zip(scores, predicted, strict=True)] for c in NUMBERS.weights]
    worth = [matched * (_above(o, c) + NUMBERS.near_share * _above(o, like)) for o, c, like in joined]
    best = first_within_standard_errors(worth, errors=2)
    observed, null_scores, near_scores = joined[best]
    near_scores = near_scores[matched[judged[2]].min(axis=0) > 0.5]  # what is like a wrong caption is random, or right
    correction, sides = NUMBERS.weights[best], [Centred(side) for side in (pairs.images, pairs.texts)]
    added, absent, present = (
        (s - scales[0, 0]) / scales[0, 1] + correction * predicted[k]
        for s, k in ((alone[0], 0), (alone[1], 1), (background.similarity(pairs, among, *null), 1))
    )
    weight = _likely_mismatched(pairs, sides, null, added, absent, matched)
    calibration = _by_null(added, absent, present, weight, share, seed)
    random = calibration if sample else calibrate(observed, null_scores, weight=weight, by_score=True, draws=0)
    assert calibration is not None and random is not None
    apart = _corrected(area(observed, null_scores), random.rate)
    near = _near(observed, near_scores, null_scores, random.rate, seed) if apart >= NUMBERS.apart else None
    judge = cautious(calibration, len(pairs)) or calibration
    if near is None or not _are_near(near, calibration, judge, pairs, background, observed, added):
        near = None
    else:
        calibration, judge = near, cautious(near, len(pairs)) or near
    matched = 1 - judge.mismatched(positions(observed, observed))
    means, covariances = np.stack([side.mean for side in sides]), np.stack([side.covariance for side in sides])
    probability = ScoreProbability.from_calibration(judge, added)
    model = SimilarityModel(background, maps, means, covariances, scales, correction, probability, matched)
    known = observed, null_scores, calibration.rate, matched
    separation = apart if calibration.rate < NUMBERS.few_wrong else calibration.separation
    similar = near_scores if near is None else near_scores[:0]
    return SimilarityAgreement(
        *known, calibration=calibration, model=model, separation=separation, near=near is not None, similar=similar
    )


def _are_near(
    near: Calibration, random: Calibration, judge: Calibration, pairs: VectorPairs, background: Background,
    observed: np.ndarray, added: np.ndarray,
) -> bool:  # fmt: skip
    """Whether what ``near`` finds are near mismatches. Captions of images that are not in the data look like them.

    ``random`` and its ``judge`` find random mismatches, by the scores ``added`` (N,).
    """
    rate = random.noise_rate(len(pairs)).determined()
    mismatched = near.mismatched(positions(observed, observed))
    found = np.maximum(mismatched - judge.mismatched(positions(added, added)), 0)
    exchanged = _share_present(pairs, background, 1 - mismatched, found) > 0.5
    few = rate.value < NUMBERS.few_random and near.rate > rate.value + NUMBERS.least_near
    return (exchanged or few) and not near.rate <= rate.high


def _folds_and_null(pairs: VectorPairs, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The fold (N,) of each pair, by its image. Null pairs (2, K), both of one fold."""
    number = np.unique(pairs.image_group, return_inverse=True)[1]
    fold = np.random.default_rng(seed).permutation(len(pairs))[number] % NUMBERS.folds
    nulls = []
    for rows in (np.flatnonzero(fold == f) for f in range(NUMBERS.folds)):
        both = null_pairs(pairs.image_group[rows], pairs.text_group[rows], seed)
        nulls.append(np.stack([rows[side] for side in both]))
    return fold, np.concatenate(nulls, axis=1)


def _likely_mismatched(
    pairs: VectorPairs, sides: list[Centred], null: np.ndarray, scores: np.ndarray, null_scores: np.ndarray,
    matched: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Weights (K,) of null pairs (2, K): those of :func:`weights_by_twins`, times how likely their images and captions
    are those of mismatched pairs.

    Least squares fit P(mismatched) to the main directions of a side, and to the spread of its cosines with all of the
    other side. The weight is this fit, divided by that of null pairs. So null pairs of a noisy source count more, where
    sources differ in noise and in difficulty.
    """
    likely = weights_by_twins(pairs.image_group, pairs.text_group, null[1], matched)
    calibration = calibrate(scores, null_scores, weight=likely, by_score=True, draws=0)
    assert calibration is not None
    mismatched, of_null = (calibration.mismatched(positions(each, scores)) for each in (scores, null_scores))
    for own, other, rows in zip(sides, sides[::-1], null, strict=True):
        main = own.vectors @ np.linalg.eigh(own.covariance)[1][:, -NUMBERS.directions :]
        x = np.column_stack([np.ones(len(main)), other.spread(own.given), main])
        fitted, expected = x @ np.linalg.lstsq(x, mismatched)[0], x @ np.linalg.lstsq(x[rows], of_null)[0]
        likely *= np.clip(fitted / np.maximum(expected, 0.1), mismatched.mean() / 10, 1)[rows]
    return np.asarray(likely / likely.mean())


def _by_null(
    scores: np.ndarray, absent: np.ndarray, present: np.ndarray, weight: np.ndarray, share: float, seed: int
) -> Calibration | None:
    """Calibrate by null pairs (K,) with weights. A ``share`` of them has its scores with right partners ``present``."""
    null = absent
    if share:
        null, weight = np.append(absent, present), 2 * np.append((1 - share) * weight, share * weight)
    return calibrate(scores, null, weight=weight, by_score=True, weak=NUMBERS.weak, seed=seed)


def _within(pairs: VectorPairs, shared: np.ndarray, image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """Similarity (k,) of images and captions in rows (k,), by what their sides share with all, (2, N)."""
    return np.asarray(cosines(pairs.images[image], pairs.texts[text]) - (shared[0, image] + shared[1, text]) / 2)


def _share_present(pairs: VectorPairs, background: Background, matched: np.ndarray, weight: np.ndarray) -> float:
    """A lower bound of the share of mismatched pairs whose right partners are in other mismatched pairs.

    It is a mixture of two kinds of captions, by their largest similarity to an image of a mismatched pair. Captions of
    matched pairs show this similarity for both kinds: without their own image among those, and with it. Images are
    treated alike. ``weight`` (N,) says how much each mismatched pair counts.
    """
    wrong, right = np.flatnonzero(matched < 0.5), np.flatnonzero(matched >= 0.5)
    if not len(wrong) or not len(right):
        return 0.0
    without, own = (background.tau / 2 * np.tensordot([0.5, 1], sums, (0, 1)) for sums in background.others_and_all)
    found = []
    for side, (queries, others, group, other_group) in enumerate(pairs.sides(pairs)):
        rival, of_other = np.empty(len(pairs)), own[1 - side]
        for block in blocks(len(pairs), 1024):
            S = queries[block] @ others[wrong].T - of_other[wrong]
            S[group[block, None] == other_group[wrong]] = -np.inf
            rival[block] = S.max(axis=1)
        paired = cosines(queries[right], others[right]) - of_other[right]
        there = np.maximum(rival[right], paired) - own[side, right]
        found.append(((rival - without[side])[right], there, (rival - own[side])[wrong]))
    absent, there, mixed = (np.concatenate(each) for each in zip(*found, strict=True))
    return mixture_share(absent, there, mixed, np.tile(weight[wrong], 2))[1]


def _scale(scores: np.ndarray) -> np.ndarray:
    """Mean and standard deviation of values."""
    return np.array([float(scores.mean()), max(float(scores.std()), 1e-12)])


def _near_pairs(pairs: VectorPairs) -> np.ndarray:
    """Rows (2, k) of images, and of the captions that are most similar to theirs, of other images and other texts."""
    texts, some = pairs.texts, np.arange(len(pairs))
    found = top_k(texts, texts, min(16, len(texts))).indices
    other = (found >= 0) & (pairs.text_group[found] != pairs.text_group[some, None])
    other &= pairs.image_group[found] != pairs.image_group[some, None]
    exists = other.any(axis=1)
    return np.stack([some[exists], found[exists, other[exists].argmax(axis=1)]])


def _predicted(
    pairs: VectorPairs, matched: np.ndarray, fold: np.ndarray, judged: list[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The maps (2, d, d) of all pairs, from images to captions and back.

    And how well captions and images of each of ``judged`` (2, k) fit what the others predict, by the image's fold.
    """
    image, text = (x - x.mean(axis=0) for x in (pairs.images, pairs.texts))
    out, maps = [np.zeros(rows.shape[1]) for rows in judged], []
    for flipped, (x, t) in enumerate(((image, text), (text, image))):
        space = Centred(t)
        parts = [products(x[fold == f], t[fold == f], matched[fold == f]) for f in range(NUMBERS.folds)]
        total = [np.sum(each, axis=0) for each in zip(*parts, strict=True)]
        maps.append(solved(*total))
        for f, part in enumerate(parts):
            map_ = solved(*(whole - own for whole, own in zip(total, part, strict=True)))
            of = [np.flatnonzero(fold[rows[0]] == f) for rows in judged]
            asked = [rows[:: -1 if flipped else 1, at] for rows, at in zip(judged, of, strict=True)]
            known = np.unique(np.concatenate([queries for queries, _ in asked]))
            predicted = space.scaled(x[known] @ map_)
            for scores, at, (queries, targets) in zip(out, of, asked, strict=True):
                scores[at] += cosines(predicted[np.searchsorted(known, queries)], space.vectors[targets])
    return np.stack(maps), out


def area(observed: np.ndarray, null: np.ndarray) -> float:
    """The area under the ROC curve.

    Parameters
    ----------
    observed, null : (N,) and (K,) float
        Scores.

    Returns
    -------
    float
        The probability that an observed score is above a null one.
    """
    if not len(null):
        return 0.5
    order = np.sort(null)
    below, not_above = (np.searchsorted(order, np.sort(observed), side=side).mean() for side in ("left", "right"))
    return float((below + not_above) / 2 / len(null))


def _above(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(null), observed) / max(len(null), 1)


def first_within_standard_errors(values: list[np.ndarray], errors: float) -> int:
    """The first of several choices whose mean is within so many standard errors of the best one's.

    Parameters
    ----------
    values : list of (n,) float
        What each choice is worth, of the same n pairs.
    errors : float
        How many standard errors of the difference.

    Returns
    -------
    int
        Its place.
    """
    best = max(values, key=lambda each: float(each.mean()))
    worse = (best - each for each in values)
    return next(i for i, d in enumerate(worse) if d.mean() <= errors * d.std() / np.sqrt(len(d)))


def one_space(observed: np.ndarray, null: np.ndarray, *, least_z: float = 5.0) -> bool:
    """Whether observed scores are above null ones.

    Parameters
    ----------
    observed, null : (N,) and (K,) float
        Scores.
    least_z : float
        Least z of the rank test of Mann and Whitney.

    Returns
    -------
    bool
    """
    deviation = float(np.sqrt((1 / max(len(observed), 1) + 1 / max(len(null), 1)) / 12))
    return (area(observed, null) - 0.5) / deviation >= least_z


def one_space_by_cosine(pairs: VectorPairs, null: np.ndarray | None = None) -> bool:
    """Whether the cosines of pairs are above those of random ones. See :func:`one_space`.

    Parameters
    ----------
    pairs : VectorPairs
        N pairs of unit vectors.
    null : (2, K) int64, optional
        Rows of the random pairs' images and captions. None: one for each pair is drawn.

    Returns
    -------
    bool
    """
    if null is None:
        null = np.stack(null_pairs(pairs.image_group, pairs.text_group, each=1))
    return one_space(*pairs.scores_and_null(pairs, null, kind=None))


def _corrected(area: float, rate: float) -> float:
    """The area of matched pairs, by that of observed pairs. A share of these, the ``rate``, is like the null."""
    return float(np.clip((area - rate / 2) / max(1 - rate, 1e-3), 0, 1))


def _near(observed: np.ndarray, near: np.ndarray, null: np.ndarray, random: float, seed: int = 0) -> Calibration | None:
    """The calibration if captions were exchanged with similar ones. None if their share may be 0.

    Pairs that look like random ones, a share ``random`` by ``null``, are taken from the lower tail first.
    """
    if len(near) < LEAST_PAIRS or random >= NUMBERS.few_random:
        return None
    cut = np.quantile(near, NUMBERS.tail)
    tail, null_tail = (float((s < cut).mean()) for s in (observed, null))
    share = (tail - random * null_tail) / NUMBERS.tail
    if share - np.sqrt(tail / len(observed)) / NUMBERS.tail < NUMBERS.least_tail:
        return None
    drawn = np.random.default_rng(seed).choice(null, int(len(near) * random / share))
    found = calibrate(observed, np.concatenate([near, drawn]), by_score=True, seed=seed)
    if found is None or not random + NUMBERS.least_tail <= found.rate <= NUMBERS.most_near:
        return None
    return found if _corrected(area(observed, near), found.rate) >= NUMBERS.near_apart else None
