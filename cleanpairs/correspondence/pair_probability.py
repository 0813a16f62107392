r"""The probability that an image and a caption of different pairs belong together, without a training.

Networks know their training pairs by heart. So everything here is linear or untrained, and out of fold:

1. A predictor learns from all trusted pairs but those of one of K folds. It predicts a caption's vector from an image,
   and an image's from a caption, by ridge regression and by two means over neighbours. Vectors of one space are
   compared directly, too.
2. A logistic regression of held-out trusted pairs against random ones makes one log likelihood ratio l of them.
3. l - log sum of exp(l) measures how much better a pair is than the image's other captions, and than the caption's
   other images. Both sums are scaled to the number of pairs to repair.
4. Held-out trusted pairs, taken apart, are repairs whose truth is known, and go through 1 to 3 as the mismatched pairs
   do. A logistic regression of right on l and both differences gives the probability.

Of more than :attr:`PairNumbers.most_exact` pairs to be repaired one predictor judges all. It has learned from a sample
of the trusted pairs, and sums are taken over samples. The wrong edges of step 4 are then those of held-out images with
all captions to be repaired: too few held-out captions are nearly right for a held-out image. Vectors of one space are
looked up where they lie, and predicted by ridge regression alone: only a few numbers are stored for a pair.

The prior has two factors. A right repair takes two mismatched pairs apart: the product of their probabilities. The
caption's image must be in the data: ``present``, which the scores cannot estimate (dev/LOG.md). A caption that a
trusted pair has too is a copy, as far as more captions to be repaired are so than trusted ones are another trusted
pair's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.correspondence.agreement import Centred, ridge
from cleanpairs.ops.matching import places, unit_rows


@dataclass(frozen=True)
class PairNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    folds : int
        Folds of the trusted pairs.

    taus : tuple of float
        Temperatures of the means over neighbours.

    present : float
        Share of the mismatched images whose caption is among the mismatched captions, where these are no copies.

    least_trusted, least_right : int
        With fewer trusted pairs, or fewer right edges among those that the calibration sees, nothing is known.

    near : int
        The calibration sees about so many edges of an image.

    most_exact : int
        With more pairs to be repaired, samples judge them.

    most_held : int
        Most held-out pairs of a fold. Sums of step 3 over more images and captions are taken by samples.

    references : int
        Trusted pairs in a sample for means.

    most_edges : int
        By samples, the calibration compares held-out images with all captions to be repaired: so many edges.

    block : int
        Images at once.
    """

    folds: int = 3
    taus: tuple[float, ...] = (0.15, 0.05)
    present: float = 0.9
    least_trusted: int = 200
    least_right: int = 30
    near: int = 20
    most_exact: int = 8192
    most_held: int = 2048
    references: int = 8192
    most_edges: int = 1 << 26
    block: int = 64


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
        at, first = self.index[rows], 0
        out = np.empty((len(at), self.parts[0].shape[1]), np.float32)
        for part in self.parts:
            inside = np.flatnonzero((at >= first) & (at < first + len(part)))
            out[inside] = part[at[inside] - first]
            first += len(part)
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
class _Places:
    """The vectors of these ``pairs`` (n,), looked up by their places."""

    space: _Space
    pairs: np.ndarray

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        return self.space[self.pairs[places]]


@dataclass(frozen=True)
class _Side:
    """V views of n images, or captions, and what each product with one is multiplied by: (n, V), or 1."""

    views: list[Any]
    scale: np.ndarray | None = None

    def __getitem__(self, rows: slice | np.ndarray) -> "_Side":
        return _Side([x[rows] for x in self.views], None if self.scale is None else self.scale[rows])


@dataclass(frozen=True)
class _Sides:
    """The score of an image and a caption in a view is the inner product of their rows, times the scale of each."""

    images: _Side
    captions: _Side

    def table(self, rows: slice) -> np.ndarray:
        images = self.images[rows]
        kinds = list(zip(map(id, self.images.views), map(id, self.captions.views), strict=True))
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
        for start in range(0, len(image), 1 << 14):
            s = slice(start, start + (1 << 14))
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

    The means are taken over the first ``most`` of them.
    """

    def __init__(
        self, spaces: tuple[_Space, _Space], joint: tuple[_Space, _Space] | None, of_image: np.ndarray,
        pairs: np.ndarray, weight: np.ndarray, most: int | None = None,
    ) -> None:  # fmt: skip
        (self.image, self.text), self.joint, self.of_image = spaces, joint, of_image
        weight = weight.astype(np.float32)
        x, t = self.image[of_image[pairs]], self.text[pairs]
        self.map = ridge(x, t, weight), ridge(t, x, weight)
        if most is not None:  # copies, as views would hold all
            x, t = x[:most].copy(), t[:most].copy()
        self.x, self.t, self.weight = x, t, weight[:most]

    def _predicted(
        self, queries: np.ndarray, references: np.ndarray, values: np.ndarray, map_: np.ndarray
    ) -> list[np.ndarray]:
        unit, others = unit_rows(queries), unit_rows(references)
        out = [queries @ map_, *(np.empty((len(queries), values.shape[1]), np.float32) for _ in NUMBERS.taus)]
        for start in range(0, len(queries), 1024):
            near = unit[start : start + 1024] @ others.T - 1
            for k, tau in enumerate(NUMBERS.taus):
                K = np.exp(near / np.float32(tau)) * self.weight
                out[k + 1][start : start + 1024] = K @ values / np.maximum(K.sum(axis=1, keepdims=True), 1e-12)
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
        Seed of folds and samples.
    """

    def __init__(
        self, images: Vectors, texts: Vectors, image_index: np.ndarray, image_group: np.ndarray,
        text_group: np.ndarray, matched: np.ndarray, threshold: float, *,
        joint: tuple[Vectors, Vectors] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self._lookup: tuple[_Predictor, _Side] | None = None
        self.image_group, self.text_group = image_group, text_group
        finite = np.isfinite(matched)
        self.matched = np.where(finite, matched, 0.0)
        self.captions = np.flatnonzero(finite & (self.matched < threshold))  # pairs to be repaired
        self.trusted = rng.permutation(np.flatnonzero(finite & (self.matched >= threshold)))
        self.judged = len(self.trusted) >= NUMBERS.least_trusted and len(self.captions) >= 2
        if not self.judged:
            return
        self._note_copies()
        many, one_space = len(self.captions) > NUMBERS.most_exact, joint is not None and joint[0] is images
        every = np.arange(len(images)), np.arange(len(texts))
        some = (image_index[self.trusted], self.trusted) if many else every
        spaces = _Space(images, some[0]), _Space(texts, some[1])
        both = None
        if joint is not None:
            both = spaces if one_space else (_Space(joint[0], some[0]), _Space(joint[1], some[1]))
        folds = self._folds(many)
        predictors = []
        for fold in folds[:1] if many else folds:
            rest = self.trusted[len(np.concatenate(folds)) :] if many else np.setdiff1d(self.trusted, fold)
            kind = _LinearPredictor if many and one_space else _Predictor
            most = NUMBERS.references if many else None
            predictors.append(kind(spaces, both, image_index, rest, self.matched[rest], most))
        _, first, self._image_of_caption = np.unique(image_group[self.captions], return_index=True, return_inverse=True)
        self.images = self.captions[first]  # a pair that shows each of their images
        self.image_fold = rng.integers(0, len(predictors), len(self.images))
        few = [fold[: NUMBERS.most_held] for fold in folds]
        held = [(h, h[np.unique(image_group[h], return_index=True)[1]]) for h in few]  # captions, images
        seen = predictors * (len(held) // len(predictors))
        self._learn(seen, held, rng)
        if many:
            self.judged = self._prepare_many(predictors[0], np.concatenate(few), rng)
        elif self._calibrate(seen, held):
            self._prepare(predictors)
        else:
            self.judged = False

    def _note_copies(self) -> None:
        """How likely each caption to be repaired is a lost one, and no copy of a trusted pair's, by their shares."""
        texts = np.unique([x[self.trusted] for x in (self.image_group, self.text_group)], axis=1)[1]
        _, place, count = np.unique(texts, return_inverse=True, return_counts=True)
        texts_of_captions = self.text_group[self.captions]
        copy = np.isin(texts_of_captions, texts)
        usual = min(1.0, float((count[place] > 1).mean()) / max(float(copy.mean()), 1e-9))
        self._lost = np.where(copy, usual, 1.0)
        lost = len(np.unique(texts_of_captions[~copy])) + self._lost[copy].sum()
        self._present = min(NUMBERS.present, lost / len(texts_of_captions))

    def _ratio(self, views: np.ndarray) -> np.ndarray:
        return np.asarray(_terms(views) @ self._coefficients + self._intercept, np.float32)

    def _blocks(self, sides: _Sides) -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(sides.images.views[0]), NUMBERS.block):
            rows = slice(start, start + NUMBERS.block)
            yield rows, self._ratio(sides.table(rows))

    def _right(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """(2, k): places of the images and of the captions that are pairs anywhere in the input."""
        from scipy.sparse import csr_array

        g, t = (np.unique(group, return_inverse=True)[1] for group in (self.image_group, self.text_group))
        here = np.arange(len(captions))
        beside = csr_array((np.ones(len(g), bool), (g, t)))[g[images]]
        shown = csr_array((np.ones(len(here), bool), (t[captions], here)), shape=(t.max() + 1, len(here)))
        return np.asarray((beside @ shown).nonzero())

    def _learn(
        self, predictors: list[_Predictor], held: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
    ) -> None:
        from sklearn.linear_model import LogisticRegression

        right, weight, random = [], [], []
        for predictor, (captions, _) in zip(predictors, held, strict=True):
            sides, n = _Sides(predictor.images(captions), predictor.captions(captions)), len(captions)
            right.append(sides.pairs(np.arange(n), np.arange(n)))
            weight.append(self.matched[captions])
            image, caption = rng.integers(0, n, (2, 20_000))
            apart = self.image_group[captions[image]] != self.image_group[captions[caption]]
            apart &= self.text_group[captions[image]] != self.text_group[captions[caption]]
            random.append(sides.pairs(image[apart], caption[apart]))
        a, w, b = (np.concatenate(part) for part in (right, weight, random))
        fit = LogisticRegression(max_iter=500).fit(
            _terms(np.concatenate([a, b])), np.repeat([1, 0], [len(a), len(b)]),
            sample_weight=np.concatenate([w / w.mean(), np.full(len(b), len(a) / max(len(b), 1))]),
        )  # fmt: skip
        self._coefficients, self._intercept = fit.coef_[0].astype(np.float32), float(fit.intercept_[0])

    def _calibrate(self, predictors: list[_Predictor], held: list[tuple[np.ndarray, np.ndarray]]) -> bool:
        """Learn step 4 of the module's head. False where too few right edges are seen."""
        found, scores = [], []
        for predictor, (captions, images) in zip(predictors, held, strict=True):
            ratio = np.concatenate(
                [block for _, block in self._blocks(_Sides(predictor.images(images), predictor.captions(captions)))]
            )
            right = np.zeros(ratio.shape, bool)
            right[tuple(self._right(images, captions))] = True
            scale = len(self.captions) / len(captions), len(self.images) / len(images)
            found.append((ratio, right, scale, self.matched[captions]))
            seen = min(1.0, NUMBERS.near / (scale[0] * ratio.shape[1]))
            scores.append(np.quantile(ratio[~right], 1 - seen))
        self.least = float(np.mean(scores))
        edges, truth, weight = [], [], []
        for ratio, right, scale, matched in found:
            total = np.exp(ratio.astype(np.float64))
            i, c = np.nonzero(ratio > self.least)
            sums = total.sum(axis=1)[i], total.sum(axis=0)[c]
            edges.append(_differences(ratio[i, c], sums, scale, (True, True)))
            truth.append(right[i, c])
            weight.append(np.where(right[i, c], self._right_weight(matched[c]), scale[1]))
        return self._fit(*map(np.concatenate, (edges, truth, weight)))

    def _right_weight(self, matched: np.ndarray) -> np.ndarray:
        """The weight of right edges of held-out pairs, by the share of images to be repaired whose caption is there."""
        return np.asarray(self._present / float(self.matched[self.trusted].mean()) * matched)

    def _fit(self, edges: np.ndarray, right: np.ndarray, weight: np.ndarray) -> bool:
        """Learn the probability of (k, 3) edges. False where too few are right, or wrong."""
        from sklearn.linear_model import LogisticRegression

        if min(right.sum(), (~right).sum()) < NUMBERS.least_right:
            return False
        fit = LogisticRegression(C=10, max_iter=1000).fit(_bends(edges), right, sample_weight=weight)
        self._logit = fit.coef_[0], float(fit.intercept_[0])
        return True

    def _prepare(self, predictors: list[_Predictor]) -> None:
        sums = self._sums = np.zeros(len(self.images)), np.zeros(len(self.captions))
        self._scale, self._holds = (1.0, 1.0), (np.ones(len(self.images), bool), np.ones(len(self.captions), bool))
        self._views = []
        self._place = np.full(len(self.images), -1)  # of each image among those of its fold
        for f, predictor in enumerate(predictors):
            in_fold = np.flatnonzero(self.image_fold == f)
            self._place[in_fold] = np.arange(len(in_fold))
            sides = _Sides(predictor.images(self.images[in_fold]), predictor.captions(self.captions))
            self._views.append(sides)
            sums[0][in_fold], of_captions = self._totals(sides.images, sides.captions)
            sums[1][:] += of_captions
        image, caption = self._right(self.images, self.captions)  # what stands in the input is no candidate
        own = np.exp(self._ratio_of(image, caption).astype(np.float64))
        np.subtract.at(sums[0], image, own)
        np.subtract.at(sums[1], caption, own)
        self._note_wrong()

    def _prepare_many(self, predictor: _Predictor, held: np.ndarray, rng: np.random.Generator) -> bool:
        """As :meth:`_calibrate` and :meth:`_prepare`, with sums over samples.

        The images of ``held`` pairs (h,), or of some of them, go through all captions to be repaired. These are wrong.
        """
        linear, both = isinstance(predictor, _LinearPredictor), (self.images, self.captions)
        some = [np.sort(rng.choice(len(x), min(len(x), NUMBERS.most_held), replace=False)) for x in both]
        self._holds = np.isin(np.arange(len(self.images)), some[0]), np.isin(np.arange(len(self.captions)), some[1])
        self._scale = len(self.captions) / len(some[1]), len(self.images) / len(some[0])
        few = predictor.images(self.images[some[0]]), predictor.captions(self.captions[some[1]])
        held_images, held_captions = predictor.images(held), predictor.captions(held)
        seen = slice(min(NUMBERS.most_held, NUMBERS.most_edges // len(self.captions) + 1))  # of the held-out images
        table = np.concatenate([ratio for _, ratio in self._blocks(_Sides(held_images[seen], few[1]))])
        self.least = float(np.quantile(table, 1 - min(1.0, NUMBERS.near / len(self.captions))))
        own = self._totals(held_images, few[1])[0], self._totals(few[0], held_captions)[1]  # of held-out pairs
        step = 4096 if linear else max(map(len, both))
        starts = [range(0, len(x), step) for x in both]
        totals = []
        for start in starts[0]:
            images = predictor.images(self.images[start : start + step])
            totals.append(self._totals(images, few[1])[0])
        scales: list[Any] = []
        found, of_captions = [], []
        for start in starts[1]:
            captions = predictor.captions(self.captions[start : start + step])
            scales.append(captions.scale)
            of_captions.append(self._totals(few[0], captions)[1])
            for rows, ratio in self._blocks(_Sides(held_images[seen], captions)):
                i, c = np.nonzero(ratio > self.least)
                found.append((rows.start + i, start + c, ratio[i, c]))
        self._sums = np.concatenate(totals), np.concatenate(of_captions)
        if linear:
            self._lookup = predictor, _Side([_Places(predictor.text, self.captions)] * 4, np.concatenate(scales))
        else:
            self._views, self._place = [_Sides(images, captions)], np.arange(len(self.images))
        self._note_wrong()
        image, caption, ratio = map(np.concatenate, zip(*found, strict=True))
        beside, n = self._right(held[seen], self.captions), len(self.captions)
        wrong = ~np.isin(image * n + caption, beside[0] * n + beside[1])
        image, caption, ratio = image[wrong], caption[wrong], ratio[wrong]
        right = self._ratio(_Sides(held_images, held_captions).pairs(*np.tile(np.arange(len(held)), (2, 1))))
        near = np.flatnonzero(right > self.least)
        # The sums of other images hold their right caption as often as a sample does.
        held_too = rng.random(len(held)) * self._scale[0] < self._present
        others = own[0] + np.exp(right.astype(np.float64)) * held_too
        edges = [
            _differences(right[near], (own[0][near], own[1][near]), self._scale, (False, False)),
            _differences(ratio, (others[image], self._sums[1][caption]), self._scale, (self._holds[1][caption], False)),
        ]
        weight = self._right_weight(self.matched[held[near]]), np.full(len(ratio), len(held) / len(held[seen]))
        return self._fit(np.concatenate(edges), np.repeat([True, False], [*map(len, edges)]), np.concatenate(weight))

    def _totals(self, images: _Side, captions: _Side) -> tuple[np.ndarray, np.ndarray]:
        """The sums of exp(l) of each image over the captions, and of each caption over the images."""
        of_images, of_captions = [np.empty(0)], np.zeros(len(captions.views[0]))
        for _, ratio in self._blocks(_Sides(images, captions)):
            exact = np.exp(ratio.astype(np.float64))
            of_images.append(exact.sum(axis=1))
            of_captions += exact.sum(axis=0)
        return np.concatenate(of_images), of_captions

    def _note_wrong(self) -> None:
        self._wrong = np.zeros(len(self.images))
        np.maximum.at(self._wrong, self._image_of_caption, 1 - self.matched[self.captions])

    def _ratio_of(self, image: np.ndarray, caption: np.ndarray) -> np.ndarray:
        """l (k,) of places among the images and captions to be repaired."""
        if self._lookup is not None:
            predictor, captions = self._lookup
            few, place = np.unique(image, return_inverse=True)
            return self._ratio(_Sides(predictor.images(self.images[few]), captions).pairs(place, caption))
        out = np.empty(len(image), np.float32)
        for f, sides in enumerate(self._views):
            in_fold = np.flatnonzero(self.image_fold[image] == f)
            out[in_fold] = self._ratio(sides.pairs(self._place[image[in_fold]], caption[in_fold]))
        return out

    def _folds(self, many: bool) -> list[np.ndarray]:
        """The trusted pairs in parts, of many the held-out ones alone."""
        if not many:
            return [self.trusted[f :: NUMBERS.folds] for f in range(NUMBERS.folds)]
        each = min(NUMBERS.most_held, len(self.trusted) // (2 * NUMBERS.folds))
        return [self.trusted[f * each : (f + 1) * each] for f in range(NUMBERS.folds)]

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
            sums, holds = (
                (self._sums[0][image], self._sums[1][caption]),
                (self._holds[1][caption], self._holds[0][image]),
            )
            edges = _differences(ratio, sums, self._scale, holds)
            logit = _bends(edges) @ self._logit[0] + self._logit[1]
            apart = (1 - self.matched[self.captions[caption]]) * self._lost[caption]
            odds = np.exp(logit) * self._wrong[image] * apart
            out[at] = odds / (1 + odds)
        return out
