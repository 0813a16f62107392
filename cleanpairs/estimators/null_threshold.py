"""Thresholds by a null: by the scores of pairs that are known to be mismatched.

For pairs that a trained model has not seen: they score lower than those that it was trained on, whose threshold flags
most of them. Random pairs of the same images and captions are mismatched, and as unseen as the observed ones. Their
scores are the null of :mod:`cleanpairs.correspondence.calibration`. At the threshold a pair is as likely mismatched as
not. Pairs of the bank, which were trained on, do not count. Where they are more than one in a hundred, the rest has an
unknown share of the fit's mismatched pairs, so the noise rate is undetermined. The probabilities of vectors of one
space assume the noise rate of the fit, and so take a threshold of new data, too.

A head that is trained on vectors of one space ranks wrong pairs below right ones. But its scale depends on the model
that made the vectors. The best threshold of CRCL's labels is .62 on one and .91 on another. Its own .1 finds a tenth of
the wrong pairs there (dev/LOG.md). Their similarities before any training, and those of pairs known to be wrong, tell
the noise rate. The pairs of the lowest labels, so many of them, are flagged.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cleanpairs.correspondence.calibration import UNDETERMINED, Estimate, ScoreProbability, calibrate, noise_rate
from cleanpairs.correspondence.similarity import LEAST_PAIRS, null_pairs, one_space, one_space_by_cosine, unit_pairs
from cleanpairs.ops.matching import places
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.scoring import Bank, Embeddings

BLOCKS, BLOCK = 16, 256  # runs of neighbouring rows that are looked at, where there are more


@dataclass(frozen=True)
class UnseenThreshold:
    """A threshold for pairs that a model has not seen.

    Parameters
    ----------
    threshold : float
        Pairs that score below it are flagged.
    noise_rate : Estimate
        Share of mismatched pairs, or NaN.
    matched : ScoreProbability
        Turns scores into probabilities of being matched.
    """

    threshold: float
    noise_rate: Estimate
    matched: ScoreProbability = field(repr=False)


def spread_blocks(n: int) -> list[range]:
    """Blocks of neighbouring rows, as far apart as can be, so that a part of a file is read at once.

    Parameters
    ----------
    n : int
        Rows.

    Returns
    -------
    list of range
        All rows, where there are at most 4,096. Else 16 blocks of 256.
    """
    if n <= BLOCKS * BLOCK:
        return [range(n)]
    return [range(first, first + BLOCK) for first in np.linspace(0, n - BLOCK, BLOCKS).astype(int).tolist()]


def unseen_threshold(
    bank: Bank, score_pairs: Callable[..., np.ndarray], images: Embeddings, texts: Embeddings, image_group: np.ndarray,
    text_group: np.ndarray, scores: np.ndarray, seed: int = 0,
) -> UnseenThreshold | None:  # fmt: skip
    """Return the threshold for scores of pairs that a model has not seen.

    Parameters
    ----------
    bank : Bank
        The trusted pairs of the model. Pairs that are among them do not count.

    score_pairs : callable
        What scored them, with the arguments of the bank.

    images, texts : Embeddings
        Vectors of n pairs.

    image_group, text_group : (n,) int64
        Equal numbers are one image, or one text.

    scores : (n,) float
        NaN where a pair has none.

    seed : int
        Seed of everything random.

    Returns
    -------
    UnseenThreshold or None
        None for fewer than 80 pairs that are not of the bank, and where they score no higher than random ones.
    """
    scored = np.flatnonzero(np.isfinite(scores))
    image = places(bank.image_group, image_group[scored])
    seen = (image >= 0) & (image == places(bank.text_group, text_group[scored]))
    scored = scored[~seen]
    if len(scored) < LEAST_PAIRS:
        return None
    image, text = (scored[rows] for rows in null_pairs(image_group[scored], text_group[scored], seed))
    null = score_pairs(images, texts, image_group, text_group, image, text)
    observed = scores[scored]
    calibration = calibrate(observed, null, seed=seed) if len(null) and one_space(observed, null) else None
    if calibration is None:
        return None
    threshold = float(np.quantile(observed, calibration.quantile(np.array([0.5]))[0]))
    rate = noise_rate(calibration, len(scored)) if seen.mean() <= 0.01 else UNDETERMINED
    return UnseenThreshold(threshold, rate, ScoreProbability.from_calibration(calibration, observed))


def null_threshold(y: np.ndarray, pairs: VectorPairs, seed: int = 0) -> tuple[float, float] | None:
    """Threshold and noise rate of a correspondence, by vectors of one space.

    Parameters
    ----------
    y : (N,) float
        The correspondence.
    pairs : VectorPairs
        N pairs of vectors of one space, of any norm.
    seed : int
        Seed of everything random.

    Returns
    -------
    (float, float) or None
        Threshold and noise rate. None where there are too few pairs, where the similarities tell nothing, or where too
        many labels are equal. None where method and similarities disagree: the flagged sets share less than half of
        what goes beyond chance.
    """
    if len(y) < LEAST_PAIRS:
        return None
    pairs = unit_pairs(pairs)
    rows = np.stack(null_pairs(pairs.image_group, pairs.text_group, seed))
    observed, null = pairs.scores_and_null(pairs, rows)
    calibration = calibrate(observed, null, by_score=True, draws=30) if one_space_by_cosine(pairs, rows) else None
    if calibration is None:
        return None
    estimate = calibration.noise_rate(len(y))
    rate = estimate.value if estimate.low > 0 else 0.0
    threshold = float(np.quantile(y, rate))
    flagged = y < threshold
    if rate > 0.8 or flagged.mean() < rate / 2:
        return None
    if flagged.any() and np.mean(observed[flagged] <= np.quantile(observed, rate)) < (1 + rate) / 2:
        return None
    return threshold, rate
