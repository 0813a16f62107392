"""What two lines of numpy say, as rows of a benchmark on vectors of both sides: nothing is fitted, nothing flagged.

The cosine, and negCLIPLoss (Wang et al., NeurIPS 2024): :mod:`cleanpairs.ops.normalised_similarity`.
"""

import time
from typing import Any

import numpy as np

from cleanpairs.benchmarking.settings import MethodSettings
from cleanpairs.benchmarking.splits import Splits
from cleanpairs.data import Pairs
from cleanpairs.data.noise import Noise, apply_noise
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import cosines, normalised_similarity
from cleanpairs.scoring.evaluate import detection, recall

PLAIN_SCORES = ("cosine", "negCLIPLoss")


def plain_scores(pairs: Pairs) -> list[MethodSettings]:
    """Those that the vectors of ``pairs`` allow: one an image and one a caption, of one length."""
    vectors, texts = pairs.images.array(), pairs.text_vectors
    if vectors is None or texts is None or vectors.shape[1:] != (1, texts.shape[1]):
        return []
    return [MethodSettings(name, {}, None, None, "plain") for name in PLAIN_SCORES]


def plain_row(name: str, splits: Splits, noise: Noise) -> dict[str, Any]:
    """The figures of :func:`cleanpairs.benchmarking.cell.run_cell` that need no threshold."""
    began = time.perf_counter()
    pairs = apply_noise(splits.train, noise)
    image, text = _vectors(pairs)
    usable = np.setdiff1d(np.arange(len(pairs)), list(pairs.reasons))
    y = np.full(len(pairs), np.nan)
    groups = (pairs.pair_image_group[usable], pairs.text_group[usable])
    sides = image[usable], text[usable]
    y[usable] = cosines(*sides) if name == "cosine" else normalised_similarity(*sides, *groups)
    seconds = time.perf_counter() - began
    row: dict[str, Any] = {"pairs": len(pairs), "quarantined": len(pairs.reasons), "seconds": seconds}
    row |= {"mismatched": float(noise.mismatched.mean()), "total_seconds": seconds}
    if noise.mismatched.any():
        found = detection(y, noise.mismatched, -np.inf)
        row |= {"auroc": found.auroc, "ap": found.ap}
    if splits.test is not None and splits.test.has_both_vectors:
        test = splits.test
        _, first, owner = np.unique(test.pair_image_group, return_index=True, return_inverse=True)
        image, text = _vectors(test)
        row |= recall(image[first], text, owner).to_dict()
    return row


def _vectors(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    array, texts = pairs.images.array(), pairs.text_vectors
    assert array is not None and texts is not None
    return unit_rows(array[pairs.image_index, 0]), unit_rows(texts)
