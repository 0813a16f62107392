"""The plain dual encoder of image-text matching: triplet loss with the hardest negatives (VSE++), no resistance."""

from dataclasses import dataclass
from typing import ClassVar

from cleanpairs.core.parameters import number, whole
from cleanpairs.correspondence.averaged import Averaged
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.triplet import TripletLoss
from cleanpairs.trainer import SingleNetwork, TrainingData


@dataclass(kw_only=True, eq=False, repr=False)
class Triplet(PairCleaner):
    """Triplet loss over the hardest negatives of a batch, over their mean in the first ``warmup`` epochs.

    Its correspondence is the matching probability of the last epoch, its threshold the density minimum between
    the two modes of these, or 0, which flags nothing, where there is none.

    Source: Faghri et al., VSE++, BMVC 2018. Parameters beside those of
    :class:`cleanpairs.estimators.PairCleaner`:

    - ``warmup``: epochs with the mean of the negatives
    """

    method_name: ClassVar[str] = "triplet"

    margin: float = number(0.2, above=0)
    warmup: int = whole(1, 0)

    def _procedure(self, data: TrainingData) -> SingleNetwork:
        return SingleNetwork(
            TripletLoss(margin=self.margin, negatives="hard", tau=self.tau),
            Averaged(len(data), start=self.epochs),  # the last epoch's
            label_tau=self.label_tau,
            warm=(TripletLoss(margin=self.margin, negatives="mean", tau=self.tau), self.warmup),
        )

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.threshold if density_minimum.separated else 0.0
