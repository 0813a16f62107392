r"""The probability that an image and a caption of different pairs belong together, without a training.

Networks know their training pairs by heart. So everything here is linear or untrained, and out of fold:

1. A predictor learns from all trusted pairs but those of one of K folds. It predicts a caption's vector from an image,
   and an image's from a caption, by ridge regression and by two means over neighbours. Vectors of one space are
   compared directly, too.
2. A logistic regression of held-out trusted pairs against random ones makes one log likelihood ratio l of them.
3. l - log sum of exp(l) over the image's other captions, and over the caption's other images, both scaled to the
   number of those that are to be repaired, say how much better than the others it is.
4. Held-out trusted pairs, taken apart, are repairs whose truth is known, and go through 1 to 3 as the mismatched pairs
   do. A logistic regression of right on l and both differences gives the probability.

Prior: both pairs that a right repair takes apart are mismatched (the product of their probabilities), and the caption's
image is there at all (``present``, which the scores cannot tell: dev/LOG.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cleanpairs.correspondence.agreement import Centred, ridge
from cleanpairs.ops.matching import places, unit_rows

MOST_REPAIRED = 50_000  # mismatched pairs, above which nothing is said


@dataclass(frozen=True)
class PairNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    folds : int
        Of the trusted pairs.
    taus : tuple of float
        Of the means over neighbours.
    present : float
        Share of the mismatched images whose caption is among the mismatched captions.
    least_trusted, least_right : int
        Trusted pairs, and right edges among those that the calibration sees, below which nothing is said.
    near : int
        Edges of an image that the calibration sees, about.
    most_summed, most_held : int
        Images and captions over which the sums of step 3 are taken, and held-out pairs of a fold. More are sampled.
    block : int
        Images at once.
    """

    folds: int = 3
    taus: tuple[float, ...] = (0.15, 0.05)
    present: float = 0.9
    least_trusted: int = 200
    least_right: int = 30
    near: int = 20
    most_summed: int = 8192
    most_held: int = 2048
    block: int = 256


NUMBERS = PairNumbers()

_Spaces = tuple[Centred, Centred]


@dataclass(frozen=True)
class _Sides:
    """V views of some images and captions: the score of a pair in view v is the inner product of its two rows."""

    images: list[np.ndarray]
    captions: list[np.ndarray]

    def table(self, rows: slice) -> np.ndarray:
        return np.stack([x[rows] @ t.T for x, t in zip(self.images, self.captions, strict=True)], axis=-1)

    def pairs(self, image: np.ndarray, caption: np.ndarray) -> np.ndarray:
        out = np.empty((len(image), len(self.images)), np.float32)
        for start in range(0, len(image), 1 << 14):
            s = slice(start, start + (1 << 14))
            for v, (x, t) in enumerate(zip(self.images, self.captions, strict=True)):
                out[s, v] = np.einsum("ij,ij->i", x[image[s]], t[caption[s]])
        return out


class _Predictor:
    """Trusted ``pairs`` (n,) that predict captions of images and the reverse, in ``spaces`` and a ``joint`` one."""

    def __init__(
        self, spaces: _Spaces, joint: _Spaces | None, of_image: np.ndarray, pairs: np.ndarray, weight: np.ndarray
    ) -> None:
        (self.image, self.text), self.joint, self.of_image = spaces, joint, of_image
        self.weight = weight.astype(np.float32)
        self.x, self.t = self.image.vectors[of_image[pairs]], self.text.vectors[pairs]
        self.map = ridge(self.x, self.t, self.weight), ridge(self.t, self.x, self.weight)

    def _predicted(
        self, asking: np.ndarray, among: np.ndarray, values: np.ndarray, map_: np.ndarray
    ) -> list[np.ndarray]:
        unit, others = unit_rows(asking), unit_rows(among)
        out = [asking @ map_, *(np.empty((len(asking), values.shape[1]), np.float32) for _ in NUMBERS.taus)]
        for start in range(0, len(asking), 1024):
            near = unit[start : start + 1024] @ others.T - 1
            for k, tau in enumerate(NUMBERS.taus):
                K = np.exp(near / np.float32(tau)) * self.weight
                out[k + 1][start : start + 1024] = K @ values / np.maximum(K.sum(axis=1, keepdims=True), 1e-12)
        return out

    def sides(self, images: np.ndarray, captions: np.ndarray) -> _Sides:
        images, joint = self.of_image[images], self.joint
        x, t = self.image.vectors[images], self.text.vectors[captions]
        texts = [_scaled(c, self.text) for c in self._predicted(x, self.x, self.t, self.map[0])]
        pictures = [_scaled(c, self.image) for c in self._predicted(t, self.t, self.x, self.map[1])]
        of_images, of_captions = texts + [x] * len(pictures), [t] * len(texts) + pictures
        if joint is not None:
            a, b = joint[0].vectors[images], joint[1].vectors[captions]
            of_images, of_captions = [*of_images, _scaled(a, joint[1]), a], [*of_captions, b, _scaled(b, joint[0])]
        return _Sides(of_images, of_captions)


def _scaled(predicted: np.ndarray, space: Centred) -> np.ndarray:
    return np.asarray(predicted / space.spread(predicted, 1e-12)[:, None], np.float32)


def _terms(views: np.ndarray) -> np.ndarray:
    scaled = np.clip(views, -4, 12) / 3
    return np.concatenate([scaled, scaled * np.abs(scaled)], axis=-1)


def _bends(edges: np.ndarray) -> np.ndarray:
    scaled = np.clip(edges, -10, 10) / 4
    return np.concatenate([scaled, np.maximum(scaled, 0)], axis=1)


def _differences(
    ratio: np.ndarray, row_sum: np.ndarray, column_sum: np.ndarray, scale: tuple[float, float]
) -> np.ndarray:
    """(k, 3): l and what it is above the others of its image and of its caption, whose sums hold its own exp(ratio)."""
    own = np.exp(ratio.astype(np.float64))
    others = ((total - own) * by for total, by in zip((row_sum, column_sum), scale, strict=True))
    return np.stack([ratio, *(ratio - np.log(np.maximum(other, 0) + 1e-3) for other in others)], axis=1)


class PairProbability:
    """How likely the image of one pair and the caption of another belong together, of N pairs, some to be repaired.

    Parameters
    ----------
    images : (M, D) float32
        Unit vectors in a frozen space.
    texts : (N, d) float32
        Unit vectors in a frozen space.
    image_index : (N,) int64
        Image of each pair.
    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.
    matched : (N,) float
        Calibrated probability of being matched. NaN: the pair takes no part.
    threshold : float
        Pairs below it are to be repaired. The others are trusted.
    joint : ((M, e), (N, e)) float, optional
        Vectors of both sides in one space.
    seed : int
        Of folds and samples.
    """

    def __init__(
        self, images: np.ndarray, texts: np.ndarray, image_index: np.ndarray, image_group: np.ndarray,
        text_group: np.ndarray, matched: np.ndarray, threshold: float, *,
        joint: tuple[np.ndarray, np.ndarray] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        self.image_group, self.text_group = image_group, text_group
        known = np.isfinite(matched)
        self.matched = np.where(known, matched, 0.0)
        self.captions = np.flatnonzero(known & (self.matched < threshold))  # pairs to be repaired
        self.trusted = rng.permutation(np.flatnonzero(known & (self.matched >= threshold)))
        self.judged = len(self.trusted) >= NUMBERS.least_trusted and 2 <= len(self.captions) <= MOST_REPAIRED
        if not self.judged:
            return
        spaces = Centred(images), Centred(texts)
        one_space = None if joint is None else (Centred(joint[0]), Centred(joint[1]))
        folds = [self.trusted[f :: NUMBERS.folds] for f in range(NUMBERS.folds)]
        predictors = []
        for fold in folds:
            rest = np.setdiff1d(self.trusted, fold)
            predictors.append(_Predictor(spaces, one_space, image_index, rest, self.matched[rest]))
        _, first, self._image_of_caption = np.unique(image_group[self.captions], return_index=True, return_inverse=True)
        self.images = self.captions[first]  # a pair that shows each of their images
        self.image_fold = rng.integers(0, NUMBERS.folds, len(self.images))
        some = [fold[: NUMBERS.most_held] for fold in folds]
        held = [(h, h[np.unique(image_group[h], return_index=True)[1]]) for h in some]  # captions, images
        self._learn(predictors, held, rng)
        self.judged = self._calibrate(predictors, held)
        if self.judged:
            self._prepare(predictors)

    def _ratio(self, views: np.ndarray) -> np.ndarray:
        return np.asarray(_terms(views) @ self._coefficients + self._intercept, np.float32)

    def _blocks(self, sides: _Sides) -> Iterator[tuple[slice, np.ndarray]]:
        for start in range(0, len(sides.images[0]), NUMBERS.block):
            rows = slice(start, start + NUMBERS.block)
            yield rows, self._ratio(sides.table(rows))

    def _right(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """(2, k): places of the images and of the captions that stand beside one another anywhere in the input."""
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
            sides, n = predictor.sides(captions, captions), len(captions)
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
        """4. of the module's head. False where too few right edges are seen."""
        from sklearn.linear_model import LogisticRegression

        found, scores = [], []
        for predictor, (captions, images) in zip(predictors, held, strict=True):
            ratio = np.concatenate([block for _, block in self._blocks(predictor.sides(images, captions))])
            right = np.zeros(ratio.shape, bool)
            right[tuple(self._right(images, captions))] = True
            scale = len(self.captions) / len(captions), len(self.images) / len(images)
            found.append((ratio, right, scale, self.matched[captions]))
            seen = min(1.0, NUMBERS.near / (scale[0] * ratio.shape[1]))
            scores.append(np.quantile(ratio[~right], 1 - seen))
        self.least = float(np.mean(scores))
        mean = float(self.matched[self.trusted].mean())
        edges, truth, weight = [], [], []
        for ratio, right, scale, matched in found:
            total = np.exp(ratio.astype(np.float64))
            i, c = np.nonzero(ratio > self.least)
            edges.append(_differences(ratio[i, c], total.sum(axis=1)[i], total.sum(axis=0)[c], scale))
            truth.append(right[i, c])
            weight.append(np.where(right[i, c], NUMBERS.present / mean * matched[c], scale[1]))
        x, y, w = (np.concatenate(part) for part in (edges, truth, weight))
        if min(y.sum(), (~y).sum()) < NUMBERS.least_right:
            return False
        fit = LogisticRegression(C=10, max_iter=1000).fit(_bends(x), y, sample_weight=w)
        self._logit = fit.coef_[0], float(fit.intercept_[0])
        return True

    def _prepare(self, predictors: list[_Predictor]) -> None:
        self._views = []
        self._place = np.full(len(self.images), -1)  # of each image among those of its fold
        sums = np.zeros(len(self.images)), np.zeros(len(self.captions))
        step, every = -(-len(self.captions) // NUMBERS.most_summed), -(-len(self.images) // NUMBERS.most_summed)
        self._scale, whole = (float(step), float(every)), step == every == 1
        for f, predictor in enumerate(predictors):
            mine = np.flatnonzero(self.image_fold == f)
            self._place[mine] = np.arange(len(mine))
            sides = predictor.sides(self.images[mine], self.captions)
            self._views.append(sides)
            some = _Sides(sides.images, [t[::step] for t in sides.captions])
            for rows, ratio in self._blocks(some):
                worth = np.exp(ratio.astype(np.float64))
                sums[0][mine[rows]] = worth.sum(axis=1)
                if whole:
                    sums[1][:] += worth.sum(axis=0)
            if not whole:
                few = _Sides([x[::every] for x in sides.images], sides.captions)
                for _, ratio in self._blocks(few):
                    sums[1][:] += np.exp(ratio.astype(np.float64)).sum(axis=0)
        self._sums = sums
        if whole:  # what stands in the input is no candidate
            image, caption = self._right(self.images, self.captions)
            own = np.exp(self._ratio_of(image, caption).astype(np.float64))
            np.subtract.at(sums[0], image, own)
            np.subtract.at(sums[1], caption, own)
        self._wrong = np.zeros(len(self.images))
        np.maximum.at(self._wrong, self._image_of_caption, 1 - self.matched[self.captions])

    def _ratio_of(self, image: np.ndarray, caption: np.ndarray) -> np.ndarray:
        """l (k,) of places among the images and captions to be repaired."""
        out = np.empty(len(image), np.float32)
        for f, sides in enumerate(self._views):
            mine = np.flatnonzero(self.image_fold[image] == f)
            out[mine] = self._ratio(sides.pairs(self._place[image[mine]], caption[mine]))
        return out

    def probability(self, image_of: np.ndarray, text_of: np.ndarray) -> np.ndarray:
        """Probability that images and captions of different pairs belong together.

        Parameters
        ----------
        image_of : (k,) int64
            Pairs whose images are asked about.
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
            edges = _differences(ratio, self._sums[0][image], self._sums[1][caption], self._scale)
            logit = _bends(edges) @ self._logit[0] + self._logit[1]
            odds = np.exp(logit) * self._wrong[image] * (1 - self.matched[self.captions[caption]])
            out[at] = odds / (1 + odds)
        return out
