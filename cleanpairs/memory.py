"""A first-in-first-out memory of feature pairs: a ring buffer that can be saved and gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FeatureMemory", "Remembered"]


@dataclass(frozen=True)
class Remembered:
    """m entries, in no particular order: ``images``, ``texts`` (m, E) float32, ``rows`` (m,) int64 the pairs."""

    images: np.ndarray
    texts: np.ndarray
    rows: np.ndarray


class FeatureMemory:
    """At most ``size`` feature pairs; the oldest make room.

    Parameters
    ----------
    size : int
        Feature pairs.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.images: np.ndarray = np.zeros((0, 0), dtype=np.float32)
        self.texts: np.ndarray = np.zeros((0, 0), dtype=np.float32)
        self.rows: np.ndarray = np.full(size, -1, dtype=np.int64)
        self.next = 0
        self.filled = 0

    def __len__(self) -> int:
        return self.filled

    def push(self, images: np.ndarray, texts: np.ndarray, rows: np.ndarray) -> None:
        """Remember n feature pairs (n, E) of the pairs ``rows`` (n,); of more than ``size`` the last ones."""
        images, texts, rows = images[-self.size :], texts[-self.size :], rows[-self.size :]
        if not len(rows):
            return
        if not self.images.size:
            self.images = np.zeros((self.size, images.shape[1]), dtype=np.float32)
            self.texts = np.zeros((self.size, texts.shape[1]), dtype=np.float32)
        at = (self.next + np.arange(len(rows))) % self.size
        self.images[at], self.texts[at], self.rows[at] = images, texts, rows
        self.next = int((self.next + len(rows)) % self.size)
        self.filled = min(self.size, self.filled + len(rows))

    def arrays(self) -> Remembered:
        """What is remembered, as views."""
        return Remembered(self.images[: self.filled], self.texts[: self.filled], self.rows[: self.filled])

    def position_of(self, rows: np.ndarray) -> np.ndarray:
        """Where each of ``rows`` (n,) stands in :meth:`arrays`, -1 where it does not: (n,) int64."""
        known = self.rows[: self.filled]
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known[order], rows), max(len(known) - 1, 0))
        if not len(known):
            return np.full(len(rows), -1, dtype=np.int64)
        return np.where(known[order][at] == rows, order[at], -1)

    def state(self) -> dict[str, Any]:
        """What :meth:`load_state` goes on from."""
        return {
            "images": self.images, "texts": self.texts, "rows": self.rows, "next": self.next, "filled": self.filled,
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.images, self.texts = np.array(state["images"]), np.array(state["texts"])
        self.rows = np.array(state["rows"], dtype=np.int64)
        self.next, self.filled = int(state["next"]), int(state["filled"])
