"""Whether each word of a caption belongs to its image, by the captions of similar images. Nothing is trained."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class WordNumbers:
    """The numbers of this algorithm.

    Parameters
    ----------
    tau : float
        Of the kernel.
    references : int
        Captions in which words are counted.
    least : int
        Of them, with a word that is judged.
    prior : float
        Weight of a word's share of all captions beside its share among similar images.
    shrink : float
        Captions that are added to those with a word, as if the word said nothing about their images.
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


def word_ratios(
    x: np.ndarray, has: Any, trust: np.ndarray, judged: np.ndarray, *, seed: int = 0, numbers: WordNumbers = NUMBERS
) -> Any:
    """How much likelier each word of a caption is for its image than for any image: log likelihood ratios.

    Parameters
    ----------
    x : (N, d) float
        Unit vectors of the images of N pairs.
    has : (N, V) sparse
        The words of their captions: not 0.
    trust : (N,) float
        Weights of the pairs.
    judged : (2, K) int64
        Rows of images, and of captions that are judged by them.
    seed : int
        Of the sample of captions in which words are counted.
    numbers : WordNumbers
        Of the algorithm.

    Returns
    -------
    (K, V) sparse
        The ratios. Words in fewer than ``least`` captions have none.

    Notes
    -----
    s_w(x) is the logarithm of the share of captions with w among images similar to x, in deviations over all images.
    Images whose captions have w have the mean h. Two normal distributions with one spread give the ratio

        L_w(x) = h s_w(x) - h^2 / 2,    h >= 0.

    The pairs that the judged image and caption come from do not count.
    """
    from scipy.sparse import csr_array

    n, place, m = len(x), np.full(len(x), -1), numbers
    x, trust = x.astype(np.float32), trust.astype(np.float32)
    references = np.sort(np.random.default_rng(seed).permutation(n)[: m.references])
    place[references] = np.arange(len(references))
    has = csr_array(has).astype(bool).astype(np.float32)
    known = np.flatnonzero(np.asarray(has[references].sum(axis=0)) >= m.least)
    shape, has = (judged.shape[1], has.shape[1]), csr_array(has[:, known])
    has.sort_indices()
    weight = trust[references]
    counted = csr_array(has[references].multiply(weight[:, None]))
    share = np.asarray(counted.sum(axis=0)) / max(float(weight.sum()), 1e-12)
    asked = np.concatenate([np.tile(np.arange(n), (2, 1)), judged], axis=1)  # the pairs' own words first
    of_asked = csr_array(has[asked[1]])
    query, word = np.repeat(np.arange(asked.shape[1]), np.diff(of_asked.indptr)), of_asked.indices
    image, caption = asked[:, query]
    order = np.argsort(image, kind="stable")
    s, moments = np.empty(len(word)), np.zeros((2, has.shape[1]))
    for start in range(0, n, m.block):
        rows = np.arange(start, min(start + m.block, n))
        K = np.exp((x[rows] @ x[references].T - 1) / np.float32(m.tau))
        own = np.flatnonzero(place[rows] >= 0)
        K[own, place[rows[own]]] = 0
        found, mass = K @ counted, np.maximum(K @ weight, 1e-30)
        each = np.log(found / mass[:, None] + m.prior * share + 1e-12)[own]
        moments += np.stack([each.sum(axis=0), (each**2).sum(axis=0)])
        at = order[slice(*np.searchsorted(image[order], (start, start + len(rows))))]
        i, j, w = image[at] - start, caption[at], word[at]
        out = np.where(place[j] >= 0, K[i, place[j]] * trust[j], 0)  # K is 0 where i is j
        s[at] = np.log(np.maximum(found[i, w] - out, 0) / np.maximum(mass[i] - out, 1e-30) + m.prior * share[w] + 1e-12)
    mean, square = moments / max(len(references), 1)
    s = (s - mean[word]) / np.sqrt(np.maximum(square - mean**2, 1e-12))[word]
    first = len(has.indices)  # entries of the pairs' own words
    mine, weight = word[:first], trust[query[:first]]
    total, count = (np.bincount(mine, v, has.shape[1]) for v in (weight * s[:first], weight))
    same = has.indptr[caption] + np.arange(len(word)) - of_asked.indptr[query]
    h = np.maximum(total[word] - trust[caption] * s[same], 0) / (count[word] - trust[caption] + m.shrink)
    return csr_array(((h * s - h**2 / 2)[first:], known[word[first:]], of_asked.indptr[n:] - first), shape=shape)


def lowest_ratio(
    x: np.ndarray, has: Any, trust: np.ndarray, judged: np.ndarray, *, seed: int = 0, numbers: WordNumbers = NUMBERS
) -> np.ndarray:
    """Of each judged caption the ratio (K,) of the word that fits worst, as :func:`word_ratios` gives it, at most 0."""
    ratios = word_ratios(x, has, trust, judged, seed=seed, numbers=numbers)
    return np.minimum(np.asarray(ratios.min(axis=1).todense(), np.float64).ravel(), 0)
