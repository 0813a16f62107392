r"""InfoNCE with reverse cross entropy: L2RM's warm-up (Han et al., CVPR 2024; Wang et al., ICCV 2019).

    CE(i)  = -(log P_ii + log Q_ii) / 2
    RCE(i) = -sum_j P_ij log Y_ij, the same for Q, halved;   Y one-hot, bounded to [1e-7, 1 - 1e-7]
    L(i)   = y_i (CE(i) + RCE(i))

Since log Y is log(1e-7) off the diagonal and about 0 on it, RCE(i) is -log(1e-7) (1 - p_ii): a bounded loss, which a
wrong pair cannot make large. The paper sums both directions; its public code takes their mean, in CE and RCE alike, as
this does. CE alone is symmetric InfoNCE (van den Oord et al. 2018), the loss of a plain dual encoder.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from cleanpairs.ops.matching import log_probabilities

BOUND = 1e-7


def _reverse(p: Tensor) -> Tensor:
    """-sum_j P_ij log Y_ij of the probability ``p`` (B,) of the pair itself; the other entries of Y are all BOUND."""
    return -math.log(BOUND) * (1 - p) - math.log1p(-BOUND) * p


@dataclass(frozen=True)
class InfoNCEWithRCE:
    """Cross entropy and reverse cross entropy of a batch; ``weight`` weighs the latter, ``tau`` is the temperature."""

    tau: float = 0.05
    weight: float = 1.0

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B), weighted by the labels (B,) in [0, 1]."""
        log = log_probabilities(S, self.tau, excluded)
        log_p, log_q = log.log_p.diagonal(), log.log_q.diagonal()
        return labels * (-(log_p + log_q) / 2 + self.weight * _reverse((log_p.exp() + log_q.exp()) / 2))


@dataclass(frozen=True)
class InfoNCELoss(InfoNCEWithRCE):
    """Cross entropy alone."""

    weight: float = 0.0
