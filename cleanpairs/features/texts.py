"""Captions as a table that training can index: vectors of a frozen encoder, its token numbers, or given vectors.

Each has what :class:`cleanpairs.encoders.tokenizer.Tokenizer` has, ``encode(captions)``; what has vectors also
``encode_pairs(pairs)``, which looks into the cache first. Captions that occur more than once are encoded once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import Pairs, cache_dir
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable
from cleanpairs.features.rows import Chunk, Progress, compute_rows, digest

if TYPE_CHECKING:  # transformers is an extra
    from cleanpairs.encoders.pretrained import PretrainedCLIP
    from cleanpairs.encoders.sentences import SentenceEncoder

CHUNK = 1024  # captions that are encoded in one call: where a killed run goes on


class FrozenTexts:
    """One vector a caption, by a frozen encoder."""

    def __init__(self, encoder: "PretrainedCLIP | SentenceEncoder") -> None:
        self.encoder = encoder
        self._last: tuple[dict[str, int], np.ndarray] | None = None  # of captions that are in memory only

    def encode_pairs(self, pairs: Pairs, progress: Progress | None = None) -> TokenTable:
        """Vectors of N captions, kept in the cache where the pairs are on disk too; ``progress(done, total)``."""
        return self.encode(pairs.captions, keep=pairs.source.kind != "memory", progress=progress)

    def encode(self, captions: Iterable[str], *, keep: bool = False, progress: Progress | None = None) -> TokenTable:
        """Vectors of n captions; ``keep``: in the cache."""
        captions = list(captions)
        if not keep and self._last is not None and all(caption in self._last[0] for caption in captions):
            known, vectors = self._last
            return TokenTable(np.array([known[c] for c in captions], np.int64), np.arange(len(captions) + 1), vectors)
        number: dict[str, int] = {}
        ids = np.array([number.setdefault(caption, len(number)) for caption in captions], dtype=np.int64)
        unique = list(number)

        def chunks(first: int) -> Iterator[Chunk]:
            for start in range(first, len(unique), CHUNK):
                values = self.encoder.encode_texts(unique[start : start + CHUNK])
                yield start, np.where(np.isfinite(values), values, 0), {}

        folder = None
        if keep:
            key = getattr(self.encoder, "cache_key", self.encoder.fingerprint)
            folder = cache_dir() / "texts" / f"{digest(*unique)}-{digest(key)}"
        rows = compute_rows(len(unique), (self.encoder.dim,), np.float32, chunks, folder=folder, progress=progress)
        if not keep:
            self._last = number, rows.array
        return TokenTable(ids, np.arange(len(ids) + 1), rows.array)


class WordsAndSentences:
    """Learned words, and a frozen encoder's vector of each caption beside them."""

    def __init__(self, words: Tokenizer, frozen: FrozenTexts) -> None:
        self.words, self.frozen = words, frozen

    def __len__(self) -> int:
        """Size of the embedding table."""
        return len(self.words)

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """Words and vectors of n captions."""
        captions = list(captions)
        return self._joined(captions, self.frozen.encode(captions))

    def encode_pairs(self, pairs: Pairs, progress: Progress | None = None) -> TokenTable:
        """Words and vectors of N captions; the vectors are kept as :meth:`FrozenTexts.encode_pairs` does."""
        return self._joined(pairs.captions, self.frozen.encode_pairs(pairs, progress))

    def encode_rows(self, pairs: Pairs, rows: np.ndarray) -> TokenTable:
        """Those of pairs (k,): the vectors of all are looked up, and only these captions are cut into words."""
        return self._joined([pairs.captions[i] for i in rows.tolist()], self.frozen.encode_pairs(pairs).take(rows))

    def _joined(self, captions: list[str], sentences: TokenTable) -> TokenTable:
        return replace(self.words.encode(captions), sentences=sentences.vectors, sentence=sentences.ids)


class TokenNumbers:
    """A pretrained model's own token numbers, for towers that are trained on."""

    def __init__(self, pretrained: "PretrainedCLIP") -> None:
        self.pretrained = pretrained

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """Token numbers of n captions."""
        return self.pretrained.tokens(list(captions))


class PrecomputedTexts:
    """Vectors that the data brings, one a caption. ``dim``: their dimensions; those of other data must be as many."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """ConfigError: a caption alone has no vector."""
        raise ConfigError(
            "text_encoder='features' takes the captions' vectors from the data, and these captions come without: give "
            "pairs with vectors of both sides"
        )

    def encode_pairs(self, pairs: Pairs, progress: Progress | None = None) -> TokenTable:
        """The vectors of N captions. Raises DataError: the pairs have none, or of another size."""
        vectors = precomputed_text_vectors(pairs)
        if vectors.shape[1] != self.dim:
            raise DataError(
                f"the model takes caption vectors of {self.dim} dimensions, and this data has {vectors.shape[1]}"
            )
        ids = np.arange(len(vectors), dtype=np.int64)
        return TokenTable(ids, np.arange(len(ids) + 1), vectors)


def precomputed_text_vectors(pairs: Pairs) -> np.ndarray:
    """(N, D) vectors of the captions. Raises DataError: there are none."""
    if pairs.text_vectors is None:
        raise DataError("text_encoder='features' needs vectors of the captions, and the data has none")
    return pairs.text_vectors
