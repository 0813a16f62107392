"""Scores of input rows a batch at a time: what streams, instead of being loaded whole.

A row's score does not depend on the other rows. It is equal to the last bit where a model compares one vector with
one and no recurrent network reads the captions. Matrix products of few rows add up in another order than those of many.
So work is cut into even blocks, and a batch is filled up to :data:`LEAST` rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cleanpairs.data.rows import RowBatch
from cleanpairs.scoring import Embeddings

LEAST = 64  # rows of a matrix product


@dataclass(frozen=True)
class RowScorer:
    """Scores batches of rows by vectors of their images, and of their captions where the model takes those.

    Parameters
    ----------
    embedded : callable
        Embeds a batch of k pairs: k images and k captions. It adds the faults that it finds to the batch. Its second
        argument is what the data is called in messages.

    judged : callable
        Gives the correspondence (k,) float32 by both embeddings and the groups (k,) of the images and of the texts.

    hashes : bool
        Whether it needs the ``image_group`` of the rows.

    compares_vectors : bool
        Whether it compares no more than one vector an image with one a caption.
    """

    embedded: Callable[[RowBatch, str], tuple[Embeddings, Embeddings]]
    judged: Callable[..., np.ndarray]
    hashes: bool = True
    compares_vectors: bool = True

    def __call__(self, batch: RowBatch, data: str) -> np.ndarray:
        """Correspondence (k,) float32 of a batch's pairs, NaN where one is faulty. ``data`` names it in messages."""
        return self.compared(batch, *self.embedded(batch, data))

    def compared(self, batch: RowBatch, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """Score a batch by its embeddings.

        Parameters
        ----------
        batch : RowBatch
            k pairs.
        images, texts : Embeddings
            What ``embedded`` gave.

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
        scores = self.judged(images, texts, *groups)[:n]
        scores[list(batch.faults)] = np.nan
        return scores


def even(n: int) -> int:
    """Rows of a block, so that there are as few as can be, and the last is not much smaller.

    Parameters
    ----------
    n : int
        All rows, at least one.

    Returns
    -------
    int
        At most 256.
    """
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
