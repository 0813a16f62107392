r"""CRCL: cross-modal robust complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

The active complementary loss (:mod:`cleanpairs.objectives.acl`, eq. 8-9) trains on labels that momentum correction
(:mod:`cleanpairs.correspondence.momentum`, eq. 10-12) refines over several pieces, each from fresh weights.

Where the defaults depart from the paper, measured in docs/log.md:

- p of eq. 10 comes from an evaluation pass at the end of the epoch and not from the training batches
  (``label_pass="batch"`` is the paper);
- only the first ``horizon`` epochs of a piece enter the label, since later ones have learnt wrong pairs by heart
  (``horizon=None`` with ``label_pass="batch"`` is the paper);
- pieces are shorter, batches smaller and the temperature is 0.07: the paper's are for 145,000 pairs of 36 regions;
- more regions are left out at random, which a grid of 9 from a frozen network needs;
- duplicates are no negatives; inputs are standardised.

``CRCL.paper()`` has the paper's settings (000, table 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cleanpairs.correspondence.momentum import MomentumCorrection
from cleanpairs.correspondence.valley import Valley
from cleanpairs.errors import ConfigError
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives.acl import ActiveComplementaryLoss
from cleanpairs.parameters import check_choice, check_number, check_whole
from cleanpairs.trainer import Piece, Plain, TrainingData

__all__ = ["CRCL"]


@dataclass(kw_only=True, eq=False, repr=False)
class CRCL(PairCleaner):
    """Robust dual encoder of CRCL.

    Parameters beside those of :class:`cleanpairs.estimators.SharedParameters`:

    Parameters
    ----------
    refine_epochs : sequence of int
        Epochs of the pieces before the last, which only refine the labels; may be empty.
    freeze : int
        Epochs e_f at the start of a piece in which the labels stand still.
    horizon : int or "auto" or None
        Epochs of a piece whose probabilities enter the label; "auto": the longest refining piece; None: all.
    beta : float in [0, 1]
        Momentum of the labels.
    epsilon : float in [0, 1]
        Labels below it count as 0 in the loss; also the default threshold.
    lam : float
        Weight of the complementary loss.
    label_pass : {"eval", "batch"}
        Where the label's probability comes from.
    """

    method_name: ClassVar[str] = "crcl"

    epochs: int = 8
    refine_epochs: Sequence[int] = (5, 5)
    freeze: int = 2
    horizon: int | str | None = "auto"
    beta: float = 0.8
    epsilon: float = 0.1
    lam: float = 5.0
    label_pass: str = "eval"

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's settings (Flickr30K; supplement, table 5), with ``changes``."""
        settings: dict[str, Any] = {
            "dim": 1024, "epochs": 32, "refine_epochs": (7, 7, 7), "horizon": None, "tau": 0.05, "lr_update": 15,
            "batch_size": 128, "label_pass": "batch", "label_group": 128, "exclude_duplicates": False,
            "near_duplicates": False,
            "standardise": False, "image_drop": 0.2, "weight_decay": 0.01,  # the public code leaves AdamW its default
        }  # fmt: skip
        return cls(**{**settings, **changes})

    def _validate(self) -> None:
        super()._validate()
        check_choice("crcl", "label_pass", self.label_pass, ("eval", "batch"))
        check_whole("crcl", "freeze", self.freeze, 1)
        check_number("crcl", "beta", self.beta, least=0, most=1)
        check_number("crcl", "epsilon", self.epsilon, least=0, most=1)
        check_number("crcl", "lam", self.lam, least=0)
        if isinstance(self.refine_epochs, str) or not isinstance(self.refine_epochs, Sequence):
            raise ConfigError(
                f"refine_epochs of crcl must be a sequence of whole numbers, found {self.refine_epochs!r}"
            )
        for epochs in self.refine_epochs:
            check_whole("crcl", f"every number of refine_epochs {self.refine_epochs!r}", epochs, 1)
        if self.horizon not in (None, "auto") and (not isinstance(self.horizon, int) or self.horizon < self.freeze):
            raise ConfigError(
                f"horizon of crcl must be 'auto', None or a whole number >= freeze ({self.freeze}), "
                f"found {self.horizon!r}"
            )

    def _pieces(self) -> list[Piece]:
        return [*(Piece(e) for e in self.refine_epochs), Piece(self.epochs, self._lr_update())]

    def _procedure(self, data: TrainingData) -> Plain:
        horizon = self.horizon
        if horizon == "auto":
            horizon = max([*self.refine_epochs, self.freeze]) if self.refine_epochs else None
        assert horizon is None or isinstance(horizon, int)
        labels = MomentumCorrection(
            len(data),
            beta=self.beta,
            epsilon=self.epsilon,
            freeze=self.freeze,
            guard=self.label_pass == "eval",
            horizon=horizon,
        )
        loss = ActiveComplementaryLoss(tau=self.tau, lam=self.lam)
        return Plain(loss, labels, label_pass=self.label_pass, label_tau=self.label_tau)

    def _default_threshold(self, valley: Valley) -> float:
        return valley.at_most(self.epsilon)
