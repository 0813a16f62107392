"""RCL: robust cross-modal learning with complementary labels (Hu et al., TPAMI 2023): docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cleanpairs.core.parameters import choice, whole
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.methods.splitting import PAPERS
from cleanpairs.ops.matching import log_probabilities, no_negatives
from cleanpairs.trainer import SingleNetwork, TrainingData


@dataclass(frozen=True)
class ComplementaryLoss:
    """Complementary contrastive loss, the mean of both directions (RCL).

    Parameters
    ----------
    tau : float
        Temperature.
    kind : {"log", "tan", "gce", "exp"}
        Its form. "exp" sums exp(P_ij - 1).
    """

    tau: float = 0.05
    kind: str = "log"

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B). The labels are not looked at: no answer is trusted."""
        log = log_probabilities(S, self.tau, excluded)
        none = no_negatives(S, excluded)
        p, q = (self._each(log_p).masked_fill(none, 0.0) for log_p in (log.log_p, log.log_q))
        return (p.sum(dim=1) + q.sum(dim=0)) / 2

    def _each(self, log_p: Tensor) -> Tensor:
        if self.kind == "tan":
            return torch.tan(log_p.exp())
        if self.kind == "exp":
            return torch.exp(log_p.exp() - 1)
        complement = torch.log1p(-log_p.exp().clamp(max=1 - 1e-6))  # finite at P = 1 in value and gradient
        power = 0.5  # r of "gce"
        return -complement if self.kind == "log" else (1 - (power * complement).exp()) / power


@dataclass(kw_only=True, eq=False, repr=False)
class RCL(PairCleaner):
    """Complementary contrastive learning.

    Parameters
    ----------
    kind : {"log", "tan", "gce", "exp"}
        Form of the complementary loss.

    start : int
        First epoch that enters the correspondence.

    label_epochs : int, optional
        Last epoch that enters the correspondence. None: the last of all.

    Notes
    -----
    Hu et al., TPAMI 2023. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "rcl"

    kind: str = choice("log", "tan", "gce", "exp")
    start: int = whole(3, 1)
    label_epochs: int | None = whole(6, 1, none=True)

    _paper: ClassVar[dict[str, Any]] = {**PAPERS, "epochs": 30, "lr_update": 15, "tau": 0.05}

    def _make_strategy(self, data: TrainingData) -> SingleNetwork:
        start = min(self.start, self.epochs, self.label_epochs or self.epochs)
        loss = ComplementaryLoss(tau=self.tau, kind=self.kind)
        return SingleNetwork(len(data), loss, start=start, label_epochs=self.label_epochs)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.at_most(0.1)
