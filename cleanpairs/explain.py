"""Evidence for a doubt: the captions of similar trusted images, the images of similar trusted captions, the words. And
the worst pairs of a corpus, however few: one ranked list, a row an issue, as cleanlab's tables of issues are.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from cleanpairs.core import ConfigError
from cleanpairs.correspondence.words import WordRatios
from cleanpairs.data.duplicates import group_near_vectors
from cleanpairs.data.filters import PREFIX, other_scripts
from cleanpairs.data.pairs import Pairs
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.search import Prepared, prepare

ISSUES = (
    "doubtful", "near-duplicate images, different captions", "one caption, many images", "uninformative",
    "another script", "displaced rows",
)  # fmt: skip
SCHEMA = pa.schema([
    ("issue", pa.string()), ("rank", pa.int64()), ("pair_id", pa.int64()), ("key", pa.string()),
    ("score", pa.float64()), ("caption", pa.string()), ("why", pa.string()),
])  # fmt: skip
NEIGHBOURS = 50
LISTED = 200  # issues of each kind in issues.csv

Issue = tuple[int, float, str]  # pair_id, score in [0, 1] (low is bad), why
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
    """Why a pair is doubted, or not. Its neighbours are trusted, and its correspondence is NaN where quarantined.

    - ``unsupported``: words of the caption that the neighbours do not support
    - ``expected``: words that they agree on, and that it lacks
    - ``instead``: what they have in place of the first unsupported word, "" for nothing
    - ``why``: one sentence
    - ``opinion``: that of a judge, "" without one
    - ``displaced``: the block of displaced rows in which it lies, "" for none
    """

    flagged: bool
    unsupported: tuple[str, ...]
    expected: tuple[str, ...]
    instead: str
    why: str
    opinion: str = ""
    displaced: str = ""


class Explainer:
    """Explains any of N pairs by trusted ones: all, or a sample of ``most_trusted``. They are embedded when needed.

    ``vectors(rows)`` gives unit vectors of the images (k, d) and of the captions (k, e) of pairs (k,), which need not
    lie in one space. Zeros where there is none. ``correspondence`` (N,) is NaN where a pair is quarantined. At or above
    ``threshold`` it is trusted, below flagged. ``displaced``: of each block of displaced rows the first ``pair_id``,
    the ``last`` one, and ``why``, a sentence.
    """

    part = 65_536  # pairs that are compared at once

    def __init__(
        self, pairs: Pairs, vectors: Vectors, correspondence: np.ndarray, threshold: float, *,
        displaced: Sequence[Mapping[str, Any]] = (), most_trusted: int = 50_000,
    ) -> None:  # fmt: skip
        self.pairs, self.vectors, self.displaced = pairs, vectors, displaced
        self.correspondence, self.threshold = np.asarray(correspondence, np.float64), threshold
        rows = np.flatnonzero(np.nan_to_num(self.correspondence, nan=-1) >= threshold)
        if len(rows) > most_trusted:
            rows = np.sort(np.random.default_rng(0).choice(rows, most_trusted, replace=False))
        self.trusted = rows

    @cached_property
    def _by_trusted(self) -> "tuple[_Side, _Side, WordSupport]":
        """The trusted images, each by its surest pair. The trusted captions. What they say, word by word."""
        rows = self.trusted
        images, texts = self.vectors(rows)
        side, of_captions = self._sides(rows, images, texts)
        seen, most = np.flatnonzero(images.any(axis=1)), 4096  # pairs whose words are counted
        seen = np.sort(np.random.default_rng(0).permutation(seen)[:most])
        return side, of_captions, WordSupport(*self._word_inputs(rows[seen], images[seen]))

    @cached_property
    def _everything(self) -> "tuple[_Side, _Side]":
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
        """Return the ``count`` (at most 50) other pairs with the most similar images, and captions, of pairs (n,)."""
        ids = self._checked(pair_ids)
        rows = [np.arange(some.start, some.stop) for some in blocks(len(self.pairs), self.part)]
        parts = (self._sides(some, *self.vectors(some)) for some in rows) if len(rows) > 1 else [self._everything]
        return [Neighbours(*near) for near in self._near(ids, self.vectors(ids), parts, count)]

    def _near(
        self, ids: np.ndarray, vectors: tuple[np.ndarray, np.ndarray], parts: "Iterable[tuple[_Side, _Side]]", k: int
    ) -> Iterator[Any]:
        """Yield the fields of :class:`Neighbours` of pairs (n,), of which ``vectors`` are. Each part has both sides."""
        near = [[side.near(of, ids, k) for side, of in zip(sides, vectors, strict=True)] for sides in parts]
        found = [[np.concatenate(x, axis=1) for x in zip(*side, strict=True)] for side in zip(*near, strict=True)]
        for q, i in enumerate(ids.tolist()):
            both = (self._neighbours_at(rows[q], s[q], k, side == 0) for side, (rows, s) in enumerate(found))
            yield i, self.pairs.keys[i], self.pairs.captions[i] or "", float(self.correspondence[i]), *both

    def _checked(self, pair_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the numbers of pairs (n,), given by themselves or by a mask of all."""
        ids = np.atleast_1d(np.asarray(pair_ids))
        ids = np.flatnonzero(ids) if ids.dtype == bool and ids.shape == self.pairs.shape else ids
        odd = [i for i in ids.tolist() if type(i) is not int or not 0 <= i < len(self.pairs)]
        if odd:
            mask = f"; a mask has the shape {self.pairs.shape}, found {ids.shape}" * (ids.dtype == bool)
            raise ConfigError(f"there are the pairs 0 to {len(self.pairs) - 1}, and no pair {odd[0]!r}{mask}")
        return ids.astype(np.int64)

    def explain(self, pair_ids: Sequence[int] | np.ndarray, *, neighbours: int = 3) -> list[Explanation]:
        """Explanations of pairs (n,), in their order. Raises ConfigError: there is no such pair."""
        ids = self._checked(pair_ids)
        vectors, flagged = self.vectors(ids), self.correspondence[ids] < self.threshold
        near = self._near(ids, vectors, [self._by_trusted[:2]], neighbours)
        return [
            Explanation(*(
                *fields, bool(low), tuple(own), tuple(lacking), new, self._why(fields[0], own, lacking, new), "",
                self._block_of(fields[0]),
            ))
            for fields, low, (own, lacking, new) in zip(near, flagged, self._words_of(ids, vectors[0]), strict=True)
        ]  # fmt: skip

    def _block_of(self, pair: int) -> str:
        within = (b for b in self.displaced if int(b["pair_id"]) <= pair <= int(b.get("last", -1)))
        return str(next(within, {}).get("why", ""))

    def worst(self, count: int) -> np.ndarray:
        """Return the pairs (k,) with the lowest correspondence, as of :func:`lowest`."""
        return lowest(self.correspondence, count, self.displaced)

    def sentences(self) -> dict[int, str]:
        """Pair -> :meth:`why`, of the flagged pairs and the 100 lowest others. Of 100,000 at most."""
        flagged = int((self.correspondence < self.threshold).sum())
        ids = lowest(self.correspondence, min(flagged + 100, 100_000) if self.pairs.has_captions else 0)
        return dict(zip(ids.tolist(), self.why(ids), strict=True))

    def issues(self, count: int = 50, first: Sequence[int] = ()) -> pa.Table:
        """Return the ``count`` worst pairs of each of :data:`ISSUES`, worst first. Columns of :data:`SCHEMA`.

        Displaced rows are issues of their own. ``first``: doubtful pairs that come before those of :meth:`worst`.
        """
        pairs = self.pairs
        worst = np.array(list(dict.fromkeys([*first, *self.worst(count).tolist()]))[:count], np.int64)
        lists: list[list[Issue]] = [
            [(i, float(self.correspondence[i]), why) for i, why in zip(worst.tolist(), self.why(worst), strict=True)],
            sorted(_odd_captions(group_near_vectors(pairs), lambda rows: self.vectors(rows)[1]), key=lambda f: f[1]),
            sorted(_repeated_captions(pairs), key=lambda f: f[1]),
            [(i, 0.0, why.removeprefix(PREFIX)) for i, why in sorted(pairs.reasons.items()) if why.startswith(PREFIX)],
            sorted(((i, 1 - share, why) for i, share, why in other_scripts(pairs.captions)), key=lambda f: f[1]),
            [(int(block["pair_id"]), 0.0, str(block["why"])) for block in self.displaced],
        ]
        rows = [
            (issue, rank, i, pairs.keys[i], score, pairs.captions[i] or "", reason)
            for issue, issues in zip(ISSUES, lists, strict=True)
            for rank, (i, score, reason) in enumerate(issues[:count], 1)
        ]
        return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)

    def why(self, pair_ids: Sequence[int] | np.ndarray) -> list[str]:
        """Return one sentence for each of the pairs (n,)."""
        ids = self._checked(pair_ids)
        if not len(ids):
            return []
        named = self._words_of(ids, self.vectors(ids)[0])
        return [self._why(i, *words) for i, words in zip(ids.tolist(), named, strict=True)]

    def _words_of(self, ids: np.ndarray, images: np.ndarray) -> list[tuple[list[str], list[str], str]]:
        return self._by_trusted[2].named(*self._word_inputs(ids, images))

    def _word_inputs(self, ids: np.ndarray, images: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
        """Return captions, images, image groups and log odds of pairs (n,)."""
        y = np.clip(np.nan_to_num(self.correspondence[ids], nan=0.5), 1e-6, 1 - 1e-6)
        captions = [self.pairs.captions[i] or "" for i in ids.tolist()]
        return captions, images, self.pairs.pair_image_group[ids], np.log(y / (1 - y))

    def _neighbours_at(self, rows: np.ndarray, similarity: np.ndarray, k: int, images: bool) -> tuple[Neighbour, ...]:
        """Return the ``k`` nearest pairs among ``rows`` (m,). Of images each by its surest pair."""
        y, keys, captions = self.correspondence, self.pairs.keys, self.pairs.captions
        order = np.lexsort((-np.nan_to_num(y[rows], nan=-1), -similarity))[: int(np.isfinite(similarity).sum())]
        if images:
            order = order[np.sort(np.unique(self.pairs.image_index[rows[order]], return_index=True)[1])]
        nearest = zip(rows[order[:k]].tolist(), similarity[order[:k]].tolist(), strict=True)
        return tuple(
            Neighbour(j, keys[j], captions[j] or "", s, float(y[j]), bool(y[j] >= self.threshold)) for j, s in nearest
        )

    def _why(self, i: int, unsupported: list[str], expected: list[str], instead: str) -> str:
        if np.isnan(self.correspondence[i]):
            return self.pairs.reasons.get(i, "quarantined")
        if not self.pairs.captions[i]:
            return "it has no caption, and vectors name no reason"
        if not unsupported and not expected:
            return "no word of the caption speaks for or against it"
        if instead:
            reasons = [f"captions of similar images say “{instead}” in place of “{unsupported[0]}”"]
            unsupported, expected = unsupported[1:], [word for word in expected if word != instead]
            reasons += [f"they also say {_quoted(expected)}"] if expected else []
        else:
            reasons = [f"captions of similar images say {_quoted(expected)}"] if expected else []
        of_them = "of them " if reasons else "caption of a similar image "
        return "; ".join(reasons + ([f"hardly any {of_them}says {_quoted(unsupported)}"] if unsupported else []))


def lowest(correspondence: np.ndarray, count: int, displaced: Sequence[Mapping[str, Any]] = ()) -> np.ndarray:
    """Return the pairs (k,) with the lowest ``correspondence`` (N,), lowest first. Quarantined ones have none.

    Pairs of blocks of ``displaced`` rows, from ``pair_id`` to ``last``, are left out.
    """
    listed = np.isfinite(correspondence)
    for block in displaced:
        listed[int(block["pair_id"]) : int(block.get("last", -1)) + 1] = False  # older runs do not say the last
    rows = np.flatnonzero(listed)
    return rows[np.argsort(correspondence[rows], kind="stable")][:count]


class _Side:
    """Pairs ``rows`` (m,) by unit vectors (m, d) of one modality. Pairs that share one of ``groups`` are left out."""

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, groups: Sequence[np.ndarray]) -> None:
        self.rows, self.groups, self._vectors = rows if len(rows) else np.full(1, -1), groups, vectors

    @cached_property
    def _search(self) -> Prepared:
        spare = 16  # neighbours of the same image or text do not count
        return prepare(self._vectors[:0], self._vectors, NEIGHBOURS + spare, exact=True)

    def near(self, vectors: np.ndarray, ids: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``rows`` (n, k), and similarities, of the nearest to pairs ``ids``. NaN for none."""
        scores, place = self._search(vectors)
        there = (place >= 0) & np.any(vectors, axis=1, keepdims=True)
        for group in self.groups:
            there &= group[self.rows[place]] != group[ids][:, None]
        order = np.argsort(~there, axis=1, kind="stable")[:, :k]
        searched = place.shape[1]
        there, place, scores = (np.take_along_axis(x, order, 1) for x in (there, place, scores))
        few = np.any(vectors, axis=1) & ~there.all(axis=1) & (searched < len(self.rows))
        for q in np.flatnonzero(few).tolist():  # so many are of the same image or text: all others are compared
            other = np.all([group[self.rows] != group[ids[q]] for group in self.groups], axis=0)
            fit = np.where(other, self._search.rows @ np.asarray(vectors[q], np.float32), -np.inf)
            best = np.argsort(-fit, kind="stable")[: min(k, int(other.sum()))]
            there[q, : len(best)], place[q, : len(best)], scores[q, : len(best)] = True, best, fit[best]
        return self.rows[place], np.where(there, scores, np.nan)


def _odd_captions(pairs: Pairs, texts: Callable[[np.ndarray], np.ndarray]) -> Iterator[Issue]:
    """Yield for each image of several files the caption that is least like one of the others. No quarantined pair.
    The keys ``a.jpg#0`` and ``a.jpg#1`` are of one file.

    The first 50,000 images with several captions are compared, by the first 1,000 of each.
    """
    most_groups, most_rows = 50_000, 1000
    _, first, image = np.unique(pairs.image_index, return_index=True, return_inverse=True)
    file = np.array([hash(re.sub(r"#\d+$", "", pairs.keys[i])) for i in first.tolist()], np.int64)[image]
    group = pairs.pair_image_group
    order = np.argsort(group, kind="stable")
    order = order[~np.isin(order, list(pairs.reasons))]
    starts = np.flatnonzero(np.diff(group[order], prepend=-1)) if len(order) else order
    several = np.ones(len(starts), bool)
    for values in (file[order], pairs.text_group[order]):
        several &= np.minimum.reduceat(values, starts) < np.maximum.reduceat(values, starts) if len(starts) else True
    ends = np.append(starts[1:], len(order))
    starts, counts = starts[several][:most_groups], (ends - starts)[several][:most_groups]
    groups = [order[a : a + min(n, most_rows)] for a, n in zip(starts, counts, strict=True)]
    vectors = np.split(texts(np.concatenate(groups)), np.cumsum([len(g) for g in groups])[:-1]) if groups else []
    for rows, own, count in zip(groups, vectors, counts, strict=True):
        similar = own @ own.T
        similar[file[rows][:, None] == file[rows]] = np.inf  # captions of one file may differ
        at = int(similar.min(axis=1).argmin())
        other = int(similar[at].argmin())
        if pairs.text_group[rows[at]] != pairs.text_group[rows[other]]:
            of, same = f"pair {rows[other]}", "nearly the same image,"
            why = f"{of} shows {same}" if count == 2 else f"{count - 1:,} other pairs show {same} {of}"
            why += f" with the caption “{pairs.captions[rows[other]]}”"
            yield int(rows[at]), float(np.clip((1 + similar[at, other]) / 2, 0, 1)), why


def _repeated_captions(pairs: Pairs) -> Iterator[Issue]:
    """Yield the captions of several images, by the first pair of each."""
    usable = ~np.isin(np.arange(len(pairs)), list(pairs.reasons))
    groups = np.unique(np.stack([pairs.text_group, pairs.pair_image_group])[:, usable], axis=1)
    images = np.unique(groups[0], return_counts=True)[1]
    _, first = np.unique(pairs.text_group[usable], return_index=True)
    first = np.flatnonzero(usable)[first]
    for i, n in zip(first[images > 1].tolist(), images[images > 1].tolist(), strict=True):
        if pairs.captions[i]:
            yield i, 1 / n, f"{n} images have this caption"


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f"“{word}”" for word in words)


def caption_words(caption: str) -> list[str]:
    """Words of two letters and more. Of scripts that put no spaces between words every two characters."""
    from cleanpairs.encoders.tokenizer import runs  # which imports torch

    pairs = ([run[i : i + 2] for i in range(len(run) - 1)] if unspaced else [run] for run, unspaced in runs(caption))
    return [word for found in pairs for word in found if len(word) > 1 and word[0].isalnum()]


class WordSupport:
    """What captions of B trusted pairs say of other images.

    Of each word w of a caption :class:`cleanpairs.correspondence.words.WordRatios` gives the log likelihood ratio L_w.
    Other words stand in its place, behind the same word and before the same word. M_w is their largest ratio, at least
    0. The evidence that w belongs to the image is the mean of L_w and L_w - M_w. Add to it the log odds of the pair.
    A word with negative evidence is *unsupported* if this sum is lower than that of 92 % of the words of trusted pairs.
    The words with the largest L, at least ln 2, that the caption lacks are *expected*. Words with h < 1/2, like "of"
    and "and", are neither. Those with h < 3/4, like "at", are not expected.

    ``x`` (B, d): unit vectors of the images. ``group`` (B,): pairs of one number say nothing of each other. ``odds``
    (B,): logarithms of the odds that the pairs are matched.
    """

    def __init__(self, captions: Sequence[str], x: np.ndarray, group: np.ndarray, odds: np.ndarray) -> None:
        words = [caption_words(caption) for caption in captions]
        self.names = np.array(sorted(set().union(*words)), object)
        self._number = {word: k for k, word in enumerate(self.names.tolist())}
        self._least = -np.inf
        if not self._number:  # no caption has a word
            return
        row, before, word, after = self._places(words)
        size = len(self.names) + 2
        self._behind, self._before = (self._incidence(side, word, (size, size)) for side in (before, after))
        self._ratios = WordRatios(x, self._incidence(row, word, (len(x), size)), np.ones(len(x)), group=group)
        named, most = 0.08, 1000  # share of the words that is named, and trusted pairs that tell it
        some = np.sort(np.random.default_rng(0).permutation(len(x))[:most])
        judged = self._judged([words[i] for i in some.tolist()], x[some], group[some], odds[some])
        doubt = np.sort(np.concatenate([doubt for _, _, doubt, *_ in judged]))
        self._least = float(doubt[int(named * len(doubt))]) if len(doubt) else -np.inf

    def _places(self, words: Sequence[list[str]]) -> np.ndarray:
        """Return row, number of the word before, own number and number of the word after, of each known word."""
        none, unknown, entries = len(self.names), len(self.names) + 1, list[tuple[int, int, int, int]]()
        for row, caption in enumerate(words):
            numbers = [none, *(self._number.get(word, unknown) for word in caption), none]
            entries += [(row, *three) for three in zip(numbers, numbers[1:], numbers[2:], strict=False)]
        places = np.array(entries, np.int64).reshape(-1, 4).T
        return places[:, places[2] < unknown]

    def _incidence(self, row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> csr_array:
        return csr_array((np.ones(len(row), np.float32), (row, column)), shape).minimum(1)

    def _judged(
        self, words: Sequence[list[str]], x: np.ndarray, group: np.ndarray, odds: np.ndarray
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """Judge the words of some captions at once.

        Returns rows and numbers of their words. For each word it returns the evidence with the odds, infinite where the
        evidence is not negative, and the word that would be in its place, -1 for none. Last come the ratios of all
        words, and which are expected.
        """
        # Of an expected word: share of neighbours, ratio and height. Height of a word that tells. Captions at once.
        least_share, least_ratio, expected_height, least_height, block = 0.2, 2.0, 0.75, 0.5, 256
        for start in range(0, len(words), block):
            some = slice(start, start + block)
            row, before, word, after = self._places(words[some])
            n, size = len(words[some]), len(self.names) + 2
            (ratio, share), height = np.zeros((2, n, size), np.float32), np.zeros(size)
            ratio[:, self._ratios.known], share[:, self._ratios.known] = self._ratios.of_images(x[some], group[some])
            has = np.zeros((n, size), bool)
            height[self._ratios.known] = self._ratios.height
            has[row, word] = True
            at, new = self._behind[before].multiply(self._before[after]).tocoo().coords
            value = np.where((height[new] >= least_height) & ~has[row[at], new], ratio[row[at], new], 0)
            order = np.lexsort((new, value, at))
            last = order[np.flatnonzero(np.diff(at[order], append=-1))]
            best, instead = np.zeros(len(word)), np.full(len(word), -1)
            best[at[last]], instead[at[last]] = np.maximum(value[last], 0), np.where(value[last] > 0, new[last], -1)
            evidence = ratio[row, word] - best / 2
            doubt = np.where((height[word] >= least_height) & (evidence < 0), evidence + odds[some][row], np.inf)
            lacked = np.stack(np.nonzero(share >= least_share))
            lacked = lacked[:, (height[lacked[1]] >= expected_height) & ~has[*lacked]]
            lacked = lacked[:, ratio[*lacked] > np.log(least_ratio)]
            yield row, word, doubt, instead, ratio, lacked

    def named(
        self, captions: Sequence[str], x: np.ndarray, group: np.ndarray, odds: np.ndarray
    ) -> list[tuple[list[str], list[str], str]]:
        """Unsupported words, expected words, and the one in place of the first, of captions (n,) and their images."""
        if not self._number:
            return [([], [], "")] * len(captions)
        sides: list[tuple[list[str], list[str], str]] = []
        for row, word, doubt, instead, ratio, expected in self._judged(
            [caption_words(caption) for caption in captions], x, group, odds
        ):
            n, low = len(ratio), np.flatnonzero(doubt < self._least)
            own = self._largest(row[low], low, -doubt[low], n)
            lacked, other = expected
            new = self._largest(lacked, other, ratio[lacked, other], n)
            for places, lacking in zip(own, new, strict=True):
                first = instead[places[0]] if places else -1
                unsupported = list(dict.fromkeys(self.names[word[places]].tolist()))
                sides.append((unsupported, self.names[lacking].tolist(), str(self.names[first]) if first >= 0 else ""))
        return sides

    def _largest(self, row: np.ndarray, what: np.ndarray, value: np.ndarray, n: int, most: int = 4) -> list[list[int]]:
        """Return for each of n rows the ``most`` entries of ``what`` with the largest values."""
        order = np.lexsort((what, -value, row))
        ends = np.searchsorted(row[order], np.arange(n + 1))
        return [what[order[a : min(a + most, b)]].tolist() for a, b in pairwise(ends)]
