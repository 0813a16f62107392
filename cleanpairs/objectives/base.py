"""What every objective is: similarities and labels in, one loss per pair out."""

from typing import Protocol

from torch import Tensor


class Objective(Protocol):
    """A per-pair loss of a batch of B pairs."""

    @property
    def tau(self) -> float:
        """Temperature of the matching probability."""

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) of S (B, B), rows are images, and labels (B,) in [0, 1]."""
