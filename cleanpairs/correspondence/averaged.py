"""The mean of an epoch's figures over the first epochs of a training; the labels stay 1.

For methods that have no estimator of their own: a probability of late epochs has learnt wrong pairs by heart, one of
the first knows nothing. ``start`` and ``label_epochs`` are where the mean begins and ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Averaged"]


class Averaged:
    """Mean over the epochs ``start`` to ``label_epochs`` (from 1, both included) of N figures in [0, 1].

    Parameters
    ----------
    n : int
    start : int
        First epoch that counts.
    label_epochs : int, optional
        Last epoch that counts; all when None. At least ``start``.
    """

    def __init__(self, n: int, *, start: int = 1, label_epochs: int | None = None) -> None:
        self.start, self.label_epochs = start, label_epochs
        self.total: np.ndarray = np.zeros(n, dtype=np.float64)
        self.counted = 0

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether the figures of this epoch enter; those of the first epochs do when there is nothing else."""
        return self.label_epochs is None or epoch <= self.label_epochs

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch``; one before ``start`` stands only until that."""
        if not self.wants(stage, epoch):
            return
        if epoch <= self.start:
            self.total, self.counted = np.zeros(len(p), dtype=np.float64), 0
        self.total += p
        self.counted += 1

    def labels(self) -> np.ndarray:
        """(N,) float32 ones."""
        return np.ones(len(self.total), dtype=np.float32)

    def value(self) -> np.ndarray:
        """The mean (N,) float32; 1 before any epoch."""
        if not self.counted:
            return np.ones(len(self.total), dtype=np.float32)
        return (self.total / self.counted).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """What :meth:`load_state` goes on from."""
        return {"total": self.total, "counted": self.counted}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.total, self.counted = np.array(state["total"], dtype=np.float64), int(state["counted"])
