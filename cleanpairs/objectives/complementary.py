r"""Complementary contrastive loss of RCL (Hu et al., TPAMI 2023): wrong answers are pushed down, none is pulled up.

    kind = "log"   L(i) = -sum_{j != i} log(1 - P_ij)
    kind = "tan"   L(i) =  sum_{j != i} tan(P_ij)
    kind = "gce"   L(i) =  sum_{j != i} (1 - (1 - P_ij)^r) / r,  r = 0.5
    kind = "exp"   L(i) =  sum_{j != i} exp(P_ij - 1)

each the mean of both directions (image to texts, text to images), where the authors sum them; twice "tan" is CRCL's L_r
at q = 0. "log" and "gce" stop pushing where P_ij is within 1e-6 of 1, at which the logarithm ends.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.ops.matching import log_probabilities


def _log_complement(log_p: Tensor) -> Tensor:
    """log(1 - p) of log p <= 0, finite at p = 1 in value and gradient."""
    return torch.log1p(-log_p.exp().clamp(max=1 - 1e-6))


@dataclass(frozen=True)
class ComplementaryLoss:
    """Complementary loss of a batch.

    - ``tau``: temperature
    - ``kind`` {"log", "tan", "gce", "exp"}: as in the module's head
    - ``power``: r of "gce", in (0, 1]
    """

    tau: float = 0.05
    kind: str = "log"
    power: float = 0.5

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B); the labels are not looked at: no answer is trusted."""
        log = log_probabilities(S, self.tau, excluded)
        wrong = ~torch.eye(len(S), dtype=torch.bool, device=S.device)
        if excluded is not None:
            wrong = wrong & ~excluded
        return (self._one_way(log.log_p, wrong).sum(dim=1) + self._one_way(log.log_q, wrong).sum(dim=0)) / 2

    def _one_way(self, log_p: Tensor, wrong: Tensor) -> Tensor:
        """Loss of each entry (B, B), 0 where it is no wrong answer."""
        if self.kind == "tan":
            each = torch.tan(log_p.exp())
        elif self.kind == "exp":
            each = torch.exp(log_p.exp() - 1)
        elif self.kind == "log":
            each = -_log_complement(log_p)
        else:
            each = (1 - (self.power * _log_complement(log_p)).exp()) / self.power
        return each.masked_fill(~wrong, 0.0)
