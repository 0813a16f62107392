"""Words and their numbers, and a corpus of captions as one flat table.

A token is a run of letters and digits with their marks, or one character of a script that puts no spaces between words
(Han, Kana, Thai, Lao, Khmer, Myanmar). Text is NFKC-normalised and casefolded first.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cleanpairs.errors import DataError

__all__ = ["PackedTokens", "TokenTable", "Tokenizer", "pack", "words"]

UNKNOWN = 0
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
# Marks are no letters to Python's \w, but they belong to the word: accents that do not compose, Cyrillic, Hebrew and
# Arabic points, and all that the scripts of India write with (vowel signs, viramas) but the dandas, its full stops.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff\u200c\u200d"
)
_TOKEN = re.compile(
    rf"[{_UNSPACED}][\u0e31\u0e34-\u0e3a\u0e47-\u0e4e]*|[^\W{_UNSPACED}](?:[^\W{_UNSPACED}]|[{_MARKS}])*"
    rf"|[^\w\s.,;:!?'\"()\[\]{{}}\-]"
)


def words(text: str) -> list[str]:
    """Tokens of a caption; an empty list when it holds none."""
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True)
class TokenTable:
    """N token sequences, end to end: sequence i is ``ids[offsets[i]:offsets[i + 1]]``; none is empty."""

    ids: np.ndarray  # (total,) int64
    offsets: np.ndarray  # (N + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per sequence, (N,) int64, >= 1."""
        return np.diff(self.offsets)


class PackedTokens(NamedTuple):
    """B sequences, longest first, laid out step by step as torch's PackedSequence has them.

    A named tuple, since Fabric converts the inputs of a model to its precision and cannot do so in a frozen dataclass.
    """

    ids: Tensor  # (total,) int64
    batch_sizes: Tensor  # (L,) int64 on the CPU
    lengths: Tensor  # (B,) int64, not increasing

    def to(self, device: torch.device) -> PackedTokens:
        """The same on ``device``; ``batch_sizes`` stays on the CPU, as torch wants it."""
        return PackedTokens(
            self.ids.to(device, non_blocking=True), self.batch_sizes, self.lengths.to(device, non_blocking=True)
        )


class Tokenizer:
    """A vocabulary: token -> number, 0 for the unknown.

    Parameters
    ----------
    vocabulary : sequence of str
        Known tokens; token k has number k + 1.
    max_length : int
        Longer captions are cut to this many tokens.
    """

    def __init__(self, vocabulary: Sequence[str], max_length: int = 64) -> None:
        self.vocabulary = list(vocabulary)
        self.max_length = max_length
        self._number = {token: k + 1 for k, token in enumerate(self.vocabulary)}

    @classmethod
    def fit(
        cls, captions: Iterable[str], *, min_count: int = 1, max_size: int = 50_000, max_length: int = 64
    ) -> Tokenizer:
        """The tokens seen at least ``min_count`` times, the most frequent first, ties by spelling."""
        counts: Counter[str] = Counter()
        for caption in captions:
            counts.update(words(caption))
        kept = sorted((t for t, c in counts.items() if c >= min_count), key=lambda t: (-counts[t], t))[:max_size]
        return cls(kept, max_length)

    def __len__(self) -> int:
        """Size of the embedding table: all tokens and the unknown."""
        return len(self.vocabulary) + 1

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """All captions as one table; a caption without a token becomes one unknown token."""
        number, limit = self._number, self.max_length
        ids: list[int] = []
        lengths: list[int] = []
        for caption in captions:
            row = [number.get(token, UNKNOWN) for token in words(caption)[:limit]] or [UNKNOWN]
            ids.extend(row)
            lengths.append(len(row))
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return TokenTable(np.asarray(ids, dtype=np.int64), offsets)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"vocabulary": self.vocabulary, "max_length": self.max_length}

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> Tokenizer:
        """From :meth:`to_dict`; DataError when it is not one."""
        vocabulary, max_length = data.get("vocabulary"), data.get("max_length")
        if not isinstance(vocabulary, list) or not isinstance(max_length, int):
            raise DataError("a vocabulary needs the keys 'vocabulary' (list) and 'max_length' (integer)")
        return cls([str(v) for v in vocabulary], max_length)


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
    packed = PackedTokens(
        ids=torch.from_numpy(ids[order].T[present.T]),
        batch_sizes=torch.from_numpy(present.sum(axis=0)),
        lengths=torch.from_numpy(lengths),
    )
    return packed, order
