"""Labels that stay 1, and the mean of the figures of some epochs, for methods that have no estimator of their own.

A probability of late epochs has learnt wrong pairs by heart, one of the first knows nothing. A plain baseline has that
of the last epoch alone.
"""

from typing import ClassVar

import numpy as np

from cleanpairs.core.resumable import Resumable


class Averaged(Resumable):
    """Mean over the epochs ``start`` to ``label_epochs`` (from 1, both included; None: to the end) of N figures."""

    kept: ClassVar[tuple[str, ...]] = ("total", "counted")

    def __init__(self, n: int, *, start: int = 1, label_epochs: int | None = None) -> None:
        self.start, self.label_epochs = start, label_epochs
        self.total: np.ndarray = np.zeros(n, dtype=np.float64)
        self.counted = 0

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether the figures of this epoch enter."""
        return self.start <= epoch and (self.label_epochs is None or epoch <= self.label_epochs)

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch``; a stage begins anew."""
        if not self.wants(stage, epoch):
            return
        if epoch == self.start:
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
