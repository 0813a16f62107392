"""Captions that many pairs have in nearly the same words: they do not tell whose caption they are."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.data.text import normalise_text
from cleanpairs.ops.columns import picked
from cleanpairs.ops.mapped import blocks


def near_copies(texts: Callable[[], Iterable[pa.RecordBatch]], pairs: np.ndarray, alike: float = 0.7) -> np.ndarray:
    """Count the other pairs that have nearly the caption of each of some pairs.

    Parameters
    ----------
    texts : callable
        Reads all pairs in order, in batches with a column ``caption``.
    pairs : np.ndarray (k,) of int64
        Which pairs, rising.
    alike : float
        Least share of common words.

    Returns
    -------
    np.ndarray
        (k,) int64.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(analyzer=str.split, binary=True, norm=None, alternate_sign=False, dtype=np.float32)
    chosen = [normalise_text(c or "") for batch in picked(texts(), pairs) for c in batch["caption"].to_pylist()]
    distinct = dict.fromkeys(chosen)
    vectors = words.transform(distinct)
    size, copies = vectors.sum(axis=1).A1, np.full(len(distinct), -1)  # each is its own copy
    rarest = lru_cache(64)(partial(_rarest, vectors, _ranks(vectors), size, alike))
    for batch in texts():
        for start in range(0, len(batch), 4096):
            often = Counter(normalise_text(c or "") for c in batch["caption"].slice(start, 4096).to_pylist())
            others, times = words.transform(often), np.array([*often.values()])
            lengths = others.sum(axis=1).A1
            for length in np.unique(lengths):
                same, of_same = others[lengths == length], times[lengths == length]
                row, other = (rarest(length) @ same.T).nonzero()
                for edges in blocks(len(row), 1 << 18):
                    i, j = row[edges], other[edges]
                    shared = vectors[i].multiply(same[j]).sum(axis=1).A1
                    near = shared >= alike * (size[i] + length - shared)
                    np.add.at(copies, i[near], of_same[j[near]])
    copies[size == 0] = 0
    number = dict(zip(distinct, copies.tolist(), strict=True))
    return np.array([number[caption] for caption in chosen], np.int64)


def _ranks(captions: Any) -> np.ndarray:
    """The rank of each word among those of its caption, (nnz,): 0 is the rarest."""
    often = np.bincount(captions.indices, minlength=captions.shape[1])[captions.indices]
    caption = np.repeat(np.arange(captions.shape[0]), np.diff(captions.indptr))
    ranks = np.empty(len(often), np.int64)
    ranks[np.lexsort([often, caption])] = np.arange(len(often)) - captions.indptr[caption]
    return ranks


def _rarest(captions: Any, ranks: np.ndarray, size: np.ndarray, alike: float, length: float) -> Any:
    """So many of each caption's rarest words that each caption of this ``length`` that is ``alike`` has one of them."""
    shared = np.ceil(alike / (1 + alike) * (size + length) - 1e-6)  # words at least
    most = np.where(shared <= np.minimum(size, length), size - shared + 1, 0)
    rare = captions.copy()
    rare.data = (ranks < np.repeat(most, np.diff(captions.indptr))).astype(np.float32)
    rare.eliminate_zeros()
    return rare
