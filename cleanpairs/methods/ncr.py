r"""NCR: noisy correspondence rectifier (Huang et al., NeurIPS 2021).

Two networks split the corpus for each other by a Gaussian mixture of the losses (see
:mod:`cleanpairs.methods.splitting`). The label of a pair, with w the clean probability and r the networks' prediction:

    clean (w > 0.5)   y = w + (1 - w) r
    noisy             y = mean of both networks' r

and all pairs are trained on with the soft margin alpha (m^y - 1) / (m - 1) of the hardest negatives.

r is how well the pair satisfies its margin, relative to the best tenth of its batch
(:func:`cleanpairs.objectives.triplet.prediction`).

Departures: r comes from an evaluation pass in random groups, once an epoch, and not from the training batch; the public
code's label broadcasts to (B, B) by a slip of shapes, which is not repeated; an implausible split is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.objectives.triplet import TripletLoss, prediction
from cleanpairs.trainer import Forward, TrainingData, View

__all__ = ["NCR"]


class _Rectifying(Splitting):
    def __init__(self, n: int, curve: float, **settings: Any) -> None:
        super().__init__(n, **settings)
        self.triplet = TripletLoss(margin=self.margin, curve=curve, negatives="hard")

    def judge(self, view: View) -> np.ndarray:
        r = np.stack([self.figure(view, k, lambda S, excluded: prediction(S, excluded)) for k in range(2)])
        r = np.clip(r, 0, 1)
        for k in range(2):  # labels for network k, by the other's split
            w = self.w[1 - k]
            self.y[k] = np.where(w > self.clean_above, w + (1 - w) * r[k], r.mean(axis=0))
        return np.asarray(self.y.mean(axis=0))

    def split_loss(self, view: View, network: int, clean: Forward, noisy: Forward | None) -> Tensor:
        y = self.y[network]
        loss = self.triplet(clean.similarity(), clean.of(y), clean.excluded).mean()
        if noisy is not None:
            loss = loss + self.triplet(noisy.similarity(), noisy.of(y), noisy.excluded).mean()
        return loss


@dataclass(kw_only=True, eq=False, repr=False)
class NCR(SplittingCleaner):
    """Two networks, Gaussian co-dividing, soft margins from rectified labels.

    Parameters as in :class:`cleanpairs.methods.splitting.SplittingCleaner` and
    :class:`cleanpairs.estimators.SharedParameters`.
    """

    method_name: ClassVar[str] = "ncr"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings (Flickr30K), with ``changes``."""
        return cls(**{**cls._paper_settings(), "backbone": "sgr", "epochs": 40, "lr_update": 30, **changes})

    def _procedure(self, data: TrainingData) -> _Rectifying:
        warm = TripletLoss(margin=self.margin, negatives="mean")
        return _Rectifying(len(data), self.curve, warm_objective=warm, **self._split_settings())
