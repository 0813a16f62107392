"""Captions as a table that training can index: vectors of a frozen encoder, its token numbers, or given vectors.

Each has what :class:`cleanpairs.encoders.tokenizer.Tokenizer` has, ``encode(captions)``, and ``encode_pairs(pairs)``,
which looks into the cache first. Captions that occur more than once are encoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from cleanpairs.data import Pairs, cache_dir
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.errors import ConfigError, DataError
from cleanpairs.features.rows import Chunk, compute_rows, digest

__all__ = ["FrozenTexts", "GivenTexts", "TextEncoder", "TokenNumbers"]

CHUNK = 1024  # captions that are encoded in one call: where a killed run goes on


class TextEncoder(Protocol):
    """A frozen text encoder."""

    name: str
    fingerprint: str
    dim: int

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (n, E) float32."""
        ...


class FrozenTexts:
    """One vector a caption, by a frozen encoder."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """Vectors of n captions."""
        return self._encode(list(captions), keep=False)

    def encode_pairs(self, pairs: Pairs) -> TokenTable:
        """Vectors of N captions, kept in the cache where the pairs are on disk too."""
        return self._encode(pairs.captions, keep=pairs.source.kind != "memory")

    def _encode(self, captions: list[str], keep: bool) -> TokenTable:
        number: dict[str, int] = {}
        ids = np.array([number.setdefault(caption, len(number)) for caption in captions], dtype=np.int64)
        unique = list(number)

        def chunks(first: int) -> Iterator[Chunk]:
            for start in range(first, len(unique), CHUNK):
                values = self.encoder.encode_texts(unique[start : start + CHUNK])
                yield Chunk(start, np.where(np.isfinite(values), values, 0), {})

        folder = None
        if keep:
            folder = cache_dir() / "texts" / f"{digest(*unique)}-{digest(self.encoder.fingerprint)}"
        rows = compute_rows(len(unique), (self.encoder.dim,), np.float32, chunks, folder=folder)
        return TokenTable(ids, np.arange(len(ids) + 1), rows.array)


class TokenNumbers:
    """A pretrained model's own token numbers, for towers that are trained on."""

    def __init__(self, pretrained: Any) -> None:
        self.pretrained = pretrained

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """Token numbers of n captions."""
        table: TokenTable = self.pretrained.tokens(list(captions))
        return table

    def encode_pairs(self, pairs: Pairs) -> TokenTable:
        """Token numbers of N captions."""
        return self.encode(pairs.captions)


class GivenTexts:
    """Vectors that the data brings, one a caption.

    Parameters
    ----------
    dim : int
        Their dimensions; those of other data must be as many.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def encode(self, captions: Iterable[str]) -> TokenTable:
        """ConfigError: a caption alone has no vector."""
        raise ConfigError(
            "text_encoder='features' takes the captions' vectors from the data, and these captions come without: give "
            "pairs with vectors of both sides"
        )

    def encode_pairs(self, pairs: Pairs) -> TokenTable:
        """The vectors of N captions.

        Raises
        ------
        DataError
            The pairs have none, or of another size.
        """
        vectors = given_text_vectors(pairs)
        if vectors.shape[1] != self.dim:
            raise DataError(
                f"the model takes caption vectors of {self.dim} dimensions, and this data has {vectors.shape[1]}"
            )
        ids = np.arange(len(vectors), dtype=np.int64)
        return TokenTable(ids, np.arange(len(ids) + 1), vectors)


def given_text_vectors(pairs: Pairs) -> np.ndarray:
    """(N, D) vectors of the captions.

    Raises
    ------
    DataError
        There are none.
    """
    vectors: np.ndarray | None = getattr(pairs, "text_vectors", None)
    if vectors is None:
        raise DataError("text_encoder='features' needs vectors of the captions, and the data has none")
    return vectors
