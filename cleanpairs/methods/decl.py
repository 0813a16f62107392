r"""DECL: deep evidential cross-modal learning (Qin et al., ACM MM 2022).

Retrieval within a batch is read as evidence e_ij = exp(tanh(S_ij) / tau) for text j being image i's, and a Dirichlet
distribution with alpha = e + 1 (:mod:`cleanpairs.objectives.evidential`), whose strength says how sure it is.

Behind the warm-up, 1 - the expected probability alpha_ii / sum_j alpha_ij, which is high where the evidence is weak or
lies elsewhere, is split by a Gaussian mixture, and the clean posterior w weighs the evidential loss of every pair.

Departure: the paper's second loss, a hinge whose hardness grows over training, is left out: the split takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import check_number
from cleanpairs.methods.splitting import Splitting, SplittingCleaner, scaled
from cleanpairs.objectives.evidential import EvidentialLoss, evidence
from cleanpairs.trainer import EpochContext, TrainingData

__all__ = ["DECL", "expected_probability"]


def expected_probability(S: Tensor, tau: float, excluded: Tensor | None = None) -> Tensor:
    """Mean of both directions of alpha_ii / sum_j alpha_ij: (B,) in (0, 1]."""
    alpha = evidence(S, tau) + 1  # (B, B)
    if excluded is not None:
        alpha = alpha.masked_fill(excluded, 0.0)
    own = alpha.diagonal()
    return (own / alpha.sum(dim=1) + own / alpha.sum(dim=0)) / 2


class _Evidential(Splitting):
    def __init__(self, n: int, *, evidence_tau: float, **settings: Any) -> None:
        super().__init__(n, networks=1, **settings)
        self.evidence_tau = evidence_tau

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        def surprise(S: Tensor, excluded: Tensor | None) -> Tensor:
            return 1 - expected_probability(S, self.evidence_tau, excluded)

        return scaled(self.figure(view, network, surprise))

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        """All pairs once: each weighs by its posterior."""
        return [(rows,) for rows in view.batches()]

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        each = self.warm_objective(f.similarity(), torch.ones(len(f.rows), device=view.device), f.excluded)
        w = f.of(self.w[0])
        return (w * each).sum() / w.sum().clamp_min(1e-6)


@dataclass(kw_only=True, eq=False, repr=False)
class DECL(SplittingCleaner):
    """One network, evidential loss, weights from its uncertainty.

    Parameters beside those of :class:`cleanpairs.methods.splitting.SplittingCleaner`:

    Parameters
    ----------
    evidence_tau : float
        Temperature of the evidence.
    kl_weight : float
        Weight of the divergence of wrong answers' evidence from none.
    """

    method_name: ClassVar[str] = "decl"

    evidence_tau: float = 0.1
    kl_weight: float = 0.001

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings (Flickr30K), with ``changes``."""
        return cls(**{**cls._paper_settings(), "backbone": "sgr", "epochs": 40, "lr_update": 30, **changes})

    def _validate(self) -> None:
        super()._validate()
        check_number("decl", "evidence_tau", self.evidence_tau, above=0)
        check_number("decl", "kl_weight", self.kl_weight, least=0)

    def _procedure(self, data: TrainingData) -> _Evidential:
        loss = EvidentialLoss(tau=self.evidence_tau, kl_weight=self.kl_weight)
        settings = {**self._split_settings(), "warm_objective": loss}
        return _Evidential(len(data), evidence_tau=self.evidence_tau, **settings)
