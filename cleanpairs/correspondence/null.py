"""Null pairs: image i with the caption of a random j, known to be mismatched, and their similarities."""

import numpy as np

from cleanpairs.ops.normalised_similarity import Background, cosines

LEAST_PAIRS = 80  # of fewer nothing is known
NULLS = 4  # null pairs, for each pair
MOST_NULLS = 100_000


def null_pairs(image_group: np.ndarray, text_group: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (K,) of images and (K,) of captions that belong to different pairs, images and texts, of N pairs."""
    n, rng = len(image_group), np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(NULLS)]
    image, text = np.concatenate(orders), np.concatenate([np.roll(order, 1) for order in orders])
    different = (image_group[image] != image_group[text]) & (text_group[image] != text_group[text])
    return image[different][:MOST_NULLS], text[different][:MOST_NULLS]


def scores_and_null(pairs: Background, kind: str, tau: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Similarities (N,) of the pairs among themselves, and of null pairs (K,); cosines where ``kind`` is empty."""
    image, text = null_pairs(pairs.image_group, pairs.text_group, seed)
    observed = cosines(pairs.images, pairs.texts).astype(np.float64)
    null = cosines(pairs.images[image], pairs.texts[text]).astype(np.float64)
    if kind:
        of_image, of_text = pairs.shared(pairs, kind=kind, tau=tau)
        observed -= (of_image + of_text) / 2
        null -= (of_image[image] + of_text[text]) / 2
    return observed, null
