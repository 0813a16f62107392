"""What clip-score takes of the data: vectors of both sides or of the images, or cosines."""

import warnings
from collections.abc import Callable

import numpy as np
import torch

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import Pairs
from cleanpairs.data.rows import RowBatch
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.estimators.batches import RowScorer, filled
from cleanpairs.estimators.encoders import check_vectors
from cleanpairs.features import ImageMatrix, encoded_matrix
from cleanpairs.methods.normalised import NormalisedScore
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import Background
from cleanpairs.ops.search import TopK
from cleanpairs.scoring import Embeddings

NO_VECTOR = "its caption's vector is zero or not finite"


class Precomputed:
    """In place of a model: the vectors of both sides that the data brings, which may lack with a ``score_column``."""

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
        """(M, E) and (N, E) unit vectors, and pair -> what it lacks; DataError where the data lacks all."""
        n, faults = len(pairs), {}
        if self.score_column is not None:
            missing = np.flatnonzero(np.isnan(precomputed_cosines(pairs, self.score_column)))
            faults = {int(i): f"it has no {self.score_column}" for i in missing}
            if not self.has_vectors(pairs):
                return np.zeros((len(pairs.images), 1), np.float32), np.zeros((n, 1), np.float32), faults
        z_image, z_text, wrong = _unit_vectors(pairs.images.array(), pairs.text_vectors)
        return z_image, z_text, faults | wrong


class PrecomputedScorer(RowScorer):
    """Scores given vectors, batch by batch; see :class:`cleanpairs.estimators.batches.RowScorer`."""

    compares_vectors = True

    def __init__(self, score: NormalisedScore) -> None:
        self.score, self.hashes = score, score.kind != "none"

    def compared(self, batch: RowBatch, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """See :class:`cleanpairs.estimators.batches.RowScorer`."""
        n = len(images)
        groups = (batch.image_group[batch.row], batch.text_group) if self.hashes else (np.arange(n),) * 2
        scores = self.score(Background(*(filled(x) if n else x for x in (images.vectors, texts.vectors, *groups))))[:n]
        scores[list(batch.faults)] = np.nan
        return scores

    @torch.inference_mode()
    def embedded(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """Unit vectors (k, E) float32 of both sides; a caption whose vector is zero is a fault, as in
        :meth:`Precomputed.vectors`.
        """
        z_image, z_text, missing = _unit_vectors(*(map(_float, (batch.vectors, batch.text_vectors))))
        batch.faults |= missing | batch.faults
        return Embeddings(z_image), Embeddings(z_text)


def _float(x: np.ndarray | None) -> np.ndarray | None:
    """float32 of vectors, which are not written; by PyTorch, whose conversion of halves is the faster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array cannot be written
        return None if x is None else torch.from_numpy(x).float().numpy()


def _unit_vectors(images: np.ndarray | None, texts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Of (m, 1, E) and (n, E), and what is wrong with captions; DataError where the two are not of one length."""
    if images is None or texts is None or images.shape[1:] != (1, texts.shape[1]):
        sides = [None if x is None else " x ".join(map(str, x.shape[1:])) for x in (images, texts)]
        raise DataError(
            f"text_encoder='features' of clip-score needs one vector an image and one a caption, of one length; "
            f"found {sides[0] or 'none'} an image and {sides[1] or 'none'} a caption"
        )
    z_text = unit_rows(np.asarray(texts))
    missing = {int(i): NO_VECTOR for i in np.flatnonzero(~z_text.any(axis=1))}
    return unit_rows(np.asarray(images)[:, 0]), z_text, missing


def precomputed_cosines(pairs: Pairs, column: str) -> np.ndarray:
    """(N,) float32 of the column of scores, NaN where there is none; DataError where it is no column of cosines."""
    if column not in pairs.precomputed_scores:
        known = ", ".join(pairs.precomputed_scores) or "none"
        raise DataError(f"score_column of clip-score: the data has no scores {column!r} (found: {known})")
    cosine = np.asarray(pairs.precomputed_scores[column], dtype=np.float32)
    beyond = np.flatnonzero(np.abs(cosine) > 1.0001)
    if len(beyond):
        raise DataError(
            f"score_column of clip-score must hold cosines, from -1 to 1; {column!r} holds {cosine[beyond[0]]:g} at "
            f"pair {beyond[0]}: divide by its scale first"
        )
    return np.clip(cosine, -1, 1)


def no_donors(is_image: bool, trusted: bool, asking: np.ndarray, showing: np.ndarray, k: int) -> TopK:
    """A :data:`cleanpairs.repair.candidates.DonorSearch` that finds nothing: what is flagged is dropped."""
    return TopK(np.full((len(asking), 1), -np.inf, np.float32), np.full((len(asking), 1), -1, np.int64))


def image_matrix_of(
    model: PretrainedCLIP, pairs: Pairs, image_encoder: str, progress: Callable[[int, int], None] | None = None
) -> ImageMatrix:
    """(M, 1, E) vectors, and image row -> why there is none; such rows are zero.

    ``image_encoder`` "features": those of the data. "auto": the model makes them of the images, where there are any.
    """
    array = pairs.images.array()
    if array is not None and (image_encoder == "features" or not _has_images(pairs)):
        check_vectors(array, model)
        return ImageMatrix(array, {}, "clip-score", None)
    if array is None and image_encoder == "features":
        raise ConfigError("image encoder 'features' needs precomputed vectors, and the data has none; use 'auto'")
    return encoded_matrix(pairs, model, progress=progress)


def _has_images(pairs: Pairs) -> bool:
    """Whether there is any encoded image beside the vectors."""
    return any(data is not None for _, chunk in pairs.images.iter_encoded(1024) for data in chunk)
