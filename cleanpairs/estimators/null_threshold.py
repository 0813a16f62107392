"""A threshold for what is trained on vectors of one space: how many are wrong by their null, which by the method.

A head on such vectors ranks wrong pairs below right ones, but on a scale that depends on the model that made the
vectors: the best threshold of CRCL's labels is .62 on one and .91 on another, and its own .1 finds a tenth of the wrong
pairs there (docs/log.md). Their similarities before any training, and those of pairs known to be wrong, tell the noise
rate; the pairs of the lowest labels, so many of them, are flagged.
"""

from __future__ import annotations

import numpy as np

from cleanpairs.correspondence.calibration import calibrate
from cleanpairs.correspondence.null import LEAST_PAIRS, scores_and_null
from cleanpairs.correspondence.similarity import one_space
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import TAU, Background

MOST = 0.8  # a null that takes more pairs for wrong does not tell the right ones


def null_threshold(
    y: np.ndarray,
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    seed: int = 0,
) -> tuple[float, float] | None:
    """The threshold of the correspondence ``y`` (N,), and the noise rate.

    None where there are too few pairs, the similarities tell nothing, or the method does not agree with them about
    which pairs are wrong: the two sets share less than half of what goes beyond chance, or so many labels are
    alike that the threshold parts nothing.

    ``images``, ``texts`` (N, E) float: vectors of one space, of any length; ``image_group``, ``text_group`` (N,) int64.
    """
    if len(y) < LEAST_PAIRS:
        return None
    image, text = unit_rows(images), unit_rows(texts)
    observed, null = scores_and_null(Background(image, text, image_group, text_group), "softmax", TAU, seed)
    found = calibrate(observed, null, by_score=True, draws=30) if one_space(observed, null) else None
    if found is None:
        return None
    estimate = found.noise_rate(len(y))
    rate = estimate.value if estimate.low > 0 else 0.0
    threshold = float(np.quantile(y, rate))
    flagged = y < threshold
    if (
        rate > MOST
        or flagged.mean() < rate / 2
        or (flagged.any() and np.mean(observed[flagged] <= np.quantile(observed, rate)) < (1 + rate) / 2)
    ):
        return None
    return threshold, rate
