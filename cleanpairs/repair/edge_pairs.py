"""The distinct pairs of image and text that candidate edges make, numbered as ``np.unique`` does, each judged once.
Edges are sorted by the pair that they make, a bucket of images after the other, so that but a few are held at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cleanpairs.ops.scratch import MEMORY, Buckets, Scratch, release
from cleanpairs.repair.candidates import Edges

BUCKET = 1 << 20  # edges that are sorted at once
_SCATTERED = 1 << 14  # edges that are written out of order at once

EdgeScorer = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""``judge(image_of, text_of, cosine)`` -> (u,) float32: the score of u pairs, each by a pair that shows its image and
one that shows its text, and the inner product of their vectors where it is known."""


@dataclass(frozen=True)
class PairGraph:
    """The U pairs that edges to mismatched donors make: ``row``, ``column`` (U,), rising, between n image and m text
    nodes, of the dense groups ``image_group`` (n,), ``text_group`` (m,); ``similarity`` (U,); ``number`` (U,): among
    all pairs.
    """

    row: np.ndarray
    column: np.ndarray
    similarity: np.ndarray
    number: np.ndarray
    image_group: np.ndarray
    text_group: np.ndarray


@dataclass(frozen=True)
class Paired:
    """Of E edges: ``number`` (E,) int32 and ``score`` (E,) float32 of the pair that each makes, ``count`` in all."""

    number: np.ndarray
    score: np.ndarray
    count: int
    graph: PairGraph


def pair_edges(edges: Edges, judge: EdgeScorer, *, scratch: Scratch = MEMORY) -> Paired:
    """Number the pairs that ``edges`` make, in order of their keys, and judge each once, sorted by their images."""
    E, n_text = len(edges), np.int64(max(edges.n_text, 1))
    per_image = np.zeros(int(edges.image_group.max(initial=-1)) + 1, np.int64)
    for s in edges.blocks():
        per_image += np.bincount(edges.image_group[edges.shown_by(s)[0]], minlength=len(per_image))
    images = len(per_image)
    bucket_of, counts = bucket_bounds(per_image, BUCKET)
    del per_image
    kind = np.int32 if E < 2**31 else np.int64
    types = dict(edge=kind, key=np.int64, image=np.int32, text=np.int32, similarity=np.float32, trusted=bool)
    buckets = Buckets(scratch, counts, types)
    for s in edges.blocks():
        image, text = edges.shown_by(s)
        group = edges.image_group[image]
        buckets.add(
            bucket_of[group], edge=np.arange(s.start, s.stop, dtype=kind), image=image, text=text,
            key=group * n_text + edges.text_group[text], similarity=edges.similarity[s], trusted=edges.trusted[s],
        )  # fmt: skip
    del bucket_of
    number, score = scratch.empty(E, np.int32), scratch.empty(E, np.float32)
    row, column = scratch.empty(E, np.int32), scratch.empty(E, np.int32)
    similarity, of_all = scratch.empty(E, np.float32), scratch.empty(E, np.int32)
    count = free = 0
    for b in range(len(buckets)):
        part = buckets.part(b)
        _, first, of = np.unique(part["key"], return_index=True, return_inverse=True)
        cosine = part["similarity"][first] if edges.cosine else None
        scored = judge(part["image"][first], part["text"][first], cosine)
        of = of.astype(np.int32)
        _scatter(number, part["edge"], of + np.int32(count))
        _scatter(score, part["edge"], scored[of])
        # Of each pair that an edge to a mismatched donor makes: the first such edge.
        untrusted = np.flatnonzero(~part["trusted"])
        leads = untrusted[np.unique(of[untrusted], return_index=True)[1]]
        t = slice(free, free + len(leads))
        row[t], column[t] = np.divmod(part["key"][leads], n_text)
        similarity[t], of_all[t] = part["similarity"][leads], of[leads] + np.int32(count)
        release(row, column, similarity, of_all)
        count += len(first)
        free += len(leads)
    del buckets
    image_node = _renumber(row[:free], images)
    text_node = _renumber(column[:free], int(n_text))
    graph = PairGraph(row[:free], column[:free], similarity[:free], of_all[:free], image_node, text_node)
    return Paired(number, score, count, graph)


def bucket_bounds(per_value: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values 0 .. V-1, of which there are ``per_value`` (V,), in runs of about ``size``: the runs (V,), counts (B,)."""
    before = np.cumsum(per_value) - per_value
    bucket_of = (before // size).astype(np.int32)
    return bucket_of, np.bincount(bucket_of, weights=per_value).astype(np.int64)


def _scatter(target: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    """``target[at] = values``, where ``at`` rises: few pages of a mapped target are touched at once."""
    for start in range(0, len(at), _SCATTERED):
        s = slice(start, start + _SCATTERED)
        target[at[s]] = values[s]
        release(target)


def _renumber(values: np.ndarray, most: int) -> np.ndarray:
    """Number the distinct ``values``, all below ``most``, in rising order, in their place; the distinct ones, (V,)."""
    occurs = np.zeros(most, bool)
    for start in range(0, len(values), BUCKET):
        occurs[values[start : start + BUCKET]] = True
        release(values)
    place = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    for start in range(0, len(values), BUCKET):
        s = slice(start, start + BUCKET)
        values[s] = place[values[s]]
        release(values)
    return np.flatnonzero(occurs).astype(np.int32)
