r"""Similarity of a pair less what its image and its caption have with everybody: hubs lose, the specific wins.

    softmax    n_i = s_ii - tau / 2 (log sum_j exp(s_ij / tau) + log sum_j exp(s_ji / tau))
    csls       n_i = s_ii - (mean of the 10 largest s_ij + mean of the 10 largest s_ji) / 2

The "softmax" is negCLIPLoss (Wang et al., NeurIPS 2024, arXiv 2405.19547): tau times the mean log probability with
which the image finds its caption and the caption its image. Half of the CSLS of Conneau et al. (ICLR 2018) is "csls".
The index j is over the pair itself and a background of others. An image's background is all captions but those that
read the same. A caption's is all images but equal ones. An image's other captions count: they show that a
wrong one is wrong.

Up to :data:`EXACT_UP_TO` background pairs all similarities are computed, in blocks. Above, the 256 largest are searched
for (:mod:`cleanpairs.ops.search`). A random sample of the background estimates the rest of the sum without bias. The
nearest hold nearly all of it, since exp(s / .01) falls by e with every hundredth.

The softmax asks how an image's captions compare as if no caption had a better image. Its iteration does not,

    balanced   b_i = s_ii + tau (u_i + v_i)
               u_i = -log sum_j exp(s_ij / tau + v_j),    v_j = -log sum_i exp(s_ij / tau + u_i)

the entropic optimal transport between all images and all captions (Sinkhorn and Knopp 1967, Cuturi, NeurIPS 2013): what
a caption's own image claims is not there for others. Where a wrong pair's right partners are in the corpus, its error
is half of the softmax's. Where they are not, one and a half times as large. So :func:`balanced` is the mean of both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cleanpairs.core import current_progress
from cleanpairs.core.limits import in_threads
from cleanpairs.ops.mapped import blocks, release
from cleanpairs.ops.search import prepare

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TAU = 0.01  # where CLIP ends: its logit scale is cut at 100
EXACT_UP_TO = 50_000  # background pairs
NEIGHBOURS = 10  # of CSLS
RIVALS = 16_384  # pairs with which :func:`among_all` compares, and the most of a batch
_KEPT = 1 << 23  # similarities that it keeps of each side: 64 MiB
_BLOCK_ENTRIES = 1 << 22  # similarities at once: 16 MiB of float32
_LEAST_ROWS, _MOST_ROWS = 64, 1024  # of a block: products of few rows add up in another order

_Side = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # queries (n, d), references (m, d), and their groups
_Largest = tuple["np.ndarray | csr_array", np.ndarray, np.ndarray, float]  # see _largest
_References = tuple[np.ndarray, np.ndarray, float, np.ndarray, set[int]]  # see Background._references


@dataclass(frozen=True)
class VectorPairs:
    """m pairs of unit vectors in one space, and which of them show one image or one text."""

    images: np.ndarray  # (m, d)
    texts: np.ndarray
    image_group: np.ndarray  # (m,) int64, equal ones of the same image
    text_group: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: np.ndarray, texts: np.ndarray | None = None) -> "VectorPairs":
        """Return chosen pairs (b,) int64, or the images of ``rows`` with the captions of other rows ``texts``."""
        texts = rows if texts is None else texts
        return VectorPairs(self.images[rows], self.texts[texts], self.image_group[rows], self.text_group[texts])

    def shared(self, pairs: "VectorPairs", *, kind: str = "softmax", tau: float = TAU) -> np.ndarray:
        """The similarity that image and caption of n ``pairs``, maybe of these, share with all, (2, n) float64."""
        paired = cosines(pairs.images, pairs.texts)
        return np.stack([_joined(others, paired, kind, tau) for others in self._others(pairs, kind, tau)])

    def scores_and_null(
        self, pairs: "VectorPairs", null: np.ndarray, *, kind: str | None = "softmax", tau: float = TAU
    ) -> tuple[np.ndarray, np.ndarray]:
        """Similarity (n,) float64 of n ``pairs``, and (K,) of random pairs, without the right partners of these.

        ``null`` (2, K): rows of the random pairs' images and captions. ``kind``: as of :meth:`shared`. None: cosines.
        """
        observed = cosines(pairs.images, pairs.texts).astype(np.float64)
        null_scores = cosines(pairs.images[null[0]], pairs.texts[null[1]]).astype(np.float64)
        if kind is not None:
            others = self._others(pairs, kind, tau)
            of_null = [side[rows] for side, rows in zip(others, null, strict=True)]
            observed -= np.mean([_joined(side, observed, kind, tau) for side in others], axis=0)
            null_scores -= np.mean([_joined(side, null_scores, kind, tau) for side in of_null], axis=0)
        return observed, null_scores

    def _others(self, pairs: "VectorPairs", kind: str, tau: float) -> list[np.ndarray]:
        """What images and captions of n ``pairs`` share with others: (n, 1) log sums, or the largest (n, 10)."""
        sides = zip(("images", "captions"), self.sides(pairs), strict=True)
        return [self._shared(name, side, kind, tau) for name, side in sides]

    def _shared(self, name: str, side: _Side, kind: str, tau: float) -> np.ndarray:
        """As :meth:`_others`, of one side. ``name``: what the queries are."""
        queries, references, query_group, reference_group = side
        n, m = len(queries), len(references)
        out = np.full((n, 1 if kind == "softmax" else NEIGHBOURS), -np.inf)
        search = prepare(queries, references, 256) if m > EXACT_UP_TO else None
        sample = 1024  # pairs that represent those that are not among the nearest
        at = np.arange(m) if search is None else np.sort(np.random.default_rng(0).choice(m, sample, replace=False))
        vectors = np.asarray(references if search is None else references[at], np.float32).T
        rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BLOCK_ENTRIES // max(len(at), 1))) if search is None else search.block
        for block in blocks(n, rows):
            block_queries = np.asarray(queries[block], np.float32)
            S = block_queries @ vectors  # (b, m), or with the sample
            S[reference_group[at] == query_group[block, None]] = -np.inf
            if search is not None:
                scores, nearest = search(block_queries)  # (b, 256)
                S[scores[:, -1:] <= S] = -np.inf  # those are among the nearest, or as near as they
                # Each of the sample represents m / sample.
                S += np.float32(tau * np.log(m / sample) if kind == "softmax" else -np.inf)
                scores[(nearest < 0) | (reference_group[nearest] == query_group[block, None])] = -np.inf
                S = np.concatenate([scores, S], axis=1)
            if kind == "csls":
                few = min(NEIGHBOURS, S.shape[1])
                out[block, :few] = np.partition(S, -few, axis=1)[:, -few:] if few else 0
            else:
                top = np.maximum(S.max(axis=1, keepdims=True, initial=-np.inf), np.float32(-1))  # without others: far
                sums = np.exp((S - top) / np.float32(tau)).sum(axis=1, dtype=np.float64)
                out[block, 0] = top[:, 0] / tau + np.log(np.maximum(sums, 1e-30))
            release(queries)
            if n > RIVALS:  # not of a batch
                current_progress().advance(f"comparing {name}", name, block.stop, n)
        return out

    def sides(self, pairs: "VectorPairs") -> list[_Side]:
        """Images of n ``pairs`` with these captions, captions with these images. Those of one group are no rivals."""
        return [
            (pairs.images, self.texts, pairs.text_group, self.text_group),
            (pairs.texts, self.images, pairs.image_group, self.image_group),
        ]


def _joined(others: np.ndarray, paired: np.ndarray, kind: str, tau: float) -> np.ndarray:
    """The similarity (n,) float64 that queries share with ``others``, as of ``VectorPairs._others``, and one more."""
    if kind == "softmax":
        return np.asarray(tau * np.logaddexp(others[:, 0], paired.astype(np.float64) / tau))
    best = np.sort(np.concatenate([others, paired[:, None]], axis=1), axis=1)[:, -NEIGHBOURS:]
    finite = np.isfinite(best)
    return np.asarray(np.where(finite, best, 0).sum(axis=1) / finite.sum(axis=1))


def balanced(pairs: VectorPairs, *, tau: float = TAU, steps: int = 20) -> np.ndarray:
    """As :meth:`VectorPairs.shared`, (2, N) float64: the mean of softmax and balanced.

    The softmax is the first of ``steps``: both sides take half a step at once. The largest similarities of each image
    and caption are kept, all up to some 2,900 pairs. The rest counts with the mean potential of these.
    """
    first, last, _ = _balance(pairs, tau, steps)
    return -tau * (first + last)


def _balance(pairs: VectorPairs, tau: float, steps: int = 20) -> tuple[np.ndarray, np.ndarray, list[_Largest]]:
    """Potentials u of the images and v of the captions (2, N) float64, after the first step and after the last, and the
    largest similarities of images and of captions.
    """
    n = len(pairs)
    paired = cosines(pairs.images, pairs.texts).astype(np.float64) / tau
    matrix = np.asarray(pairs.images, np.float32) @ np.asarray(pairs.texts, np.float32).T if n * n <= _KEPT else None
    products = (None, None) if matrix is None else (matrix, matrix.T)
    sides = [_largest(*each, tau) for each in zip(pairs.sides(pairs), products, strict=True)]

    latest = [np.zeros(n), np.zeros(n)]
    first = latest
    for step in range(steps):
        each = zip(sides, latest, latest[::-1], strict=True)
        latest = [(own - np.logaddexp(_over_others(side, other), paired + other)) / 2 for side, own, other in each]
        first = first if step else latest
    return np.stack(first), np.stack(latest), sides


def _over_others(side: _Largest, potential: np.ndarray) -> np.ndarray:
    """Return log sum_j exp(s_ij / tau + potential_j) (N,) float64 over the others, whose potential is (N,)."""
    kept, rest, top, total = side
    highest = float(potential.max())
    sums = (kept @ np.exp(potential - highest).astype(kept.dtype)).astype(np.float64)
    return np.asarray(np.log(sums + rest * sums.sum() / total) + top + highest)


def _floored(potential: np.ndarray) -> np.ndarray:
    """Potentials (m,), none too small: products of smaller terms are denormal, and slow."""
    return np.asarray(np.maximum(potential, potential.max(initial=0) - 27))


@dataclass(frozen=True)
class Background:
    """A sample of pairs that represents a corpus of any size.

    Parameters
    ----------
    pairs : VectorPairs
        m pairs.
    potentials : (2, m) float
        Balanced u of the images and v of the captions.
    shared : (2, 2, m) float
        What images and captions of these pairs share with all, by the first step of the balance, a softmax, and by the
        last. :func:`balanced` is the mean of both. Empty where it is no longer needed.
    others_and_all : (2, 2, 2, m) float
        As :meth:`sums`, of each of these pairs and the others, and of each and all. Empty where they are no longer
        needed.
    tau : float
        Temperature.
    """

    pairs: VectorPairs
    potentials: np.ndarray
    shared: np.ndarray = field(default_factory=lambda: np.empty((2, 2, 0)))
    others_and_all: np.ndarray = field(default_factory=lambda: np.empty((2, 2, 2, 0)))
    tau: float = TAU

    @classmethod
    def of(cls, pairs: VectorPairs, *, tau: float = TAU) -> "Background":
        """Balance m pairs. They are kept in half precision."""
        first, last, sides = _balance(pairs, tau)
        potentials = [(np.zeros(len(pairs)), _floored(v)) for v in last[::-1]]
        others = np.array([[_over_others(side, w) for w in both] for side, both in zip(sides, potentials, strict=True)])
        paired = cosines(pairs.images, pairs.texts) / tau
        both = np.stack([others, np.logaddexp(others, paired + np.array(potentials))])
        half = replace(pairs, images=pairs.images.astype(np.float16), texts=pairs.texts.astype(np.float16))
        return cls(half, last, -2 * tau * np.stack([first, last]), both, tau)

    def similarity(
        self, pairs: VectorPairs, sums: np.ndarray | None = None, image: Any = slice(None), text: Any = slice(None)
    ) -> np.ndarray:
        """Similarity (k,) float64 of images and texts in rows (k,) of n pairs, each added alone to the background.

        ``sums``: as :meth:`sums` of these pairs, maybe of others with the same images and captions.
        """
        cosine, sums = cosines(pairs.images[image], pairs.texts[text]), self.sums(pairs) if sums is None else sums
        return np.asarray(cosine - self.added(cosine, np.stack([sums[0][:, image], sums[1][:, text]])).mean(axis=0))

    def sums(self, pairs: VectorPairs) -> np.ndarray:
        """Log sums (2, 2, n) of images and captions: log sum_j exp(s_ij / tau) without and with the potential of j."""
        out = np.empty((2, 2, len(pairs)))
        sides = list(zip(out, self.pairs.sides(pairs), self._references, strict=True))

        def fill(block: slice) -> None:
            for values, (vectors, _, group, _), references in sides:
                values[:, block] = _log_sums(vectors[block], group[block], references, self.tau)

        in_threads(fill, blocks(len(pairs), 512))
        return out

    def added(self, cosine: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """As :func:`balanced`, (2, n) float64, of n added pairs, by their cosines (n,) and :meth:`sums`, maybe of other
        pairs with the same images and captions.

        Notes
        -----
        Let a = sum_j exp(s_ij / tau + v_j), b likewise over the images, and r = exp(s_ii / tau) / (a b). The two
        equations of the added pair then have this solution, and v has b in place of a:

            u = log 2 - log a - log(1 + sqrt(1 + 4 r))
        """
        paired = cosine.astype(np.float64) / self.tau
        first, last = np.logaddexp(sums[:, 0], paired) / 2, sums[:, 1]
        correction = np.logaddexp(0, np.logaddexp(0, paired - last[0] - last[1] + np.log(4)) / 2) - np.log(2)
        return np.asarray(self.tau * (first + last + correction))

    @cached_property
    def _references(self) -> list[_References]:
        """For captions, then for images: vectors over tau (d, m), weights (m, 2), their scale, and groups, twice."""
        sides = []
        for (_, vectors, _, group), potential in zip(self.pairs.sides(self.pairs), self.potentials[::-1], strict=True):
            highest = float(potential.max(initial=0))
            weights = np.stack([np.ones_like(potential), np.exp(_floored(potential) - highest)], axis=1)
            scaled = np.ascontiguousarray(vectors.T, np.float32) / np.float32(self.tau)
            sides.append((scaled, weights.astype(np.float32), highest, group, set(group.tolist())))
        return sides


def _log_sums(queries: np.ndarray, group: np.ndarray, references: _References, tau: float) -> np.ndarray:
    """Log sums (2, n) float64 over other groups: log sum_j exp(s_ij / tau) without and with their potentials."""
    scaled, weights, highest, groups, groups_there = references
    products, sums = np.asarray(queries, np.float32) @ scaled, np.empty((len(queries), 2))
    for i, number in enumerate(group.tolist()):
        if number in groups_there:
            products[i, groups == number] = -np.inf
    for rows in blocks(len(products), 32):  # they stay in the processor's cache
        S = products[rows]
        top = S.max(axis=1, keepdims=True)
        # So that exponentials are float32's normal numbers. Without others: as with one far away.
        shift = np.where((top > -30) & (top < 75), 0, np.maximum(top, np.float32(-1 / tau)))
        if shift.any():
            S -= shift
            np.maximum(S, np.float32(-60), out=S)
        sums[rows] = shift + np.log(np.maximum(np.exp(S, out=S) @ weights, np.float32(1e-30)))
    sums[:, 1] += highest
    return sums.T


def among_all(
    pairs_of: Callable[[np.ndarray], VectorPairs], n: int, *, tau: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Normalised similarity (n,) float64 of n pairs, and what each side of them shares with all, (2, n) float64.

    Up to 16,384 pairs :func:`balanced` finds it. For more it is the softmax over a random sample of as many. The
    function ``pairs_of`` gives the pairs of ascending rows (b,). Their products have any scale, and ``tau`` the same.
    """
    if n <= RIVALS:
        pairs = pairs_of(np.arange(n))
        paired, shared = cosines(pairs.images, pairs.texts), balanced(pairs, tau=tau)
    else:
        background = pairs_of(np.sort(np.random.default_rng(seed).choice(n, RIVALS, replace=False)))
        paired, shared = np.empty(n), np.empty((2, n))
        for block in blocks(n, RIVALS):
            pairs = pairs_of(np.arange(n)[block])
            paired[block], shared[:, block] = cosines(pairs.images, pairs.texts), background.shared(pairs, tau=tau)
    return paired - shared.mean(axis=0), shared


def _largest(side: _Side, products: np.ndarray | None, tau: float) -> _Largest:
    """Return exp(s / tau - top) (N, N) of the largest similarities of each row to others, the sum (N,) of the rest, top
    (N,), and the sum of the matrix.

    The matrix is dense where all similarities are kept. ``products`` (N, N): all similarities, where they are known.
    """
    queries, references, query_group, reference_group = side
    n = len(queries)
    k, rest, top = min(n, max(1, _KEPT // n)), np.zeros(n), np.empty(n)
    dense, parts = np.empty((n, n if k == n else 0), np.float32), list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    refs = np.asarray(references, np.float32).T
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BLOCK_ENTRIES // 2 // n))  # larger blocks are mapped anew each time
    for block in blocks(n, rows):
        S = np.asarray(queries[block], np.float32) @ refs if products is None else np.array(products[block], order="C")
        S[reference_group == query_group[block, None]] = -np.inf
        S[np.arange(len(S)), np.arange(n)[block]] = -np.inf
        highest = np.maximum(S.max(axis=1, keepdims=True), np.float32(-1))  # without others: as with one far away
        top[block] = highest[:, 0] / tau
        np.subtract(highest, S, out=S)
        S /= np.float32(tau)
        np.minimum(S, np.float32(80), out=S)  # exponentials of more are denormal, and slow
        at = _smallest(S, k) if k < n else np.empty(0, np.int64)
        np.exp(np.negative(S, out=S), out=S)
        if k == n:
            dense[block] = S
            continue
        (row, column), kept = np.divmod(at, n), S.ravel()[at]
        rest[block] = S.sum(axis=1, dtype=np.float64) - np.bincount(row, kept, len(S))
        parts.append((kept, column.astype(np.int32), np.bincount(row, minlength=len(S))))
    if k == n:
        return dense, rest, top, float(dense.sum(dtype=np.float64))
    from scipy.sparse import csr_array

    values, columns, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
    largest = csr_array((values, columns, np.append(0, np.cumsum(counts))), shape=(n, n))
    return largest, np.maximum(rest, 0), top, float(values.sum(dtype=np.float64))


def _smallest(S: np.ndarray, k: int) -> np.ndarray:
    """Places, rising, in the raveled ``S`` (b, n) of about the k smallest of each row, by every eighth of its columns.

    Exactly k of each row where many are equal.
    """
    place = max(k // 8, 1) - 1
    at = np.flatnonzero(np.partition(S[:, ::8], place, axis=1)[:, place, None] >= S)
    if len(at) <= 2 * k * len(S):
        return at
    return np.sort(np.argpartition(S, k - 1, axis=1)[:, :k] + np.arange(len(S))[:, None] * S.shape[1], axis=None)


def cosines(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Inner products (n,) float32 of the rows of (n, d) and (n, d)."""
    out = np.empty(len(images), np.float32)
    for s in blocks(len(images), 16_384):
        out[s] = np.einsum("ij,ij->i", *(np.asarray(side[s], np.float32) for side in (images, texts)))
        release(images, texts)
    return out
