"""Pairs that are made mismatched on purpose, before anybody looks: the null of all that is learned afterwards."""

import numpy as np

FEW, MANY = 100, 2000  # pairs
MOST = 0.25  # share
LEAST = 30  # fewer show nothing


def plant(
    image_group: np.ndarray, text_group: np.ndarray, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Exchange captions among a random share of N pairs.

    - ``image_group``, ``text_group`` (N,) int64: equal numbers are the same image, the same text: an image gets neither
      its own caption, nor another of its own, nor an equal one
    - ``share`` float in [0, .25]: of the pairs; raised to 100 pairs where these are no more than a quarter, and at most
      2,000. 0: none

    Returns (N,) int64, (m,) int64: whose caption each pair has, a permutation; and the rows that have another's. None
    where there are fewer than 30 of these.
    """
    n = len(image_group)
    caption = np.arange(n)
    many = int(min(max(share * n, FEW), MOST * n, MANY)) if share else 0
    rows = rng.permutation(n)[:many]
    caption[rows] = np.roll(rows, 1)

    def same(at: np.ndarray) -> np.ndarray:
        return (image_group[caption[at]] == image_group[at]) | (text_group[caption[at]] == text_group[at])

    for _ in range(20):
        for i in rows[same(rows)]:
            j = rng.choice(rows)
            caption[i], caption[j] = caption[j], caption[i]
    alike = rows[same(rows)]
    if len(rows) - len(alike) < LEAST:
        return np.arange(n), np.zeros(0, np.int64)
    return caption, np.sort(np.setdiff1d(rows, alike))
