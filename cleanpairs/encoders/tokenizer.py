"""Captions as numbers: the vocabulary, and a corpus of captions as one flat table.

What a token is: :mod:`cleanpairs.encoders.words`. The pieces of the kind ``subword`` are those that byte pair encoding
finds in a corpus, by the package ``tokenizers`` (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words
with Subword Units", ACL 2016).
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.encoders.words import characters, runs, words

KINDS = ("words", "characters", "subword")
UNKNOWN = 0
MAX_TOKENS, MAX_PIECES = 50_000, 8_000
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

    - ``vocabulary``: known tokens; token k has number k + 1
    - ``max_length``: longer captions are cut to this many tokens; by characters, to four times as many
    - ``kind`` {"words", "characters", "subword"}: what a token is
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
        cls,
        captions: Iterable[str],
        *,
        kind: str = "words",
        min_count: int = 1,
        max_size: int | None = None,
        max_length: int = 64,
    ) -> "Tokenizer":
        """A tokenizer of the ``kind`` for these captions.

        By words and by characters it knows at most ``max_size`` (50,000) tokens seen at least ``min_count`` times, the
        most frequent first, ties by spelling. Of ``max_size`` (8,000) subwords half at most are single characters, the
        most frequent ones; two are joined where they meet at least max(2, ``min_count``) times.
        """
        counts = Counter(token for caption in captions for token in _SPLIT[kind](caption))
        if kind != "subword":
            kept = sorted((t for t, c in counts.items() if c >= min_count), key=lambda t: (-counts[t], t))
            return cls(kept[: max_size or MAX_TOKENS], max_length, kind)
        from tokenizers.trainers import BpeTrainer

        size = max_size or MAX_PIECES
        letters: Counter[str] = Counter()
        for piece, count in counts.items():
            for letter in piece:
                letters[letter] += count
        alphabet = sorted(letters, key=lambda c: (-letters[c], c))[: size // 2]
        trainer = BpeTrainer(
            vocab_size=size + 1, min_frequency=max(2, min_count), special_tokens=[_UNKNOWN], initial_alphabet=alphabet,
            limit_alphabet=max(len(alphabet), 1), max_token_length=MAX_PIECE_LENGTH, show_progress=False,
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
        """All captions as one table; a caption without a token becomes one unknown token."""
        ids, ends = array("q"), array("q", [0])
        for row in self._numbers(captions):
            ids.extend(row or [UNKNOWN])
            ends.append(len(ids))
        return TokenTable(np.array(ids, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _numbers(self, captions: Iterable[str]) -> Iterator[list[int]]:
        """The numbers of each caption's tokens, cut to length."""
        most = self.max_length * (4 if self.kind == "characters" else 1)
        rest = (_SPLIT[self.kind](caption)[:most] for caption in captions)
        if self._pieces is None:
            yield from ([self._number.get(token, UNKNOWN) for token in tokens] for tokens in rest)
            return
        while group := list(islice(rest, _BATCH)):
            yield from (e.ids[:most] for e in self._pieces.encode_batch(group, is_pretokenized=True))

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "kind": self.kind, "vocabulary": self.vocabulary, "max_length": self.max_length,
            "merges": [list(pair) for pair in self.merges],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Tokenizer":
        """From :meth:`to_dict`; DataError when it is not one."""
        try:
            kind, vocabulary, max_length, merges = (data[k] for k in ("kind", "vocabulary", "max_length", "merges"))
            if kind not in KINDS or not isinstance(max_length, int) or not isinstance(vocabulary, list):
                raise ValueError(f"of the kind {kind!r}, of {max_length!r} tokens")
            return cls([str(v) for v in vocabulary], max_length, kind, merges)
        except Exception as error:  # the library raises a bare one where the merges do not fit the pieces
            raise DataError(f"this is no vocabulary (kind, vocabulary, max_length, merges): {error!r}") from error


def _bpe(**known: Any) -> Any:
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.BPE(**known, unk_token=_UNKNOWN, fuse_unk=True))


def pieces_of(caption: str) -> list[str]:
    """What is cut into pieces: words with their mark, and unspaced runs."""
    return [text if run else START + text for text, run in runs(caption)]


_SPLIT = {"words": words, "characters": characters, "subword": pieces_of}


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
