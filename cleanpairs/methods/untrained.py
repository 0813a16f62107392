"""What ``auto`` knows of a corpus before any training: frozen spaces, their agreement, and planted mismatched pairs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cleanpairs.correspondence.agreement import NeighbourAgreement, neighbour_agreement, similar_pairs
from cleanpairs.correspondence.similarity import SimilarityAgreement, similarity_agreement, weights_by_twins
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators.spaces import frozen_spaces
from cleanpairs.ops.matching import token_counts
from cleanpairs.ops.normalised_similarity import RIVALS, VectorPairs
from cleanpairs.trainer import TrainingData, step_seed


def words_of(tokens: TokenTable) -> Any:
    """Return how often each of N captions has each word, (N, V) sparse. None if captions are vectors."""
    most = int(tokens.ids.max(initial=0)) + 1
    return None if tokens.vectors is not None else token_counts(tokens.ids, tokens.offsets, most)


def frozen_pairs(data: TrainingData, seed: int) -> VectorPairs:
    """Return the pairs in their :func:`frozen_spaces`."""
    images, texts = frozen_spaces(data.images, data.image_index, data.tokens, seed)
    return VectorPairs(images[data.image_index], texts, data.image_group, data.text_group)


def similarity_of(data: TrainingData, seed: int) -> SimilarityAgreement | None:
    """Return the similarity of vectors of one space, if both sides came as one vector each, else None."""
    vectors, images = data.tokens.vectors, data.images
    if vectors is None or images.shape[1:] != (1, vectors.shape[1]) or not len(data):
        return None
    text, index = data.tokens.ids[data.tokens.offsets[:-1]], data.image_index
    pairs = VectorPairs(_taken(images[:, 0], index), _taken(vectors, text), data.image_group, data.text_group)
    return similarity_agreement(pairs, seed=seed)


def _taken(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows (n,) of an array, without a copy where these are all."""
    return x if np.array_equal(rows, np.arange(len(x))) else x[rows]


def plant(
    image_group: np.ndarray,
    text_group: np.ndarray,
    share: float,
    rng: np.random.Generator,
    similar: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Exchange captions among a random share of N pairs.

    Parameters
    ----------
    image_group, text_group : (N,) int64
        An image gets no caption with an equal number.
    share : float in [0, .25]
        Share of the pairs. It is raised to 100 pairs, if these are at most a quarter. At most 2,000 are taken.
    rng : numpy.random.Generator
        Draws who exchanges with whom.
    similar : (m,) and (m, k) int64, optional
        Rows, and the only pairs with which they may exchange. See :func:`similar_pairs`.

    Returns
    -------
    caption : (N,) int64
        Whose caption each pair has.
    planted : (m,) int64
        The rows that have another's. If there were fewer than 30, there are none.
    """
    n = len(image_group)
    caption = np.arange(n)
    few, most, least, most_share = 100, 2000, 30, 0.25
    many = int(min(max(share * n, few), most_share * n, most)) if share else 0
    if similar is not None:
        for i, others in zip(*similar, strict=True):
            free = others[(others >= 0) & (caption[others] == others)]
            if len(free) and caption[i] == i and many > 1:
                caption[i], caption[free[0]], many = free[0], i, many - 2
        rows = np.flatnonzero(caption != np.arange(n))
    else:
        rows = rng.permutation(n)[:many]
        caption[rows] = np.roll(rows, 1)

    def same(at: np.ndarray) -> np.ndarray:
        return (image_group[caption[at]] == image_group[at]) | (text_group[caption[at]] == text_group[at])

    for _ in range(20):
        for i in rows[same(rows)]:
            j = rng.choice(rows)
            caption[i], caption[j] = caption[j], caption[i]
    alike = rows[same(rows)]
    if len(rows) - len(alike) < least:
        return np.arange(n), np.zeros(0, np.int64)
    return caption, np.sort(np.setdiff1d(rows, alike))


@dataclass(frozen=True)
class Untrained:
    """What is known of N pairs before the training, some of which have exchanged their captions.

    Parameters
    ----------
    captions : (N,) int64
        Whose caption each pair has.

    planted : (m,) int64
        Rows that have another's.

    agreement : NeighbourAgreement
        Agreement of the pairs as they were given.

    observed, matched : (N,) float
        Agreement and probability of the pairs with their ``captions``.

    null : (K,) float
        The distribution of the planted pairs' agreement.

    plants_similar_pairs : bool
        Whether captions were exchanged only among similar pairs.

    weight : (m,) float
        Weights of the planted pairs. See :func:`weights_by_twins`.

    frozen : VectorPairs, optional
        The pairs in their frozen spaces, 3 KB a pair. Kept of at most 16,384 pairs, and never of vectors of one space.
    """

    captions: np.ndarray
    planted: np.ndarray
    agreement: NeighbourAgreement
    observed: np.ndarray
    matched: np.ndarray
    null: np.ndarray
    plants_similar_pairs: bool
    weight: np.ndarray
    frozen: VectorPairs | None = None

    @classmethod
    def of(cls, data: TrainingData, share: float, *, similar: bool, train: bool, seed: int) -> "Untrained":
        """Plant a ``share`` of the pairs, among ``similar`` ones or any.

        None is planted where similarity settles all, or nothing is to be trained on it (``train``). The planted pairs
        are judged by what the pairs say as they were given, as the null pairs are. So no other pair is the worse for
        them.
        """
        rng, by_similarity = np.random.default_rng(step_seed(seed, 18)), similarity_of(data, seed)
        if by_similarity is not None and (by_similarity.settled or not train):
            found, none = by_similarity, np.zeros(0, np.int64)
            return cls(np.arange(len(data)), none, found, found.observed, found.matched, found.null, False, np.ones(0))
        frozen = frozen_pairs(data, seed) if similar or by_similarity is None else None
        candidates = similar_pairs(frozen, rng) if similar and frozen is not None else None
        captions, planted = plant(data.image_group, data.text_group, share, rng, candidates)
        if by_similarity is not None:
            changed = replace(data, tokens=data.tokens.take(captions), text_group=data.text_group[captions])
            judged = (similarity_of(changed, seed) if len(planted) else None) or by_similarity
            null = judged.similar if similar else judged.null
            weight = np.ones(len(planted))
            return cls(captions, planted, by_similarity, judged.observed, judged.matched, null, similar, weight)
        assert frozen is not None
        exchanged = np.stack([planted, captions[planted]])
        agreement = neighbour_agreement(frozen, planted=exchanged, words=words_of(data.tokens), seed=seed)
        observed, matched = agreement.observed.copy(), agreement.matched.copy()
        if len(planted) and len(agreement.planted):
            observed[planted], matched[planted] = agreement.planted, agreement.planted_matched
        null = agreement.similar if similar else agreement.null
        weight = weights_by_twins(data.image_group, data.text_group, captions[planted], agreement.matched)
        kept = frozen if len(data) <= RIVALS else None
        return cls(captions, planted, agreement, observed, matched, null, similar, weight, kept)

    @property
    def group_matched(self) -> np.ndarray:
        """See :class:`NeighbourAgreement`, (N,) float. 1 where few pairs share an image or caption."""
        found = self.agreement.group_matched
        return np.ones(len(self.captions)) if found is None else found

    @property
    def by_similarity(self) -> bool:
        """Whether the vectors are of one space."""
        return isinstance(self.agreement, SimilarityAgreement)

    @property
    def similarity(self) -> SimilarityAgreement | None:
        """The agreement, where it is final: vectors of one space, none of which was planted."""
        found = self.agreement
        return found if isinstance(found, SimilarityAgreement) and not len(self.planted) else None
