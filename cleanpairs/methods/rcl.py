"""RCL: robust cross-modal learning with complementary labels only (Hu et al., TPAMI 2023).

The loss pushes wrong answers down and never pulls the given one up (:mod:`cleanpairs.objectives.complementary`), so a
wrong pair cannot teach that it is right. The method has no labels of its own: the soft correspondence is the matching
probability of an evaluation pass, averaged over the epochs up to ``label_epochs``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from cleanpairs.core.parameters import choice, whole
from cleanpairs.correspondence.averaged import Averaged
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.methods.splitting import PAPERS
from cleanpairs.objectives.complementary import ComplementaryLoss
from cleanpairs.trainer import SingleNetwork, TrainingData


@dataclass(kw_only=True, eq=False, repr=False)
class RCL(PairCleaner):
    """Complementary contrastive learning.

    Parameters beside those of all methods, which :class:`cleanpairs.estimators.PairCleaner` lists:

    - ``kind`` {"log", "tan", "gce", "exp"}: form of the complementary loss
    - ``start``, ``label_epochs``: first and last epoch whose probabilities enter the soft correspondence
      (``label_epochs=None``: all to the end)
    """

    method_name: ClassVar[str] = "rcl"

    kind: str = choice("log", "tan", "gce", "exp")
    start: int = whole(3, 1)
    label_epochs: int | None = whole(6, 1, none=True)

    _paper: ClassVar[dict[str, Any]] = {**PAPERS, "epochs": 40, "lr_update": 30, "tau": 0.05}

    def _procedure(self, data: TrainingData) -> SingleNetwork:
        start = min(self.start, self.epochs, self.label_epochs or self.epochs)
        labels = Averaged(len(data), start=start, label_epochs=self.label_epochs)
        return SingleNetwork(ComplementaryLoss(tau=self.tau, kind=self.kind), labels, label_tau=self.label_tau)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.at_most(0.1)
