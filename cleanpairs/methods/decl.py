"""DECL: deep evidential cross-modal learning (Qin et al., ACM MM 2022), after Sensoy et al., NeurIPS 2018.

Equations, and departures from the paper: docs/methods/others.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import number
from cleanpairs.methods.splitting import PAPERS, Splitting, WarmupCleaner, scaled
from cleanpairs.trainer import EpochContext


def evidence(S: Tensor, tau: float) -> Tensor:
    """Evidence exp(tanh(S) / tau) (DECL).

    Parameters
    ----------
    S : (B, B) Tensor
        Similarities, whose rows are images.
    tau : float
        Temperature.

    Returns
    -------
    (B, B) Tensor
        Above 0.
    """
    return torch.exp(torch.tanh(S) / tau)


@dataclass(frozen=True)
class EvidentialLoss:
    """Expected squared error under the Dirichlet, and the weighted divergence of wrong answers' evidence from none.

    Parameters
    ----------
    tau : float
        Temperature.
    kl_weight : float
        Weight of the divergence.

    Notes
    -----
    Sensoy et al., NeurIPS 2018.
    """

    tau: float = 0.1
    kl_weight: float = 0.001

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B), weighted by the labels (B,) in [0, 1]."""
        alpha = evidence(S, self.tau) + 1  # (B, B)
        there = torch.ones_like(S, dtype=torch.bool) if excluded is None else ~excluded
        return labels * (self._one_way(alpha, there) + self._one_way(alpha.T, there.T)) / 2

    def _one_way(self, alpha: Tensor, there: Tensor) -> Tensor:
        y = torch.eye(len(alpha), dtype=alpha.dtype, device=alpha.device)
        strength = (alpha * there).sum(dim=1, keepdim=True)  # (B, 1)
        m = alpha / strength
        error = (((y - m) ** 2 + m * (1 - m) / (strength + 1)) * there).sum(dim=1)
        # The right answer's evidence taken away. The divergence is a small difference of large log-gammas: float32
        # loses its gradient where the evidence is strong.
        wrong = (y + (1 - y) * alpha).double()
        count = there.sum(dim=1).double()
        total = (wrong * there).sum(dim=1)
        divergence = (
            torch.lgamma(total)
            - torch.lgamma(count)
            - (torch.lgamma(wrong) * there).sum(dim=1)
            + ((wrong - 1) * (torch.digamma(wrong) - torch.digamma(total)[:, None]) * there).sum(dim=1)
        )
        return error + self.kl_weight * divergence.to(error.dtype)


def expected_probability(S: Tensor, tau: float, excluded: Tensor | None = None) -> Tensor:
    """Return the mean of both directions of alpha_ii / sum_j alpha_ij.

    Parameters
    ----------
    S : (B, B) Tensor
        Similarities, whose rows are images.
    tau : float
        Temperature.
    excluded : (B, B) bool Tensor, optional
        What is no negative.

    Returns
    -------
    (B,) Tensor
        In (0, 1].
    """
    alpha = evidence(S, tau) + 1  # (B, B)
    if excluded is not None:
        alpha = alpha.masked_fill(excluded, 0.0)
    own = alpha.diagonal()
    return (own / alpha.sum(dim=1) + own / alpha.sum(dim=0)) / 2


class _Evidential(Splitting):
    networks = 1
    apart = False  # each pair weighs by its posterior

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        def surprise(S: Tensor, excluded: Tensor | None) -> Tensor:
            return 1 - expected_probability(S, self.method.evidence_tau, excluded)

        return scaled(view.figure(network, surprise))

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        each = self.warm_objective(f.similarity(), torch.ones(len(f.rows), device=view.device), f.excluded)
        w = f.of(self.w[0])
        return (w * each).sum() / w.sum().clamp_min(1e-6)


@dataclass(kw_only=True, eq=False, repr=False)
class DECL(WarmupCleaner):
    """One network, evidential loss, weights from its uncertainty.

    Parameters
    ----------
    evidence_tau : float
        Temperature of the evidence.
    kl_weight : float
        Weight of the divergence of wrong answers' evidence from none.

    Notes
    -----
    Qin et al., ACM MM 2022, after Sensoy et al., NeurIPS 2018. Equations and departures: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "decl"

    evidence_tau: float = number(0.1, least=0.0125)  # below, exp(1 / tau) and its sums leave float32
    kl_weight: float = number(0.001, least=0)

    _strategy = _Evidential
    _paper: ClassVar[dict[str, Any]] = {**PAPERS, "warmup": 5, "epochs": 45, "lr_update": 20}

    def _warm_objective(self) -> EvidentialLoss:
        return EvidentialLoss(tau=self.evidence_tau, kl_weight=self.kl_weight)
