r"""Agreement of the other pairs: whether a pair's caption is what they let expect of its image, and its image of its
caption. No network is trained. Equations and reasons: docs/methods/auto.md.

Each pair asks the others, in the spaces of frozen vectors x (images) and t (captions): neighbours, with a kernel, and
a ridge regression that has not seen the pair, from images to captions and back. The four agreements are joined by
Fisher's discriminant of observed and null pairs, and the null gives the noise rate and the posterior without a label.

Once networks have told who can be trusted, :func:`normalised_agreement` asks once more, and compares with all others.
In the joint space of trained networks (:func:`similarity_to_neighbours`) there is no honest null.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleanpairs.correspondence.calibration import Estimate
from cleanpairs.ops.normalised_similarity import RIVALS, VectorPairs, among_all, cosines

TAU = 0.15  # of the kernel; .1 asks fewer neighbours and finds less where many are wrong (docs/log.md)
AMONG_TAU = 2.0  # of the sum of four agreements, in deviations, among those with all captions and all images
NEAR, NEAREST = 0.07, 0.05  # of the kernels in a joint space
ROUNDS = 3
BANK = 16_384  # pairs that answer, besides those of the same image or text
RANKED = 4096  # pairs with which a caption is compared
BLOCK = 1024
BINS = 40
CONTROLS = 4  # random wrong pairs, for each pair
FOLDS = 2
LEAST = 1e-12
SHRINK = 0.1  # of the null scores' covariance, where they are joined
TAIL, LEAST_SIMILAR, ONE_SIDED = 0.3, 30, 1.645  # quantile of similar pairs' scores, their number, deviations of 95 %
LOW, HIGH = 0.05, 0.8  # quantiles of the null between which the tails are compared
SIMILAR, SIMILAR_ROWS = 0.05, 2000  # share of the pairs that are similar to one, and how many are asked for theirs


_Spaces = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # of images and texts, and which are the same


@dataclass(frozen=True)
class Agreement:
    """Of N pairs ``observed`` (N,), in units of the deviation of ``null`` (K,), the agreement of random wrong pairs;
    ``wrong``: the estimated share of wrong pairs; ``right`` (N,): the probability of being right; ``planted``,
    ``planted_right`` (m,): agreement and probability of known mismatched pairs that were asked about; ``similar`` (k,):
    agreement of images with the captions of similar pairs.
    """

    observed: np.ndarray
    null: np.ndarray
    wrong: float
    right: np.ndarray
    planted: np.ndarray = field(default_factory=lambda: np.zeros(0))
    planted_right: np.ndarray = field(default_factory=lambda: np.zeros(0))
    similar: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def most_wrong(self, rate: Estimate) -> float:
        """Upper 95 % bound of the wrong share, a ``rate`` being like random, others like ``similar`` ones; or NaN."""
        if len(self.similar) < LEAST_SIMILAR:
            return float("nan")
        cut, n = np.quantile(self.similar, TAIL), len(self.observed)
        below, of_null, level = (float((score <= cut).mean()) for score in (self.observed, self.null, self.similar))
        variance = below * (1 - below) / n + below**2 * (1 - level) / level / len(self.similar)
        spread = np.hypot(np.sqrt(variance) / level, (of_null / level - 1) * (rate.value - rate.low) / 1.96)
        near = max(below - rate.value * of_null, 0) / level
        return float(np.clip(rate.value + near + ONE_SIDED * spread, rate.high, 1))


def nothing_known(n: int, planted: int = 0) -> Agreement:
    """Of N pairs, and ``planted`` others, that nobody was asked about: all count as right, and there is no null."""
    return Agreement(np.zeros(n), np.zeros(0), 0.0, np.ones(n), np.zeros(planted), np.ones(planted))


def similar_pairs(
    images: np.ndarray, texts: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (m,) of N pairs at random, and (m, k) pairs of another image and text out of the twentieth most like each.

    By the sum of the cosines in both spaces, each in its deviations; in random order; -1 where there are no more.
    """
    n = len(images)
    rows, others = rng.permutation(n)[:SIMILAR_ROWS], np.sort(rng.permutation(n)[:RANKED])
    like = np.zeros((len(rows), len(others)), np.float32)
    for vectors in (images, texts):
        cosine = vectors[rows] @ vectors[others].T
        like += (cosine - cosine.mean()) / max(float(cosine.std()), LEAST)
    same = (image_group[rows, None] == image_group[others]) | (text_group[rows, None] == text_group[others])
    like[same] = -np.inf
    top = np.argpartition(-like, k := max(1, int(SIMILAR * len(others))), axis=1)[:, :k]
    found = np.where(np.isfinite(np.take_along_axis(like, top, 1)), others[top], -1)
    return rows, rng.permuted(found, axis=1)


def neighbours_agreement(
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    planted: np.ndarray | None = None,
    seed: int = 0,
) -> Agreement:
    """Agreement of N pairs; see the module's head.

    - ``images``, ``texts`` (N, D), (N, d) float32: unit vectors of each pair's image and caption; zeros say nothing
    - ``image_group``, ``text_group`` (N,) int64: equal numbers are the same image, the same text
    - ``planted`` (2, m) int64: rows of an image and of another's caption: mismatched pairs, judged like the null pairs,
      that answer nobody
    """
    n = len(images)
    planted = np.zeros((2, 0), np.int64) if planted is None else planted
    rng = np.random.default_rng(seed)
    if n < 2 * BINS:
        return nothing_known(n, planted.shape[1])
    asked = np.sort(rng.permutation(n)[:BANK])
    number = np.unique(image_group, return_inverse=True)[1]
    fold = rng.permutation(number.max() + 1)[number] % FOLDS
    # Random wrong pairs (2, K) of image and caption, both of one fold.
    orders = [rng.permutation(np.flatnonzero(fold == f)) for f in range(FOLDS) for _ in range(CONTROLS)]
    pairs = np.concatenate([[order, np.roll(order, -1)] for order in orders], axis=1)
    m = planted.shape[1]
    asking, captions = similar_pairs(images, texts, image_group, text_group, rng)
    known = (captions >= 0) & (fold[captions] == fold[asking, None])
    similar = np.stack([asking, captions[np.arange(len(captions)), known.argmax(axis=1)]])
    planted = np.concatenate([planted, similar[:, known.any(axis=1)]], axis=1)
    pairs = pairs[:, (image_group[pairs[0]] != image_group[pairs[1]]) & (text_group[pairs[0]] != text_group[pairs[1]])]
    if pairs.shape[1] < 2 * BINS:  # nearly all rows are alike
        return nothing_known(n, m)
    spaces = images, texts, image_group, text_group
    observed, null, of_planted = np.zeros(n), np.zeros(pairs.shape[1]), np.zeros(planted.shape[1])
    for f in range(FOLDS):
        mine = fold == f
        trusted = np.ones(n)
        others = asked[~mine[asked]]
        for _ in range(ROUNDS - 1):
            said, against = _ask(spaces, np.arange(n), pairs, others, np.where(mine, 0, trusted))
            trusted = (trusted + 1 - posterior(said, against, wrong_share(said, against))) / 2
        of, here = mine[pairs[0]], mine[planted[0]]
        rows = np.union1d(np.flatnonzero(mine), planted[1, here])
        judged = np.concatenate([pairs[:, of], planted[:, here]], axis=1)
        said, against = _ask(spaces, rows, judged, asked, trusted, int(here[m:].sum()))
        observed[mine], null[of], of_planted[here] = said[mine[rows]], against[: of.sum()], against[of.sum() :]
    wrong = wrong_share(observed, null)
    matched, planted_right = (1 - posterior(observed, null, wrong, at) for at in (observed, of_planted))
    return Agreement(observed, null, wrong, matched, of_planted[:m], planted_right[:m], of_planted[m:])


def normalised_agreement(
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    right: np.ndarray,
    pairs: np.ndarray,
    *,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Agreement (N,) of N pairs less what both sides have with all, and that (m,) of other ``pairs`` (2, m).

    As :func:`neighbours_agreement`, but everybody is asked once, with the weights ``right`` (N,), and the four
    agreements, each in deviations over all captions or images, add up to a similarity: see :func:`among_all`.
    """
    n, rng = len(images), np.random.default_rng(seed)
    asked, some = (np.sort(rng.permutation(n)[:most]) for most in (BANK, RIVALS))
    of_image = _Expected(images, texts, image_group, asked, right, some)
    of_text = _Expected(texts, images, text_group, asked, right, some)

    def among(rows: np.ndarray) -> VectorPairs:
        image = np.concatenate([of_image(rows), np.tile(of_text.space.vectors[rows], 2)], axis=1)
        text = np.concatenate([np.tile(of_image.space.vectors[rows], 2), of_text(rows)], axis=1)
        return VectorPairs(image, text, image_group[rows], text_group[rows])

    observed, shared = among_all(among, n, tau=AMONG_TAU, seed=seed)
    found = -(shared[0, pairs[0]] + shared[1, pairs[1]]) / 2
    for side, (asking, shown) in ((of_image, pairs), (of_text, pairs[::-1])):
        found += cosines(side(asking, shown), np.tile(side.space.vectors[shown], 2))
    return observed, found


class _Expected:
    """What neighbours, and a ridge regression, of N vectors ``x`` let expect in ``t``, each with its weight (N,).

    Less what they let expect of the rows ``some``, and in deviations of its products with all of t: (R, 2 e).
    """

    def __init__(
        self, x: np.ndarray, t: np.ndarray, group: np.ndarray, asked: np.ndarray, weight: np.ndarray, some: np.ndarray
    ) -> None:
        weight, heard = weight.astype(np.float32), np.zeros(len(x), bool)
        heard[asked] = True
        self.asked = x, t, group, asked, weight, heard
        self.regression, self.space, self.middle = _Ridge(x, t, weight), Centred(t), np.zeros(0, np.float32)
        self.middle = np.stack([said.mean(axis=0) for said in self.said(some, None)])

    def said(self, rows: np.ndarray, shown: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """(R, e) each."""
        x, t, group, *others = self.asked
        none = np.zeros(0, np.int64)
        by_regression = self.regression.without(rows, shown)
        if shown is None:
            return _neighbours(x, t, group, rows, (none, none), *others)[0], by_regression
        return _neighbours(x, t, group, np.unique(rows), (rows, shown), *others)[1], by_regression

    def __call__(self, rows: np.ndarray, shown: np.ndarray | None = None) -> np.ndarray:
        """Of ``rows`` (R,), asked without themselves, and without ``shown`` (R,), the rows of others' vectors in t."""
        return np.concatenate(
            [self.space.scaled(s - m) for s, m in zip(self.said(rows, shown), self.middle, strict=True)], axis=1
        )


def _ask(
    spaces: _Spaces, rows: np.ndarray, pairs: np.ndarray, asked: np.ndarray, right: np.ndarray, judged: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Agreement of ``rows`` (R,) and of wrong ``pairs`` (2, K), in deviations of all but the last ``judged`` of these.
    ``asked`` (B,) answer, and those of the same image or text, each with its weight ``right`` (N,).
    """
    images, texts, image_group, text_group = spaces
    weight, heard = right.astype(np.float32), np.zeros(len(right), bool)
    heard[asked] = True
    observed, null = [], []
    for x, t, group in ((images, texts, image_group), (texts, images, text_group)):
        # Image i asks about the caption of j, or the caption of j about image i; what is shown does not answer.
        asking, shown = pairs if x is images else pairs[::-1]
        each, regression = Centred(t), _Ridge(x, t, weight)
        for of, against in (
            _neighbours(x, t, group, rows, (asking, shown), asked, weight, heard),
            (regression.without(rows), regression.without(asking, shown)),
        ):
            middle = of.mean(axis=0)
            observed.append(each.standing(of - middle, rows))
            null.append(each.standing(against - middle, shown))
    return _joined(np.stack(observed), np.stack(null), pairs.shape[1] - judged)


def _neighbours(
    x: np.ndarray, t: np.ndarray, group: np.ndarray, rows: np.ndarray, pairs: tuple[np.ndarray, np.ndarray],
    asked: np.ndarray, weight: np.ndarray, heard: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What those near in ``x`` say of ``t``, less what all say: (R, d) of ``rows``, (K, d) of ``pairs``."""
    asking, shown = pairs
    place = np.zeros(len(x), np.int64)
    place[rows] = np.arange(len(rows))
    (said,), (mass,) = _answers(x, t, group, rows, asked, weight, (TAU,))
    listened = np.where(heard, weight, np.float32(0))
    total, all_mass = listened @ t, float(listened.sum())

    def all_say(*out: np.ndarray) -> np.ndarray:
        """(R, d): the mean of all but the rows in each place of ``out``, (R,) each."""
        left, left_mass = sum(listened[of][:, None] * t[of] for of in out), sum(listened[of] for of in out)
        return np.asarray((total - left) / np.maximum(all_mass - left_mass, LEAST)[:, None], dtype=np.float32)

    itself = np.exp((np.einsum("ij,ij->i", x[asking], x[shown]) - 1) / np.float32(TAU)) * weight[shown]
    itself[~heard[shown]] = 0
    answer, among = said[place[asking]], mass[place[asking]]
    against = (answer - itself[:, None] * t[shown]) / np.maximum(among - itself, LEAST)[:, None]
    return said / np.maximum(mass, LEAST)[:, None] - all_say(rows), against - all_say(asking, shown)


def _penalty(gram: np.ndarray) -> Any:
    """Of both regressions below: the mean spread of the rows, out of their products (d, d)."""
    return np.trace(gram) / max(len(gram), 1) + gram.dtype.type(1e-6)


def ridge(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The linear map (d, e) float32 of rows (n, d) to rows (n, e), each with its ``weight`` (n,)."""
    weighted = (a * weight[:, None].astype(np.float32)).T
    gram = weighted @ a
    gram += np.eye(len(gram), dtype=np.float32) * _penalty(gram)
    return np.asarray(np.linalg.solve(gram, weighted @ b), np.float32)


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

    def without(self, asking: np.ndarray, shown: np.ndarray | None = None) -> np.ndarray:
        """Predictions (R, e) at the rows ``asking`` (R,) of regressions that have seen neither these pairs nor those of
        the rows ``shown`` (R,): the residuals e of the pairs S that are left out were (I - H_SS)^-1 e_S.
        """
        if shown is None:
            return np.asarray(self.t[asking] - self.residual[asking] / self.stays[asking, None])
        out = np.empty((len(asking), self.t.shape[1]), np.float32)
        for start in range(0, len(asking), BLOCK):
            i, j = asking[start : start + BLOCK], shown[start : start + BLOCK]
            both = np.einsum("ij,ij->i", self.solved[i], self.x[j])
            toward, back = both * self.weight[j], both * self.weight[i]
            left_out = self.stays[j, None] * self.residual[i] + toward[:, None] * self.residual[j]
            out[start : start + BLOCK] = self.t[i] - left_out / (self.stays[i] * self.stays[j] - toward * back)[:, None]
        return out


def _joined(observed: np.ndarray, null: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """One score (R,), (K,) of (C, R), (C, K), in deviations of the first ``count`` null ones: Fisher's discriminant."""
    scale = np.maximum(null[:, :count].std(axis=1, keepdims=True), LEAST)
    observed, null, known = observed / scale, null / scale, null[:, :count] / scale
    apart = np.maximum(observed.mean(axis=1) - known.mean(axis=1), 0)
    weight = np.maximum(np.linalg.solve(np.cov(known) + SHRINK * np.eye(len(null)), apart), 0)
    if not weight.any():
        weight = np.ones(len(null))
    spread = max(float((weight @ known).std()), LEAST)
    return weight @ observed / spread, weight @ null / spread


class Centred:
    """``vectors`` (N, d) around their mean, and their ``covariance`` (d, d)."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors - vectors.mean(axis=0)
        self.covariance = self.vectors.T @ self.vectors / np.float32(len(vectors))

    def spread(self, c: np.ndarray, least: float = 0.0) -> np.ndarray:
        """The deviation (R,) of the products of vectors ``c`` (R, d) with all of these."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("ij,ij->i", c @ self.covariance, c), least)))

    def scaled(self, c: np.ndarray) -> np.ndarray:
        """Vectors ``c`` (R, d) in deviations of their products with all of these."""
        spread = self.spread(c)
        return np.asarray(c / np.maximum(spread, 1e-6 * spread.max(initial=LEAST))[:, None])

    def standing(self, c: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Products (R,) of ``c`` (R, d) and these ``rows`` (R,), in deviations of c's products with all."""
        return np.asarray(np.einsum("ij,ij->i", self.scaled(c), self.vectors[rows]))


def similarity_to_neighbours(
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    right: np.ndarray,
    *,
    seed: int = 0,
) -> np.ndarray:
    """How well each caption suits the mean caption of its image's trusted neighbours, and the other way round, (N,).

        c_i = sum_j K_ij right_j t_j, as a unit vector

    of unit vectors in a joint space: the mean of two ranks, in (0, 1). With many neighbours (tau = .07), by how much
    c_i . t_i is above its mean over all t_j; with few (.05), how many t_j are nearer to c_i than t_i, and how many c_j
    nearer to t_i than c_i.
    """
    from scipy.stats import rankdata

    n = len(images)
    rng = np.random.default_rng(seed)
    asked, others = (np.sort(rng.permutation(n)[:most]) for most in (BANK, RANKED))
    weight, above, nearer = right.astype(np.float32), np.zeros(n), np.zeros(n)
    for x, t, group in ((images, texts, image_group), (texts, images, text_group)):
        many, few = _answers(x, t, group, np.arange(n), asked, weight, (NEAR, NEAREST))[0]
        for said in (many, few):
            said /= np.maximum(np.linalg.norm(said, axis=1, keepdims=True), LEAST)
        like = np.einsum("ij,ij->i", many, t - t.mean(axis=0))
        above += like / max(float(like.std()), LEAST)
        observed = np.einsum("ij,ij->i", few, t) + 1e-6  # nobody is nearer than itself
        for asking, among in ((few, t[others]), (t, few[others])):
            for start in range(0, n, BLOCK):
                at = slice(start, start + BLOCK)
                nearer[at] += np.log1p((asking[at] @ among.T > observed[at, None]).sum(axis=1))
    return np.asarray(rankdata(above) + rankdata(-nearer) - 1) / (2 * max(n, 1))


def _answers(
    x: np.ndarray,
    t: np.ndarray,
    group: np.ndarray,
    rows: np.ndarray,
    asked: np.ndarray,
    weight: np.ndarray,
    taus: tuple[float, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """For R of N rows and T kernels, sums (T, R, d) float32 over the neighbours in ``x`` of what they are in ``t``,
    without the pair itself, and of their weights (T, R).
    """
    n = len(x)
    place = np.full(n, -1)
    place[asked] = np.arange(len(asked))
    # Those of the same image that are not among the asked answer all the same.
    unasked = np.where(place < 0, weight, 0).astype(np.float32)
    number = np.unique(group, return_inverse=True)[1]
    from scipy.sparse import csr_array

    member = csr_array((unasked, (number, np.arange(n))), shape=(int(number.max()) + 1, n))
    kin, kin_weight = member @ t, np.asarray(member.sum(axis=1)).ravel()
    out = np.empty((len(taus), len(rows), t.shape[1]), np.float32)
    mass = np.empty((len(taus), len(rows)), np.float32)
    bank, said, trust = x[asked], t[asked], weight[asked]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        near = x[block] @ bank.T - 1  # (b, bank)
        mine = np.flatnonzero(place[block] >= 0)
        self_weight, at = unasked[block], slice(start, start + len(block))
        for k, tau in enumerate(taus):
            K = np.exp(near / np.float32(tau)) * trust
            K[mine, place[block[mine]]] = 0
            out[k, at] = K @ said + kin[number[block]] - self_weight[:, None] * t[block]
            mass[k, at] = K.sum(axis=1) + kin_weight[number[block]] - self_weight
    return out, mass


def wrong_share(observed: np.ndarray, null: np.ndarray) -> float:
    """pi in [0, 1]: the ratio of the lower tails of N agreements and of those of random wrong pairs, at q = 0."""
    q = np.linspace(LOW, HIGH, 76)
    cuts, observed, null = np.quantile(null, q), np.sort(observed), np.sort(null)
    below = np.searchsorted(observed, cuts, side="right") / len(observed)
    level = np.searchsorted(null, cuts, side="right") / len(null)
    ratio = below / level
    # The ratio's variance falls as 1 / q; right pairs have more and more mass, never less.
    slope, start = np.polyfit(q**2, ratio, 1, w=np.sqrt(q))
    return float(np.clip(start if slope > 0 else np.average(ratio, weights=q), 0, 1))


def posterior(observed: np.ndarray, null: np.ndarray, wrong: float, at: np.ndarray | None = None) -> np.ndarray:
    """P(wrong) in [0, 1] of the agreements ``at``, by default ``observed`` (N,): the falling ratio of the densities."""
    from sklearn.isotonic import IsotonicRegression

    at = observed if at is None else at
    edges = np.unique(np.quantile(np.concatenate([observed, null]), np.linspace(0, 1, BINS + 1)))
    if len(edges) < 3:
        return np.full(len(at), wrong)
    mine = np.histogram(observed, edges)[0] / len(observed)
    theirs = np.histogram(null, edges)[0] / len(null)
    ratio = np.clip(wrong * theirs / np.maximum(mine, 1e-9), 0, 1)
    fallen = IsotonicRegression(increasing=False).fit_transform(np.arange(len(ratio)), ratio, sample_weight=mine + 1e-9)
    middle = (edges[1:] + edges[:-1]) / 2
    return np.asarray(np.interp(at, middle, fallen))
