"""Captions as numbers: the vocabulary, and a corpus of captions as one flat table.

What a token is: :mod:`cleanpairs.encoders.words`. The pieces of the kind ``subword`` are those that byte pair encoding
finds in a corpus, by the package ``tokenizers`` (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words
with Subword Units", ACL 2016).
"""

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.encoders.words import characters, runs, words

KINDS = ("words", "characters", "subword")
UNKNOWN = 0
MAX_PIECES = 8_000
MAX_PIECE_LENGTH = 16  # characters: without it a caption that is repeated becomes one piece, where no space ends a word
START = "\u2581"
_UNKNOWN = "\u2581\u2581"  # number 0; no caption makes it, for U+2581 begins a word only
_BATCH = 4_096  # captions that are encoded in one call


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

    def take(self, rows: np.ndarray) -> "TokenTable":
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
    """B sequences, longest first, laid out step by step as torch's PackedSequence has them."""

    ids: Tensor  # (total,) int64; or (total, D) float32 where the captions are vectors
    batch_sizes: Tensor  # (L,) int64 on the CPU
    lengths: Tensor  # (B,) int64, not increasing
    sentences: Tensor | None = None  # (B, D) float32, of a pretrained network, beside the words

    def to(self, device: torch.device) -> "PackedTokens":
        """The same on ``device``; ``batch_sizes`` stays on the CPU, as torch wants it."""
        return PackedTokens(
            self.ids.to(device, non_blocking=True), self.batch_sizes, self.lengths.to(device, non_blocking=True),
            None if self.sentences is None else self.sentences.to(device, non_blocking=True),
        )  # fmt: skip


class Tokenizer:
    """A vocabulary: token -> number, 0 for the unknown.

    ``vocabulary``: known tokens; token k has number k + 1; ``max_length``: longer captions are cut to this many tokens;
    by characters, to four times as many; ``kind`` {"words", "characters"}: what a token is.
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
    ) -> "Tokenizer":
        """A tokenizer of the ``kind`` for these captions.

        By words and by characters it knows at most ``max_size`` tokens seen at least ``min_count`` times, the most
        frequent first, ties by spelling.
        """
        if kind == "subword":
            return SubwordTokenizer.learn(captions, min_count=min_count, max_length=max_length)
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(_SPLIT[kind](caption))
        kept = sorted((t for t, c in counts.items() if c >= min_count), key=lambda t: (-counts[t], t))[:max_size]
        return cls(kept, max_length, kind)

    def __len__(self) -> int:
        """Size of the embedding table: all tokens and the unknown."""
        return len(self.vocabulary) + 1

    def encode(self, captions: Iterable[str] | pa.Array) -> TokenTable:
        """All captions as one table; a caption without a token, or that is null, becomes one unknown token."""
        texts = (c or "" for c in captions.to_pylist()) if isinstance(captions, pa.Array) else captions
        ids, ends = array("q"), array("q", [0])
        for row in self._numbers(texts):
            ids.extend(row or [UNKNOWN])
            ends.append(len(ids))
        return TokenTable(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        """The numbers of each caption's tokens, cut to length."""
        most = self.max_length * (4 if self.kind == "characters" else 1)
        for caption in captions:
            yield [self._number.get(token, UNKNOWN) for token in _SPLIT[self.kind](caption)[:most]]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"kind": self.kind, "vocabulary": self.vocabulary, "max_length": self.max_length}

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> "Tokenizer":
        """From :meth:`to_dict`; DataError when it is not one, ConfigError when a package is missing for its kind."""
        kind = data.get("kind", "words")  # models of before there were kinds
        vocabulary, max_length = data.get("vocabulary"), data.get("max_length")
        if not isinstance(vocabulary, list) or not isinstance(max_length, int) or kind not in KINDS:
            raise DataError(
                f"a vocabulary needs the keys 'vocabulary' (list), 'max_length' (integer) and 'kind' (one of "
                f"{', '.join(KINDS)}), found {', '.join(sorted(map(str, data))) or 'none'} and kind {kind!r}"
            )
        if kind == "subword":
            return SubwordTokenizer([str(v) for v in vocabulary], data.get("merges"), max_length)
        return cls([str(v) for v in vocabulary], max_length, str(kind))


_SPLIT: dict[str, Callable[[str], list[str]]] = {"words": words, "characters": characters}


def pieces_of(caption: str) -> list[str]:
    """What is cut into pieces: words with their mark, and unspaced runs."""
    return [text if run else START + text for text, run in runs(caption)]


class SubwordTokenizer(Tokenizer):
    """A vocabulary of pieces and the merges that make them.

    ``vocabulary``: known pieces; piece k has number k + 1; ``merges`` list of (str, str): pairs of pieces that are
    joined, the first first; ``max_length``: longer captions are cut to this many pieces.
    Raises DataError: the merges are not those of the vocabulary.
    """

    def __init__(self, vocabulary: list[str], merges: Any, max_length: int = 64) -> None:
        super().__init__(vocabulary, max_length, "subword")
        if not isinstance(merges, list) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            for pair in merges
        ):
            raise DataError("a subword vocabulary needs the key 'merges': a list of pairs of its pieces")
        self.merges: list[tuple[str, str]] = [(pair[0], pair[1]) for pair in merges]
        import tokenizers as library

        try:
            model = library.models.BPE(
                vocab={_UNKNOWN: 0, **self._number}, merges=self.merges, unk_token=_UNKNOWN, fuse_unk=True
            )
        except Exception as error:  # what the library raises is a bare Exception
            raise DataError(f"the merges of a subword vocabulary do not fit its pieces: {error}") from error
        self._pieces = library.Tokenizer(model)

    @classmethod
    def learn(
        cls, captions: Iterable[str], *, min_count: int = 1, max_pieces: int = MAX_PIECES, max_length: int = 64
    ) -> Self:
        """At most ``max_pieces`` pieces that are frequent in the captions.

        Half of them at most are single characters, the most frequent ones; two pieces are joined where they meet at
        least max(2, ``min_count``) times.
        """
        import tokenizers as library

        counts = Counter(piece for caption in captions for piece in pieces_of(caption))
        letters: Counter[str] = Counter()
        for piece, count in counts.items():
            for letter in piece:
                letters[letter] += count
        alphabet = sorted(letters, key=lambda c: (-letters[c], c))[: max_pieces // 2]
        trainer = library.trainers.BpeTrainer(
            vocab_size=max_pieces + 1,
            min_frequency=max(2, min_count),
            special_tokens=[_UNKNOWN],
            initial_alphabet=alphabet,
            limit_alphabet=max(len(alphabet), 1),
            max_token_length=MAX_PIECE_LENGTH,
            show_progress=False,
        )
        learner = library.Tokenizer(library.models.BPE(unk_token=_UNKNOWN, fuse_unk=True))
        # Every piece as often as it was seen, in an order of its own, whatever the captions' was.
        learner.train_from_iterator(([piece] * counts[piece] for piece in sorted(counts)), trainer)
        numbers = learner.get_vocab()
        vocabulary = sorted((token for token in numbers if token != _UNKNOWN), key=numbers.__getitem__)
        return cls(vocabulary, json.loads(learner.to_str())["model"]["merges"], max_length)

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        rest = iter(captions)
        while group := list(islice(rest, _BATCH)):
            split = [pieces_of(caption)[: self.max_length] for caption in group]  # a piece at least each
            for encoded in self._pieces.encode_batch(split, is_pretokenized=True):
                yield encoded.ids[: self.max_length]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**super().to_dict(), "merges": [list(pair) for pair in self.merges]}


def pack(
    table: TokenTable, rows: np.ndarray, *, drop: float = 0.0, rng: np.random.Generator | None = None
) -> tuple[PackedTokens, np.ndarray]:
    """Chosen sequences ``rows`` (B,) int64, packed, longest first; and ``order`` (B,): theirs is ``rows[order]``.

    ``drop`` float in [0, 1): share of tokens left out at random by ``rng`` (size augmentation); a sequence keeps one.
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
