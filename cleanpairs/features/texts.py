"""Captions as a table that training can index: learned words, vectors of a frozen encoder, both, or given vectors."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from cleanpairs.core import ConfigError, DataError
from cleanpairs.data import Pairs, cache_dir
from cleanpairs.data.images import without_outliers
from cleanpairs.encoders.model_files import FrozenPair
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.encoders.sentences import SentenceEncoder
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable
from cleanpairs.features.rows import Chunk, compute_rows, digest


class Captions:
    """Makes tables of captions.

    It has learned ``words``, a ``frozen`` encoder of one vector a caption, or both. Without them it takes the data's
    vectors, of ``dim`` dimensions. The words may also come from a pretrained model that is trained further.
    """

    def __init__(
        self,
        words: Tokenizer | PretrainedCLIP | None = None,
        frozen: FrozenPair | SentenceEncoder | None = None,
        dim: int | None = None,
    ) -> None:
        self.words, self.frozen, self.dim = words, frozen, dim
        self._last: tuple[dict[str, int], np.ndarray] | None = None  # of captions that are in memory only

    def __len__(self) -> int:
        """Size of the embedding table. 0 where no words are learned."""
        return len(self.words) if isinstance(self.words, Tokenizer) else 0

    def encode(self, captions: Iterable[str | None]) -> TokenTable:
        """The table of n captions, where null is empty. ConfigError: the data's vectors are taken."""
        if self.dim is not None:
            raise ConfigError(
                "the captions' vectors came with the data, and no model makes those of other captions: fit with "
                "text_encoder='words' (--set text_encoder=words)"
            )
        texts = [caption or "" for caption in captions]
        return self._joined(texts, self._vectors(texts))

    def table(self, pairs: Pairs, rows: np.ndarray | None = None) -> TokenTable:
        """The table of N pairs, or of ``rows`` (k,) int64. Vectors of a frozen encoder are kept in the cache where the
        pairs are on disk too. DataError: as :meth:`given`, or the data has no vectors, or no captions.
        """
        captions, vectors = pairs.captions, None
        if self.dim is not None:
            vectors = self.given(precomputed_text_vectors(pairs))
        else:
            refuse_without_captions(pairs)
            vectors = self._vectors(captions, keep=pairs.source.kind != "memory")
        if rows is not None:
            captions = [captions[i] for i in rows.tolist()]
            vectors = None if vectors is None else vectors.take(rows)
        return self._joined(captions, vectors)

    def given(self, vectors: np.ndarray, data: str = "and this data") -> TokenTable:
        """The table of the vectors (n, D) of n captions. DataError, which names ``data``: they have another size."""
        if vectors.shape[1] != self.dim:
            raise DataError(f"the model takes caption vectors of {self.dim} dimensions, {data} has {vectors.shape[1]}")
        return TokenTable(np.arange(len(vectors)), np.arange(len(vectors) + 1), vectors)

    def _joined(self, captions: list[str], vectors: TokenTable | None) -> TokenTable:
        if self.words is None:
            assert vectors is not None
            return vectors
        table = self.words.encode(captions)
        return table if vectors is None else replace(table, sentences=vectors.vectors, sentence=vectors.ids)

    def _vectors(self, captions: list[str], *, keep: bool = False) -> TokenTable | None:
        frozen = self.frozen
        if frozen is None:
            return None
        if not keep and self._last is not None and all(caption in self._last[0] for caption in captions):
            index, vectors = self._last
            return TokenTable(np.array([index[c] for c in captions], np.int64), np.arange(len(captions) + 1), vectors)
        number: dict[str, int] = {}
        ids = np.array([number.setdefault(caption, len(number)) for caption in captions], dtype=np.int64)
        unique = list(number)

        def chunks(first: int) -> Iterator[Chunk]:
            at_once = 1024  # captions. A killed run resumes between two chunks
            for start in range(first, len(unique), at_once):
                values = frozen.encode_texts(unique[start : start + at_once])
                yield start, np.where(np.isfinite(values), values, 0), {}

        key = f"{digest(*unique)}-{digest(frozen.cache_key or frozen.fingerprint)}"
        folder = cache_dir() / "texts" / key if keep else None
        computed, _ = compute_rows(len(unique), (frozen.dim,), np.float32, chunks, folder=folder, what="captions")
        if not keep:
            self._last = number, computed
        return TokenTable(ids, np.arange(len(ids) + 1), computed)


def refuse_without_captions(pairs: Pairs) -> None:
    """Raise DataError where there are no captions to be read."""
    if not pairs.has_captions and len(pairs.reasons) < len(pairs):
        raise DataError("the data has no captions for the model: name their column, or fit on vectors of both sides")


def precomputed_text_vectors(pairs: Pairs) -> np.ndarray:
    """(N, D) vectors of the captions, zero where one is far larger than most. Raises DataError: there are none."""
    if pairs.text_vectors is None:
        raise DataError("text_encoder='features' needs vectors of the captions, and the data has none")
    return without_outliers(pairs.text_vectors)[0]
