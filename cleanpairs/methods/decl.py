"""DECL: deep evidential cross-modal learning (Qin et al., ACM MM 2022).

Retrieval within a batch is read as evidence (:mod:`cleanpairs.objectives.evidential`), whose strength says how sure it
is; behind the warm-up the clean posterior w of its uncertainty weighs the loss of every pair. Equations, and departures
from the paper: docs/methods/decl.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import number
from cleanpairs.methods.splitting import Splitting, SplittingCleaner, scaled
from cleanpairs.objectives.evidential import EvidentialLoss, evidence
from cleanpairs.trainer import EpochContext


def expected_probability(S: Tensor, tau: float, excluded: Tensor | None = None) -> Tensor:
    """Mean of both directions of alpha_ii / sum_j alpha_ij: (B,) in (0, 1]."""
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

        return scaled(self.figure(view, network, surprise))

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        each = self.warm_objective(f.similarity(), torch.ones(len(f.rows), device=view.device), f.excluded)
        w = f.of(self.w[0])
        return (w * each).sum() / w.sum().clamp_min(1e-6)


@dataclass(kw_only=True, eq=False, repr=False)
class DECL(SplittingCleaner):
    """One network, evidential loss, weights from its uncertainty.

    Parameters beside those of :class:`cleanpairs.methods.splitting.SplittingCleaner`:

    - ``evidence_tau``: temperature of the evidence
    - ``kl_weight``: weight of the divergence of wrong answers' evidence from none
    """

    method_name: ClassVar[str] = "decl"

    evidence_tau: float = number(0.1, above=0)
    kl_weight: float = number(0.001, least=0)

    _strategy = _Evidential
    _paper: ClassVar[dict[str, Any]] = SplittingCleaner._papers

    def _warm_objective(self) -> EvidentialLoss:
        return EvidentialLoss(tau=self.evidence_tau, kl_weight=self.kl_weight)
