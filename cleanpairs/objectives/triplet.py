r"""Triplet loss with a soft margin: VSE++ (Faghri et al., 2018), NCR (Huang et al., 2021).

    alpha_i = alpha (m^{y_i} - 1) / (m - 1)
    L(i)    = [alpha_i - S_ii + n_i]_+ + [alpha_i - S_ii + n'_i]_+

n_i is the highest similarity of image i with another text (``negatives="hard"``), n'_i of text i with another image.
The forms "mean" and "sum" take the hinge of every negative and their mean, or sum.

Entries marked as excluded (duplicates) are no negatives; a pair without any negative has a loss of 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.core.errors import ConfigError


def soft_margin(labels: Tensor, margin: float = 0.2, curve: float = 10.0) -> Tensor:
    """alpha (m^y - 1) / (m - 1): labels (B,) in [0, 1] to margins (B,) in [0, ``margin``]."""
    return margin * (curve**labels - 1) / (curve - 1)


@dataclass(frozen=True)
class TripletLoss:
    """Triplet loss of a batch.

    - ``margin``, ``curve``: alpha and m
    - ``negatives`` {"hard", "mean", "sum"}
    - ``tau``: not part of the loss: the temperature of the matching probability that goes with it
    """

    margin: float = 0.2
    curve: float = 10.0
    negatives: str = "hard"
    tau: float = 0.05

    def __post_init__(self) -> None:
        if self.negatives not in ("hard", "mean", "sum"):
            raise ConfigError(f"negatives of the triplet loss must be hard, mean or sum, found {self.negatives!r}")

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of S (B, B), rows are images, and labels (B,) in [0, 1], of which 1 gives the whole
        margin; ``excluded`` (B, B) bool: off-diagonal entries that are no negatives.
        """
        alpha = soft_margin(labels.to(S.dtype), self.margin, self.curve)
        none = torch.eye(len(S), dtype=torch.bool, device=S.device)
        if excluded is not None:
            none = none | excluded
        return self._one_way(S, alpha, none) + self._one_way(S.T, alpha, none.T)

    def _one_way(self, S: Tensor, margins: Tensor, excluded: Tensor) -> Tensor:
        """Hinges (B,) of the rows of S (B, B) above their diagonal less ``margins`` (B,)."""
        hinge = (margins[:, None] - S.diagonal()[:, None] + S).relu().masked_fill(excluded, 0.0)  # (B, B)
        if self.negatives == "hard":
            return hinge.amax(dim=1) if len(hinge) else hinge.sum(dim=1)  # a maximum of nothing is no number
        total = hinge.sum(dim=1)
        if self.negatives == "sum":
            return total
        return total / (~excluded).sum(dim=1).to(total.dtype).clamp_min(1)


def pair_loss_mean(S: Tensor, excluded: Tensor | None = None, margin: float = 0.2) -> Tensor:
    """The loss that NCR splits into clean and noisy, (B,): over the mean of the negatives, at the full margin.

    (The public code divides the hinges by B, the pair itself among them, and not by B - 1.)
    """
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
        return (satisfied / best.clamp_min(1e-12)).clamp(0, 1)
