"""Refusing where there is nothing to tell wrong pairs from right ones by, before a training and a deleted corpus.

The pairs are asked for evidence (:mod:`cleanpairs.correspondence.evidence`). With MANY pairs or more its absence is a
finding, and the fit is refused. Of fewer pairs it says little: they are trained on, but where there is not even a hint
of it, none is flagged. Pixels are a poor witness (their colours know little of what a caption says): where a network is
trained from them, only rows that are all alike are refused.
"""

from __future__ import annotations

import numpy as np

from cleanpairs.correspondence.evidence import (
    BLOCK,
    BLOCKS,
    LEAST_PAIRS,
    Evidence,
    bag_of_tokens,
    evidence,
    image_vectors,
    one_of_each,
    standardised,
)
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.errors import RefusedError

__all__ = ["HINT", "MANY", "evidence_of", "refuse_without"]

MANY = 100  # pairs
HINT = 1.0  # z


def evidence_of(
    images: np.ndarray,
    texts: TokenTable | np.ndarray,
    image_index: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    seed: int = 0,
) -> Evidence:
    """Evidence of N pairs.

    Parameters
    ----------
    images : (M, R, D) float or (M, 3, H, W) uint8
    texts : TokenTable of N captions, or (N, E) float
    image_index, image_group, text_group : (N,) int64
    """
    rows = one_of_each(image_group, text_group, most=BLOCK * BLOCKS, seed=seed)
    if len(rows) < LEAST_PAIRS:
        return Evidence(0.0, len(rows))
    if isinstance(texts, TokenTable):
        chosen = texts.take(rows)
        if chosen.vectors is None:
            described = bag_of_tokens(chosen.ids, chosen.offsets)
        else:
            described = standardised(chosen.vectors[chosen.ids[chosen.offsets[:-1]]])
    else:
        described = standardised(texts[rows])
    return evidence(image_vectors(images, image_index[rows]), described, seed=seed)


def refuse_without(found: Evidence, pairs: int, method: str, *, pixels: bool = False) -> None:
    """Refuse to go on with so many ``pairs`` without evidence.

    Raises
    ------
    RefusedError
    """
    if pairs < MANY or found.enough or (pixels and found.n >= LEAST_PAIRS):
        return
    raise RefusedError(
        f"{method} has nothing to tell wrong pairs from right ones by: {found}; no pair is dropped. Check that each "
        "caption stands beside its own image, and that the images' vectors are no constants; or give more pairs. "
        "require_evidence=False (--set method.require_evidence=false) trains all the same"
    )
