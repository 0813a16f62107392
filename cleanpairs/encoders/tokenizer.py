"""Captions as numbers: the vocabulary, and a corpus of captions as one flat table.

HTML entities are decoded, and text is NFKC-normalised and casefolded. The kind of the tokenizer says what a token is:

- ``words``: a run of letters and digits with their marks, or one character of a script that puts no spaces between
  words (Han, Kana, Thai, Lao, Khmer, Myanmar).
- ``characters``: one letter or digit with its marks, in every script.
- ``subword``: pieces of words that are frequent in the corpus. The package ``tokenizers`` finds them by byte pair
  encoding (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL 2016).

Symbols are tokens, an emoji with its modifiers one. Punctuation, quotes and invisible characters are none. No token
reaches over white space.
"""

import html
import json
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core import reading

KINDS = ("words", "characters", "subword")
UNKNOWN = 0
MAX_TOKENS, MAX_PIECES = 50_000, 8_000
START = "\u2581"
_UNKNOWN = "\u2581\u2581"  # number 0. No caption makes it, for U+2581 begins a word only


def _patterns() -> dict[str, re.Pattern[str]]:
    """Patterns of tokens, by words and by characters. ``runs``: words, and runs of a script without spaces."""
    unspaced = (
        "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
        "\U00020000-\U0003134f"
    )
    # What a character of an unspaced script is written with: vowel signs, tone marks, viramas
    # of Thai, Lao, Myanmar, Khmer.
    unspaced_marks = (
        "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
        "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd\u3099\u309a"
    )
    # Marks are no letters to Python's \w, but they belong to the word: accents that do not compose, Cyrillic, Hebrew
    # and Arabic points, and all that the scripts of India write with (vowel signs, viramas) but the dandas, its full
    # stops.
    marks = (
        "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
        "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff\u200c\u200d"
    )
    # Punctuation: ASCII's (but # % & * @ and other symbols), Latin, Hebrew, Arabic, Indic, Thai, Myanmar, Khmer,
    # general, CJK. And what cannot be seen: zero-width blanks, which parts words in Thai and Khmer, and marks of
    # direction.
    punctuation = (
        r".,;:!?'\"()\[\]{}\-"
        "\u00a1\u00ab\u00ad\u00b7\u00bb\u00bf\u05be\u05c0\u05c3\u05c6\u060c\u061b-\u061f\u066a-\u066d\u06d4\u0964\u0965"
        "\u0e2f\u0e4f\u0e5a\u0e5b\u104a-\u104f\u17d4-\u17da\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3011"
        "\u3014-\u301f\u30fb\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe0e\ufe0f"
    )
    letter = rf"[^\W{unspaced}]"
    character = rf"(?![{punctuation}])[{unspaced}][{unspaced_marks}]*"  # of an unspaced script
    # A symbol. An emoji continues with variants, skin tones and what a zero-width joiner joins to it.
    symbol = rf"[^\w\s{punctuation}{marks}](?:[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*"
    word = rf"{letter}(?:{letter}|[{marks}])*"
    return {
        "words": re.compile(rf"{character}|{word}|{symbol}"),
        "characters": re.compile(rf"{character}|{letter}[{marks}]*|{symbol}"),
        "runs": re.compile(rf"(?P<run>(?:{character})+)|{word}|{symbol}"),
    }


_TOKENS = _patterns()


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", html.unescape(text)).casefold()


def words(text: str) -> list[str]:
    """Tokens of a caption, by words."""
    return _TOKENS["words"].findall(_normal(text))


def characters(text: str) -> list[str]:
    """Tokens of a caption, by characters: a letter keeps its marks, and blanks are none."""
    return _TOKENS["characters"].findall(_normal(text))


def runs(text: str) -> list[tuple[str, bool]]:
    """Words, and runs of characters of scripts without spaces: (text, whether it is such a run)."""
    return [(match[0], match["run"] is not None) for match in _TOKENS["runs"].finditer(_normal(text))]


def pieces_of(caption: str) -> list[str]:
    """The units that are cut into pieces: words with their mark, and unspaced runs."""
    return [text if run else START + text for text, run in runs(caption)]


_SPLIT = {"words": words, "characters": characters, "subword": pieces_of}


def parts_of(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of the parts of chosen rows, and their offsets. Parts of row i are ``offsets[i]:offsets[i + 1]``."""
    lengths = np.diff(offsets)[rows]
    chosen = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.repeat(offsets[rows] - chosen[:-1], lengths) + np.arange(chosen[-1]), chosen


@dataclass(frozen=True)
class TokenTable:
    """N token sequences, end to end: sequence i is ``ids[offsets[i]:offsets[i + 1]]``. None is empty."""

    ids: np.ndarray  # (total,) int64
    offsets: np.ndarray  # (N + 1,) int64
    vectors: np.ndarray | None = None  # (V, D) float32, maybe mapped: what the numbers stand for, one a caption
    sentences: np.ndarray | None = None  # (U, D) float32: of a pretrained network, with learned words
    sentence: np.ndarray | None = None  # (N,) int64: which of them belongs to a caption

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per sequence, (N,) int64, >= 1."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "TokenTable":
        """Return the sequences ``rows`` (n,) int64, in that order. The vectors are shared."""
        at, offsets = parts_of(self.offsets, rows)
        sentence = None if self.sentence is None else self.sentence[rows]
        return TokenTable(self.ids[at], offsets, self.vectors, self.sentences, sentence)

    def frozen(self) -> np.ndarray | None:
        """(N, D) float32 of the captions by a pretrained network. None where there is none, and words are learned."""
        if self.sentences is not None:
            return np.asarray(self.sentences[self.sentence])
        return None if self.vectors is None else np.asarray(self.vectors[self.ids[self.offsets[:-1]]])


class PackedTokens(NamedTuple):
    """B sequences, longest first, laid out step by step as torch's PackedSequence has them."""

    ids: Tensor  # (total,) int64, or (total, D) float32 where the captions are vectors
    batch_sizes: Tensor  # (L,) int64 on the CPU
    lengths: Tensor  # (B,) int64, not increasing
    sentences: Tensor | None = None  # (B, D) float32, of a pretrained network, with the words

    def each(self, change: Callable[[Tensor], Tensor]) -> "PackedTokens":
        """The same, each tensor changed but ``batch_sizes``: it stays on the CPU, as torch wants it."""
        sentences = None if self.sentences is None else change(self.sentences)
        return PackedTokens(change(self.ids), self.batch_sizes, change(self.lengths), sentences)

    def to(self, device: torch.device) -> "PackedTokens":
        """The same on ``device``."""
        return self.each(lambda x: x.to(device, non_blocking=True))


class Tokenizer:
    """A vocabulary: token -> number, 0 for the unknown.

    - ``vocabulary``: known tokens. Token k has number k + 1. ``kind`` {"words", "characters", "subword"}
    - ``max_length``: longer captions are cut to this many tokens. By characters, to four times as many
    - ``merges``: of subwords: pairs of pieces that are joined, the first first
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        max_length: int = 64,
        kind: str = "words",
        merges: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.vocabulary, self.max_length, self.kind = list(vocabulary), max_length, kind
        self.merges = [(one, other) for one, other in merges]
        self._number = {token: k + 1 for k, token in enumerate(self.vocabulary)}
        self._pieces = _bpe(vocab={_UNKNOWN: 0, **self._number}, merges=self.merges) if kind == "subword" else None

    @classmethod
    def fit(
        cls, captions: Iterable[str], *, kind: str = "words", min_count: int = 1, max_length: int = 64
    ) -> "Tokenizer":
        """A tokenizer of the ``kind`` for these captions.

        By words and by characters it knows at most 50,000 tokens seen at least ``min_count`` times, the most frequent
        first, ties by spelling. Of 8,000 subwords half at most are single characters, the most frequent ones. Two are
        joined where they meet at least max(2, ``min_count``) times.
        """
        counts = Counter(token for caption in captions for token in _SPLIT[kind](caption))
        if kind != "subword":
            kept = sorted((t for t, c in counts.items() if c >= min_count), key=lambda t: (-counts[t], t))
            return cls(kept[:MAX_TOKENS], max_length, kind)
        from tokenizers.trainers import BpeTrainer

        letters: Counter[str] = Counter()
        for piece, count in counts.items():
            for letter in piece:
                letters[letter] += count
        alphabet = sorted(letters, key=lambda c: (-letters[c], c))[: MAX_PIECES // 2]
        trainer = BpeTrainer(
            vocab_size=MAX_PIECES + 1, min_frequency=max(2, min_count), special_tokens=[_UNKNOWN],
            initial_alphabet=alphabet, limit_alphabet=max(len(alphabet), 1), show_progress=False,
            max_token_length=16,  # else a caption that is repeated becomes one piece, where no space ends a word
        )  # fmt: skip
        learner = _bpe()
        # Every piece as often as it was seen, in an order of its own, whatever the captions' was.
        learner.train_from_iterator(([piece] * counts[piece] for piece in sorted(counts)), trainer)
        model = json.loads(learner.to_str())["model"]
        kept = sorted(model["vocab"], key=model["vocab"].__getitem__)[1:]  # without the unknown
        return cls(kept, max_length, kind, model["merges"])

    def __len__(self) -> int:
        """Size of the embedding table: all tokens and the unknown."""
        return len(self.vocabulary) + 1

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """All captions as one table. A caption without a token becomes one unknown token."""
        ids, ends = array("q"), array("q", [0])
        for row in self._numbers(captions):
            ids.extend(row or [UNKNOWN])
            ends.append(len(ids))
        return TokenTable(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        most = self.max_length * (4 if self.kind == "characters" else 1)
        rest = (_SPLIT[self.kind](caption)[:most] for caption in captions)
        if self._pieces is None:
            yield from ([self._number.get(token, UNKNOWN) for token in tokens] for tokens in rest)
            return
        while group := list(islice(rest, 4_096)):
            yield from (e.ids[:most] for e in self._pieces.encode_batch(group, is_pretokenized=True))

    def to_dict(self) -> dict[str, object]:
        """The vocabulary as a dict for JSON."""
        return {
            "kind": self.kind, "vocabulary": self.vocabulary, "max_length": self.max_length,
            "merges": [list(pair) for pair in self.merges],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Tokenizer":
        """The tokenizer of :meth:`to_dict`. Raises DataError: the dict is no vocabulary."""
        what = "a vocabulary (kind, vocabulary, max_length, merges)"
        with reading(what, "read", Exception):  # a bare one where the merges do not fit the pieces
            kind, vocabulary, max_length, merges = (data[k] for k in ("kind", "vocabulary", "max_length", "merges"))
            if kind not in KINDS or not isinstance(max_length, int) or not isinstance(vocabulary, list):
                raise ValueError(f"of the kind {kind!r}, of {max_length!r} tokens")
            return cls([str(v) for v in vocabulary], max_length, kind, merges)


def _bpe(**known: Any) -> Any:
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.BPE(**known, unk_token=_UNKNOWN, fuse_unk=True))


def pack(
    table: TokenTable, rows: np.ndarray, *, drop: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[PackedTokens, np.ndarray]:
    """Chosen sequences ``rows`` (B,) int64, packed, longest first, and their ``order`` (B,): they are ``rows[order]``.

    ``drop`` float in [0, 1): share of tokens left out at random by ``rng`` (size augmentation). A sequence keeps one.
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


def packed_batches(table: TokenTable, size: int, device: Any) -> Iterator[tuple[np.ndarray, PackedTokens]]:
    """All sequences on ``device``, those of like length together: rows (b,) int64 of each batch of ``size``, and it."""
    by_length = np.argsort(-table.lengths, kind="stable")
    for start in range(0, len(table), size):
        packed, order = pack(table, rows := by_length[start : start + size])
        yield rows[order], packed.to(torch.device(device))
