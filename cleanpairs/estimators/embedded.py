"""Pairs as a fitted scorer sees them: their embeddings, and what a trained model's towers saw before."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cleanpairs.core import DataError, check_whole, plural
from cleanpairs.correspondence.displacement import Displacement, find_displaced_rows
from cleanpairs.correspondence.similarity import one_space_by_cosine
from cleanpairs.data import Pairs
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators.spaces import displaced_between_spaces, frozen_spaces
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.scoring import Embeddings, Encoded, matrix
from cleanpairs.scoring.evaluate import Recall, recall, recall_of_similarity


@dataclass(frozen=True)
class Embedded:
    """N pairs, of M images, as a fitted scorer sees them.

    Parameters
    ----------
    pairs : Pairs
        The pairs.

    images : Embeddings
        Vectors of M images.

    texts : Embeddings
        Vectors of N captions.

    quarantined : dict
        pair_id -> reason.

    frozen_images : array, optional
        What a trained model's towers saw: (M, R, D) vectors or (M, 3, H, W) pixels.

    frozen_texts : TokenTable, optional
        The captions that they saw.
    """

    pairs: Pairs
    images: Embeddings
    texts: Embeddings
    quarantined: dict[int, str]
    frozen_images: np.ndarray | None = None
    frozen_texts: TokenTable | None = None

    def take(self, rows: np.ndarray) -> "Embedded":
        """Select pairs, with their images alone and without the quarantine.

        Parameters
        ----------
        rows : (k,) int64
            Which, rising.

        Returns
        -------
        Embedded
            k pairs.
        """
        if len(rows) == len(self.pairs):
            return self
        pairs, used = with_images(self.pairs, rows)
        images = None if self.frozen_images is None else self.frozen_images[used]
        texts = None if self.frozen_texts is None else self.frozen_texts.take(rows)
        return Embedded(pairs, self.images.take(used), self.texts.take(rows), {}, images, texts)

    @property
    def usable(self) -> np.ndarray:
        """Which pairs are not quarantined, (N,) bool."""
        return np.array([i not in self.quarantined for i in range(len(self.pairs))], dtype=bool)

    @cached_property
    def frozen_spaces(self) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors (M, d) and (N, e) of what a trained model's towers saw, before any training."""
        assert self.frozen_images is not None and self.frozen_texts is not None
        return frozen_spaces(self.frozen_images, self.pairs.image_index, self.frozen_texts, 0)

    def given_vectors(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Unit vectors (M, d) and (N, d) of the data, where a trained model's towers saw one for each image and each
        caption, of one length.
        """
        seen, tokens = self.frozen_images, self.frozen_texts
        if seen is None or tokens is None or tokens.vectors is None or seen.shape[1:] != (1, tokens.vectors.shape[1]):
            return None
        return unit_rows(seen[:, 0]), unit_rows(np.asarray(tokens.frozen()))

    def displaced_rows(self, matched: np.ndarray) -> Displacement:
        """See :meth:`PairScorer.displaced_rows`.

        Parameters
        ----------
        matched : (N,) float
            P(matched). NaN counts as 0.

        Returns
        -------
        Displacement
            Of n rows. Trained networks know displaced pairs by heart. So it comes from what their towers saw: given
            vectors of one space as they are, or regressions between two spaces.
        """
        pairs = self.pairs
        _, first, row = np.unique(pairs.row, return_index=True, return_inverse=True)
        usable, count = np.bincount(row, self.usable) > 0, np.bincount(row)

        def of_rows(images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if len(first) < len(pairs):  # of several captions the mean
                each = texts / count[row, None].astype(np.float32)
                texts = np.zeros((len(first), texts.shape[1]), np.float32)
                np.add.at(texts, row, each)
            return images[pairs.image_index[first]], texts

        if (given := self.given_vectors()) is not None:
            found = find_displaced_rows(*of_rows(*given), usable=usable)
            groups = pairs.pair_image_group, pairs.text_group
            if found.blocks or one_space_by_cosine(VectorPairs(given[0][pairs.image_index], given[1], *groups)):
                return found
        seen = self.frozen_images if self.frozen_texts is not None else None
        if seen is not None and seen.ndim == 3 and len(seen) >= 20 and len(pairs):
            mean, image = np.bincount(row, np.nan_to_num(matched)) / count, pairs.pair_image_group[first]
            return displaced_between_spaces(*of_rows(*self.frozen_spaces), mean, usable, image)
        images, texts = of_rows(self.images.vectors, self.texts.vectors)
        if images.shape[1] != texts.shape[1]:
            usable[:] = False
        return find_displaced_rows(images, texts, usable=usable)

    def recall(self, model: Any = None, device: str = "cpu", folds: int = 1) -> Recall:
        """Retrieval recall, where an image counts once.

        Parameters
        ----------
        model : DualEncoder, optional
            What embedded them, if it compares more than vectors.
        device : str
            Where it compares.
        folds : int
            See :meth:`PairScorer.evaluate`.

        Returns
        -------
        Recall
            R@1, R@5, R@10 and rSum.

        Raises
        ------
        ConfigError, DataError
            There are fewer folds than one, or more than images. There is no pair, or no caption in a fold.
        """
        pairs, usable = self.pairs, self.usable
        if len(pairs) and not self.images.vectors.any():  # scores of data that has no vectors
            return Recall(*[float("nan")] * 6)
        _, first, owner = np.unique(pairs.pair_image_group[usable], return_index=True, return_inverse=True)
        order = np.argsort(first)  # as they come: groups are hashes
        images, captions = pairs.image_index[usable][first[order]], np.flatnonzero(usable)
        owner, m, recalls = order.argsort()[owner], len(images), list[Recall]()
        check_whole("evaluate", "folds", folds, 1)
        if folds > max(m, 1):
            raise DataError(f"{plural(m, 'image')} can be divided into 1 to {m} folds, asked for {folds}")
        for inside in np.array_split(np.arange(m), folds):  # runs of neighbours
            given = np.isin(owner, inside)
            i, t, own = images[inside], captions[given], owner[given] - inside[:1]
            if model is None or not model.local:
                recalls.append(recall(self.images.vectors[i], self.texts.vectors[t], own))
            else:
                compared = Encoded(self.images, self.texts, model, device)
                recalls.append(recall_of_similarity(matrix(compared, i, t), own))
        return Recall(*np.mean([list(asdict(r).values()) for r in recalls], axis=0).tolist())


def with_images(pairs: Pairs, rows: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """Select pairs, with the images that they use.

    Parameters
    ----------
    pairs : Pairs
        n pairs.
    rows : (k,) int64
        Which.

    Returns
    -------
    Pairs, (m,) int64
        k pairs, whose image index is into these rows of images.
    """
    used, place = np.unique(pairs.image_index[rows], return_inverse=True)
    return replace(pairs.select(rows), image_index=place, image_group=pairs.image_group[used]), used
