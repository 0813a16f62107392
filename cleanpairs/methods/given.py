"""What clip-score takes in place of a model: vectors of both sides, or cosines, that the data brings."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from cleanpairs.data import Pairs
from cleanpairs.data.rows import RowBatch
from cleanpairs.errors import DataError
from cleanpairs.ops.search import TopK

__all__ = ["Given", "GivenScorer", "given_cosines", "no_donors", "unit_rows"]

NO_VECTOR = "its caption's vector is zero or not finite"


class Given:
    """In place of a model: the vectors of both sides, or the cosines alone, that the data brings.

    Parameters
    ----------
    score_column : str, optional
        With it the data may lack the vectors.
    """

    name = "the data"
    fingerprint = "given"
    temperature = 0.01  # where CLIP ends: its logit scale is cut at 100

    def __init__(self, score_column: str | None) -> None:
        self.score_column = score_column

    def has_vectors(self, pairs: Pairs) -> bool:
        """Whether there are single vectors of both sides, of one length."""
        array = pairs.images.array()
        texts = pairs.text_vectors
        return array is not None and texts is not None and array.shape[1:] == (1, texts.shape[1])

    def vectors(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        """(M, E) and (N, E) unit vectors, and pair -> what it lacks.

        Raises
        ------
        DataError
            The data does not bring what is asked of it.
        """
        n, faults = len(pairs), {}
        if self.score_column is not None:
            missing = np.flatnonzero(np.isnan(given_cosines(pairs, self.score_column)))
            faults = {int(i): f"it has no {self.score_column}" for i in missing}
            if not self.has_vectors(pairs):
                return np.zeros((len(pairs.images), 1), np.float32), np.zeros((n, 1), np.float32), faults
        array, texts = pairs.images.array(), pairs.text_vectors
        if not self.has_vectors(pairs) or array is None or texts is None:
            raise _not_of_one_length(array, texts)
        z_text = unit_rows(np.asarray(texts))
        faults |= {int(i): NO_VECTOR for i in np.flatnonzero(~z_text.any(axis=1))}
        return unit_rows(np.asarray(array)[:, 0]), z_text, faults


class GivenScorer:
    """(1 + cosine) / 2 of given vectors, batch by batch; see :class:`cleanpairs.estimators.batches.RowScorer`."""

    hashes = False

    @torch.inference_mode()
    def __call__(self, batch: RowBatch, data: str) -> np.ndarray:
        """Correspondence (k,) float32; a caption whose vector is zero is a fault, as in :meth:`Given.vectors`."""
        images, texts = batch.vectors, batch.text_vectors
        if images is None or texts is None or images.shape[1:] != (1, texts.shape[1]):
            raise _not_of_one_length(images, texts)
        v, t = _float(images[:, 0]), _float(texts)  # (k, D) each: a row is a pair
        length = torch.linalg.vecdot(t, t).sqrt()
        batch.faults |= {i: NO_VECTOR for i in torch.nonzero(length == 0)[:, 0].tolist() if i not in batch.faults}
        length = length.clamp_min(1e-12) * torch.linalg.vecdot(v, v).sqrt().clamp_min(1e-12)
        scores = ((1 + torch.linalg.vecdot(v, t) / length) / 2).clamp(0, 1).numpy()
        scores[list(batch.faults)] = np.nan
        return np.asarray(scores)

    @torch.inference_mode()
    def embedded(self, batch: RowBatch, data: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Unit vectors (k, E) float32 of both sides, as :meth:`Given.vectors` has them."""
        images, texts = batch.vectors, batch.text_vectors
        if images is None or texts is None or images.shape[1:] != (1, texts.shape[1]):
            raise _not_of_one_length(images, texts)
        z_text = unit_rows(_float(texts).numpy())
        batch.faults |= {int(i): NO_VECTOR for i in np.flatnonzero(~z_text.any(axis=1)) if i not in batch.faults}
        return unit_rows(_float(images[:, 0]).numpy()), z_text


def _float(x: np.ndarray) -> torch.Tensor:
    """float32 of vectors (n, D), which are not written; by PyTorch, whose conversion of halves is the faster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array cannot be written
        return torch.from_numpy(x).float()


def _not_of_one_length(images: np.ndarray | None, texts: np.ndarray | None) -> DataError:
    sides = [None if x is None else " x ".join(map(str, x.shape[1:])) for x in (images, texts)]
    return DataError(
        f"text_encoder='features' of clip-score needs one vector an image and one a caption, of one length; "
        f"found {sides[0] or 'none'} an image and {sides[1] or 'none'} a caption"
    )


def given_cosines(pairs: Pairs, column: str) -> np.ndarray:
    """(N,) float32 of the column of scores, NaN where there is none.

    Raises
    ------
    DataError
        There is no such column, or it holds other numbers than cosines.
    """
    if column not in pairs.given_scores:
        known = ", ".join(pairs.given_scores) or "none"
        raise DataError(f"score_column of clip-score: the data has no scores {column!r} (found: {known})")
    cosine = np.asarray(pairs.given_scores[column], dtype=np.float32)
    beyond = np.flatnonzero(np.abs(cosine) > 1.0001)
    if len(beyond):
        raise DataError(
            f"score_column of clip-score must hold cosines, from -1 to 1; {column!r} holds {cosine[beyond[0]]:g} at "
            f"pair {beyond[0]}: divide by its scale first"
        )
    return np.clip(cosine, -1, 1)


def no_donors(is_image: bool, trusted: bool, asking: np.ndarray, showing: np.ndarray, k: int) -> TopK:
    """A search that finds nothing (see :data:`cleanpairs.ops.candidates.Search`): what is flagged is dropped."""
    return TopK(np.full((len(asking), 1), -np.inf, np.float32), np.full((len(asking), 1), -1, np.int64))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; zero rows, and those that are not finite (the reader quarantines them), become zero."""
    x = np.where(np.isfinite(x).all(axis=1, keepdims=True), x, 0).astype(np.float32)
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), dtype=np.float32)
