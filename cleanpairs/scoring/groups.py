"""One figure per pair, as the mean over random mini-batches of a corpus in evaluation mode.

The papers take a pair's probability or loss from the mini-batch that it happens to be trained in; here it comes from
fixed random groups, so that dropout, augmentation and a batch's company do not enter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cleanpairs.ops.matching import duplicate_mask
from cleanpairs.scoring.embeddings import Encoded


@torch.inference_mode()
def in_groups(
    figure: Callable[[Tensor, Tensor | None], Tensor],
    encoded: Encoded,
    image_index: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    group_size: int = 128,
    rounds: int = 1,
    seed: int = 0,
    exclude_duplicates: bool = True,
) -> np.ndarray:
    """Mean over random groups of ``figure(S, excluded)`` -> (B,), for N pairs: (N,) float32.

    - ``figure`` callable: of a group's similarities S (B, B) and the mask (B, B) bool, or None, of what is no negative
    - ``encoded``: the images, and the N captions
    - ``image_index`` (N,) int64: image of each caption
    - ``image_group``, ``text_group`` (N,) int64: equal numbers are the same image, the same text
    - ``group_size``, ``rounds``: pairs in a group, and in how many random partitions a pair takes part
    """
    n = len(image_index)
    total = np.zeros(n, dtype=np.float64)
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        order = rng.permutation(n)
        for rows in np.array_split(order, max(1, round(n / group_size))):
            S = encoded.similarity(image_index[rows], rows)  # (B, B)
            excluded = None
            if exclude_duplicates:
                excluded = duplicate_mask(torch.from_numpy(image_group[rows]), torch.from_numpy(text_group[rows]))
            total[rows] += figure(S, excluded).numpy()
    return (total / max(rounds, 1)).astype(np.float32)
