"""The plain dual encoder: symmetric InfoNCE, every pair trusted. What users do today, and the baseline of all."""

from dataclasses import dataclass
from typing import ClassVar

from cleanpairs.correspondence.averaged import Averaged
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.rce import InfoNCELoss
from cleanpairs.trainer import SingleNetwork, TrainingData


@dataclass(kw_only=True, eq=False, repr=False)
class InfoNCE(PairCleaner):
    """Contrastive training without any resistance to wrong pairs.

    Its correspondence is the matching probability of the last epoch, its threshold the density minimum between
    the two modes of these, or 0, which flags nothing, where there is none. Parameters as in
    :class:`cleanpairs.estimators.PairCleaner`.

    Source: van den Oord et al. 2018, as in CLIP (Radford et al. 2021).
    """

    method_name: ClassVar[str] = "infonce"

    def _procedure(self, data: TrainingData) -> SingleNetwork:
        labels = Averaged(len(data), start=self.epochs)  # the last epoch's
        return SingleNetwork(InfoNCELoss(tau=self.tau), labels, label_tau=self.label_tau)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.threshold if density_minimum.separated else 0.0
