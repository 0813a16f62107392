"""CREAM: consistency refining and mining (Ma et al., IEEE TIP 2024). See docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.methods.splitting import PAPERS, Splitting, WarmupCleaner, scaled
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.ops.matching import log_probabilities, no_negatives
from cleanpairs.trainer import EpochContext

CLEAN, HARD, NOISY = 0, 1, 2


def spread_cross_entropy(S: Tensor, y: Tensor, tau: float, phi: float = 0.0, excluded: Tensor | None = None) -> Tensor:
    """Cross entropy with soft labels, of which 1 - y is spread over the other pairs.

    Parameters
    ----------
    S : (B, B) Tensor
        Similarities, whose rows are images.

    y : (B,) Tensor in [0, 1]
        Labels.

    tau : float
        Temperature.

    phi : float
        Least weight of another pair. Infinity: none has any.

    excluded : (B, B) bool Tensor, optional
        True where a pair does not count.

    Returns
    -------
    (B,) Tensor
        Unreduced loss.
    """
    log = log_probabilities(S, tau, excluded)
    nothing = no_negatives(S, excluded)
    others = S.clamp_min(0).masked_fill(nothing, 0.0)
    loss = torch.zeros_like(y)
    for log_p, weight in ((log.log_p, others), (log.log_q.T, others.T)):
        spread = (1 - y)[:, None] * weight / (weight.sum(dim=1, keepdim=True) + 1e-6)  # (B, B)
        spread = spread.masked_fill(spread < phi, 0.0)
        loss = loss - y * log_p.diagonal() - (spread * log_p.masked_fill(nothing, 0.0)).sum(dim=1)
    return loss


class _Refining(Splitting):
    def kinds(self) -> np.ndarray:
        """Return which of CLEAN, HARD and NOISY each pair is, (N,)."""
        return np.asarray(self.networks - (self.w > self.clean_above).sum(axis=0))

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        """Return what is split, (N,): 1 minus the matching probability, or -log P - log Q."""
        if self.method.split_by == "probability":
            return super().losses(view, network)
        entropy = InfoNCELoss(tau=self.tau)
        return scaled(view.figure(network, lambda S, excluded: entropy(S, torch.ones_like(S[0]), excluded)))

    def judge(self, view: EpochContext) -> np.ndarray:
        p = np.stack([view.probability(k, self.tau) for k in range(2)])
        kind, v, mean = self.kinds(), self.w.mean(axis=0), p.mean(axis=0)
        for k in range(2):
            w = np.where(kind == CLEAN, self.w[1 - k], v)
            self.y[k] = np.where(kind == NOISY, mean, w + (1 - w) * p[k])
        return np.where(kind == NOISY, mean, v + (1 - v) * mean)

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        kind, behind = self.kinds(), view.epoch - self.warmup
        rows = [np.flatnonzero(kind == k) for k in (CLEAN, HARD, NOISY)]
        if not self.split_known or len(rows[CLEAN]) < 2:
            return view.all_batches(network)
        clean_batches = view.batches(rows[CLEAN], network, 1)
        others: list[list[np.ndarray]] = []
        if behind > self.method.hard_after and len(rows[HARD]) >= 2:
            others.append(view.batches(rows[HARD], network, 2)[: len(clean_batches)])
        if behind > self.method.noisy_after and len(rows[NOISY]) >= 2:
            noisy: list[np.ndarray] = []
            while len(noisy) < len(clean_batches):
                noisy += view.batches(rows[NOISY], network, 3 + len(noisy))
            others.append(noisy)
        return [(clean, *(other[k] for other in others if k < len(other))) for k, clean in enumerate(clean_batches)]

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        kind, y = self.kinds(), self.y[network]
        if not self.split_known or len(np.unique(kind[batch[0]])) > 1:
            return self.warm_loss(view, network, f)
        phi, tau, total = float(y.mean()), self.warm_objective.tau, torch.zeros((), device=view.device)
        trusting = (kind == CLEAN).mean() > 0.85
        for k, rows in enumerate(batch):
            least = phi
            if trusting and kind[rows[0]] != NOISY:
                least = 0.0
            elif kind[rows[0]] == CLEAN and view.epoch - self.warmup <= self.method.hard_after:
                least = float("inf")
            part = f.select(f.source == k)
            total = total + spread_cross_entropy(part.similarity(), part.of(y), tau, least, part.excluded).mean()
        return total


@dataclass(kw_only=True, eq=False, repr=False)
class CREAM(WarmupCleaner):
    """Clean, hard and noisy pairs by two networks. What a label leaves is spread over similar pairs.

    Parameters
    ----------
    warm_loss : {"rce", "infonce"}
        Loss of the warm-up: cross entropy, with its reverse or without.

    split_by : {"probability", "infonce"}
        What is split: 1 minus the matching probability, or -log P_ii - log Q_ii.

    clean_above : float in [0, 1]
        Pairs with a clean probability above it in both networks are clean.

    hard_after : int
        Hard pairs are trained on after so many epochs behind the warm-up.

    noisy_after : int
        Noisy pairs are trained on after so many epochs behind the warm-up.

    Notes
    -----
    Ma et al., IEEE TIP 2024. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "cream"

    warm_loss: str = choice("rce", "infonce")
    split_by: str = choice("probability", "infonce")
    clean_above: float = number(0.5, least=0, below=1)
    hard_after: int = whole(2, 0)
    noisy_after: int = whole(4, 0)
    label_epochs: int | None = 3

    _strategy = _Refining
    _paper: ClassVar[dict[str, Any]] = {
        **PAPERS, "warmup": 5, "epochs": 45, "lr_update": 10, "tau": 0.07, "warm_loss": "infonce",
        "split_by": "infonce", "hard_after": 10, "noisy_after": 15,
    }  # fmt: skip
