r"""Complementary contrastive loss of RCL (Hu et al., TPAMI 2023): wrong answers are pushed down, none is pulled up.

    kind = "log"   L(i) = -sum_{j != i} log(1 - P_ij)
    kind = "tan"   L(i) =  sum_{j != i} tan(P_ij)              CRCL's L_r at q = 0
    kind = "gce"   L(i) =  sum_{j != i} (1 - (1 - P_ij)^r) / r,  r = 0.5

each the mean of both directions (image to texts, text to images).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.errors import ConfigError
from cleanpairs.ops.matching import log_probabilities

__all__ = ["ComplementaryLoss"]

KINDS = ("log", "tan", "gce")


def _log_complement(log_p: Tensor) -> Tensor:
    """log(1 - p) of log p <= 0, finite at p = 1 in value and gradient."""
    return torch.log1p(-log_p.exp().clamp(max=1 - 1e-6))


@dataclass(frozen=True)
class ComplementaryLoss:
    """Complementary loss of a batch; ``kind`` as in the module's head, ``tau`` the temperature."""

    tau: float = 0.05
    kind: str = "log"
    power: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind of the complementary loss must be one of {', '.join(KINDS)}, found {self.kind!r}")

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B); the labels are not looked at: no answer is trusted."""
        log = log_probabilities(S, self.tau, excluded)
        return (self._one_way(log.log_p, 1) + self._one_way(log.log_q, 0)) / 2

    def _one_way(self, log_p: Tensor, dim: int) -> Tensor:
        if self.kind == "tan":
            tan = torch.tan(log_p.exp())
            total = tan.sum(dim)
            return total - tan.diagonal()
        each = _log_complement(log_p)
        each = -each if self.kind == "log" else (1 - (self.power * each).exp()) / self.power
        return each.sum(dim) - each.diagonal()
