r"""Evidential loss of DECL (Qin et al., ACM MM 2022; Sensoy et al., NeurIPS 2018).

    e_ij  = exp(tanh(S_ij) / tau)        evidence that text j is image i's
    a_ij  = e_ij + 1,  A_i = sum_j a_ij  Dirichlet distribution over the batch's texts
    m_ij  = a_ij / A_i                   expected probability
    L(i)  = sum_j (y_ij - m_ij)^2 + m_ij (1 - m_ij) / (A_i + 1)  +  w KL(Dir(a~_i) || Dir(1))

y is one-hot, a~_i = y + (1 - y) a_i: the evidence of wrong answers should vanish. Both directions, averaged.

The divergence is the small difference of large log-gammas: it is taken in float64, since float32 loses its gradient
where the evidence is strong (a sixth of it at tau = 0.03 and B = 128).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.core.errors import ConfigError

SMALLEST_TAU = 0.0125


def evidence(S: Tensor, tau: float) -> Tensor:
    """e_ij (B, B) > 0, of the same shape as S."""
    return torch.exp(torch.tanh(S) / tau)


@dataclass(frozen=True)
class EvidentialLoss:
    """Expected squared error under the Dirichlet, and ``kl_weight`` times the divergence of wrong answers' evidence
    from none. ``tau``: at least 0.0125 (ConfigError): below, exp(1 / tau) and its sums leave float32.
    """

    tau: float = 0.1
    kl_weight: float = 0.001

    def __post_init__(self) -> None:
        if not self.tau >= SMALLEST_TAU:
            raise ConfigError(f"tau of the evidential loss must be at least {SMALLEST_TAU}, found {self.tau!r}")

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B), weighted by the labels (B,) in [0, 1]."""
        alpha = evidence(S, self.tau) + 1  # (B, B)
        there = torch.ones_like(S, dtype=torch.bool) if excluded is None else ~excluded
        return labels * (self._one_way(alpha, there) + self._one_way(alpha.T, there.T)) / 2

    def _one_way(self, alpha: Tensor, there: Tensor) -> Tensor:
        """Rows of ``alpha`` (B, B), of which only the entries in ``there`` are answers."""
        y = torch.eye(len(alpha), dtype=alpha.dtype, device=alpha.device)
        strength = (alpha * there).sum(dim=1, keepdim=True)  # (B, 1)
        m = alpha / strength
        error = (((y - m) ** 2 + m * (1 - m) / (strength + 1)) * there).sum(dim=1)
        wrong = (y + (1 - y) * alpha).double()  # the right answer's evidence taken away; see the module's head
        count = there.sum(dim=1).double()
        total = (wrong * there).sum(dim=1)
        divergence = (
            torch.lgamma(total)
            - torch.lgamma(count)
            - (torch.lgamma(wrong) * there).sum(dim=1)
            + ((wrong - 1) * (torch.digamma(wrong) - torch.digamma(total)[:, None]) * there).sum(dim=1)
        )
        return error + self.kl_weight * divergence.to(error.dtype)
