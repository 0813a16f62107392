"""Captions as numbers: the tokens, the vocabulary, and a corpus of captions as one flat table.

Text is NFKC-normalised and casefolded first. What a token is then depends on the kind of the tokenizer:

- ``words``: a run of letters and digits with their marks, or one character of a script that puts no spaces between
  words (Han, Kana, Thai, Lao, Khmer, Myanmar);
- ``characters``: one letter or digit with its marks, in every script;
- ``subword``: pieces of words that are frequent in the corpus (:mod:`cleanpairs.encoders.subword`).

Symbols are tokens, an emoji with its modifiers one; punctuation, quotes and invisible characters are none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.ops.strings import BREAK, LETTER, SYMBOL, byte_table, flatten, in_chunks, string_column, tokens_of

__all__ = ["KINDS", "PackedTokens", "TokenTable", "Tokenizer", "characters", "pack", "runs", "words"]

KINDS = ("words", "characters", "subword")
UNKNOWN = 0
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
# What a character of an unspaced script is written with: vowel signs, tone marks, viramas (Thai, Lao, Myanmar, Khmer).
_UNSPACED_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd\u3099\u309a"
)
# Marks are no letters to Python's \w, but they belong to the word: accents that do not compose, Cyrillic, Hebrew and
# Arabic points, and all that the scripts of India write with (vowel signs, viramas) but the dandas, its full stops.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff\u200c\u200d"
)
# Punctuation: ASCII's (but # % & * @ and other symbols), Latin, Hebrew, Arabic, Indic, Thai, Myanmar, Khmer, general,
# CJK. And what cannot be seen: zero-width blanks, which parts words in Thai and Khmer, and marks of direction.
_PUNCTUATION = (
    r".,;:!?'\"()\[\]{}\-"
    "\u00a1\u00ab\u00ad\u00b7\u00bb\u00bf\u05be\u05c0\u05c3\u05c6\u060c\u061b-\u061f\u066a-\u066d\u06d4\u0964\u0965"
    "\u0e2f\u0e4f\u0e5a\u0e5b\u104a-\u104f\u17d4-\u17da\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3011"
    "\u3014-\u301f\u30fb\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe0e\ufe0f"
)
_LETTER = rf"[^\W{_UNSPACED}]"
_CHARACTER = rf"(?![{_PUNCTUATION}])[{_UNSPACED}][{_UNSPACED_MARKS}]*"  # of an unspaced script
# A symbol; an emoji goes on with variants, skin tones and what a zero-width joiner joins to it.
_SYMBOL = rf"[^\w\s{_PUNCTUATION}{_MARKS}](?:[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*"
_WORD = rf"{_LETTER}(?:{_LETTER}|[{_MARKS}])*"
_WORDS = re.compile(rf"{_CHARACTER}|{_WORD}|{_SYMBOL}")
_CHARACTERS = re.compile(rf"{_CHARACTER}|{_LETTER}[{_MARKS}]*|{_SYMBOL}")
_RUNS = re.compile(rf"(?P<run>(?:{_CHARACTER})+)|{_WORD}|{_SYMBOL}")

# The same of ASCII alone, for all captions at once: a mark, or a script without spaces, is not among it.
_LOWER = byte_table(lambda c: ord(c.casefold()))
_CLASSES = byte_table(lambda c: LETTER if re.fullmatch(_LETTER, c) else SYMBOL if re.fullmatch(_SYMBOL, c) else BREAK)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """Tokens of a caption, by words; an empty list when it holds none."""
    return _WORDS.findall(_normal(text))


def characters(text: str) -> list[str]:
    """Tokens of a caption, by characters: a letter keeps its marks, and blanks are none."""
    return _CHARACTERS.findall(_normal(text))


def runs(text: str) -> list[tuple[str, bool]]:
    """Words, and runs of characters of scripts without spaces: (text, whether it is such a run)."""
    return [(match[0], match["run"] is not None) for match in _RUNS.finditer(_normal(text))]


@dataclass(frozen=True)
class TokenTable:
    """N token sequences, end to end: sequence i is ``ids[offsets[i]:offsets[i + 1]]``; none is empty.

    Where a pretrained network has encoded the captions already, ``vectors`` (V, D) float32 holds what the numbers stand
    for (it may be memory-mapped), and each caption is one number. Where it stands beside learned words, ``sentences``
    (U, D) float32 holds its vectors and ``sentence`` (N,) int64 says which is a caption's.
    """

    ids: np.ndarray  # (total,) int64
    offsets: np.ndarray  # (N + 1,) int64
    vectors: np.ndarray | None = None  # (V, D) float32
    sentences: np.ndarray | None = None  # (U, D) float32
    sentence: np.ndarray | None = None  # (N,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per sequence, (N,) int64, >= 1."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> TokenTable:
        """Chosen sequences (n,) int64, in that order; the vectors are shared."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        at = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        sentence = None if self.sentence is None else self.sentence[rows]
        return TokenTable(self.ids[at], offsets, self.vectors, self.sentences, sentence)

    def frozen(self) -> np.ndarray | None:
        """(N, D) float32 of the captions by a pretrained network; None where there is none, and words are learned."""
        if self.sentences is not None:
            return np.asarray(self.sentences[self.sentence])
        return None if self.vectors is None else np.asarray(self.vectors[self.ids[self.offsets[:-1]]])


class PackedTokens(NamedTuple):
    """B sequences, longest first, laid out step by step as torch's PackedSequence has them.

    A named tuple, since Fabric converts the inputs of a model to its precision and cannot do so in a frozen dataclass.
    """

    ids: Tensor  # (total,) int64; or (total, D) float32 where the captions are vectors
    batch_sizes: Tensor  # (L,) int64 on the CPU
    lengths: Tensor  # (B,) int64, not increasing
    sentences: Tensor | None = None  # (B, D) float32, of a pretrained network, beside the words

    def to(self, device: torch.device) -> PackedTokens:
        """The same on ``device``; ``batch_sizes`` stays on the CPU, as torch wants it."""
        return PackedTokens(
            self.ids.to(device, non_blocking=True), self.batch_sizes, self.lengths.to(device, non_blocking=True),
            None if self.sentences is None else self.sentences.to(device, non_blocking=True),
        )  # fmt: skip


class Tokenizer:
    """A vocabulary: token -> number, 0 for the unknown.

    Parameters
    ----------
    vocabulary : sequence of str
        Known tokens; token k has number k + 1.
    max_length : int
        Longer captions are cut to this many tokens; by characters, to four times as many.
    kind : {"words", "characters"}
        What a token is.
    """

    kind: str

    def __init__(self, vocabulary: Sequence[str], max_length: int = 64, kind: str = "words") -> None:
        self.vocabulary = list(vocabulary)
        self.max_length = max_length
        self.kind = kind
        self._number = {token: k + 1 for k, token in enumerate(self.vocabulary)}

    @classmethod
    def fit(
        cls,
        captions: Iterable[str],
        *,
        kind: str = "words",
        min_count: int = 1,
        max_size: int = 50_000,
        max_length: int = 64,
    ) -> Tokenizer:
        """A tokenizer of the ``kind`` for these captions.

        By words and by characters it knows the tokens seen at least ``min_count`` times, the most frequent first, ties
        by spelling, at most ``max_size``. A subword tokenizer is :meth:`SubwordTokenizer.learn`'s.
        """
        if kind == "subword":
            from cleanpairs.encoders.subword import SubwordTokenizer

            return SubwordTokenizer.learn(captions, min_count=min_count, max_length=max_length)
        split = _SPLIT[kind]
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(split(caption))
        kept = sorted((t for t, c in counts.items() if c >= min_count), key=lambda t: (-counts[t], t))[:max_size]
        return cls(kept, max_length, kind)

    def __len__(self) -> int:
        """Size of the embedding table: all tokens and the unknown."""
        return len(self.vocabulary) + 1

    def encode(self, captions: Iterable[str] | pa.Array) -> TokenTable:
        """All captions as one table; a caption without a token becomes one unknown token.

        Captions that are ASCII are cut into words all at once, others one by one.
        """
        parts = [self._encode(some) for some in in_chunks(captions)]
        ids = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
        offsets = np.zeros(sum(len(part[1]) for part in parts) + 1, dtype=np.int64)
        if parts:
            np.cumsum(np.concatenate([part[1] for part in parts]), out=offsets[1:])
        return TokenTable(ids, offsets)

    def _encode(self, captions: list[str] | pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the captions' tokens, end to end, and how many each has (n,), at least one."""
        column = string_column(captions) if self.kind in _SPLIT else None
        if column is None:
            return _end_to_end(self._numbers(captions if isinstance(captions, list) else captions.to_pylist()))
        flat = flatten(column)
        plain = flat.plain()
        if plain.all():
            return self._plain(column)
        lengths = np.empty(len(column), np.int64)
        of_plain, lengths[plain] = self._plain(column.filter(pa.array(plain)))
        of_odd, lengths[~plain] = _end_to_end(self._numbers(column.filter(pa.array(~plain)).to_pylist()))
        ids = np.empty(int(lengths.sum()), np.int64)
        is_plain = np.repeat(plain, lengths)
        ids[is_plain], ids[~is_plain] = of_plain, of_odd
        return ids, lengths

    def _plain(self, column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`_encode`, for captions that are ASCII."""
        tokens = tokens_of(flatten(column), _LOWER, _CLASSES, single=self.kind == "characters")
        distinct = tokens.values.dictionary_encode()
        number = np.array([self._number.get(t, UNKNOWN) for t in distinct.dictionary.to_pylist()], np.int64)
        ids, counts = number[distinct.indices.to_numpy()], tokens.counts
        if counts.max(initial=0) > self._most:
            place = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
            ids, counts = ids[place < self._most], np.minimum(counts, self._most)
        none = counts == 0
        if none.any():
            ids, counts = np.insert(ids, (np.cumsum(counts) - counts)[none], UNKNOWN), np.maximum(counts, 1)
        return ids, counts

    @property
    def _most(self) -> int:
        """Tokens after which a caption is cut."""
        return self.max_length * (4 if self.kind == "characters" else 1)

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        """The numbers of each caption's tokens, cut to length."""
        number, split = self._number, _SPLIT[self.kind]
        for caption in captions:
            yield [number.get(token, UNKNOWN) for token in split(caption)[: self._most]]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"kind": self.kind, "vocabulary": self.vocabulary, "max_length": self.max_length}

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> Tokenizer:
        """From :meth:`to_dict`; DataError when it is not one, ConfigError when a package is missing for its kind."""
        kind = data.get("kind", "words")  # models of before there were kinds
        vocabulary, max_length = data.get("vocabulary"), data.get("max_length")
        if not isinstance(vocabulary, list) or not isinstance(max_length, int) or kind not in KINDS:
            raise DataError(
                f"a vocabulary needs the keys 'vocabulary' (list), 'max_length' (integer) and 'kind' (one of "
                f"{', '.join(KINDS)}), found {', '.join(sorted(map(str, data))) or 'none'} and kind {kind!r}"
            )
        if kind == "subword":
            from cleanpairs.encoders.subword import SubwordTokenizer

            return SubwordTokenizer([str(v) for v in vocabulary], data.get("merges"), max_length)
        return cls([str(v) for v in vocabulary], max_length, str(kind))


_SPLIT: dict[str, Callable[[str], list[str]]] = {"words": words, "characters": characters}


def _end_to_end(rows: Iterable[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of numbers as one array, and their lengths (n,); an empty one becomes one unknown token."""
    ids: list[int] = []
    lengths: list[int] = []
    for row in rows:
        ids.extend(row or [UNKNOWN])
        lengths.append(len(row) or 1)
    return np.asarray(ids, dtype=np.int64), np.asarray(lengths, dtype=np.int64)


def pack(
    table: TokenTable, rows: np.ndarray, *, drop: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[PackedTokens, np.ndarray]:
    """Chosen sequences, packed; with no Python per sample.

    Parameters
    ----------
    rows : (B,) int64
        Which sequences.
    drop : float in [0, 1)
        Share of tokens left out at random (size augmentation); a sequence keeps at least one.
    rng : numpy Generator
        Needed when ``drop`` > 0.

    Returns
    -------
    packed : PackedTokens
        Longest first.
    order : (B,) int64
        ``rows[order]`` is the order of the packed sequences.
    """
    starts = table.offsets[rows]  # (B,)
    lengths = table.offsets[rows + 1] - starts  # (B,)
    width = int(lengths.max())
    steps = np.arange(width)
    present = steps < lengths[:, None]  # (B, L)
    at = starts[:, None] + np.minimum(steps, lengths[:, None] - 1)
    ids = table.ids[at]  # (B, L)
    if drop > 0:
        assert rng is not None
        u = rng.random(present.shape, dtype=np.float32)
        u[~present] = -1.0
        keep = u >= drop
        best = u.argmax(axis=1)  # the token that stays when all would go
        keep[np.arange(len(rows)), best] = True
        lengths = keep.sum(axis=1)
        front = np.argsort(~keep, axis=1, kind="stable")  # kept tokens first, in order
        ids = np.take_along_axis(ids, front, axis=1)
        width = int(lengths.max())
        ids = ids[:, :width]
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order]
    present = np.arange(width) < lengths[:, None]
    flat = ids[order].T[present.T]
    if table.vectors is not None:
        flat = np.ascontiguousarray(table.vectors[flat], dtype=np.float32)  # (total, D)
    sentences = None
    if table.sentences is not None and table.sentence is not None:
        sentences = torch.from_numpy(np.asarray(table.sentences[table.sentence[rows[order]]], dtype=np.float32))
    packed = PackedTokens(
        ids=torch.from_numpy(flat),
        batch_sizes=torch.from_numpy(present.sum(axis=0)),
        lengths=torch.from_numpy(lengths),
        sentences=sentences,
    )
    return packed, order
