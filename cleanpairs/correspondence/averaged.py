"""Labels that stay 1, and what an epoch's figures come to: their mean over the first epochs of a training, or the last.

For methods that have no estimator of their own: a probability of late epochs has learnt wrong pairs by heart, one of
the first knows nothing. ``start`` and ``label_epochs`` are where the mean begins and ends.
"""

from __future__ import annotations

import numpy as np

from cleanpairs.core.resumable import Resumable


class Averaged(Resumable):
    """Mean over the epochs ``start`` to ``label_epochs`` (from 1, both included) of N figures in [0, 1].

    - ``start``: first epoch that counts
    - ``label_epochs``: last epoch that counts; all when None. At least ``start``
    """

    kept = ("total", "counted")

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


class Trusting(Resumable):
    """Label 1 for all N pairs, as a plain baseline has it; the value is the matching probability after the last of
    ``epochs``, the only one that is asked for (all are when not told).
    """

    kept = ("p",)

    def __init__(self, n: int, epochs: int | None = None) -> None:
        self.epochs = epochs
        self.p = np.ones(n, dtype=np.float32)

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether the value is of this epoch."""
        return self.epochs is None or epoch == self.epochs

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Record p (N,)."""
        self.p = np.array(p, dtype=np.float32)

    def labels(self) -> np.ndarray:
        """(N,) float32 ones."""
        return np.ones(len(self.p), dtype=np.float32)

    def value(self) -> np.ndarray:
        """Last matching probability (N,) float32."""
        return self.p
