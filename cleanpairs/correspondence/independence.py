r"""Whether images and captions depend on each other: if not, mismatched pairs look like matched ones.

The test before a training is the Hilbert-Schmidt independence criterion (Gretton et al., NeurIPS 2007),

    T = sum_ij (H K H)_ij L_ij        K_ij: cosine of images i and j    L_ij: of captions i and j    H: centring

large where alike images have alike captions. The controls are the same pairs with their captions permuted. An image and
a text take part once: rows that share one would agree, wrong or not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.matching import token_counts

BLOCK = 1000  # images that are compared with each other
BLOCKS = 8
LEAST = 3  # images. Of two, every order agrees
LEAST_Z = 3.0  # of 200 permuted corpora none was above 2.3


@dataclass(frozen=True)
class IndependenceTest:
    """What the test found.

    Parameters
    ----------
    z : float
        Standard deviations above the permuted controls.
    n : int
        Images that were compared.
    """

    z: float
    n: int

    @property
    def dependent(self) -> bool:
        """Whether z is at least 3."""
        return self.z >= LEAST_Z

    def __str__(self) -> str:
        if self.n < LEAST:
            return f"all rows are alike, there are no {LEAST} different images with different captions"
        return (
            f"like images have like captions no more than in random order (z = {self.z:.1f}, and at least {LEAST_Z:g} "
            f"is needed; {self.n} different images)"
        )


def independence_test(images: np.ndarray, texts: Any, *, seed: int = 0) -> IndependenceTest:
    """Test whether images and their captions depend on each other.

    Parameters
    ----------
    images : (n, D) float
        Vectors of the images.
    texts : (n, V) float, dense or sparse
        Vectors of captions.
    seed : int
        Seed of blocks and permutations.

    Returns
    -------
    IndependenceTest
        Its ``z`` is summed over blocks of 1,000 images.

    Notes
    -----
    Gretton et al., A Kernel Statistical Test of Independence, NeurIPS 2007.
    """
    from sklearn.metrics.pairwise import cosine_similarity

    n = images.shape[0]
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    cuts = np.array_split(order, max(1, -(-min(n, BLOCK * BLOCKS) // BLOCK)))
    observed, mean, variance, used = 0.0, 0.0, 0.0, 0
    for rows in cuts:
        rows = rows[:BLOCK]
        if len(rows) < LEAST:
            continue
        K, L = (cosine_similarity(x[rows].astype(np.float64)).astype(np.float32) for x in (images, texts))
        K = K - K.mean(axis=0)
        K -= K.mean(axis=1, keepdims=True)
        np.fill_diagonal(K, 0)  # on which every permutation agrees
        nulls = np.array([_agreement(K, L, rng.permutation(len(rows))) for _ in range(50)])  # the controls
        observed += _agreement(K, L, np.arange(len(rows)))
        mean += nulls.mean()
        variance += nulls.var(ddof=1)
        used += len(rows)
    scale = np.sqrt(variance)
    return IndependenceTest(float((observed - mean) / scale) if scale > 1e-9 * max(abs(mean), 1e-9) else 0.0, used)


def independence_of_pairs(
    images: np.ndarray, vectors_of: Callable[[np.ndarray], Any], image_index: np.ndarray, image_group: np.ndarray,
    text_group: np.ndarray, *, seed: int = 0,
) -> IndependenceTest:  # fmt: skip
    """Test some thousand of N pairs, each image once, with the mean direction of its captions.

    Parameters
    ----------
    images : (M, R, D) float, or (M, 3, H, W) uint8
        Regions or pixels.

    vectors_of : callable
        Gives the vectors (k, V), dense or sparse, of the captions of some pairs (k,) int64.

    image_index : (N,) int64
        The image of each pair.

    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.

    seed : int
        Seed of everything random.

    Returns
    -------
    IndependenceTest
        See :func:`independence_test`.
    """
    groups = by_image(image_group, text_group, most=BLOCK * BLOCKS, seed=seed)
    if len(groups) < LEAST:
        return IndependenceTest(0.0, len(groups))
    captions = mean_of(vectors_of(np.concatenate(groups)), np.array([len(group) for group in groups]))
    return independence_test(image_vectors(images, image_index[[group[0] for group in groups]]), captions, seed=seed)


def _agreement(K: np.ndarray, L: np.ndarray, order: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", K, L[order][:, order], dtype=np.float64))


def by_image(image_group: np.ndarray, text_group: np.ndarray, *, most: int, seed: int = 0) -> list[np.ndarray]:
    """Group pairs by their image, so that no text stands twice.

    Parameters
    ----------
    image_group, text_group : (N,) int64
        Equal numbers are one image, or one text.
    most : int
        Images, at most.
    seed : int
        Which of them are taken.

    Returns
    -------
    list of (m,) int64
        Rows of up to eight pairs of each image.
    """
    order = np.random.default_rng(seed).permutation(len(image_group))
    order = order[np.sort(np.unique(text_group[order], return_index=True)[1])]
    by_group = order[np.argsort(image_group[order], kind="stable")]
    cuts = np.flatnonzero(np.diff(image_group[by_group])) + 1
    groups = np.split(by_group, cuts) if len(by_group) else []
    return [groups[k][:8] for k in np.random.default_rng(seed).permutation(len(groups))[:most]]


def mean_of(texts: Any, counts: np.ndarray) -> Any:
    """Mean direction of the texts of each image.

    Parameters
    ----------
    texts : (n, V) float, dense or sparse
        Those of an image follow each other.
    counts : (k,) int
        Texts of each image.

    Returns
    -------
    (k, V) float, as the texts
        Sum of the unit vectors.
    """
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    ends = np.concatenate([[0], np.cumsum(counts)])
    total = csr_array((np.ones(ends[-1], np.float32), np.arange(ends[-1]), ends), shape=(len(counts), int(ends[-1])))
    return total @ normalize(texts)


def image_vectors(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Standardised vectors of images.

    Parameters
    ----------
    images : (M, R, D) float, or (M, 3, H, W) uint8
        Regions, which are averaged, or pixels, which become 8 x 8 cells.
    rows : (n,) int64
        Which images.

    Returns
    -------
    (n, D) float32
        See :func:`standardised`.
    """
    return standardised(np.concatenate([_plain(images[rows[at]]) for at in blocks(len(rows), 256)]))


def _plain(x: np.ndarray) -> np.ndarray:
    if x.ndim < 4:
        return np.asarray(x, dtype=np.float32).reshape(len(x), -1, x.shape[-1]).mean(axis=1)
    down, right = (np.array_split(np.arange(side), min(8, side)) for side in x.shape[2:])
    cells = [x[:, :, r][:, :, :, c].mean(axis=(2, 3), dtype=np.float32) for r in down for c in right]
    return np.concatenate(cells, axis=1)


def standardised(x: np.ndarray) -> np.ndarray:
    """Centre and scale each dimension.

    Parameters
    ----------
    x : (n, D) float
        Vectors.

    Returns
    -------
    (n, D) float32
        With the mean 0 and the deviation 1. A dimension that is constant becomes 0.
    """
    x = np.asarray(x, dtype=np.float32)
    spread = x.std(axis=0)
    floor = 1e-6 * np.maximum(np.abs(x).max(axis=0), 1e-12)
    return np.asarray((x - x.mean(axis=0)) / np.where(spread > floor, spread, np.inf), dtype=np.float32)


def bag_of_tokens(ids: np.ndarray, offsets: np.ndarray) -> Any:
    """Which tokens a caption has, each weighted by the logarithm of how rare it is.

    Parameters
    ----------
    ids : (T,) int
        Token numbers below V, of all captions in turn.
    offsets : (n + 1,) int
        Where the tokens of each caption begin and end.

    Returns
    -------
    (n, V) float32, sparse
        The weights.
    """
    n, bag = len(offsets) - 1, token_counts(ids, offsets, int(ids.max(initial=0)) + 1)
    bag.data[:] = 1
    df = np.bincount(bag.indices, minlength=bag.shape[1])
    return bag.multiply(np.log((1 + n) / np.maximum(df, 1)).astype(np.float32)[None, :]).tocsr()
