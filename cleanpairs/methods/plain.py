"""The plain dual encoders, without any resistance to wrong pairs: what users do today, and the baseline of all."""

from dataclasses import dataclass
from typing import ClassVar

from cleanpairs.core.parameters import number, whole
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives import InfoNCELoss, TripletLoss
from cleanpairs.trainer import SingleNetwork, TrainingData


@dataclass(kw_only=True, eq=False, repr=False)
class InfoNCE(PairCleaner):
    """Symmetric InfoNCE, every pair trusted (van den Oord et al. 2018, as in CLIP, Radford et al. 2021).

    Its correspondence is the matching probability of the last epoch, its threshold the density minimum, or 0, which
    flags nothing, where there is none.
    """

    method_name: ClassVar[str] = "infonce"

    def _make_strategy(self, data: TrainingData) -> SingleNetwork:
        return SingleNetwork(len(data), InfoNCELoss(tau=self.tau), start=self.epochs)  # the last epoch's

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.threshold if density_minimum.separated else 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class Triplet(InfoNCE):
    """Triplet loss over the hardest negatives of a batch (Faghri et al., VSE++, BMVC 2018), as :class:`InfoNCE`.

    Parameters
    ----------
    margin : float
        Margin of the loss.
    warmup : int
        Epochs with the mean of the negatives.
    """

    method_name: ClassVar[str] = "triplet"

    margin: float = number(0.2, above=0)
    warmup: int = whole(1, 0)

    def _make_strategy(self, data: TrainingData) -> SingleNetwork:
        hard, mean = (TripletLoss(margin=self.margin, negatives=form, tau=self.tau) for form in ("hard", "mean"))
        return SingleNetwork(len(data), hard, warm=(mean, self.warmup), start=self.epochs)
