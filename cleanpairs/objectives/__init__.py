r"""Losses: pure tensors in, one value per pair out.

InfoNCE with reverse cross entropy: L2RM's warm-up (Han et al., CVPR 2024, Wang et al., ICCV 2019).

    CE(i)  = -(log P_ii + log Q_ii) / 2
    RCE(i) = -sum_j P_ij log Y_ij, the same for Q, halved.   Y one-hot, bounded to [1e-7, 1 - 1e-7]
    L(i)   = y_i (CE(i) + RCE(i))

The paper sums both directions of CE and RCE. Its public code takes their mean, as this does. CE alone is symmetric
InfoNCE (van den Oord et al. 2018), the loss of a plain dual encoder.

Triplet loss with a soft margin: VSE++ (Faghri et al., 2018), NCR (Huang et al., 2021).

    alpha_i = alpha (m^{y_i} - 1) / (m - 1)
    L(i)    = [alpha_i - S_ii + n_i]_+ + [alpha_i - S_ii + n'_i]_+

n_i is the highest similarity of image i with another text (``negatives="hard"``), n'_i of text i with another image.
The forms "mean" and "sum" take the hinge of every negative and their mean, or sum. Without any negative the loss is 0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.ops.matching import log_probabilities, no_negatives


@dataclass(frozen=True)
class InfoNCEWithRCE:
    """Cross entropy and reverse cross entropy of a batch. ``weight`` weighs the latter, ``tau`` is the temperature."""

    tau: float = 0.05
    weight: float = 1.0

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of similarities S (B, B), weighted by the labels (B,) in [0, 1]."""
        log = log_probabilities(S, self.tau, excluded)
        log_p, log_q = log.log_p.diagonal(), log.log_q.diagonal()
        p, bound = (log_p.exp() + log_q.exp()) / 2, 1e-7
        reverse = -math.log(bound) * (1 - p) - math.log1p(-bound) * p  # Y has bound at all entries but the pair's own
        return labels * (-(log_p + log_q) / 2 + self.weight * reverse)


@dataclass(frozen=True)
class InfoNCELoss(InfoNCEWithRCE):
    """Cross entropy alone."""

    weight: float = 0.0


@dataclass(frozen=True)
class TripletLoss:
    """Triplet loss of a batch: alpha, m, {"hard", "mean", "sum"}. ``tau`` is of the matching probability."""

    margin: float = 0.2
    curve: float = 10.0
    negatives: str = "hard"
    tau: float = 0.05

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of S (B, B), rows are images, and labels (B,) in [0, 1]: 1 is the whole margin."""
        alpha = self.margin * (self.curve ** labels.to(S.dtype) - 1) / (self.curve - 1)
        none = no_negatives(S, excluded)
        return self._one_way(S, alpha, none) + self._one_way(S.T, alpha, none.T)

    def _one_way(self, S: Tensor, margins: Tensor, excluded: Tensor) -> Tensor:
        hinge = (margins[:, None] - S.diagonal()[:, None] + S).relu().masked_fill(excluded, 0.0)  # (B, B)
        if self.negatives == "hard":
            return hinge.amax(dim=1) if len(hinge) else hinge.sum(dim=1)  # a maximum of nothing is no number
        total = hinge.sum(dim=1)
        if self.negatives == "sum":
            return total
        return total / (~excluded).sum(dim=1).to(total.dtype).clamp_min(1)


def pair_loss_mean(S: Tensor, excluded: Tensor | None = None, margin: float = 0.2) -> Tensor:
    """The loss that NCR splits, (B,): over the mean of the negatives (the public code divides by B, not by B - 1)."""
    labels = torch.ones(len(S), dtype=S.dtype, device=S.device)
    return TripletLoss(margin=margin, negatives="mean")(S, labels, excluded)


def prediction(S: Tensor, excluded: Tensor | None = None, margin: float = 0.2) -> Tensor:
    """How well each pair satisfies its margin, relative to the best tenth of its batch (NCR): (B,) in [0, 1].

    With l_i of :func:`pair_loss_mean`, r_i = [1 - l_i / (2 margin)]_+ over its mean in the best tenth.
    """
    with torch.no_grad():
        satisfied = (1 - pair_loss_mean(S, excluded, margin) / (2 * margin)).clamp_min(0)  # (B,)
        if not len(S):
            return satisfied
        best = satisfied.topk(max(1, len(S) // 10)).values.mean()
        return (satisfied / best.clamp_min(1e-3)).clamp(0, 1)  # less is rounding
