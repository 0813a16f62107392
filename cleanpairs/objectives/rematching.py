r"""Rematching loss of L2RM (Han et al., CVPR 2024), eq. 10, and the objective of its cost net, eq. 6.

    L(i) = sum_j (R_ij - P_ij) (log R_ij - log P_ij)  +  the same of column i,  R the row-normalised plan

that is KL(R || P) + KL(P || R), and likewise for the column-normalised plan and Q.
The paper halves each of the two: its loss is half of this one, on the same plan.
"""

from dataclasses import dataclass

from torch import Tensor

BOUND = 1e-10  # plan values are clipped at it before they are normalised


@dataclass(frozen=True)
class RematchingLoss:
    """Symmetric divergence of the matching probabilities from a transport plan.

    - ``tau``: temperature of P and Q
    - ``divergence`` {"symmetric", "kl", "infonce"}: the paper's ablations beside its own: KL(R || P) alone; or -log P
      of the entry that the plan gave most in a row (column), as if it were the pair
    """

    tau: float = 0.05
    divergence: str = "symmetric"

    def __call__(self, S: Tensor, plan: Tensor) -> Tensor:
        """Unreduced loss (n,) >= 0, of row i and column i together, by S (n, m), rows are images, and the constant plan
        (n, m).

        A rectangular batch has no column i: each row then bears the columns' mean, so that the mean of the result is
        that of the rows and that of the columns in any case.
        """
        log_p = (S / self.tau).log_softmax(dim=1)
        log_q = (S / self.tau).log_softmax(dim=0)
        kept = plan.clamp_min(BOUND)
        target_p, target_q = kept / kept.sum(dim=1, keepdim=True), kept / kept.sum(dim=0, keepdim=True)
        rows = self._apart(target_p, log_p, 1)  # (n,)
        columns = self._apart(target_q, log_q, 0)
        return rows + (columns if len(rows) == len(columns) else columns.mean())

    def _apart(self, target: Tensor, log_p: Tensor, dim: int) -> Tensor:
        """How far the distributions ``target`` and exp(``log_p``) along ``dim`` of (n, m) are apart."""
        if self.divergence == "infonce":
            return -log_p.gather(dim, target.argmax(dim=dim, keepdim=True)).squeeze(dim)
        weight = target if self.divergence == "kl" else target - log_p.exp()
        return (weight * (target.log() - log_p)).sum(dim=dim)
