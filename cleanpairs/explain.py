"""Evidence for a doubt: the captions of similar trusted images, the images of similar trusted captions, the words. And
the worst pairs of a corpus, however few: one ranked list, a row an issue, as cleanlab's tables of issues are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, diags_array

from cleanpairs.core.errors import ConfigError
from cleanpairs.data.duplicates import group_near_vectors
from cleanpairs.data.filters import PREFIX, other_scripts
from cleanpairs.data.pairs import Pairs
from cleanpairs.ops.search import prepare

ISSUES = (
    "doubtful", "near-duplicate images, different captions", "one caption, many images", "uninformative",
    "another script", "displaced rows",
)  # fmt: skip
SCHEMA = pa.schema([
    ("issue", pa.string()), ("rank", pa.int64()), ("pair_id", pa.int64()), ("key", pa.string()),
    ("score", pa.float64()), ("caption", pa.string()), ("why", pa.string()),
])  # fmt: skip
NEIGHBOURS = 50

Found = tuple[int, float, str]  # of an issue: pair_id, score in [0, 1] (low is bad), why
Vectors = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Neighbour:
    """A pair with a similar image, or a similar caption. ``similarity`` is the cosine."""

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
    """Why a pair is doubted, or not: its neighbours are trusted. Words of the caption that those do not support, and
    that they agree on and it lacks. What they say in place of the first unsupported word, "" where they say nothing
    there. One sentence. What a judge says, if it was asked. ``correspondence`` is NaN where quarantined.
    """

    flagged: bool
    unsupported: tuple[str, ...]
    expected: tuple[str, ...]
    instead: str
    why: str
    opinion: str = ""


class Explainer:
    """Explains any of N pairs by trusted ones among them: all, or a sample of ``most_trusted``. Embedded when asked.

    ``vectors(rows)`` gives unit vectors of the images (k, d) and of the captions (k, e) of pairs (k,), which need not
    lie in one space. Zeros where there is none. ``correspondence`` (N,) is NaN where a pair is quarantined. At or above
    ``threshold`` it is trusted, below flagged.
    """

    def __init__(
        self, pairs: Pairs, vectors: Vectors, correspondence: np.ndarray, threshold: float, *,
        most_trusted: int = 50_000,
    ) -> None:  # fmt: skip
        self.pairs, self.vectors = pairs, vectors
        self.correspondence, self.threshold = np.asarray(correspondence, np.float64), threshold
        rows = np.flatnonzero(np.nan_to_num(self.correspondence, nan=-1) >= threshold)
        if len(rows) > most_trusted:
            rows = np.sort(np.random.default_rng(0).choice(rows, most_trusted, replace=False))
        self.trusted = rows

    @cached_property
    def _by_trusted(self) -> "tuple[_Side, _Side, WordSupport]":
        """The trusted images, each by its surest pair. The trusted captions. What they say, word by word."""
        pairs, rows = self.pairs, self.trusted
        images, texts = self.vectors(rows)
        side, of_captions = self._sides(rows, images, texts)
        asked, most = np.flatnonzero(side.rows >= 0), 10_000  # images that the words' rates are learned from
        if len(asked) > most:
            asked = np.sort(np.random.default_rng(0).choice(asked, most, replace=False))
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
        """The images of pairs (m,), in their order, each by its surest pair and none without a vector. The captions."""
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

    def explain(self, pair_ids: Sequence[int] | np.ndarray, *, neighbours: int = 3) -> list[Explanation]:
        """Explanations of pairs (n,), in their order. Raises ConfigError: there is no such pair."""
        ids = self._checked(pair_ids)
        vectors, flagged = self.vectors(ids), self.correspondence[ids] < self.threshold
        known = self._near(ids, vectors, self._by_trusted[:2], neighbours)
        return [
            Explanation(*(*fields, bool(low), tuple(own), tuple(lacking), new, self._why(fields[0], own, lacking, new)))
            for fields, low, (own, lacking, new) in zip(known, flagged, self._named(ids, vectors[0]), strict=True)
        ]

    def worst(self, count: int) -> np.ndarray:
        """(k,) pairs with the lowest correspondence, lowest first. Quarantined ones, which are NaN, have none."""
        known = np.flatnonzero(np.isfinite(self.correspondence))
        return known[np.argsort(self.correspondence[known], kind="stable")][:count]

    def sentences(self) -> dict[int, str]:
        """Pair -> :meth:`why`, of the flagged pairs, and of the 100 lowest others. Of 100,000 at most."""
        flagged = int((self.correspondence < self.threshold).sum())
        ids = self.worst(min(flagged + 100, 100_000) if self.pairs.has_captions else 0)
        return dict(zip(ids.tolist(), self.why(ids), strict=True))

    def issues(
        self, count: int = 50, displaced: Sequence[Mapping[str, Any]] = (), first: Sequence[int] = ()
    ) -> pa.Table:
        """The ``count`` worst pairs of each of :data:`ISSUES`, worst first. Columns of :data:`SCHEMA`.

        ``displaced``: of each block of displaced rows the first ``pair_id``, and ``why``, a sentence. ``first``:
        doubtful pairs that come before those with the lowest correspondence.
        """
        pairs = self.pairs
        worst = np.array(list(dict.fromkeys([*first, *self.worst(count).tolist()]))[:count], np.int64)
        lists: list[list[Found]] = [
            [(i, float(self.correspondence[i]), why) for i, why in zip(worst.tolist(), self.why(worst), strict=True)],
            sorted(_different(group_near_vectors(pairs), lambda rows: self.vectors(rows)[1]), key=lambda f: f[1]),
            sorted(_repeated(pairs), key=lambda f: f[1]),
            [(i, 0.0, why.removeprefix(PREFIX)) for i, why in sorted(pairs.reasons.items()) if why.startswith(PREFIX)],
            sorted(((i, 1 - share, said) for i, share, said in other_scripts(pairs.captions)), key=lambda f: f[1]),
            [(int(block["pair_id"]), 0.0, str(block["why"])) for block in displaced],
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

    def _named(self, ids: np.ndarray, images: np.ndarray) -> list[tuple[list[str], list[str], str]]:
        near = self._by_trusted[0].near(images, ids, NEIGHBOURS)[0]
        return self._by_trusted[2].named([self.pairs.captions[i] or "" for i in ids.tolist()], near)

    def _shown(self, side: "_Side", place: np.ndarray, similarity: np.ndarray) -> tuple[Neighbour, ...]:
        found = [(int(side.rows[p]), float(s)) for p, s in zip(place, similarity, strict=True) if p >= 0]
        y, keys, captions = self.correspondence, self.pairs.keys, self.pairs.captions
        return tuple(
            Neighbour(j, keys[j], captions[j] or "", s, float(y[j]), bool(y[j] >= self.threshold)) for j, s in found
        )

    def _why(self, i: int, unsupported: list[str], expected: list[str], instead: str) -> str:
        if np.isnan(self.correspondence[i]):
            return self.pairs.reasons.get(i, "quarantined")
        if not unsupported and not expected:
            return "no word of the caption speaks for or against it"
        if instead:
            found = [f"captions of similar images say “{instead}” in place of “{unsupported[0]}”"]
            unsupported, expected = unsupported[1:], [word for word in expected if word != instead]
            found += [f"they also say {_listed(expected)}"] if expected else []
        else:
            found = [f"captions of similar images say {_listed(expected)}"] if expected else []
        of_them = "of them " if found else "caption of a similar image "
        return "; ".join(found + ([f"hardly any {of_them}says {_listed(unsupported)}"] if unsupported else []))


class _Side:
    """Pairs ``rows`` (m,) by unit vectors (m, d) of one modality. Whoever shares one of ``groups`` is left out."""

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, groups: Sequence[np.ndarray]) -> None:
        self.rows, self.groups = rows if len(rows) else np.full(1, -1), groups
        spare = 16  # neighbours of the same image or text do not count
        self._search = prepare(vectors[:0], vectors, NEIGHBOURS + spare, exact=True)

    def near(self, vectors: np.ndarray, ids: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, k) places in ``rows``, and similarities, of the nearest to pairs ``ids`` (n,). -1 and NaN for none."""
        scores, place = self._search(vectors)
        there = (place >= 0) & np.any(vectors, axis=1, keepdims=True)
        for group in self.groups:
            there &= group[self.rows[place]] != group[ids][:, None]
        order = np.argsort(~there, axis=1, kind="stable")[:, :k]
        there, place, scores = (np.take_along_axis(x, order, 1) for x in (there, place, scores))
        return np.where(there, place, -1), np.where(there, scores, np.nan)


def _different(
    pairs: Pairs, texts: Callable[[np.ndarray], np.ndarray], *, most_groups: int = 50_000, most_rows: int = 1000
) -> Iterator[Found]:
    """Of several rows that show one image, the caption that is least like one of the others.

    Of the first ``most_groups`` images with several captions, by the first ``most_rows`` of each.
    """
    group = pairs.pair_image_group
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1)) if len(order) else order
    several = np.ones(len(starts), bool)
    for values in (pairs.row[order], pairs.text_group[order]):
        several &= np.minimum.reduceat(values, starts) < np.maximum.reduceat(values, starts) if len(starts) else True
    ends = np.append(starts[1:], len(order))
    chosen = zip(starts[several][:most_groups], ends[several][:most_groups], strict=True)
    groups = [order[a:b][:most_rows] for a, b in chosen]
    vectors = np.split(texts(np.concatenate(groups)), np.cumsum([len(g) for g in groups])[:-1]) if groups else []
    for rows, own in zip(groups, vectors, strict=True):
        similar = own @ own.T
        similar[pairs.row[rows][:, None] == pairs.row[rows]] = np.inf  # captions of one row may differ
        at = int(similar.min(axis=1).argmin())
        other = int(similar[at].argmin())
        if pairs.text_group[rows[at]] != pairs.text_group[rows[other]]:
            said = f"pair {rows[other]} shows the same image, or nearly, and says “{pairs.captions[rows[other]]}”"
            yield int(rows[at]), float(np.clip((1 + similar[at, other]) / 2, 0, 1)), said


def _repeated(pairs: Pairs) -> Iterator[Found]:
    """Captions of several images, by the first pair of each."""
    both = np.unique(np.stack([pairs.text_group, pairs.pair_image_group]), axis=1)
    images = np.unique(both[0], return_counts=True)[1]
    _, first = np.unique(pairs.text_group, return_index=True)
    for i, n in zip(first[images > 1].tolist(), images[images > 1].tolist(), strict=True):
        if pairs.captions[i]:
            yield i, 1 / n, f"{n} images have this caption"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(f"“{word}”" for word in words)


def caption_words(caption: str) -> list[str]:
    """Words of two letters and more. Of scripts that put no spaces between words every two characters."""
    from cleanpairs.encoders.tokenizer import runs  # which imports torch

    pairs = ([run[i : i + 2] for i in range(len(run) - 1)] if unspaced else [run] for run, unspaced in runs(caption))
    return [word for found in pairs for word in found if len(word) > 1 and word[0].isalnum()]


class WordSupport:
    """What B captions of U images, of trusted pairs, say of others.

    Of the K nearest images of trusted pairs, n show a word w in their captions. Any image has w with the rate p_w. An
    image like those that have w has it with the rate q_w: the mean share among the neighbours of trusted images whose
    captions hold w. The evidence that w belongs to the image is the log likelihood ratio of two Poisson rates,

        L = n log(q_w / p_w) - K (q_w - p_w),

    about 0 for words that say nothing about an image, or that are too rare to tell. A word is *unsupported* where L is
    below what one word in twenty of the trusted pairs has. *expected* words are those with the largest L, at least ln
    20, that the caption lacks. Neither is one with q_w < 1.6 p_w, as "of" and "and".

    ``image`` (B,) int64: of each caption, in 0 .. U - 1. ``asked`` (S,): images that the rates are learned from.
    ``near`` (S, K): images that are near to each of them, -1 where there are fewer. ``shrink``: so many captions more
    count as if they held w, with p_w among their neighbours.
    """

    def __init__(
        self, captions: Sequence[str], image: np.ndarray, asked: np.ndarray, near: np.ndarray, *, shrink: float = 2.0
    ) -> None:
        said = [caption_words(caption) for caption in captions]
        self._words: list[list[list[str]]] = [[] for _ in range(int(image.max(initial=-1)) + 1)]  # of each image
        for at, words in zip(image.tolist(), said, strict=True):
            self._words[at].append(words)
        self.names = sorted(set().union(*said))
        self._column = {word: column for column, word in enumerate(self.names)}
        has = self._has(said)
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
        q = np.maximum((q + shrink * p) / (holders + shrink), p)
        self._gain, self._cost = np.log(q / p), q - p
        support = self._support(has, found, k)[2]
        self._least = min(float(np.quantile(support, 0.05)), 0.0) if len(support) else -np.inf

    def _has(self, said: Sequence[Sequence[str]]) -> csr_array:
        """(n, V) 1 where captions, as words, have a known word."""
        columns = [sorted({self._column[word] for word in words if word in self._column}) for words in said]
        ends = np.cumsum([0, *map(len, columns)])
        flat = np.fromiter(chain.from_iterable(columns), np.int32, ends[-1])
        return csr_array((np.ones(len(flat), np.float32), flat, ends), shape=(len(said), len(self.names)))

    def _found(self, near: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """(n, V) share of the neighbours (n, K) whose captions have a word, and how many there are (n,)."""
        asking, place = np.nonzero(near >= 0)
        k = (near >= 0).sum(axis=1)
        weight = (1 / np.maximum(k, 1)).astype(np.float32)[asking]
        links = csr_array((weight, (asking, near[asking, place])), shape=(len(near), self._share.shape[0]))
        found = csr_array(links @ self._share)
        found.sort_indices()
        return found, k

    def _support(self, has: csr_array, found: csr_array, k: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows, words and L of the words that captions (n, V) have, by what is found among their neighbours (n, V)."""
        row, word = has.tocoo().coords
        return row, word, k[row] * (found[row, word] * self._gain[word] - self._cost[word])

    def named(self, captions: Sequence[str], near: np.ndarray) -> list[tuple[list[str], list[str], str]]:
        """Unsupported words, expected words, and the one in place of the first, of captions (n,), by the trusted images
        near them (n, K).
        """
        # Of q_w over p_w. Of the neighbours that agree, and of both rates, for an expected word. Captions at once.
        least_lift, least_share, least_ratio, block = 1.6, 0.2, 20.0, 4096
        if not len(self.names):
            return [([], [], "")] * len(captions)
        said: list[tuple[list[str], list[str], str]] = []
        for start in range(0, len(captions), block):
            some = slice(start, start + block)
            own_words = [caption_words(caption) for caption in captions[some]]
            has = self._has(own_words)
            found, k = self._found(near[some])
            row, word = found.tocoo().coords
            value = k[row] * (found.data * self._gain[word] - self._cost[word])
            tells = self._gain >= np.log(least_lift)
            new = (found.data >= least_share) & (value > np.log(least_ratio)) & (has[row, word] == 0) & tells[word]
            at, words, support = self._support(has, found, k)
            doubted = (support < self._least) & tells[words]
            low = self._best(at[doubted], words[doubted], -support[doubted], len(k))
            instead = [
                self._instead(words, own[0], places[places >= 0], tells) if own else ""
                for words, own, places in zip(own_words, low, near[some], strict=True)
            ]
            said += zip(low, self._best(row[new], word[new], value[new], len(k)), instead, strict=True)
        return said

    def _instead(self, said: list[str], word: str, near: np.ndarray, tells: np.ndarray) -> str:
        """The word that captions of near images (k,) say where a caption says ``word``: behind the same word, or before
        the same word, most often. It tells something of images. "" where there is none.
        """
        at, count = said.index(word), Counter[str]()
        left, right = ["", *said][at], [*said, ""][at + 1]
        for caption in (c for i in near.tolist() for c in self._words[i]):
            for before, other, after in zip(["", *caption], caption, [*caption[1:], ""], strict=False):
                if before == left or after == right:
                    count[other] += (before == left) + (after == right)
        column = self._column
        able = {w: n * self._gain[column[w]] for w, n in count.items() if w not in said and tells[column[w]] and n > 1}
        return max(able, key=lambda w: (able[w], w), default="")

    def _best(self, row: np.ndarray, word: np.ndarray, value: np.ndarray, n: int, most: int = 4) -> list[list[str]]:
        """Of each of n rows the ``most`` words of the largest values."""
        order = np.lexsort((word, -value, row))
        ends = np.searchsorted(row[order], np.arange(n + 1))
        chosen = (order[a : min(a + most, b)] for a, b in pairwise(ends))
        return [[str(self.names[w]) for w in word[some]] for some in chosen]
