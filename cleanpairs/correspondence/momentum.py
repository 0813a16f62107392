r"""Momentum correction of the soft correspondence: CRCL (Qin et al., NeurIPS 2023), eq. 10 to 12.

In stage j, epoch t (both from 1), with p the matching probability of epoch t - 1 and e_f frozen epochs:

    t <= e_f                  y keeps the last value of the previous stage (1 in the first stage)
    j = 1 and t = e_f + 1     y = p
    otherwise                 y = beta y + (1 - beta) p
    yhat                      0 where y < epsilon, else y

The stored y stays raw, with the paper and unlike the public code, so that a pair below epsilon returns as soon as its
probability does. Departures: ``guard``: a model that knows nothing gives every pair p near 1 / K, and every label would
fall below epsilon at once; such a p is not taken over. ``label_epochs``: docs/methods/crcl.md.
"""

import numpy as np

from cleanpairs.core.resumable import Resumable

LIFTED = 0.25  # a probability that chance does not give in a group of 64 (0.016), nor of 16 (0.06)


class MomentumCorrection(Resumable):
    """Labels of N pairs over the stages of a training.

    - ``n``: number of pairs
    - ``beta`` float in [0, 1]: momentum
    - ``epsilon`` float in [0, 1]: labels below it are used as 0
    - ``freeze`` int >= 1: frozen epochs e_f at the start of every stage. At least one: before the first epoch there is
      no p
    - ``guard``: hold the first freeze while the probabilities do not separate
    - ``label_epochs`` int >= freeze: epochs of each stage whose probabilities enter the label; all when None
    """

    kept = ("y", "started", "held_epochs")

    def __init__(
        self,
        n: int,
        *,
        beta: float = 0.8,
        epsilon: float = 0.1,
        freeze: int = 2,
        guard: bool = True,
        label_epochs: int | None = None,
    ) -> None:
        self.beta, self.epsilon, self.freeze, self.guard, self.label_epochs = beta, epsilon, freeze, guard, label_epochs
        self.y: np.ndarray = np.ones(n, dtype=np.float32)
        self.started = False  # a probability has been taken over
        self.held_epochs = 0

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether p of this epoch (from 1) will be used by the next one: it need not be computed otherwise."""
        if self.label_epochs is not None and epoch > self.label_epochs and self.started:
            return False
        return epoch >= self.freeze

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch`` of ``stage`` (both from 1), as the next epoch's label."""
        if not self.wants(stage, epoch):
            return
        p = np.asarray(p, dtype=np.float32)
        if not self.started:
            if self.guard and not self.separates(p):
                self.held_epochs += 1
                return
            self.y = p.copy()
            self.started = True
        else:
            self.y = np.float32(self.beta) * self.y + np.float32(1 - self.beta) * p

    def separates(self, p: np.ndarray) -> bool:
        """Whether a tenth of the pairs has left the ground: a model that knows nothing gives each about 1 / K."""
        return len(p) < 2 or float(np.quantile(p, 0.9)) >= LIFTED

    def labels(self) -> np.ndarray:
        """Corrected labels yhat (N,) float32 in [0, 1] of eq. 12, for the loss."""
        return np.where(self.y < self.epsilon, np.float32(0), self.y)

    def value(self) -> np.ndarray:
        """Raw labels y (N,) float32 in [0, 1]."""
        return self.y
