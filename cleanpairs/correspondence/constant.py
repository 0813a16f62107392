"""No correspondence estimate during training: every pair is trusted. What a plain baseline does."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Trusting"]


class Trusting:
    """Label 1 for all N pairs; the value is the matching probability after the last of ``epochs``."""

    needs_probability = True
    epsilon = 0.0

    def __init__(self, n: int, epochs: int | None = None) -> None:
        self.n, self.epochs = n, epochs
        self.p = np.ones(n, dtype=np.float32)

    def wants(self, stage: int, epoch: int) -> bool:
        """The probability after the last epoch is the value; the others are not needed (all are when not told)."""
        return self.epochs is None or epoch == self.epochs

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Record p (N,)."""
        self.p = np.asarray(p, dtype=np.float32).copy()

    def labels(self) -> np.ndarray:
        """(N,) float32 ones."""
        return np.ones(self.n, dtype=np.float32)

    def value(self) -> np.ndarray:
        """Last matching probability (N,) float32."""
        return self.p

    def state(self) -> dict[str, Any]:
        """See :class:`cleanpairs.correspondence.momentum.MomentumCorrection`."""
        return {"p": self.p}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.p = np.array(state["p"], dtype=np.float32)
