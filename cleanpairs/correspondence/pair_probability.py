r"""The probability that an image and a caption of different pairs belong together, without a training.

Networks know their training pairs by heart. So everything here is linear or untrained, and out of sample:

1. A predictor learns from two thirds of the trusted pairs. It predicts a caption's vector from an image, and an image's
   from a caption, by ridge regression and by two means over neighbours. Vectors of one space are compared directly,
   too. The other pairs are held out: those of one image or text together, as often as they are mismatched together.
2. A logistic regression of held-out pairs against random ones makes one log likelihood ratio l of them.
3. l - log sum of exp(l) measures how much better a pair is than the image's other captions, and than the caption's
   other images. Both sums are scaled to the number of pairs to repair. Captions that stand with one image in the input,
   or images with one text, may have been lost together: they are no rivals of each other.
4. The image of a held-out caption is known, so it is wrong with all images to be repaired. These edges are what a
   caption has whose image is not among them. With its own image added, it is what a caption has whose image is. A
   logistic regression of right on l and both differences gives the probability.
5. The best edges of the captions to be repaired are a mixture of the two kinds. Its share is how many of their images
   are there: its posterior mean, where each share is as likely before.

Of more than :attr:`PairNumbers.most_exact` pairs to be repaired, sums are taken over samples. Vectors of one space are
then looked up where they lie, and predicted by ridge regression alone: only a few numbers are stored for a pair.

The prior has two factors. A right repair takes two mismatched pairs apart: the product of their probabilities. The
caption's image must be there: the share of step 5. A caption that a trusted pair has too is a copy, as far as more
captions to be repaired are so than trusted ones are another trusted pair's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.correspondence.agreement import Centred, ridge
from cleanpairs.ops.columns import numbered
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.matching import places, unit_rows


@dataclass(frozen=True)
class PairNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    held : float
        Share of the trusted pairs that are held out.

    most_held : int
        Most of them. Samples are of so many, too.

    taus : tuple of float
        Temperatures of the means over neighbours.

    references : int
        Most trusted pairs for these means.

    least_trusted, least_right : int
        With fewer trusted pairs, or fewer edges of either kind that the calibration sees, nothing is known.

    near : int
        The calibration sees about so many edges of a caption.

    most_exact : int
        With more pairs to be repaired, sums are taken over samples.

    most_edges : int
        Held-out captions are compared with all images to be repaired: about so many edges at most.

    random : int
        Random pairs that l is learned from.

    block, step : int
        Images that are compared, and predicted, at once.

    bins : int
        Of the histograms of step 5.
    """

    held: float = 1 / 3
    most_held: int = 2048
    taus: tuple[float, ...] = (0.15, 0.05)
    references: int = 8192
    least_trusted: int = 200
    least_right: int = 30
    near: int = 20
    most_exact: int = 8192
    most_edges: int = 1 << 28
    random: int = 60_000
    block: int = 64
    step: int = 4096
    bins: int = 8


NUMBERS = PairNumbers()


class VectorRows:
    """Vectors that lie in several arrays, looked up by number.

    Parameters
    ----------
    parts : sequence of (m, d) float
        Arrays, thought of as one under the other.
    index : (n,) int64
        Where each vector lies among their rows.
    """

    def __init__(self, parts: Sequence[np.ndarray], index: np.ndarray) -> None:
        self.parts, self.index = parts, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        at = self.index[rows]
        out = np.empty((len(at), self.parts[0].shape[1]), np.float32)
        for first, part in numbered(self.parts):
            inside = np.flatnonzero((at >= first) & (at < first + len(part)))
            out[inside] = part[at[inside] - first]
        return out


Vectors = np.ndarray | VectorRows


class _Space(Centred):
    """``rows`` (n, d), looked up around the mean of ``some`` of them (k,)."""

    def __init__(self, rows: Vectors, some: np.ndarray) -> None:
        of_some = Centred(rows[some])
        self.rows, self.mean, self.covariance = rows, of_some.mean, of_some.covariance

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows[rows] - self.mean)


@dataclass(frozen=True)
class _Side:
    """V views (n, d) of n images or captions. The ``scale`` (n, V) is a factor of each product. None: 1."""

    views: list[Any]
    scale: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.views[0])

    def __getitem__(self, rows: slice | np.ndarray) -> "_Side":
        some = {id(x): x[rows] for x in self.views}
        return _Side([some[id(x)] for x in self.views], None if self.scale is None else self.scale[rows])


@dataclass(frozen=True)
class _Later:
    """Rows that ``predict`` makes of ``pairs`` (n,) when they are looked up."""

    predict: Callable[[np.ndarray], Any]
    pairs: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, rows: slice | np.ndarray) -> Any:
        return self.predict(self.pairs[rows])


@dataclass(frozen=True)
class _Sides:
    """The score of an image and a caption in a view is the inner product of their rows, times the scale of each."""

    images: _Side
    captions: _Side

    def table(self, rows: slice) -> np.ndarray:
        images = self.images[rows]
        kinds = list(zip(map(id, images.views), map(id, self.captions.views), strict=True))
        products: list[np.ndarray] = []
        for kind, x, t in zip(kinds, images.views, self.captions.views, strict=True):
            known = kinds.index(kind)  # views of the same vectors are multiplied once
            products.append(products[known] if known < len(products) else x @ t.T)
        out = np.stack(products, axis=-1)
        for scale in (images.scale, self.captions.scale):
            if scale is not None:
                out *= scale[:, None] if scale is images.scale else scale
        return out

    def pairs(self, image: np.ndarray, caption: np.ndarray) -> np.ndarray:
        out = np.empty((len(image), len(self.images.views)), np.float32)
        for s in blocks(len(image), 1 << 14):
            rows = {
                id(x): x[at[s]] for side, at in ((self.images, image), (self.captions, caption)) for x in side.views
            }
            for v, (x, t) in enumerate(zip(self.images.views, self.captions.views, strict=True)):
                out[s, v] = np.einsum("ij,ij->i", rows[id(x)], rows[id(t)])
            for side, at in ((self.images, image), (self.captions, caption)):
                if side.scale is not None:
                    out[s] *= side.scale[at[s]]
        return out


class _Predictor:
    """Trusted ``pairs`` (n,) that predict captions of images and the reverse, in ``spaces`` and a ``joint`` one.

    The means are taken over the first of them.
    """

    def __init__(
        self, spaces: tuple[_Space, _Space], joint: tuple[_Space, _Space] | None, of_image: np.ndarray,
        pairs: np.ndarray, weight: np.ndarray,
    ) -> None:  # fmt: skip
        (self.image, self.text), self.joint, self.of_image = spaces, joint, of_image
        weight = weight.astype(np.float32)
        x, t = self.image[of_image[pairs]], self.text[pairs]
        self.map = ridge(x, t, weight), ridge(t, x, weight)
        most = NUMBERS.references
        self.x, self.t, self.weight = x[:most].copy(), t[:most].copy(), weight[:most]  # views would hold all

    def _predicted(
        self, queries: np.ndarray, references: np.ndarray, values: np.ndarray, map_: np.ndarray
    ) -> list[np.ndarray]:
        unit, others = unit_rows(queries), unit_rows(references)
        out = [queries @ map_, *(np.empty((len(queries), values.shape[1]), np.float32) for _ in NUMBERS.taus)]
        for at in blocks(len(queries), 1024):
            near = unit[at] @ others.T - 1
            for k, tau in enumerate(NUMBERS.taus):
                K = np.exp(near / np.float32(tau)) * self.weight
                out[k + 1][at] = K @ values / np.maximum(K.sum(axis=1, keepdims=True), 1e-12)
        return out

    def images(self, pairs: np.ndarray) -> _Side:
        """The images of ``pairs``."""
        images, joint = self.of_image[pairs], self.joint
        x = self.image[images]
        texts = [_scaled(c, self.text) for c in self._predicted(x, self.x, self.t, self.map[0])]
        views = texts + [x] * len(texts)
        if joint is not None:
            a = joint[0][images]
            views += [_scaled(a, joint[1]), a]
        return _Side(views)

    def captions(self, pairs: np.ndarray) -> _Side:
        """The captions of ``pairs``."""
        t, joint = self.text[pairs], self.joint
        pictures = [_scaled(c, self.image) for c in self._predicted(t, self.t, self.x, self.map[1])]
        views = [t] * len(pictures) + pictures
        if joint is not None:
            b = joint[1][pairs]
            views += [b, _scaled(b, joint[0])]
        return _Side(views)


class _LinearPredictor(_Predictor):
    """The predictor of vectors of one space by ridge regression alone. All views of a caption are its own vector."""

    def images(self, pairs: np.ndarray) -> _Side:
        """The images of ``pairs``."""
        x = self.image[self.of_image[pairs]]
        predicted = x @ self.map[0]
        scale = np.ones((len(x), 4), np.float32)
        scale[:, 0], scale[:, 2] = (1 / self.text.spread(c, 1e-12) for c in (predicted, x))
        return _Side([predicted, x @ self.map[1].T, x, x], scale)

    def captions(self, pairs: np.ndarray) -> _Side:
        """The captions of ``pairs``."""
        t = self.text[pairs]
        scale = np.ones((len(t), 4), np.float32)
        scale[:, 1], scale[:, 3] = (1 / self.image.spread(c, 1e-12) for c in (t @ self.map[1], t))
        return _Side([t] * 4, scale)


def _scaled(predicted: np.ndarray, space: Centred) -> np.ndarray:
    return np.asarray(predicted / space.spread(predicted, 1e-12)[:, None], np.float32)


def _terms(views: np.ndarray) -> np.ndarray:
    scaled = np.clip(views, -4, 12) / 3
    return np.concatenate([scaled, scaled * np.abs(scaled)], axis=-1)


def _bends(edges: np.ndarray) -> np.ndarray:
    scaled = np.clip(edges, -10, 10) / 4
    return np.concatenate([scaled, np.maximum(scaled, 0)], axis=1)


def _differences(
    ratio: np.ndarray, sums: Sequence[np.ndarray], scale: tuple[float, float], holds: Sequence[np.ndarray | bool]
) -> np.ndarray:
    """(k, 3): l and what it is above the others of its image and of its caption, whose ``sums`` may hold exp(l)."""
    own = np.exp(ratio.astype(np.float64))
    others = ((total - own * held) * by for total, by, held in zip(sums, scale, holds, strict=True))
    return np.stack([ratio, *(ratio - np.log(np.maximum(other, 0) + 1e-3) for other in others)], axis=1)


@dataclass(frozen=True)
class _Edges:
    """Places of the captions (k,), :func:`_differences` (k, 3), and the log of the images' prior (k,)."""

    caption: np.ndarray
    differences: np.ndarray
    prior: np.ndarray

    def best(self, fit: tuple[np.ndarray, float], n: int) -> np.ndarray:
        """The log odds (n,) of the best edge of each of n captions. -inf: it has none."""
        out = np.full(n, -np.inf)
        np.maximum.at(out, self.caption, _bends(self.differences) @ fit[0] + fit[1] + self.prior)
        return out


@dataclass(frozen=True)
class _Known:
    """Edges of n held-out captions, whose own image is known. A pair is matched itself with probability ``sure`` (n,).

    ``absent``: wrong edges of a caption whose own image is not there. ``rivals``: the same edges, if it is there.
    ``right``: the edges with its own image.
    """

    absent: _Edges
    rivals: _Edges
    right: _Edges
    sure: np.ndarray

    def best(self, fit: tuple[np.ndarray, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best edge of each caption (n,): without its own image, beside it, and with it."""
        n = len(self.sure)
        return self.absent.best(fit, n), self.rivals.best(fit, n), self.right.best(fit, n)

    def learn(self, share: float) -> tuple[np.ndarray, float]:
        """Coefficients and intercept of the probability that an edge is right, if a ``share`` of images is there."""
        kinds = self.absent, self.rivals, self.right
        sizes = [len(edges.caption) for edges in kinds]
        weight = np.repeat([1 - share, share, share], sizes) * np.append(
            np.ones(sum(sizes[:2])), self.sure[self.right.caption]
        )
        edges = _bends(np.concatenate([kind.differences for kind in kinds]))
        return _logistic(edges, np.repeat([False, False, True], sizes), weight)

    def rescaled(self, fit: tuple[np.ndarray, float], share: float) -> tuple[np.ndarray, float]:
        """Platt's scaling of the best edges, which are those that become repairs."""
        absent, rival, own = self.best(fit)
        odds = np.concatenate([absent, np.maximum(rival, own)])
        right = np.concatenate([np.zeros(len(absent), bool), own > rival])
        weight = np.concatenate([np.full(len(absent), 1 - share), share * self.sure])
        seen = np.isfinite(odds)
        (slope,), shift = _logistic(odds[seen, None], right[seen], weight[seen])
        return fit[0] * slope, fit[1] * slope + shift


def _siblings(rows: np.ndarray, of: np.ndarray) -> Any:
    """Which other rows (n, n) have the same ``of`` (k,). Of one that more than ``near`` rows have, none."""
    from scipy.sparse import csr_array

    few = np.bincount(of)[of] <= NUMBERS.near
    shown = csr_array((np.ones(few.sum(), bool), (rows[few], of[few])), shape=(rows.max() + 1, of.max() + 1))
    pairs = (shown @ shown.T).tocoo()
    other = pairs.row != pairs.col
    return csr_array((np.ones(other.sum(), bool), (pairs.row[other], pairs.col[other])), shape=pairs.shape)


def _together(group: np.ndarray, lost: np.ndarray, kept: np.ndarray) -> float:
    """The share of ``lost`` pairs among the other pairs of the ``group`` (N,) of a lost pair."""
    group = np.unique(group, return_inverse=True)[1]
    of_lost, of_kept = (np.bincount(group[pairs], minlength=len(group))[group[lost]] for pairs in (lost, kept))
    return float((of_lost - 1).sum() / max((of_lost - 1 + of_kept).sum(), 1))


def _in_groups(pairs: np.ndarray, groups: list[tuple[np.ndarray, float]], rng: np.random.Generator) -> np.ndarray:
    """Order ``pairs`` (n,) so that for each ``(group (N,), share)`` this share of a group's pairs stands together."""
    key = np.arange(len(pairs)) / len(pairs)
    for group, share in groups:
        of_group = rng.random(len(pairs))[np.unique(group[pairs], return_inverse=True)[1]]
        key = np.where(rng.random(len(pairs)) < share, of_group, key)
    return pairs[np.argsort(key)]


def _logistic(x: np.ndarray, right: np.ndarray, weight: np.ndarray, C: float = 10) -> tuple[np.ndarray, float]:
    from sklearn.linear_model import LogisticRegression

    fit = LogisticRegression(C=C, max_iter=1000).fit(x, right, sample_weight=weight)
    return fit.coef_[0], float(fit.intercept_[0])


def mixture_share(absent: np.ndarray, there: np.ndarray, mixed: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """The share of ``there`` among ``mixed`` (n,), by histograms: posterior mean and 5 % quantile. All are as likely
    before.

    ``weight`` (n,) says how much each of ``mixed`` counts.
    """
    levels = np.arange(1, NUMBERS.bins) / NUMBERS.bins
    cuts = np.unique(np.quantile(np.concatenate([absent, there]), levels, method="lower"))
    known = [np.bincount(np.searchsorted(cuts, x), minlength=len(cuts) + 1) + 0.5 for x in (absent, there)]
    of_absent, of_there = (counts / counts.sum() for counts in known)
    counts = np.bincount(np.searchsorted(cuts, mixed), weight, len(cuts) + 1)
    shares = np.linspace(0, 1, 101)
    likelihood = np.log(np.outer(shares, of_there) + np.outer(1 - shares, of_absent)) @ counts
    posterior = np.exp(likelihood - likelihood.max())
    posterior /= posterior.sum()
    return float(posterior @ shares), float(shares[np.searchsorted(np.cumsum(posterior), 0.05)])


class PairProbability:
    """How likely the image of one pair and the caption of another belong together, of N pairs, some to be repaired.

    Parameters
    ----------
    images : (M, D) float32, or VectorRows
        Unit vectors in a frozen space.

    texts : (N, d) float32, or VectorRows
        Unit vectors in another frozen space.

    image_index : (N,) int64
        Image of each pair.

    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.

    matched : (N,) float
        Calibrated probability of being matched. NaN: the pair takes no part.

    threshold : float
        Pairs below it are to be repaired. The others are trusted.

    joint : ((M, e), (N, e)) float, optional
        Vectors of both sides in one space. They may be ``images`` and ``texts``.

    seed : int
        Seed of samples.
    """

    def __init__(
        self, images: Vectors, texts: Vectors, image_index: np.ndarray, image_group: np.ndarray,
        text_group: np.ndarray, matched: np.ndarray, threshold: float, *,
        joint: tuple[Vectors, Vectors] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.image_group, self.text_group = image_group, text_group
        finite = np.isfinite(matched)
        self.matched = np.where(finite, matched, 0.0)
        self.captions = np.flatnonzero(finite & (self.matched < threshold))  # pairs to be repaired
        self.trusted = rng.permutation(np.flatnonzero(finite & (self.matched >= threshold)))
        self.judged = len(self.trusted) >= NUMBERS.least_trusted and len(self.captions) >= 2
        if not self.judged:
            return
        self._note_copies()
        _, first, self._image_of_caption = np.unique(image_group[self.captions], return_index=True, return_inverse=True)
        self.images = self.captions[first]  # a pair that shows each of their images
        self._wrong = np.zeros(len(self.images))
        np.maximum.at(self._wrong, self._image_of_caption, 1 - self.matched[self.captions])
        own, text = np.arange(len(self.captions)), np.unique(text_group[self.captions], return_inverse=True)[1]
        of_captions = _siblings(own, self._image_of_caption) + _siblings(own, text)
        self._siblings = of_captions, _siblings(self._image_of_caption, text)
        self._many, one_space = len(self.captions) > NUMBERS.most_exact, joint is not None and joint[0] is images
        of_trusted = image_index[self.trusted], self.trusted
        spaces = _Space(images, of_trusted[0]), _Space(texts, of_trusted[1])
        both = spaces if one_space else None
        if joint is not None and not one_space:
            both = _Space(joint[0], of_trusted[0]), _Space(joint[1], of_trusted[1])
        groups = [(g, _together(g, self.captions, self.trusted)) for g in (text_group, image_group)]
        self.trusted = _in_groups(self.trusted, groups, rng.spawn(1)[0])
        held, rest = np.split(self.trusted, [min(int(len(self.trusted) * NUMBERS.held), NUMBERS.most_held)])
        self._linear = self._many and one_space
        kind = _LinearPredictor if self._linear else _Predictor
        predictor = kind(spaces, both, image_index, rest, self.matched[rest])
        sides = _Sides(predictor.images(held), predictor.captions(held))
        self._learn(sides, held, rng)
        # A caption that is to be repaired, too, may have another image among those.
        alone = np.flatnonzero(~np.isin(text_group[held], text_group[self.captions]))
        alone = alone[: NUMBERS.most_edges // len(self.images) + 1]
        few = _Sides(sides.images[alone], sides.captions[alone])
        self.judged = len(alone) >= NUMBERS.least_right and self._calibrate(predictor, few, held[alone], rng)

    def _note_copies(self) -> None:
        """How likely each caption to be repaired is a lost one, and no copy of a trusted pair's, by their shares."""
        texts = np.unique([x[self.trusted] for x in (self.image_group, self.text_group)], axis=1)[1]
        _, place, count = np.unique(texts, return_inverse=True, return_counts=True)
        copy = np.isin(self.text_group[self.captions], texts)
        usual = min(1.0, float((count[place] > 1).mean()) / max(float(copy.mean()), 1e-9))
        self._lost = np.where(copy, usual, 1.0)

    def _ratio(self, views: np.ndarray) -> np.ndarray:
        return np.asarray(_terms(views) @ self._coefficients + self._intercept, np.float32)

    def _blocks(self, images: _Side, captions: _Side) -> Iterator[tuple[int, np.ndarray]]:
        for rows in blocks(len(images), NUMBERS.block):
            yield rows.start, self._ratio(_Sides(images, captions).table(rows))

    def _right(self, images: np.ndarray, captions: np.ndarray) -> tuple[Any, Any]:
        """Which texts the images have anywhere in the input, (k, T), and which captions have them, (T, m)."""
        from scipy.sparse import csr_array

        g, t = (np.unique(group, return_inverse=True)[1] for group in (self.image_group, self.text_group))
        here = np.arange(len(captions))
        beside = csr_array((np.ones(len(g), bool), (g, t)))[g[images]]
        return beside, csr_array((np.ones(len(here), bool), (t[captions], here)), shape=(t.max() + 1, len(here)))

    def _learn(self, sides: _Sides, held: np.ndarray, rng: np.random.Generator) -> None:
        """Learn l of held-out pairs (h,) and their ``sides``."""
        n, w = len(held), self.matched[held]
        right = sides.pairs(np.arange(n), np.arange(n))
        image, caption = rng.integers(0, n, (2, NUMBERS.random))
        apart = self.image_group[held[image]] != self.image_group[held[caption]]
        apart &= self.text_group[held[image]] != self.text_group[held[caption]]
        random = sides.pairs(image[apart], caption[apart])
        weight = np.concatenate([w / w.mean(), np.full(len(random), n / max(len(random), 1))])
        terms, truth = _terms(np.concatenate([right, random])), np.repeat([True, False], [n, len(random)])
        coefficients, self._intercept = _logistic(terms, truth, weight, C=1)
        self._coefficients = coefficients.astype(np.float32)

    def _compare(
        self, images: "_Side | _Later", captions: _Side, beside: tuple[Any, Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """The sums of exp(l) of n images over m captions (n,), and of the captions over the images (m,).

        Then the edges whose l is above ``least``: image, caption and l, each (k,). Edges of :meth:`_right` are none.
        """
        of_images, of_captions, near = np.zeros(len(images)), np.zeros(len(captions)), []
        for step in range(0, len(images), NUMBERS.step):
            for start, ratio in self._blocks(images[step : step + NUMBERS.step], captions):
                first, end = step + start, step + start + len(ratio)
                if beside is not None:
                    ratio[(beside[0][first:end] @ beside[1]).nonzero()] = -np.inf
                exact = np.exp(ratio.astype(np.float64))
                of_images[first:end] = exact.sum(axis=1)
                of_captions += exact.sum(axis=0)
                i, c = np.nonzero(ratio > self.least)
                near.append((first + i, c, ratio[i, c]))
        return of_images, of_captions, [np.concatenate(part) for part in zip(*near, strict=True)]

    def _calibrate(self, predictor: _Predictor, sides: _Sides, held: np.ndarray, rng: np.random.Generator) -> bool:
        """Take the sums of step 3, then learn steps 4 and 5 of held-out pairs (h,) and their ``sides``.

        False where too few edges are seen.
        """
        both = self.images, self.captions
        some = [np.sort(rng.permutation(len(x))[: NUMBERS.most_held if self._many else None]) for x in both]
        self._holds = [np.isin(np.arange(len(x)), s) for x, s in zip(both, some, strict=True)]
        self._scale = len(both[1]) / len(some[1]), len(both[0]) / len(some[0])
        self._images = _Later(predictor.images, self.images) if self._linear else predictor.images(self.images)
        few, captions = self._images[some[0]], predictor.captions(self.captions[some[1]])
        table = np.concatenate([ratio for _, ratio in self._blocks(few[: NUMBERS.most_held], sides.captions)])
        self.least = float(np.quantile(table, 1 - min(1.0, NUMBERS.near / len(self.images))))

        beside = self._right(self.images, self.captions[some[1]])
        of_images, of_captions, to_judge = self._compare(self._images, captions, beside)
        _, alone, (image, caption, ratio) = self._compare(self._images, sides.captions, self._right(self.images, held))
        if self._many:  # as many images are added up as for captions to be repaired, whose own may be among them
            alone = self._compare(few, sides.captions)[1]
        own = self._ratio(sides.pairs(*np.tile(np.arange(len(held)), (2, 1))))
        of_own = np.exp(own.astype(np.float64)) * (rng.random(len(held)) * self._scale[1] < 1)
        wrong, holds = np.log(self._wrong), (False, self._holds[0][image])
        absent, rivals = (
            _Edges(caption, _differences(ratio, (of_images[image], total[caption]), self._scale, holds), wrong[image])
            for total in (alone, alone + of_own)
        )
        at = np.flatnonzero(own > self.least)
        sums = self._compare(sides.images, captions)[0][at], alone[at]
        right = _Edges(at, _differences(own[at], sums, self._scale, (False, False)), np.zeros(len(at)))
        if min(len(absent.caption), len(at)) < NUMBERS.least_right:
            return False
        known = _Known(absent, rivals, right, self.matched[held] / self.matched[self.trusted].mean())
        self._sums, self._captions = (of_images, of_captions), captions
        if self._many:
            self._sums = of_images, self._sum_in_steps(predictor, few)
        image, caption, ratio = to_judge
        mixed = _Edges(caption, self._above_others(image, some[1][caption], ratio), wrong[image])
        fit = known.learn(0.5)
        without, rival, best_own = known.best(fit)
        lost = ((1 - self.matched[self.captions]) * self._lost)[some[1]]
        self.share, _ = mixture_share(without, np.maximum(rival, best_own), mixed.best(fit, len(captions)), lost)
        self._logit = known.rescaled(known.learn(self.share), self.share)
        return True

    def _above_others(self, image: np.ndarray, caption: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """:func:`_differences` of edges (k,) to be judged. What may have been lost together is no rival."""
        sums = [self._sums[0][image], self._sums[1][caption]]
        for side, own in ((0, caption), (1, image)):
            edge, sibling = self._siblings[side][own].nonzero()
            pairs = (image[edge], sibling) if side == 0 else (sibling, caption[edge])
            lost = np.exp(self._ratio_of(*pairs).astype(np.float64)) * self._holds[1 - side][sibling]
            sums[side] -= np.bincount(edge, lost, len(own))
        return _differences(ratio, sums, self._scale, (self._holds[1][caption], self._holds[0][image]))

    def _ratio_of(self, image: np.ndarray, caption: np.ndarray) -> np.ndarray:
        few, place = np.unique(image, return_inverse=True)
        return self._ratio(_Sides(self._images[few], self._captions).pairs(place, caption))

    def _sum_in_steps(self, predictor: _Predictor, few: _Side) -> np.ndarray:
        """Return the sums of exp(l) of all captions over a ``few`` images, and keep the captions."""
        step = NUMBERS.step if self._linear else len(self.captions)
        sums: list[np.ndarray] = []
        scales: list[Any] = []
        for at in blocks(len(self.captions), step):
            self._captions = predictor.captions(self.captions[at])
            sums.append(self._compare(few, self._captions)[1])
            scales.append(self._captions.scale)
        if self._linear:
            self._captions = _Side([_Later(predictor.text.__getitem__, self.captions)] * 4, np.concatenate(scales))
        return np.concatenate(sums)

    def probability(self, image_of: np.ndarray, text_of: np.ndarray) -> np.ndarray:
        """Probability that images and captions of different pairs belong together.

        Parameters
        ----------
        image_of : (k,) int64
            Pairs whose images are compared.
        text_of : (k,) int64
            Pairs whose captions are.

        Returns
        -------
        (k,) float32
            0 where either is a trusted pair's, which has its partner. NaN where there is too little to judge by.
        """
        out = np.full(len(image_of), 0 if self.judged else np.nan, np.float32)
        if not self.judged:
            return out
        image, caption = (places(self.captions, pairs) for pairs in (image_of, text_of))
        at = np.flatnonzero((image >= 0) & (caption >= 0))
        image, caption = self._image_of_caption[image[at]], caption[at]
        ratio = self._ratio_of(image, caption)
        seen = ratio > self.least
        at, image, caption, ratio = at[seen], image[seen], caption[seen], ratio[seen]
        if len(at):
            edges = self._above_others(image, caption, ratio)
            apart = (1 - self.matched[self.captions[caption]]) * self._lost[caption]
            logit = _bends(edges) @ self._logit[0] + self._logit[1]
            odds = np.exp(logit) * self._wrong[image] * apart
            out[at] = odds / (1 + odds)
        return out
