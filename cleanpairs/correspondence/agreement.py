r"""Neighbour agreement: whether a pair's caption is what other pairs predict from its image, and the other way round.

No network is trained. x and t are frozen vectors of images and captions. Each pair is predicted from the others by
kernel regression over its neighbours and by ridge regression. Both go from images to captions and back. Both leave the
pair out. Fisher's discriminant of observed and random wrong pairs joins the four agreements. The random wrong pairs'
agreements are the null, which gives the noise rate and the probabilities without a label.

Once networks have chosen the trusted pairs, :func:`normalised_agreement` predicts again, and compares each pair with
all others. In the joint space of trained networks (:func:`similarity_to_neighbours`) there is no honest null.
Equations and reasons: docs/methods/auto.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from cleanpairs.correspondence.calibration import Estimate, calibrate, positions
from cleanpairs.correspondence.density_ratio import mismatched_by_density, noise_rate_by_tails
from cleanpairs.correspondence.words import lowest_ratio
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import RIVALS, VectorPairs, among_all, cosines

BLOCK = 1024  # rows at once

_Direction = tuple[np.ndarray, np.ndarray, "Centred"]  # see _directions


@dataclass(frozen=True)
class AgreementNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    tau : float
        Temperature of the kernel. 0.1 takes fewer neighbours and finds less where many pairs are wrong.

    references : int
        Pairs that predictions are made from, besides those of the same image or text.

    rounds : int
        How often the pairs of the other fold are judged before a fold is.

    folds : int
        Parts of the images. A part is judged by weights that were learned without it.

    null_pairs : int
        Random wrong pairs, for each pair.

    least_pairs : int
        With fewer pairs nothing is known.

    shrink : float
        Shrinkage of the null scores' covariance, where the four agreements are joined.

    sum_tau : float
        Temperature of the sum of the four agreements, in deviations, among all captions and all images.

    similar_share, similar_rows, ranked : float, int, int
        Share of the pairs that count as similar to one, how many pairs get similar ones, and how many pairs are
        compared.

    word_weight : float
        Weight of the lowest word's log likelihood ratio. The agreement, in deviations of the null, has the weight 1.

    many_tau, few_tau : float
        Temperatures of the kernels in a joint space, with many neighbours and with few.

    grouped, alike : float, float
        Images are judged as a whole where at least this share of the pairs has an image of several, and at least this
        share of these images has captions that are alike. By chance a quarter has. The same holds for captions.
    """

    tau: float = 0.15
    references: int = 16_384
    rounds: int = 3
    folds: int = 2
    null_pairs: int = 4
    least_pairs: int = 80
    shrink: float = 0.1
    sum_tau: float = 2.0
    similar_share: float = 0.05
    similar_rows: int = 2000
    ranked: int = 4096
    word_weight: float = 0.25
    many_tau: float = 0.07
    few_tau: float = 0.05
    grouped: float = 0.05
    alike: float = 0.8


NUMBERS = AgreementNumbers()


@dataclass(frozen=True)
class NeighbourAgreement:
    """What is known of N pairs.

    Parameters
    ----------
    observed : (N,) float
        Agreement, in deviations of the null.

    null : (K,) float
        Agreement of random wrong pairs.

    noise_rate : float
        Estimated share of mismatched pairs.

    matched : (N,) float
        Probability of being matched.

    planted, planted_matched : (m,) float
        Agreement and probability of pairs that are known to be mismatched.

    similar : (k,) float
        Agreement of images with the captions of similar pairs.

    group_matched : (N,) float, optional
        Probability that not all captions of the image, or images of the caption, are another's. None where images and
        captions are not judged as a whole.

    group_noise_rate : Estimate, optional
        Share of the pairs in groups that are another's as a whole. Any share of them if the groups are too few.

    not_judged : float
        Share of the pairs in groups that are too few.

    Notes
    -----
    The captions of an image vouch for each other, and so do the images of a caption. Where they are alike, each image
    or caption is judged again, with the mean of its partners, weighted by the probabilities. A pair's probability is
    the product of both. Images that got a random copy of one caption are not alike.
    """

    observed: np.ndarray
    null: np.ndarray
    noise_rate: float
    matched: np.ndarray
    planted: np.ndarray = field(default_factory=lambda: np.zeros(0))
    planted_matched: np.ndarray = field(default_factory=lambda: np.zeros(0))
    similar: np.ndarray = field(default_factory=lambda: np.zeros(0))
    group_matched: np.ndarray | None = None
    group_noise_rate: Estimate | None = None
    not_judged: float = 0.0

    def better_than_random(self) -> float:
        """How many pairs fit better than random ones.

        Returns
        -------
        float
            Share of the pairs not counted as mismatched that agree more than 19 of 20 random ones. NaN if unknown.
        """
        if not len(self.null) or self.noise_rate >= 1:
            return float("nan")
        above = float((self.observed > np.quantile(self.null, 0.95)).mean())
        return float(np.clip((above - 0.05 * self.noise_rate) / (1 - self.noise_rate), 0, 1))

    def standing_out(self, most: float = 0.02) -> np.ndarray:
        """The pairs that agree less than half of all random ones.

        Parameters
        ----------
        most : float
            Share of all pairs beyond which none stands out.

        Returns
        -------
        (k,) int64
            Worst first.
        """
        below = np.flatnonzero(self.observed < np.median(self.null)) if len(self.null) else np.empty(0, np.int64)
        few = len(below) <= most * len(self.observed)
        return below[np.argsort(self.observed[below], kind="stable")] if few else below[:0]

    def bound(self, rate: Estimate) -> float:
        """Upper 95 % bound of the noise rate where wrong captions can be those of similar pairs.

        Parameters
        ----------
        rate : Estimate
            Share of the pairs that look like random ones.

        Returns
        -------
        float
            NaN if unknown.

        Notes
        -----
        The lower tail, the lowest 30 % of the similar pairs' scores, shows how many more look like similar ones.
        """
        tail, least_pairs, one_sided = 0.3, 30, 1.645
        if len(self.similar) < least_pairs:
            return float("nan")
        cut, n = np.quantile(self.similar, tail), len(self.observed)
        below, of_null, level = (float((score <= cut).mean()) for score in (self.observed, self.null, self.similar))
        variance = below * (1 - below) / n + below**2 * (1 - level) / level / len(self.similar)
        spread = np.hypot(np.sqrt(variance) / level, (of_null / level - 1) * (rate.value - rate.low) / 1.96)
        near = max(below - rate.value * of_null, 0) / level
        return float(np.clip(rate.value + near + one_sided * spread, rate.high, 1))


def nothing_known(n: int, planted: int = 0) -> NeighbourAgreement:
    """Agreement of N pairs and some ``planted`` ones without evidence. All count as matched, and there is no null."""
    return NeighbourAgreement(np.zeros(n), np.zeros(0), 0.0, np.ones(n), np.zeros(planted), np.ones(planted))


def similar_pairs(pairs: VectorPairs, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw pairs, and for each some of the pairs that are most like it.

    Parameters
    ----------
    pairs : VectorPairs
        N pairs.
    rng : numpy.random.Generator
        What draws.

    Returns
    -------
    (m,) int64, (m, k) int64
        Rows at random, and for each row pairs of another image and text, in random order. They are of the twentieth
        most like it, by the sum of the cosines in both spaces, each in its deviations. -1 where there are no more.
    """
    n = len(pairs)
    rows, others = rng.permutation(n)[: NUMBERS.similar_rows], np.sort(rng.permutation(n)[: NUMBERS.ranked])
    likeness = np.zeros((len(rows), len(others)), np.float32)
    for vectors in (pairs.images, pairs.texts):
        cosine = vectors[rows] @ vectors[others].T
        likeness += (cosine - cosine.mean()) / max(float(cosine.std()), 1e-12)
    image, text = pairs.image_group, pairs.text_group
    likeness[(image[rows, None] == image[others]) | (text[rows, None] == text[others])] = -np.inf
    top = np.argpartition(-likeness, k := max(1, int(NUMBERS.similar_share * len(others))), axis=1)[:, :k]
    partners = np.where(np.isfinite(np.take_along_axis(likeness, top, 1)), others[top], -1)
    return rows, rng.permuted(partners, axis=1)


def neighbour_agreement(
    pairs: VectorPairs, *, planted: np.ndarray | None = None, words: Any = None, seed: int = 0
) -> NeighbourAgreement:
    """Agreement of N pairs. See the module's head.

    Parameters
    ----------
    pairs : VectorPairs
        Unit vectors of each pair's image and caption, in spaces of their own. Vectors of zeros do not count.
    planted : (2, m) int64, optional
        Rows of an image and of another's caption. These mismatched pairs are judged like the null pairs. They predict
        nothing.
    words : (N, V) sparse, optional
        Not 0 where a caption has a word.
    seed : int
        Seed of the folds and of the null pairs.
    """
    n = len(pairs)
    planted = np.zeros((2, 0), np.int64) if planted is None else planted
    rng, m = np.random.default_rng(seed), planted.shape[1]
    if n < NUMBERS.least_pairs:
        return nothing_known(n, m)
    references = np.sort(rng.permutation(n)[: NUMBERS.references])
    fold, null_rows = _folds_and_null(pairs, rng)
    planted = np.concatenate([planted, _similar_in_fold(similar_pairs(pairs, rng), fold)], axis=1)
    if null_rows.shape[1] < NUMBERS.least_pairs:  # nearly all rows are alike
        return nothing_known(n, m)
    observed, null, of_planted = np.zeros(n), np.zeros(null_rows.shape[1]), np.zeros(planted.shape[1])
    directions = _directions(pairs)
    for f in range(NUMBERS.folds):
        in_fold = fold == f
        trust = np.ones(n)
        outside = references[~in_fold[references]]
        for _ in range(NUMBERS.rounds - 1):
            trust_outside = np.where(in_fold, 0, trust)
            found, of_null = _joined_agreement(directions, np.arange(n), null_rows, outside, trust_outside)
            wrong = mismatched_by_density(found, of_null, noise_rate_by_tails(found, of_null))
            trust = (trust + 1 - wrong) / 2
        null_here, planted_here = in_fold[null_rows[0]], in_fold[planted[0]]
        rows = np.union1d(np.flatnonzero(in_fold), planted[1, planted_here])
        judged = np.concatenate([null_rows[:, null_here], planted[:, planted_here]], axis=1)
        apart = int(planted_here[m:].sum())
        found, of_judged = _joined_agreement(directions, rows, judged, references, trust, apart)
        observed[in_fold] = found[in_fold[rows]]
        null[null_here], of_planted[planted_here] = np.split(of_judged, [null_here.sum()])
    if words is not None:
        judged = np.concatenate([np.tile(np.arange(n), (2, 1)), null_rows, planted], axis=1)
        scores = observed, null, of_planted
        observed, null, of_planted = _with_words(pairs, words, scores, judged, seed)
    rate = noise_rate_by_tails(observed, null)
    matched, planted_matched = (1 - mismatched_by_density(observed, null, rate, at) for at in (observed, of_planted))
    known = NeighbourAgreement(observed, null, rate, matched, of_planted[:m], planted_matched[:m], of_planted[m:])
    for side, numbers in enumerate(_groups(pairs.image_group, pairs.text_group)):
        known = _judge_groups(pairs, known, side, numbers, seed)
    return known


def _groups(image_group: np.ndarray, text_group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number (N,) of each pair's image, and of its caption, where pairs are judged as a whole.

    Images that share two captions are of one product. Its pairs are judged once, as those of one image.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    image, text = (np.unique(x, return_inverse=True)[1] for x in (image_group, text_group))
    both = csr_array((np.ones(len(image), np.int32), (image, text)))
    both.data[:] = 1  # a pair may stand in several rows
    few = both[:, np.flatnonzero(both.sum(axis=0) <= 64)]  # a caption of many images makes no product
    product = connected_components(few @ few.T >= 2, directed=False)[1]
    images = np.bincount(product)[product[image]]
    return product[image], np.where(images > 1, text.max(initial=0) + 1 + np.arange(len(text)), text)


def _judge_groups(
    pairs: VectorPairs, found: NeighbourAgreement, side: int, numbers: np.ndarray, seed: int
) -> NeighbourAgreement:
    """Judge images (side 0), or captions (1), as a whole: each with the mean of what it is paired with.

    Pairs of equal ``numbers`` (N,) are one group. The result is ``found`` where few numbers are equal, or where the
    partners of one image or caption are no more alike than random ones.
    """
    from scipy.sparse import csr_array

    sides, given = [pairs.images, pairs.texts], (pairs.image_group, pairs.text_group)[side]
    _, first, group, members = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True)
    weight, own, several = (found.matched + 1e-3).astype(np.float32), np.arange(len(first)), members > 1
    share = float(several[group].mean())
    if share < NUMBERS.grouped or _share_alike(sides[1 - side], group, weight, seed) < NUMBERS.alike:
        return found
    known_rate = found.group_noise_rate or Estimate(0.0, 0.0, 0.0)
    if several.sum() < NUMBERS.least_pairs:  # these may all be another's, and nothing shows it
        known_rate = known_rate.joined(Estimate(0.0, 0.0, share))
        return replace(found, group_noise_rate=known_rate, not_judged=found.not_judged + share)
    means = csr_array((weight, (group, np.arange(len(group)))))
    sides[1 - side] = unit_rows(means @ sides[1 - side])
    # Where each group has one image, or one caption, that is taken as it is.
    sides[side] = sides[side][first] if np.array_equal(given, given[first][group]) else unit_rows(means @ sides[side])
    whole = neighbour_agreement(VectorPairs(sides[0], sides[1], own, own), seed=seed)
    rate, matched = _rate_and_matched(whole, several, group, seed)
    observed = np.where(matched < 0.5, np.minimum(found.observed, whole.observed[group]), found.observed)
    matched = matched if found.group_matched is None else matched * found.group_matched
    rest = observed[matched >= min(0.5, float(matched.max()))]  # the others have been counted
    of_rest = noise_rate_by_tails(rest, found.null)
    return replace(
        found, observed=observed, matched=matched * (1 - mismatched_by_density(rest, found.null, of_rest, observed)),
        noise_rate=1 - (1 - of_rest) * float(matched.mean()), group_matched=matched,
        group_noise_rate=known_rate.joined(rate),
    )  # fmt: skip


def _rate_and_matched(
    whole: NeighbourAgreement, several: np.ndarray, group: np.ndarray, seed: int
) -> tuple[Estimate, np.ndarray]:
    """Share of the pairs whose group is wrong, and the probability (N,) that a pair's is right.

    Groups of ``several`` pairs (M,) are judged apart from single pairs: more of them may be wrong. ``group`` (N,): the
    number of each pair's group.
    """
    kind = several & (min(several.sum(), (~several).sum()) >= NUMBERS.least_pairs)
    matched, ends = np.ones(len(kind)), np.zeros(3)
    for some in (kind, ~kind):
        score = whole.observed[some]
        calibration = calibrate(score, whole.null, seed=seed)
        if calibration is None:
            continue
        rate = calibration.noise_rate(len(score))
        if rate.low > 0:  # else perhaps no group is wrong
            matched[some] = 1 - calibration.mismatched(positions(score, score))
        ends += some[group].mean() * np.array([rate.value, rate.low, rate.high])
    return Estimate(*ends.tolist()).determined(), matched[group]


def _share_alike(vectors: np.ndarray, group: np.ndarray, weight: np.ndarray, seed: int) -> float:
    """Share of the groups of several that are more alike than three of four random pairs.

    ``group``, ``weight`` (N,): the number of each row's group, and its weight.
    """
    from scipy.sparse import csr_array

    vectors, n = unit_rows(vectors - vectors.mean(axis=0)), len(vectors)
    a, b = np.random.default_rng(seed).integers(n, size=(2, 20_000))
    cut = np.quantile(cosines(vectors[a], vectors[b])[group[a] != group[b]], 0.75)
    total = csr_array((weight, (group, np.arange(n)))) @ vectors
    of_itself = np.bincount(group, weight**2 * np.einsum("nd,nd->n", vectors, vectors))
    among = np.einsum("md,md->m", total, total) - of_itself
    most = np.bincount(group, weight) ** 2 - np.bincount(group, weight**2)
    return float((among > cut * most)[np.bincount(group) > 1].mean())


def _similar_in_fold(candidates: tuple[np.ndarray, np.ndarray], fold: np.ndarray) -> np.ndarray:
    """Rows (2, k) of images and of the first similar caption of the same fold, of those that have one."""
    rows, others = candidates
    usable = (others >= 0) & (fold[others] == fold[rows, None])
    return np.stack([rows, others[np.arange(len(others)), usable.argmax(axis=1)]])[:, usable.any(axis=1)]


def _folds_and_null(pairs: VectorPairs, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The fold (N,) of each pair, by its image. Random wrong pairs (2, K) of image and caption, both of one fold."""
    number = np.unique(pairs.image_group, return_inverse=True)[1]
    fold = rng.permutation(number.max() + 1)[number] % NUMBERS.folds
    parts = [np.flatnonzero(fold == f) for f in range(NUMBERS.folds)]
    orders = [rng.permutation(part) for part in parts for _ in range(NUMBERS.null_pairs)]
    rows = np.concatenate([[order, np.roll(order, -1)] for order in orders], axis=1)
    (image, other_image), (text, other_text) = pairs.image_group[rows], pairs.text_group[rows]
    return fold, rows[:, (image != other_image) & (text != other_text)]


def _with_words(
    pairs: VectorPairs, words: Any, scores: tuple[np.ndarray, ...], judged: np.ndarray, seed: int
) -> list[np.ndarray]:
    """Observed, null and planted scores with the ratio of the worst word, in deviations of the null.

    ``judged``: rows of images and of captions, of all these in turn.
    """
    observed, null = scores[:2]
    trust = 1 - mismatched_by_density(observed, null, noise_rate_by_tails(observed, null))
    lowest = lowest_ratio(pairs.images, words, trust, judged, group=pairs.image_group, seed=seed)
    sums = np.concatenate(scores) + NUMBERS.word_weight * lowest
    ends = [len(observed), len(observed) + len(null)]
    return np.split(sums / max(float(sums[slice(*ends)].std()), 1e-12), ends)


def normalised_agreement(
    pairs: VectorPairs, trust: np.ndarray, others: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Agreement of pairs less what both sides share with all others.

    Parameters
    ----------
    pairs : VectorPairs
        N pairs.
    trust : (N,) float
        Weights by which pairs predict others.
    others : (2, m) int64
        Rows of images and of captions that are judged too.
    seed : int
        Seed of the samples.

    Returns
    -------
    (N,) float, (m,) float
        Agreement of the pairs, and of the others.

    Notes
    -----
    The four agreements, each in deviations over all captions or images, add up to a similarity: see
    :func:`cleanpairs.ops.normalised_similarity.among_all`.
    """
    n, rng = len(pairs), np.random.default_rng(seed)
    references, sample = (np.sort(rng.permutation(n)[:most]) for most in (NUMBERS.references, RIVALS))
    of_image, of_text = (_Prediction(direction, references, trust, sample) for direction in _directions(pairs))

    def summed(rows: np.ndarray) -> VectorPairs:
        image = np.concatenate([of_image(rows), np.tile(of_text.space.vectors[rows], 2)], axis=1)
        text = np.concatenate([np.tile(of_image.space.vectors[rows], 2), of_text(rows)], axis=1)
        return VectorPairs(image, text, pairs.image_group[rows], pairs.text_group[rows])

    observed, shared = among_all(summed, n, tau=NUMBERS.sum_tau, seed=seed)
    agreement = -(shared[0, others[0]] + shared[1, others[1]]) / 2
    for side, (queries, targets) in ((of_image, others), (of_text, others[::-1])):
        agreement += cosines(side(queries, targets), np.tile(side.space.vectors[targets], 2))
    return observed, agreement


def _directions(pairs: VectorPairs) -> tuple[_Direction, _Direction]:
    """From images to captions, and back: what is known, its groups, and what is predicted."""
    images, texts = pairs.images, pairs.texts
    return (images, pairs.image_group, Centred(texts)), (texts, pairs.text_group, Centred(images))


class _Prediction:
    """Kernel and ridge regression of N vectors ``t`` on ``x``, with weights ``trust`` (N,), side by side: (R, 2 e).

    Less their mean over the rows ``sample``, and in deviations of their products with all of t.
    """

    def __init__(self, direction: _Direction, references: np.ndarray, trust: np.ndarray, sample: np.ndarray) -> None:
        x, _, self.space = direction
        trust = trust.astype(np.float32)
        self.ridge = _Ridge(x, self.space.given, trust)
        self.kernel = partial(_kernel_regression, direction, references, trust)
        self.mean = np.stack([predicted.mean(axis=0) for predicted in self._each(sample, None)])

    def _each(self, rows: np.ndarray, targets: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """The predictions by either regression, (R, e) each."""
        by_ridge, none = self.ridge.without(rows, targets), np.zeros(0, np.int64)
        if targets is None:
            return self.kernel(rows, none, none)[0], by_ridge
        return self.kernel(np.unique(rows), rows, targets)[1], by_ridge

    def __call__(self, rows: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Of ``rows`` (R,), without themselves and ``targets`` (R,), the rows whose vectors in t are judged."""
        each = zip(self._each(rows, targets), self.mean, strict=True)
        return np.concatenate([self.space.scaled(predicted - mean) for predicted, mean in each], axis=1)


def _joined_agreement(
    directions: Sequence[_Direction], rows: np.ndarray, null_rows: np.ndarray, references: np.ndarray,
    trust: np.ndarray, apart: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Agreement of ``rows`` (R,) and of wrong pairs ``null_rows`` (2, K), in deviations of the null.

    The last ``apart`` wrong pairs are none of it. Predictions are made from the ``references`` (B,), and from rows of
    the same image or text, with weights ``trust`` (N,).
    """
    trust = trust.astype(np.float32)
    observed, null = [], []
    for direction, (queries, targets) in zip(directions, (null_rows, null_rows[::-1]), strict=True):
        # Image i predicts the caption of j, or the caption of j the image i. The judged pair is left out.
        x, _, space = direction
        ridge = _Ridge(x, space.given, trust)
        by_kernel = _kernel_regression(direction, references, trust, rows, queries, targets)
        by_ridge = ridge.without(rows), ridge.without(queries, targets)
        for predicted, null_predicted in (by_kernel, by_ridge):
            mean = predicted.mean(axis=0)
            observed.append(space.standardised(predicted - mean, rows))
            null.append(space.standardised(null_predicted - mean, targets))
    return _discriminant(np.stack(observed), np.stack(null), null_rows.shape[1] - apart)


def _discriminant(observed: np.ndarray, null: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """One score (R,), (K,) of (C, R), (C, K), in deviations of the first ``count`` null ones: Fisher's discriminant."""
    scale = np.maximum(null[:, :count].std(axis=1, keepdims=True), 1e-12)
    observed, null, known = observed / scale, null / scale, null[:, :count] / scale
    apart = np.maximum(observed.mean(axis=1) - known.mean(axis=1), 0)
    weight = np.maximum(np.linalg.solve(np.cov(known) + NUMBERS.shrink * np.eye(len(null)), apart), 0)
    if not weight.any():
        weight = np.ones(len(null))
    spread = max(float((weight @ known).std()), 1e-12)
    return weight @ observed / spread, weight @ null / spread


def _kernel_regression(
    direction: _Direction, references: np.ndarray, trust: np.ndarray, rows: np.ndarray, queries: np.ndarray,
    targets: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The weighted mean of N vectors ``t`` near in ``x``, less that of all: (R, d) of ``rows`` without themselves, and
    (K, d) of ``queries``, out of ``rows``, without ``targets`` either.
    """
    x, group, space = direction
    t = space.given
    (total,), (mass,) = kernel_sums(x, t, group, rows, references, trust, (NUMBERS.tau,))
    is_reference, place = np.zeros(len(x), bool), np.zeros(len(x), np.int64)
    is_reference[references], place[rows] = True, np.arange(len(rows))
    weight = np.where(is_reference, trust, np.float32(0))
    weighted, all_mass = weight @ t, float(weight.sum())

    def mean_of_all_but(*out: np.ndarray) -> np.ndarray:
        """(R, d): without the row in each place of ``out``, (R,) each."""
        left, left_mass = sum(weight[of][:, None] * t[of] for of in out), sum(weight[of] for of in out)
        mean = (weighted - left) / np.maximum(all_mass - left_mass, 1e-12)[:, None]
        return np.asarray(mean, dtype=np.float32)

    cosine = np.einsum("ij,ij->i", x[queries], x[targets])
    target_weight = np.exp((cosine - 1) / np.float32(NUMBERS.tau)) * trust[targets]
    target_weight[~is_reference[targets]] = 0
    left_total, left_mass = total[place[queries]] - target_weight[:, None] * t[targets], mass[place[queries]]
    null_predicted = left_total / np.maximum(left_mass - target_weight, 1e-12)[:, None]
    predicted = total / np.maximum(mass, 1e-12)[:, None]
    return predicted - mean_of_all_but(rows), null_predicted - mean_of_all_but(queries, targets)


def kernel_sums(
    x: np.ndarray, t: np.ndarray, group: np.ndarray, rows: np.ndarray, references: np.ndarray, trust: np.ndarray,
    taus: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Sums over the neighbours of rows, without the pair itself.

    Parameters
    ----------
    x, t : (N, e) and (N, d) float32
        Unit vectors that make pairs neighbours, and vectors that are summed.

    group : (N,) int64
        Equal numbers are one image, or one text.

    rows : (R,) int64
        Which rows.

    references : (B,) int64
        Pairs that are summed, besides those of the same group.

    trust : (N,) float
        Weights of the pairs.

    taus : tuple of float
        Temperatures of T kernels.

    Returns
    -------
    (T, R, d) float32, (T, R) float32
        Sums of the vectors, and of their weights.
    """
    from scipy.sparse import csr_array

    n = len(x)
    place = np.full(n, -1)
    place[references] = np.arange(len(references))
    # Rows of the same image that are no references count all the same.
    unlisted = np.where(place < 0, trust, 0).astype(np.float32)
    number = np.unique(group, return_inverse=True)[1]
    member = csr_array((unlisted, (number, np.arange(n))), shape=(int(number.max()) + 1, n))
    group_total, group_mass = member @ t, np.asarray(member.sum(axis=1)).ravel()
    out = np.empty((len(taus), len(rows), t.shape[1]), np.float32)
    mass = np.empty((len(taus), len(rows)), np.float32)
    near_to, values, weight = x[references], t[references], trust[references]
    for at in blocks(len(rows), BLOCK):
        block = rows[at]
        near = x[block] @ near_to.T - 1  # (b, B)
        own = np.flatnonzero(place[block] >= 0)
        self_weight = unlisted[block]
        for k, tau in enumerate(taus):
            K = np.exp(near / np.float32(tau)) * weight
            K[own, place[block[own]]] = 0
            out[k, at] = K @ values + group_total[number[block]] - self_weight[:, None] * t[block]
            mass[k, at] = K.sum(axis=1) + group_mass[number[block]] - self_weight
    return out, mass


def _penalty(gram: np.ndarray) -> Any:
    """The mean spread of rows for both regressions below, from the products (d, d) of these rows."""
    return np.trace(gram) / max(len(gram), 1) + gram.dtype.type(1e-6)


def ridge(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Ridge regression.

    Parameters
    ----------
    a, b : (n, d) and (n, e) float32
        What is known, and what is predicted.
    weight : (n,) float
        Weight of each row.

    Returns
    -------
    (d, e) float32
        The linear map.
    """
    return solved(*products(a, b, weight))


def products(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What :func:`ridge` sums up over rows (n, d) and (n, e): (d, d) and (d, e)."""
    weighted = (a * weight[:, None].astype(np.float32)).T
    return weighted @ a, weighted @ b


def solved(gram: np.ndarray, toward: np.ndarray) -> np.ndarray:
    """The map (d, e) of :func:`ridge`, by its sums."""
    return np.asarray(np.linalg.solve(gram + np.eye(len(gram), dtype=np.float32) * _penalty(gram), toward), np.float32)


class _Ridge:
    """Ridge regression of N vectors ``t`` (N, e) on ``x`` (N, d), weighted, which pairs can leave again."""

    def __init__(self, x: np.ndarray, t: np.ndarray, weight: np.ndarray) -> None:
        x = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
        weighted = (x * weight[:, None]).T
        gram = (weighted @ x).astype(np.float64)
        gram[np.diag_indices(len(gram))] += np.append(np.full(len(gram) - 1, _penalty(gram[:-1, :-1])), 1e-6)
        self.x, self.t, self.weight = x, t, weight
        self.solved = x @ np.linalg.inv(gram).astype(np.float32)
        self.residual = t - self.solved @ (weighted @ t)
        self.stays = 1 - np.einsum("ij,ij->i", self.solved, x) * weight  # 1 - H_ii

    def without(self, queries: np.ndarray, targets: np.ndarray | None = None) -> np.ndarray:
        """Predictions (R, e) at the rows ``queries`` (R,). The regressions have seen neither these pairs nor those of
        the rows ``targets`` (R,). The residuals of the left-out pairs S are (I - H_SS)^-1 e_S.
        """
        if targets is None:
            return np.asarray(self.t[queries] - self.residual[queries] / self.stays[queries, None])
        out = np.empty((len(queries), self.t.shape[1]), np.float32)
        for at in blocks(len(queries), BLOCK):
            i, j = queries[at], targets[at]
            both = np.einsum("ij,ij->i", self.solved[i], self.x[j])
            toward, back = both * self.weight[j], both * self.weight[i]
            left_out = self.stays[j, None] * self.residual[i] + toward[:, None] * self.residual[j]
            out[at] = self.t[i] - left_out / (self.stays[i] * self.stays[j] - toward * back)[:, None]
        return out


class Centred:
    """``vectors`` (N, d) around their ``mean`` (d,), and as they were ``given``."""

    def __init__(self, given: np.ndarray) -> None:
        self.given, self.mean = given, given.mean(axis=0)
        self.vectors = given - self.mean

    @cached_property
    def covariance(self) -> np.ndarray:
        """The covariance (d, d)."""
        return np.asarray(self.vectors.T @ self.vectors / np.float32(len(self.vectors)))

    def spread(self, c: np.ndarray, least: float = 0.0) -> np.ndarray:
        """The deviation (R,) of the products of vectors ``c`` (R, d) with all of these."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("ij,ij->i", c @ self.covariance, c), least)))

    def scaled(self, c: np.ndarray) -> np.ndarray:
        """Vectors ``c`` (R, d) in deviations of their products with all of these."""
        spread = self.spread(c)
        return np.asarray(c / np.maximum(spread, 1e-6 * spread.max(initial=1e-12))[:, None])

    def standardised(self, c: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Products (R,) of ``c`` (R, d) and these ``rows`` (R,), in deviations of c's products with all."""
        return np.asarray(np.einsum("ij,ij->i", self.scaled(c), self.vectors[rows]))


def similarity_to_neighbours(pairs: VectorPairs, trust: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """How well each caption suits the mean caption of its image's trusted neighbours, and the other way round.

    Parameters
    ----------
    pairs : VectorPairs
        N pairs of unit vectors in a joint space.
    trust : (N,) float
        Weights of the pairs.
    seed : int
        Seed of the sample of references.

    Returns
    -------
    (N,) float in (0, 1)
        The mean of two ranks.

    Notes
    -----
    With c_i = sum_j K_ij trust_j t_j, as a unit vector: of many neighbours, by how much c_i . t_i is above its mean
    over all t_j. Of few, how many t_j are nearer to c_i than t_i, and how many c_j nearer to t_i than c_i.
    """
    from scipy.stats import rankdata

    n, rng = len(pairs), np.random.default_rng(seed)
    references, others = (np.sort(rng.permutation(n)[:most]) for most in (NUMBERS.references, NUMBERS.ranked))
    weight, above, nearer = trust.astype(np.float32), np.zeros(n), np.zeros(n)
    taus = NUMBERS.many_tau, NUMBERS.few_tau
    for x, group, space in _directions(pairs):
        t = space.given
        many, few = kernel_sums(x, t, group, np.arange(n), references, weight, taus)[0]
        for mean in (many, few):
            mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
        similarity = np.einsum("ij,ij->i", many, space.vectors)
        above += similarity / max(float(similarity.std()), 1e-12)
        observed = np.einsum("ij,ij->i", few, t) + 1e-6  # no pair is nearer than itself
        for queries, among in ((few, t[others]), (t, few[others])):
            for at in blocks(n, BLOCK):
                nearer[at] += np.log1p((queries[at] @ among.T > observed[at, None]).sum(axis=1))
    return np.asarray(rankdata(above) + rankdata(-nearer) - 1) / (2 * max(n, 1))
