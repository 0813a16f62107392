r"""CRCL: cross-modal robust complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

The active complementary loss (:mod:`cleanpairs.objectives.acl`, eq. 8-9) trains on labels that momentum correction
(:mod:`cleanpairs.correspondence.momentum`, eq. 10-12) refines over several stages, each from fresh weights.

``CRCL.paper()`` has the paper's settings (supplement, table 5). Departures from the paper: docs/methods/crcl.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import check_whole, choice, number, whole
from cleanpairs.correspondence.averaged import Averaged
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.correspondence.momentum import MomentumCorrection
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.acl import ActiveComplementaryLoss
from cleanpairs.trainer import Correspondence, SingleNetwork, TrainingData, TrainingStage


@dataclass(kw_only=True, eq=False, repr=False)
class CRCL(PairCleaner):
    """Robust dual encoder of CRCL.

    Parameters beside those of all methods, which :class:`cleanpairs.estimators.PairCleaner` lists:

    - ``refine_epochs`` sequence of int: epochs of the stages before the last, which only refine the labels; may be
      empty
    - ``freeze``: epochs e_f at the start of a stage in which the labels stand still
    - ``label_epochs``: epochs of a stage whose probabilities enter the label; "auto": the longest refining stage; None:
      all
    - ``beta`` float in [0, 1]: momentum of the labels
    - ``epsilon`` float in [0, 1]: labels below it count as 0 in the loss; also the default threshold
    - ``lam``, ``active``: weights of the complementary loss L_r and of the active loss L_d
    - ``q`` float in [0, 1]: tolerance of L_r, the same for all pairs; 1 - yhat when None
    - ``correction``: self-refining correction. Without it all labels stay 1 in the loss, and the soft correspondence is
      the mean probability of the first ``label_epochs`` epochs of the last stage
    - ``label_pass`` {"eval", "batch"}: where the label's probability comes from
    """

    method_name: ClassVar[str] = "crcl"

    epochs: int = 8
    refine_epochs: Sequence[int] = (5, 5)
    freeze: int = whole(2, 1)
    label_epochs: int | str | None = "auto"
    beta: float = number(0.8, least=0, most=1)
    epsilon: float = number(0.1, least=0, most=1)
    lam: float = number(5.0, least=0)
    active: float = number(1.0, least=0)
    q: float | None = number(None, least=0, most=1, also=(None,))
    correction: bool = True
    label_pass: str = choice("eval", "batch")

    _paper: ClassVar[dict[str, Any]] = {  # supplement, table 5
        "dim": 1024, "epochs": 32, "refine_epochs": (7, 7, 7), "label_epochs": None, "tau": 0.05, "lr_update": 15,
        "batch_size": 128, "label_pass": "batch", "eval_group_size": 128, "exclude_duplicates": False,
        "near_duplicates": False, "standardise": False, "image_drop": 0.2,
        "weight_decay": 0.01,  # the public code leaves AdamW its default
    }  # fmt: skip

    def _validate(self) -> None:
        super()._validate()
        if isinstance(self.refine_epochs, str) or not isinstance(self.refine_epochs, Sequence):
            raise ConfigError(
                f"refine_epochs of crcl must be a sequence of whole numbers, found {self.refine_epochs!r}"
            )
        for epochs in self.refine_epochs:
            check_whole("crcl", f"every number of refine_epochs {self.refine_epochs!r}", epochs, 1)
        if self.label_epochs not in (None, "auto") and (
            not isinstance(self.label_epochs, int) or self.label_epochs < self.freeze
        ):
            raise ConfigError(
                f"label_epochs of crcl must be 'auto', None or a whole number >= freeze ({self.freeze}), "
                f"found {self.label_epochs!r}"
            )

    def _stages(self) -> list[TrainingStage]:
        return [*(TrainingStage(e) for e in self.refine_epochs), TrainingStage(self.epochs, self._lr_update())]

    def _procedure(self, data: TrainingData) -> SingleNetwork:
        label_epochs = self.label_epochs
        if label_epochs == "auto":
            label_epochs = max([*self.refine_epochs, self.freeze]) if self.refine_epochs else None
        assert label_epochs is None or isinstance(label_epochs, int)
        labels: Correspondence = Averaged(len(data), label_epochs=label_epochs)
        if self.correction:
            labels = MomentumCorrection(
                len(data), beta=self.beta, epsilon=self.epsilon, freeze=self.freeze, guard=self.label_pass == "eval",
                label_epochs=label_epochs,
            )  # fmt: skip
        loss = ActiveComplementaryLoss(tau=self.tau, lam=self.lam, active=self.active, q=self.q)
        return SingleNetwork(loss, labels, label_pass=self.label_pass, label_tau=self.label_tau)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.at_most(self.epsilon)
