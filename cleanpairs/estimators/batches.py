"""Scores of input rows a batch at a time: what streams, instead of being loaded whole.

A row's score does not depend on the other rows. It is equal to the last bit where a model compares one vector with
one and no recurrent network reads the captions. Matrix products of few rows add up in another order than those of many.
So work is cut into even blocks, and a batch is filled up to :data:`LEAST` rows.
"""

from collections.abc import Callable

import numpy as np

from cleanpairs.core import DataError
from cleanpairs.data.rows import RowBatch
from cleanpairs.encoders.base import DualEncoder, input_dim
from cleanpairs.features import Captions
from cleanpairs.scoring import Embeddings, embed_images, embed_texts

LEAST = 64  # rows of a matrix product


class RowScorer:
    """Scores batches of rows by vectors of their images, and of their captions where the model takes those."""

    hashes = True  # whether it needs their ``image_group``
    compares_vectors = True  # whether it compares no more than one vector an image with one a caption

    def __call__(self, batch: RowBatch, data: str) -> np.ndarray:
        """Correspondence (k,) float32 of a batch's pairs, NaN where one is faulty. ``data`` names it in messages."""
        return self.compared(batch, *self.embedded(batch, data))

    def embedded(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """Embed the images and the captions of a batch. Faults that are found are added to it.

        Parameters
        ----------
        batch : RowBatch
            k pairs.
        data : str
            What the data is called in messages.

        Returns
        -------
        Embeddings, Embeddings
            Of k images and k captions.
        """
        raise NotImplementedError

    def compared(self, batch: RowBatch, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """Score a batch by its embeddings.

        Parameters
        ----------
        batch : RowBatch
            k pairs.
        images, texts : Embeddings
            What :meth:`embedded` gave.

        Returns
        -------
        (k,) float32
            The correspondence, NaN where a pair is faulty.
        """
        n = len(images)
        if not n:
            return np.empty(0, np.float32)
        groups = [batch.image_group[batch.row], batch.text_group] if self.hashes else [np.arange(n)] * 2
        if n < LEAST:
            rows = filled(np.arange(n))
            images, texts, groups = images.take(rows), texts.take(rows), [group[rows] for group in groups]
        scores = self._judged(images, texts, *groups)[:n]
        scores[list(batch.faults)] = np.nan
        return scores

    def _judged(self, images: Embeddings, texts: Embeddings, *groups: np.ndarray) -> np.ndarray:
        """Return the correspondence (k,) float32 of k pairs, with the groups (k,) of their images and texts."""
        raise NotImplementedError


class VectorScorer(RowScorer):
    """A trained model of image vectors and captions, or of vectors of both.

    Parameters
    ----------
    network : DualEncoder
        The model.

    tokenizer : Captions
        Makes tables of captions.

    score_pairs : callable
        What scores pairs of embeddings, with the arguments of :class:`cleanpairs.scoring.Bank`.

    text_vectors : bool
        Whether the rows bring vectors of captions.

    has_images : bool
        Whether the rows have images, too. Near duplicates among these are one image.

    device : str
        Where the network computes.
    """

    def __init__(
        self, network: DualEncoder, tokenizer: Captions, score_pairs: Callable[..., np.ndarray], *, text_vectors: bool,
        has_images: bool, device: str,
    ) -> None:  # fmt: skip
        self.network, self.tokenizer, self.score_pairs = network, tokenizer, score_pairs
        self.text_vectors, self.device = text_vectors, device
        self.compares_vectors = not network.local and not has_images

    def _judged(self, images: Embeddings, texts: Embeddings, *groups: np.ndarray) -> np.ndarray:
        return self.score_pairs(images, texts, *groups)

    def embedded(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """See :class:`RowScorer`. DataError where the vectors have another size than the model's."""
        n, vectors, network = len(batch.captions), batch.vectors, self.network
        if not n:
            return (Embeddings(np.empty((0, network.dim), np.float32)),) * 2
        assert vectors is not None
        if vectors.shape[-1] != (dim := input_dim(network)):
            raise DataError(f"the model takes image vectors of {dim} dimensions, {data} has {vectors.shape[-1]}")
        if self.text_vectors:
            assert batch.text_vectors is not None
            tokens = self.tokenizer.given(batch.text_vectors, data)
        else:
            tokens = self.tokenizer.encode(batch.captions.to_pylist())
        vectors = filled(vectors)
        if len(tokens) < LEAST:
            tokens = tokens.take(filled(np.arange(len(tokens))))
        images = embed_images(network, vectors, device=self.device, batch_size=_even(len(vectors)))
        texts = embed_texts(network, tokens, device=self.device, batch_size=_even(len(tokens)))
        return images.take(batch.row), texts.take(np.arange(n))


def _even(n: int) -> int:
    """Rows of a block, so that there are as few as can be, and the last is not much smaller."""
    most = 256  # rows that go through a tower at once: what they become stays in the processor's cache
    return -(-n // -(-n // most))


def filled(rows: np.ndarray) -> np.ndarray:
    """Repeat the last row until there are 64.

    Parameters
    ----------
    rows : (n, ...) array
        At least one.

    Returns
    -------
    (m, ...) array
        n rows or 64.
    """
    missing = LEAST - len(rows)
    return rows if missing <= 0 else np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
