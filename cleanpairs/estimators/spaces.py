"""Frozen spaces of images and captions: what is known of both before any training."""

from typing import Any

import numpy as np

from cleanpairs.correspondence.agreement import ridge
from cleanpairs.correspondence.displacement import Displacement, find_displaced_rows
from cleanpairs.correspondence.independence import bag_of_tokens, image_vectors, standardised
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.ops.matching import unit_rows


def caption_spaces(tokens: TokenTable) -> list[Any]:
    """Vectors of captions before any training.

    Parameters
    ----------
    tokens : TokenTable
        N captions.

    Returns
    -------
    list of (N, V) float32
        Words by rarity (sparse), frozen vectors (standardised), or both, words first.
    """
    vectors = tokens.frozen()
    learned = [] if tokens.vectors is not None else [bag_of_tokens(tokens.ids, tokens.offsets)]
    return learned if vectors is None else [*learned, standardised(vectors)]


def reduced(x: Any, seed: int, dim: int = 256) -> np.ndarray:
    """Principal directions of vectors.

    Parameters
    ----------
    x : (n, D) float, dense or sparse
        Vectors.
    seed : int
        Seed of the decomposition.
    dim : int
        Directions at most.

    Returns
    -------
    (n, <= dim) float32
        Unit vectors in these directions.
    """
    from sklearn.decomposition import TruncatedSVD

    dim = min(dim, min(x.shape) - 1)
    if dim >= 2:
        with np.errstate(invalid="ignore", divide="ignore"):  # shares of no variance, where all rows are alike
            x = TruncatedSVD(dim, random_state=seed).fit_transform(x)
    return unit_rows(x.toarray() if hasattr(x, "toarray") else x)


def frozen_spaces(
    images: np.ndarray, image_index: np.ndarray, tokens: TokenTable, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of both sides before any training.

    Parameters
    ----------
    images : (M, R, D) float
        Regions.
    image_index : (N,) int64
        The image of each caption. Images that have none count for nothing, and become zero.
    tokens : TokenTable
        N captions.
    seed : int
        Seed of everything random.

    Returns
    -------
    (M, d) and (N, e) float32
        Of standardised mean regions, and of rare words, frozen vectors or both.
    """
    from sklearn.preprocessing import normalize

    spaces = [reduced(normalize(space), seed) for space in caption_spaces(tokens)]
    texts = normalize(np.concatenate(spaces, axis=1)) if len(spaces) > 1 else spaces[0]
    shown = np.unique(image_index)
    vectors = reduced(image_vectors(images, shown), seed)
    if len(shown) < len(images):
        found, vectors = vectors, np.zeros((len(images), vectors.shape[1]), np.float32)
        vectors[shown] = found
    return vectors, texts


def displaced_between_spaces(
    images: np.ndarray, texts: np.ndarray, matched: np.ndarray, usable: np.ndarray, image_group: np.ndarray
) -> Displacement:
    """Find displaced rows of pairs in two spaces, by regressions that know no pair by heart.

    Parameters
    ----------
    images, texts : (n, d) and (n, e) float32
        Unit vectors of each row's image and caption.
    matched : (n,) float
        P(matched).
    usable : (n,) bool
        Rows that can be compared.
    image_group : (n,) int64
        Equal numbers are one image, no row of which may tell about another: it would fit that row's caption better.

    Returns
    -------
    Displacement
        See :func:`cleanpairs.correspondence.displacement.find_displaced_rows`. What is found makes better
        regressions, by which rows are searched again, as long as that finds more than a hundredth more.
    """
    at, (_, first, image) = np.arange(len(images)), np.unique(image_group, return_index=True, return_inverse=True)
    fold = np.argsort(np.argsort(first))[image] * 5 // len(first)
    found = Displacement(np.zeros_like(at), np.zeros(len(at)), ())
    while True:
        weight = np.where(found.distance, found.probability, matched) * usable
        partner = np.clip(at + found.distance, 0, len(at) - 1)
        again = find_displaced_rows(*_predicted(images, texts, weight, partner, fold), usable=usable)
        before, found = found.probability.sum(), max(found, again, key=lambda one: one.probability.sum())
        if found.probability.sum() <= 1.01 * before:
            return found


def _predicted(
    images: np.ndarray, texts: np.ndarray, weight: np.ndarray, partner: np.ndarray, fold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Each side joined with what it predicts of the other, (n, d + e) twice: a dot product is the sum of both cosines.

    Ridge regressions are fitted to the images (n, d) and the captions (n, e) of the rows ``partner`` (n,), by a
    ``weight`` (n,). They predict the ``fold`` (n,) that they have not seen.
    """
    weight = np.maximum(weight, 1e-3)
    x, t = (side - np.average(side, axis=0, weights=weight).astype(np.float32) for side in (images, texts))
    of_image, of_text = np.zeros_like(t), np.zeros_like(x)
    for left_out in np.unique(fold):
        held_out, fitted = fold == left_out, (fold != left_out) & (fold[partner] != left_out)
        both = x[fitted], t[partner[fitted]]
        of_image[held_out] = x[held_out] @ ridge(*both, weight[fitted])
        of_text[held_out] = t[held_out] @ ridge(*both[::-1], weight[fitted])
    return np.hstack([unit_rows(of_image), unit_rows(x)]), np.hstack([unit_rows(t), unit_rows(of_text)])
