"""Whether each word of a caption belongs to its image, by the captions of similar images. Nothing is trained."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.ops.mapped import blocks


@dataclass(frozen=True)
class WordNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    tau : float
        Temperature of the kernel.

    references : int
        Captions in which words are counted.

    least : int
        A word is judged if so many of them have it.

    prior : float
        Weight of a word's share of all captions. Its share among similar images has the weight 1.

    shrink : float
        So many captions with a word are added. In them the word is independent of its image.

    block : int
        Images at once.
    """

    tau: float = 0.1
    references: int = 16_384
    least: int = 3
    prior: float = 0.3
    shrink: float = 5.0
    block: int = 512


NUMBERS = WordNumbers()


class WordRatios:
    """How much likelier a word is for an image than for any image: log likelihood ratios.

    Parameters
    ----------
    x : (N, d) float
        Unit vectors of the pairs' images.

    has : (N, V) sparse
        Not 0 where a caption has a word.

    trust : (N,) float
        Weights of the pairs.

    group : (N,) int64, optional
        Pairs with one number give no evidence about each other. By default all are different.

    seed : int
        Seed of the sample of captions in which words are counted.

    Notes
    -----
    s_w(x) is the logarithm of the share of captions with w among images similar to x, in deviations over all images.
    Images whose captions have w have the mean h. Two normal distributions with one spread give the ratio

        L_w(x) = h s_w(x) - h^2 / 2,    h >= 0.
    """

    def __init__(
        self, x: np.ndarray, has: Any, trust: np.ndarray, *, group: np.ndarray | None = None, seed: int = 0
    ) -> None:
        from scipy.sparse import csr_array

        n = len(x)
        self._x, self._trust, self._place = x.astype(np.float32), trust.astype(np.float32), np.full(n, -1)
        rows = np.sort(np.random.default_rng(seed).permutation(n)[: NUMBERS.references])
        self._place[rows] = np.arange(len(rows))
        has = csr_array(has).astype(bool).astype(np.float32)
        self.known, self._words = np.flatnonzero(np.asarray(has[rows].sum(axis=0)) >= NUMBERS.least), has.shape[1]
        self._has = csr_array(has[:, self.known])
        self._has.sort_indices()
        self._rows, self._weight, self._group = rows, self._trust[rows], np.arange(n) if group is None else group
        self._references = self._x[rows] / np.float32(NUMBERS.tau)
        self._counted = csr_array(self._has[rows].multiply(self._weight[:, None])).T
        self._share = np.asarray(self._counted.sum(axis=1)) / max(float(self._weight.sum()), 1e-12)
        own, word, moments = np.empty(self._has.nnz), self._has.indices, np.zeros((2, len(self.known)))
        for some in blocks(n, NUMBERS.block):
            found = self._logarithms(*self._near(self._x[some], self._group[some])[1:])
            counts = found[self._place[some] >= 0]
            moments += np.stack([counts.sum(axis=0), (counts**2).sum(axis=0)])
            at = slice(self._has.indptr[some.start], self._has.indptr[some.stop])
            own[at] = found[np.repeat(np.arange(len(found)), np.diff(self._has.indptr)[some]), word[at]]
        self._mean, square = moments / max(len(rows), 1)
        self._spread = np.sqrt(np.maximum(square - self._mean**2, 1e-12))
        self._own = (own - self._mean[word]) / self._spread[word]
        weight = np.repeat(self._trust, np.diff(self._has.indptr))
        self._total, self._count = (np.bincount(word, v, len(self.known)) for v in (weight * self._own, weight))
        self.height = np.maximum(self._total, 0) / (self._count + NUMBERS.shrink)  # h of each known word

    def _near(self, x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kernels (B, k) of images with those of the references, and sums of words (k, V) and of all by them (k,)."""
        K = self._references @ x.T
        K -= np.float32(1 / NUMBERS.tau)
        np.exp(K, out=K)
        K[self._group[self._rows][:, None] == group] = 0
        return K, (self._counted @ K).T, np.maximum(self._weight @ K, 1e-30)

    def _logarithms(self, found: np.ndarray, mass: np.ndarray, word: Any = slice(None)) -> np.ndarray:
        prior = NUMBERS.prior * self._share[word]
        return np.asarray(np.log(found / (mass[:, None] if found.ndim > 1 else mass) + prior + 1e-12))

    def __call__(self, judged: np.ndarray) -> Any:
        """The ratios of the words of captions for images.

        Parameters
        ----------
        judged : (2, K) int64
            Rows of images, and of captions. The pairs that they come from do not count.

        Returns
        -------
        (K, V) sparse
            The ratios. Words in fewer than ``least`` captions have none.
        """
        from scipy.sparse import csr_array

        of_judged = csr_array(self._has[judged[1]])
        query, word = np.repeat(np.arange(judged.shape[1]), np.diff(of_judged.indptr)), of_judged.indices
        image, caption = judged[:, query]
        order, s, trust = np.argsort(image, kind="stable"), np.empty(len(word)), self._trust
        for rows in blocks(len(self._x), NUMBERS.block):
            at = order[slice(*np.searchsorted(image[order], (rows.start, rows.stop)))]
            K, found, mass = self._near(self._x[rows], self._group[rows])
            i, j, w = image[at] - rows.start, caption[at], word[at]
            out = np.where(self._place[j] >= 0, K[self._place[j], i] * trust[j], 0)  # K is 0 where i is j
            s[at] = self._logarithms(np.maximum(found[i, w] - out, 0), np.maximum(mass[i] - out, 1e-30), w)
        s = (s - self._mean[word]) / self._spread[word]
        same = self._has.indptr[caption] + np.arange(len(word)) - of_judged.indptr[query]
        total, count = self._total[word] - trust[caption] * self._own[same], self._count[word] - trust[caption]
        h = np.maximum(total, 0) / (count + NUMBERS.shrink)
        return csr_array((h * s - h**2 / 2, self.known[word], of_judged.indptr), shape=(judged.shape[1], self._words))

    def of_images(self, x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ratios of all ``known`` words for images, and their shares of the captions of similar images.

        Parameters
        ----------
        x : (k, d) float
            Unit vectors of images.
        group : (k,) int64
            As that of the pairs.

        Returns
        -------
        (k, V) float, (k, V) float
            The ratios, and the shares.
        """
        found, mass = self._near(x.astype(np.float32), group)[1:]
        s = (self._logarithms(found, mass) - self._mean) / self._spread
        return self.height * s - self.height**2 / 2, found / mass[:, None]


def lowest_ratio(
    x: np.ndarray, has: Any, trust: np.ndarray, judged: np.ndarray, *, group: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """The ratio (K,) of the word of each judged caption that fits worst, by :class:`WordRatios`, at most 0."""
    ratios = WordRatios(x, has, trust, group=group, seed=seed)(judged)
    return np.minimum(np.asarray(ratios.min(axis=1).todense(), np.float64).ravel(), 0)
