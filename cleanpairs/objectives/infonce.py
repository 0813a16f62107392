r"""Symmetric InfoNCE (van den Oord et al. 2018), the loss of a plain dual encoder.

    L(i) = -yhat_i (log P_ii + log Q_ii) / 2

With every label 1 it is the usual contrastive loss, which trusts each pair.
"""

from dataclasses import dataclass

from torch import Tensor

from cleanpairs.ops.matching import log_probabilities


@dataclass(frozen=True)
class InfoNCELoss:
    """Cross entropy of both retrieval directions at temperature ``tau``."""

    tau: float = 0.05

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) of S (B, B), rows are images; ``labels`` (B,) weigh the pairs."""
        log = log_probabilities(S, self.tau, excluded)
        return -labels * (log.log_p.diagonal() + log.log_q.diagonal()) / 2
