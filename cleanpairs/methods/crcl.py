"""CRCL: cross-modal robust complementary learning with self-refining correspondence (Qin et al., NeurIPS 2023).

Loss: eq. 8-9; momentum correction: eq. 10-12; ``CRCL.paper()``: supplement, table 5. See docs/methods/crcl.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import check_whole, choice, number, whole
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.estimators import PairCleaner
from cleanpairs.trainer import Averaged, SingleNetwork, TrainingData, TrainingStage

LIFTED = 0.25  # a probability that chance does not give in a group of 64 (0.016), nor of 16 (0.06)


@dataclass(frozen=True)
class ActiveComplementaryLoss:
    """``lam`` L_r + ``active`` L_d at the temperature ``tau``; ``q``: the same for all pairs, in place of 1 - yhat."""

    tau: float = 0.05
    lam: float = 5.0
    active: float = 1.0
    q: float | None = None

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) >= 0 of S (B, B), rows are images, and labels (B,) in [0, 1], constants."""
        y, logits = labels.detach().to(S.dtype), S / self.tau
        if excluded is not None:
            logits = logits.masked_fill(excluded, float("-inf"))
        return self._one_way(logits, y) + self._one_way(logits.T, y)

    def _one_way(self, logits: Tensor, y: Tensor) -> Tensor:
        log_p = logits.log_softmax(dim=1)
        tan = log_p.exp().tan()
        total = tan.sum(dim=1)
        complementary = (total - tan.diagonal()).clamp_min(0) * total.pow(y - 1 if self.q is None else -self.q)
        return self.lam * complementary - self.active * y * log_p.diagonal()


class MomentumCorrection(Averaged):
    """Labels of ``n`` pairs over the stages of a training; the parameters are :class:`CRCL`'s.

    The stored y stays raw, with the paper and unlike the public code. ``guard``: hold the first freeze while the
    probabilities do not separate, as every label would fall below epsilon at once.
    """

    kept = ("y", "started")

    def __init__(
        self, n: int, *, beta: float = 0.8, epsilon: float = 0.1, freeze: int = 2, guard: bool = True,
        label_epochs: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(n, start=freeze, label_epochs=label_epochs)
        self.beta, self.epsilon, self.guard = beta, epsilon, guard
        self.y: np.ndarray = np.ones(n, dtype=np.float32)
        self.started = False  # a probability has been taken over

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether p of this epoch (from 1) will be used by the next one: it need not be computed otherwise."""
        return super().wants(stage, epoch) or (not self.started and epoch >= self.start)

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch`` of ``stage`` (both from 1), as the next epoch's label."""
        if not self.wants(stage, epoch):
            return
        p = np.asarray(p, dtype=np.float32)
        if self.started:
            self.y = np.float32(self.beta) * self.y + np.float32(1 - self.beta) * p
        elif not self.guard or len(p) < 2 or np.quantile(p, 0.9) >= LIFTED:  # a tenth of the pairs has left the ground
            self.y, self.started = p.copy(), True

    def labels(self) -> np.ndarray:
        """Corrected labels yhat (N,) float32 in [0, 1] of eq. 12, for the loss."""
        return np.where(self.y < self.epsilon, np.float32(0), self.y)

    def value(self) -> np.ndarray:
        """Raw labels y (N,) float32 in [0, 1]."""
        return self.y


@dataclass(kw_only=True, eq=False, repr=False)
class CRCL(PairCleaner):
    """Robust dual encoder of CRCL; parameters beside those of :class:`cleanpairs.estimators.PairCleaner`:

    - ``refine_epochs`` sequence of int: epochs of the stages before the last, which only refine the labels
    - ``freeze``: epochs e_f at the start of a stage in which the labels stand still
    - ``label_epochs``: epochs of a stage that enter the label; "auto": the longest refining stage; None: all
    - ``beta`` float in [0, 1]: momentum of the labels
    - ``epsilon`` float in [0, 1]: labels below it count as 0 in the loss; also the default threshold
    - ``lam``, ``active``: weights of the complementary loss L_r and of the active loss L_d
    - ``q`` float in [0, 1]: tolerance of L_r, the same for all pairs; 1 - yhat when None
    - ``correction``: without it all labels stay 1, and the soft correspondence is the mean probability of the last
      stage's first ``label_epochs`` epochs
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
        "backbone": "vse_inf", "dim": 1024, "epochs": 32, "refine_epochs": (7, 7, 7), "label_epochs": None, "tau": 0.05,
        "lr_update": 15, "batch_size": 128, "label_pass": "batch", "eval_group_size": 128, "exclude_duplicates": False,
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
        labels = Averaged(len(data), label_epochs=label_epochs)
        if self.correction:
            labels = MomentumCorrection(
                len(data), beta=self.beta, epsilon=self.epsilon, freeze=self.freeze, guard=self.label_pass == "eval",
                label_epochs=label_epochs,
            )  # fmt: skip
        loss = ActiveComplementaryLoss(tau=self.tau, lam=self.lam, active=self.active, q=self.q)
        return SingleNetwork(loss, labels, label_pass=self.label_pass)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return density_minimum.at_most(self.epsilon)
