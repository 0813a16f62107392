"""The worst pairs of a corpus, however few: one ranked list, a row an issue, as cleanlab's tables of issues are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from cleanpairs.data.filters import PREFIX, other_scripts
from cleanpairs.data.pairs import Pairs

ISSUES = (
    "mismatched", "near-duplicate images, different captions", "one caption, many images", "uninformative",
    "another script",
)  # fmt: skip
MOST_ROWS = 1000  # of one image, that are compared with each other
MOST_GROUPS = 50_000  # of rows that show one image
SCHEMA = pa.schema([
    ("issue", pa.string()), ("rank", pa.int64()), ("pair_id", pa.int64()), ("key", pa.string()),
    ("score", pa.float64()), ("caption", pa.string()), ("why", pa.string()),
])  # fmt: skip

Found = tuple[int, float, str]  # pair_id, score in [0, 1] (low is bad), why


def ranked_issues(
    pairs: Pairs, texts: Callable[[np.ndarray], np.ndarray], correspondence: np.ndarray, *, count: int = 50,
    why: Callable[[np.ndarray], Sequence[str]] | None = None,
) -> pa.Table:  # fmt: skip
    """The ``count`` worst pairs of each of :data:`ISSUES`, worst first; columns of :data:`SCHEMA`.

    ``pairs``: with ``image_group`` of near duplicates; ``texts(rows)``: unit vectors (k, d) of the captions of pairs
    (k,); ``correspondence`` (N,): NaN where quarantined; every pair has a place in the first list; ``why(pairs)``:
    sentences.
    """
    y = np.asarray(correspondence, np.float64)
    worst = worst_pairs(y, count)
    said = [""] * len(worst) if why is None or not len(worst) else why(worst)
    lists: list[list[Found]] = [
        [(int(i), float(y[i]), s) for i, s in zip(worst, said, strict=True)],
        sorted(_different(pairs, texts), key=lambda f: f[1]),
        sorted(_repeated(pairs), key=lambda f: f[1]),
        [(i, 0.0, why.removeprefix(PREFIX)) for i, why in sorted(pairs.reasons.items()) if why.startswith(PREFIX)],
        sorted(((i, 1 - share, said) for i, share, said in other_scripts(pairs.captions)), key=lambda f: f[1]),
    ]
    rows = [
        dict(zip(SCHEMA.names, (issue, rank, i, pairs.keys[i], score, pairs.captions[i] or "", reason), strict=True))
        for issue, found in zip(ISSUES, lists, strict=True)
        for rank, (i, score, reason) in enumerate(found[:count], 1)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def worst_pairs(correspondence: np.ndarray, count: int) -> np.ndarray:
    """(k,) pairs with the lowest correspondence (N,), lowest first; quarantined ones, which are NaN, have none."""
    known = np.flatnonzero(np.isfinite(correspondence))
    return known[np.argsort(correspondence[known], kind="stable")][:count]


def _different(pairs: Pairs, texts: Callable[[np.ndarray], np.ndarray]) -> Iterator[Found]:
    """Of several rows that show one image, the caption that is least like one of the others."""
    group = pairs.pair_image_group
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1)) if len(order) else order
    several = np.ones(len(starts), bool)
    for values in (pairs.row[order], pairs.text_group[order]):
        several &= np.minimum.reduceat(values, starts) < np.maximum.reduceat(values, starts) if len(starts) else True
    ends = np.append(starts[1:], len(order))
    groups = [order[a:b][:MOST_ROWS] for a, b in zip(starts[several], ends[several], strict=True)]
    groups = groups[:MOST_GROUPS]
    vectors = np.split(texts(np.concatenate(groups)), np.cumsum([len(g) for g in groups])[:-1]) if groups else []
    for rows, own in zip(groups, vectors, strict=True):
        similar = own @ own.T
        similar[pairs.row[rows][:, None] == pairs.row[rows]] = np.inf  # captions of one row may differ
        at = int(similar.min(axis=1).argmin())
        other = int(similar[at].argmin())
        if pairs.text_group[rows[at]] != pairs.text_group[rows[other]]:
            said = f"the image of pair {rows[other]} is the same, whose caption is “{pairs.captions[rows[other]]}”"
            yield int(rows[at]), float(np.clip((1 + similar[at, other]) / 2, 0, 1)), said


def _repeated(pairs: Pairs) -> Iterator[Found]:
    """Captions of several images, by the first pair of each."""
    both = np.unique(np.stack([pairs.text_group, pairs.pair_image_group]), axis=1)
    images = np.unique(both[0], return_counts=True)[1]
    _, first = np.unique(pairs.text_group, return_index=True)
    for i, n in zip(first[images > 1].tolist(), images[images > 1].tolist(), strict=True):
        if pairs.captions[i]:
            yield i, 1 / n, f"{n} images have this caption"
