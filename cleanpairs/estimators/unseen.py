"""A threshold for pairs that a trained model has not seen.

It knows the pairs that it was trained on better than any others, so these score lower throughout, and the threshold of
the training flags most of them. Random pairs of the same images and captions are mismatched, and as unseen as the
observed ones: their scores are the null of :mod:`cleanpairs.correspondence.calibration`, and the threshold is where a
pair is as likely mismatched as not. It goes by the pairs together: of one pair alone it cannot be told.

Data that hold pairs of the training have none, as these score higher than unseen pairs, and the random ones are unseen:
where more than one pair in a hundred is in the model's bank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanpairs.correspondence.calibration import Estimate, calibrate, noise_rate
from cleanpairs.correspondence.null import LEAST_PAIRS, null_pairs
from cleanpairs.correspondence.similarity import one_space
from cleanpairs.ops.matching import places
from cleanpairs.scoring import Bank, Embeddings

BLOCKS, BLOCK = 16, 256  # runs of neighbouring rows that are looked at, where there are more
MOST_SEEN = 0.01  # of the pairs, that the bank may hold


@dataclass(frozen=True)
class UnseenThreshold:
    """``threshold``, and the estimated share of mismatched pairs, NaN where undetermined."""

    threshold: float
    noise_rate: Estimate


def some_runs(n: int) -> list[range]:
    """Of n rows all, or runs of neighbouring ones, as far apart as can be: a part of a file is read at once."""
    if n <= BLOCKS * BLOCK:
        return [range(n)]
    return [range(first, first + BLOCK) for first in np.linspace(0, n - BLOCK, BLOCKS).astype(int).tolist()]


def unseen_threshold(
    bank: Bank, images: Embeddings, texts: Embeddings, image_group: np.ndarray, text_group: np.ndarray,
    scores: np.ndarray, seed: int = 0,
) -> UnseenThreshold | None:  # fmt: skip
    """The threshold of ``scores`` (n,), NaN where a pair has none; None of fewer than 80 pairs, where these score no
    higher than random ones, or where some are of the training.

    - ``bank``: what the scores refer to
    - ``images``, ``texts``: embeddings of n pairs; ``image_group``, ``text_group`` (n,) int64 content hashes
    """
    known = np.flatnonzero(np.isfinite(scores))
    if len(known) < LEAST_PAIRS:
        return None
    seen = places(bank.image_group, image_group[known])
    if ((seen >= 0) & (seen == places(bank.text_group, text_group[known]))).mean() > MOST_SEEN:
        return None
    image, text = (known[rows] for rows in null_pairs(image_group[known], text_group[known], seed))
    null, observed = bank(images, texts, image_group, text_group, image, text), scores[known]
    found = calibrate(observed, null, seed=seed) if len(null) and one_space(observed, null) else None
    if found is None:
        return None
    threshold = float(np.quantile(observed, found.quantile(np.array([0.5]))[0]))
    return UnseenThreshold(threshold, noise_rate(found, len(known)))
