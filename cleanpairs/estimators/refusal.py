"""Refusing where there is nothing to tell wrong pairs from right ones by, before a training and a deleted corpus.

With MANY pairs or more the absence of evidence (:mod:`cleanpairs.correspondence.evidence`) is a finding, and the fit is
refused. Of fewer it says little: they are trained on, but where there is not even a hint of it, none is flagged. Pixels
are a poor evidence: where a network is trained from them, only rows that are all alike are refused.
"""

from typing import Any

import numpy as np

from cleanpairs.core.errors import RefusedError
from cleanpairs.correspondence.evidence import (
    BLOCK,
    BLOCKS,
    LEAST,
    Evidence,
    bag_of_tokens,
    by_image,
    evidence,
    image_vectors,
    mean_of,
    standardised,
)
from cleanpairs.encoders.tokenizer import TokenTable

MANY = 100  # pairs
HINT = 1.0  # z


def caption_spaces(tokens: TokenTable) -> list[Any]:
    """(N, V) float32 of N captions: words by rarity (sparse), frozen vectors, standardised, or both, words first."""
    vectors = tokens.frozen()
    learned = [] if tokens.vectors is not None else [bag_of_tokens(tokens.ids, tokens.offsets)]
    return learned if vectors is None else [*learned, standardised(vectors)]


def evidence_of(
    images: np.ndarray,
    texts: TokenTable | np.ndarray,
    image_index: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    seed: int = 0,
) -> Evidence:
    """Evidence of N pairs, of ``images`` (M, R, D) or (M, 3, H, W) uint8 and captions, or their vectors (N, E)."""
    groups = by_image(image_group, text_group, most=BLOCK * BLOCKS, seed=seed)
    if len(groups) < LEAST:
        return Evidence(0.0, len(groups))
    rows = np.concatenate(groups)
    described = caption_spaces(texts.take(rows))[0] if isinstance(texts, TokenTable) else standardised(texts[rows])
    shown = image_index[[group[0] for group in groups]]
    captions = mean_of(described, np.array([len(group) for group in groups]))
    return evidence(image_vectors(images, shown), captions, seed=seed)


def refuse_without(found: Evidence, pairs: int, method: str, *, pixels: bool = False) -> None:
    """Refuse to go on with so many ``pairs`` without evidence. Raises RefusedError."""
    if pairs < MANY or found.enough or (pixels and found.n >= LEAST):
        return
    raise RefusedError(
        f"{method} has nothing to tell wrong pairs from right ones by: {found}; no pair is dropped. Check that each "
        "caption stands beside its own image, and that the images' vectors are no constants; or give more pairs. "
        "require_evidence=False (--set method.require_evidence=false) trains all the same"
    )
