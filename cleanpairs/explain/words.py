r"""Which words of a caption the captions of similar images do not support, and which they agree on that it lacks.

Of the K nearest images of trusted pairs, n show a word w in their captions. w is used of an image like those that have
it with the rate q_w (the mean share among the neighbours of the trusted images whose captions hold w), and of any image
with the rate p_w. The evidence that w belongs to the image is the log likelihood ratio of two Poisson rates,

    L = n log(q_w / p_w) - K (q_w - p_w),

about 0 for words that say nothing about an image, or that are too rare to tell. A word is *unsupported* where L is
below what one word in twenty of the trusted pairs has; *expected* are the words with the largest L, of ln 20 at least,
that the caption lacks. A word that such images have little oftener than any (q_w < 1.6 p_w), as "of" and "and", is
neither, however much its L adds up to.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_array, diags_array

from cleanpairs.encoders.words import runs

NEIGHBOURS = 50
NAMED = 0.05  # of the words of trusted pairs
SHRINK = 2.0  # captions with a word that are as if they had p_w among their neighbours
LEAST_SHARE = 0.2  # of the neighbours that agree on an expected word
LEAST_RATIO = 20.0  # of both rates, for an expected word
LIFT = 1.6  # of q_w over p_w, for a word that is named
MOST_WORDS = 4
_ROWS = 4096  # captions at once


def caption_words(caption: str) -> list[str]:
    """Words of two letters and more; of scripts that put no spaces between words every two characters."""
    pairs = ([run[i : i + 2] for i in range(len(run) - 1)] if unspaced else [run] for run, unspaced in runs(caption))
    return [word for found in pairs for word in found if len(word) > 1 and word[0].isalnum()]


class WordSupport:
    """What B captions of U images, of trusted pairs, say of others.

    ``image`` (B,) int64: of each caption, in 0 .. U - 1; ``asked`` (S,): images that the rates are learned from;
    ``near`` (S, K): images that are near to each of them, -1 where there are fewer.
    """

    def __init__(self, captions: Sequence[str], image: np.ndarray, asked: np.ndarray, near: np.ndarray) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        self._vectorizer = CountVectorizer(binary=True, analyzer=caption_words, dtype=np.float32)
        try:
            has = csr_array(self._vectorizer.fit_transform(captions))
            self.names = self._vectorizer.get_feature_names_out()
        except ValueError:  # no caption has a word
            has, self.names = csr_array((len(captions), 0), dtype=np.float32), np.empty(0, object)
        shown = int(image.max(initial=-1)) + 1
        of_image = csr_array((np.ones(len(image), np.float32), (image, np.arange(len(image)))), (shown, len(image)))
        count = np.maximum(of_image.sum(axis=1), 1)
        self._share = csr_array(diags_array((1 / count).astype(np.float32)) @ of_image @ has)  # (U, V): of its captions
        found, k = self._found(near)
        place = np.full(shown, -1)
        place[asked] = np.arange(len(asked))
        rows = np.flatnonzero(place[image] >= 0)
        has, found, k = csr_array(has[rows]), csr_array(found[place[image[rows]]]), k[place[image[rows]]]
        p = np.asarray(self._share.sum(axis=0)).ravel() / max(shown, 1) + 1e-9
        holders, q = (np.asarray(x.sum(axis=0)).ravel() for x in (has, has.multiply(found)))
        q = np.maximum((q + SHRINK * p) / (holders + SHRINK), p)
        self._gain, self._cost = np.log(q / p), q - p
        support = self._support(has, found, k)
        self._least = min(float(np.quantile(support.data, NAMED)), 0.0) if support.nnz else -np.inf

    def _found(self, near: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """(n, V) share of the neighbours (n, K) whose captions have a word, and how many there are (n,)."""
        asking, place = np.nonzero(near >= 0)
        k = (near >= 0).sum(axis=1)
        weight = (1 / np.maximum(k, 1)).astype(np.float32)[asking]
        links = csr_array((weight, (asking, near[asking, place])), shape=(len(near), self._share.shape[0]))
        found = csr_array(links @ self._share)
        found.sort_indices()
        return found, k

    def _support(self, has: csr_array, found: csr_array, k: np.ndarray) -> csr_array:
        """L of the words that captions (n, V) have, by what is found among their neighbours (n, V)."""
        row, word = has.tocoo().coords
        value = k[row] * (found[row, word] * self._gain[word] - self._cost[word])
        return csr_array((value, (row, word)), shape=has.shape)

    def named(self, captions: Sequence[str], near: np.ndarray) -> list[tuple[list[str], list[str]]]:
        """Of captions (n,), by the trusted images near to theirs (n, K): the words that these do not support, least
        supported first, and those that they agree on and the caption lacks.
        """
        if not len(self.names):
            return [([], [])] * len(captions)
        said: list[tuple[list[str], list[str]]] = []
        for start in range(0, len(captions), _ROWS):
            some = slice(start, start + _ROWS)
            has = csr_array(self._vectorizer.transform(captions[some]))
            found, k = self._found(near[some])
            row, word = found.tocoo().coords
            value = k[row] * (found.data * self._gain[word] - self._cost[word])
            tells = self._gain >= np.log(LIFT)
            new = (found.data >= LEAST_SHARE) & (value > np.log(LEAST_RATIO)) & (has[row, word] == 0)
            new &= tells[word]
            support = self._support(has, found, k)
            at, words = support.tocoo().coords
            doubted = (support.data < self._least) & tells[words]
            low = self._best(at[doubted], words[doubted], -support.data[doubted], len(has.indptr) - 1)
            said += zip(low, self._best(row[new], word[new], value[new], len(low)), strict=True)
        return said

    def _best(self, row: np.ndarray, word: np.ndarray, value: np.ndarray, n: int) -> list[list[str]]:
        """Of each of n rows the words of the largest values."""
        order = np.lexsort((word, -value, row))
        ends = np.searchsorted(row[order], np.arange(n + 1))
        chosen = (order[a : min(a + MOST_WORDS, b)] for a, b in pairwise(ends))
        return [[str(self.names[w]) for w in word[some]] for some in chosen]
