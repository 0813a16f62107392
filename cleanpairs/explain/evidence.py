"""Evidence for a doubt: the captions of similar trusted images, the images of similar trusted captions, the words.

And the worst pairs of a corpus, however few: one ranked list, a row an issue, as cleanlab's tables of issues are.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import ConfigError
from cleanpairs.data.filters import PREFIX, other_scripts
from cleanpairs.data.pairs import Pairs
from cleanpairs.explain.words import NEIGHBOURS, WordSupport
from cleanpairs.ops.search import prepare

SHOWN = 3
BANK = 50_000  # trusted pairs that are searched
RATES = 10_000  # of their images, which the words' rates are learned from
AGREED = "captions of similar images say"
NOTHING = "no word of the caption speaks for or against it"
SPARE = 16  # neighbours more than are asked for, since those of the same image or text do not count

ISSUES = (
    "mismatched", "near-duplicate images, different captions", "one caption, many images", "uninformative",
    "another script",
)  # fmt: skip
SCHEMA = pa.schema([
    ("issue", pa.string()), ("rank", pa.int64()), ("pair_id", pa.int64()), ("key", pa.string()),
    ("score", pa.float64()), ("caption", pa.string()), ("why", pa.string()),
])  # fmt: skip
MOST_ROWS = 1000  # of one image, that are compared with each other
MOST_GROUPS = 50_000  # of rows that show one image

Found = tuple[int, float, str]  # of an issue: pair_id, score in [0, 1] (low is bad), why
Vectors = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Neighbour:
    """A pair with a similar image, or a similar caption; ``similarity`` is the cosine."""

    pair_id: int
    key: str
    caption: str
    similarity: float
    correspondence: float
    trusted: bool


@dataclass(frozen=True)
class Neighbours:
    """A pair, and the pairs whose images and captions are most similar."""

    pair_id: int
    key: str
    caption: str
    correspondence: float
    similar_images: tuple[Neighbour, ...]
    similar_captions: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Explanation(Neighbours):
    """Why a pair is doubted, or not: its neighbours are trusted; words of the caption that those do not support, and
    that they agree on and it lacks; one sentence. ``correspondence`` is NaN where quarantined.
    """

    flagged: bool
    unsupported: tuple[str, ...]
    expected: tuple[str, ...]
    why: str


class Explainer:
    """Explains any of N pairs by trusted ones among them: all, or a sample of ``bank``.

    Nothing is embedded before something is asked: the trusted pairs once, and then the pairs that are asked about.
    ``vectors(rows)`` gives unit vectors of the images (k, d) and of the captions (k, e) of pairs (k,), which need not
    lie in one space; zeros where there is none. ``correspondence`` (N,) is NaN where a pair is quarantined; at or above
    ``threshold`` it is trusted, below flagged.
    """

    def __init__(
        self, pairs: Pairs, vectors: Vectors, correspondence: np.ndarray, threshold: float, *, bank: int = BANK
    ) -> None:
        self.pairs, self.vectors = pairs, vectors
        self.correspondence, self.threshold = np.asarray(correspondence, np.float64), threshold
        rows = np.flatnonzero(np.nan_to_num(self.correspondence, nan=-1) >= threshold)
        if len(rows) > bank:
            rows = np.sort(np.random.default_rng(0).choice(rows, bank, replace=False))
        self.trusted = rows

    @cached_property
    def _bank(self) -> "tuple[_Side, _Side, WordSupport]":
        """The trusted images, each by its surest pair; the trusted captions; what they say, word by word."""
        pairs, rows = self.pairs, self.trusted
        images, texts = self.vectors(rows)
        side, of_captions = self._sides(rows, images, texts)
        asked = np.flatnonzero(side.rows >= 0)
        if len(asked) > RATES:
            asked = np.sort(np.random.default_rng(0).choice(asked, RATES, replace=False))
        near = side.near(images[np.searchsorted(rows, side.rows[asked])], side.rows[asked], NEIGHBOURS)[0]
        seen = rows[images.any(axis=1)]
        captions = [pairs.captions[i] or "" for i in seen.tolist()]
        image = np.searchsorted(pairs.image_index[side.rows], pairs.image_index[seen])
        return side, of_captions, WordSupport(captions, image, asked, near)

    @cached_property
    def _everything(self) -> "tuple[_Side, _Side]":
        """All images, each by its surest pair, and all captions."""
        rows = np.arange(len(self.pairs))
        return self._sides(rows, *self.vectors(rows))

    def _sides(self, rows: np.ndarray, images: np.ndarray, texts: np.ndarray) -> "tuple[_Side, _Side]":
        """The images of pairs (m,), in their order, each by its surest pair and none without a vector; the captions."""
        groups = self.pairs.pair_image_group
        seen = np.flatnonzero(images.any(axis=1))
        order = seen[np.argsort(-np.nan_to_num(self.correspondence[rows[seen]], nan=-1), kind="stable")]
        chosen = order[np.unique(self.pairs.image_index[rows[order]], return_index=True)[1]]
        return _Side(images[chosen], rows[chosen], [groups]), _Side(texts, rows, [self.pairs.text_group, groups])

    def neighbours(self, pair_ids: Sequence[int] | np.ndarray, count: int = 10) -> list[Neighbours]:
        """Of pairs (n,) the ``count`` (at most 50) others of all N with the most similar images, and captions."""
        ids = self._checked(pair_ids)
        return [Neighbours(*known) for known in self._near(ids, self.vectors(ids), self._everything, count)]

    def _near(
        self, ids: np.ndarray, vectors: tuple[np.ndarray, np.ndarray], sides: "tuple[_Side, _Side]", count: int
    ) -> Iterator[Any]:
        """The fields of :class:`Neighbours` of pairs (n,), of which ``vectors`` are."""
        found = [
            [self._shown(side, *one) for one in zip(*side.near(of, ids, count), strict=True)]
            for side, of in zip(sides, vectors, strict=True)
        ]
        for i, *both in zip(ids.tolist(), *found, strict=True):
            yield i, self.pairs.keys[i], self.pairs.captions[i] or "", float(self.correspondence[i]), *both

    def _checked(self, pair_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        odd = [i for i in pair_ids if not (isinstance(i, int | np.integer) and 0 <= i < len(self.pairs))]
        if odd:
            raise ConfigError(f"there are the pairs 0 to {len(self.pairs) - 1}, and no pair {odd[0]!r}")
        return np.asarray(pair_ids, np.int64)

    def explain(self, pair_ids: Sequence[int] | np.ndarray, *, neighbours: int = SHOWN) -> list[Explanation]:
        """Explanations of pairs (n,), in their order. Raises ConfigError: there is no such pair."""
        ids = self._checked(pair_ids)
        vectors, flagged = self.vectors(ids), self.correspondence[ids] < self.threshold
        known = self._near(ids, vectors, self._bank[:2], neighbours)
        return [
            Explanation(*(*fields, bool(below), tuple(own), tuple(lacking), self._why(fields[0], own, lacking)))
            for fields, below, (own, lacking) in zip(known, flagged, self._named(ids, vectors[0]), strict=True)
        ]

    def worst(self, count: int) -> np.ndarray:
        """(k,) pairs with the lowest correspondence, lowest first; quarantined ones, which are NaN, have none."""
        known = np.flatnonzero(np.isfinite(self.correspondence))
        return known[np.argsort(self.correspondence[known], kind="stable")][:count]

    def sentences(self, most: int = 100_000, more: int = 100) -> dict[int, str]:
        """Pair -> :meth:`why`, of the flagged pairs, and of ``more`` others with the lowest correspondence; of ``most``
        at most. None of pairs without captions.
        """
        flagged = int((self.correspondence < self.threshold).sum())
        ids = self.worst(min(flagged + more, most)) if self.pairs.has_captions else np.empty(0, np.int64)
        return dict(zip(ids.tolist(), self.why(ids), strict=True))

    def issues(self, count: int = 50) -> pa.Table:
        """The ``count`` worst pairs of each of :data:`ISSUES`, worst first; columns of :data:`SCHEMA`.

        Every pair that is not quarantined has a place in the first list.
        """
        pairs, worst = self.pairs, self.worst(count)
        lists: list[list[Found]] = [
            [(i, float(self.correspondence[i]), why) for i, why in zip(worst.tolist(), self.why(worst), strict=True)],
            sorted(_different(pairs, lambda rows: self.vectors(rows)[1]), key=lambda f: f[1]),
            sorted(_repeated(pairs), key=lambda f: f[1]),
            [(i, 0.0, why.removeprefix(PREFIX)) for i, why in sorted(pairs.reasons.items()) if why.startswith(PREFIX)],
            sorted(((i, 1 - share, said) for i, share, said in other_scripts(pairs.captions)), key=lambda f: f[1]),
        ]
        rows = [
            (issue, rank, i, pairs.keys[i], score, pairs.captions[i] or "", reason)
            for issue, found in zip(ISSUES, lists, strict=True)
            for rank, (i, score, reason) in enumerate(found[:count], 1)
        ]
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)

    def why(self, pair_ids: Sequence[int] | np.ndarray) -> list[str]:
        """One sentence for each of the pairs (n,)."""
        ids = np.asarray(pair_ids, np.int64)
        if not len(ids):
            return []
        named = self._named(ids, self.vectors(ids)[0])
        return [self._why(i, *words) for i, words in zip(ids.tolist(), named, strict=True)]

    def _named(self, ids: np.ndarray, images: np.ndarray) -> list[tuple[list[str], list[str]]]:
        near = self._bank[0].near(images, ids, NEIGHBOURS)[0]
        return self._bank[2].named([self.pairs.captions[i] or "" for i in ids.tolist()], near)

    def _shown(self, side: "_Side", place: np.ndarray, similarity: np.ndarray) -> tuple[Neighbour, ...]:
        found = [(int(side.rows[p]), float(s)) for p, s in zip(place, similarity, strict=True) if p >= 0]
        y, keys, captions = self.correspondence, self.pairs.keys, self.pairs.captions
        return tuple(
            Neighbour(j, keys[j], captions[j] or "", s, float(y[j]), bool(y[j] >= self.threshold)) for j, s in found
        )

    def _why(self, i: int, unsupported: list[str], expected: list[str]) -> str:
        if np.isnan(self.correspondence[i]):
            return self.pairs.reasons.get(i, "quarantined")
        if not unsupported and not expected:
            return NOTHING
        agreed = f"{AGREED} {_listed(expected)}; " if expected else ""
        of_them = "of them " if expected else "caption of a similar image "
        return (agreed + (f"hardly any {of_them}says {_listed(unsupported)}" if unsupported else "")).removesuffix("; ")


class _Side:
    """Trusted pairs ``rows`` (m,), by unit vectors (m, d) of one modality; those that share one of ``groups`` are no
    neighbours.
    """

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, groups: Sequence[np.ndarray]) -> None:
        self.rows, self.groups = rows if len(rows) else np.full(1, -1), groups
        self._search = prepare(vectors[:0], vectors, NEIGHBOURS + SPARE, exact=True)

    def near(self, vectors: np.ndarray, ids: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) places in ``rows``, and similarities, of the nearest to pairs ``ids`` (n,); -1 and NaN where there are
        fewer.
        """
        scores, place = self._search(vectors)
        there = (place >= 0) & np.any(vectors, axis=1, keepdims=True)
        for group in self.groups:
            there &= group[self.rows[place]] != group[ids][:, None]
        order = np.argsort(~there, axis=1, kind="stable")[:, :k]
        there, place, scores = (np.take_along_axis(x, order, 1) for x in (there, place, scores))
        return np.where(there, place, -1), np.where(there, scores, np.nan)


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


def named_words(why: str) -> tuple[list[str], list[str]]:
    """Of a sentence of :meth:`Explainer.why`: the words that the captions of similar images agree on, and those of the
    caption that they do not support.
    """
    agreed, _, own = why.partition("; ") if why.startswith(AGREED) else ("", "", why)
    return re.findall("“(.*?)”", agreed), re.findall("“(.*?)”", own)


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"“{word}”" for word in words)
