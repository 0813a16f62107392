r"""Rematching loss of L2RM (Han et al., CVPR 2024), eq. 10, and the objective of its cost net, eq. 6.

    L = sum_ij (R_ij - P_ij) (log R_ij - log P_ij)  +  the same of the columns,  R the row-normalised plan

that is KL(R || P) + KL(P || R), and likewise for the column-normalised plan and Q.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["RematchingLoss"]

BOUND = 1e-10  # plan values are clipped at it before they are normalised


@dataclass(frozen=True)
class RematchingLoss:
    """Symmetric divergence of the matching probabilities from a transport plan.

    Parameters
    ----------
    tau : float
        Temperature of P and Q.
    by_mass : bool
        A row (column) weighs by the mass that the plan moved in it, relative to the mean, instead of all alike: a row
        that transported nothing has a near-uniform target otherwise.
    """

    tau: float = 0.05
    by_mass: bool = False

    def __call__(self, S: Tensor, plan: Tensor) -> Tensor:
        """Loss (n,) >= 0 of similarities S (n, n) and a plan (n, n) >= 0: of row i and column i together."""
        log_p = (S / self.tau).log_softmax(dim=1)
        log_q = (S / self.tau).log_softmax(dim=0)
        kept = plan.clamp_min(BOUND)
        target_p, target_q = kept / kept.sum(dim=1, keepdim=True), kept / kept.sum(dim=0, keepdim=True)
        rows = ((target_p - log_p.exp()) * (target_p.log() - log_p)).sum(dim=1)  # (n,)
        columns = ((target_q - log_q.exp()) * (target_q.log() - log_q)).sum(dim=0)
        if self.by_mass:
            mean = plan.sum().clamp_min(BOUND) / len(plan)
            rows, columns = rows * plan.sum(dim=1) / mean, columns * plan.sum(dim=0) / mean
        return rows + columns
