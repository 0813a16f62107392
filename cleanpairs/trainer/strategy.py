"""What a method does within the training loop, and the plain one: one network, one objective, one label estimator."""

from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from cleanpairs.core.resumable import Resumable
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer.context import EpochContext


class Objective(Protocol):
    """A per-pair loss of a batch of B pairs."""

    @property
    def tau(self) -> float:
        """Temperature of the matching probability."""

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) of S (B, B), rows are images, and labels (B,) in [0, 1]."""


class Correspondence(Protocol):
    """An estimator of N soft correspondences that lives through a training."""

    def wants(self, stage: int, epoch: int) -> bool:
        """Whether p of this epoch (both from 1) will be used."""

    def update(self, stage: int, epoch: int, p: np.ndarray) -> None:
        """Take over the matching probabilities (N,) of an epoch."""

    def labels(self) -> np.ndarray:
        """As :meth:`TrainingStrategy.labels`."""

    def value(self) -> np.ndarray:
        """As :meth:`TrainingStrategy.value`."""

    def state(self) -> dict[str, Any]:
        """As :class:`cleanpairs.core.resumable.Resumable`."""

    def load_state(self, state: dict[str, Any]) -> None:
        """The same."""


class TrainingStrategy(Resumable):
    """A method in the loop. What must survive an interruption, within an epoch too, is in :meth:`state`.

    An epoch is: ``start_epoch``; for each network in turn, ``loss`` of each of its batches; ``end_epoch``.
    """

    networks: int = 1
    captions: np.ndarray | None = None  # (N,) int64: whose caption each pair is trained with in the next epoch
    mean_probability: float | None = None  # of the last epoch, for the log
    note: str | None = None  # what a person should know of the last epoch, for the log
    needs_whole_graph: bool = False  # it takes gradients of gradients: a batch cannot be computed in pieces

    def head(self, model: Any) -> nn.Module | None:
        """What is learned beside a fresh ``model``; nothing by default."""
        return None

    def head_lr(self) -> float | None:
        """Learning rate of the head; the model's when None."""
        return None

    def start_epoch(self, view: EpochContext) -> None:
        """Look at all pairs before the epoch: split them, label them."""
        return

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        """The epoch's batches of a network, each one or several groups of rows; derived from state and seeds only.

        All pairs once by default.
        """
        return view.all_batches(network)

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Scalar loss of a batch."""
        raise NotImplementedError

    def end_epoch(self, view: EpochContext) -> None:
        """Look at all pairs after the epoch."""
        return

    def labels(self) -> np.ndarray:
        """(N,) float32, for the next epoch's loss: 0 is a pair that it takes as wrong."""
        raise NotImplementedError

    def value(self) -> np.ndarray:
        """(N,) float32 in [0, 1]: the soft correspondence as it stands."""
        raise NotImplementedError


class SingleNetwork(TrainingStrategy):
    """One network; the estimator's labels weigh the objective, the matching probability feeds the estimator.

    ``label_pass`` {"eval", "batch"}: whether the probability comes from an evaluation pass in random groups, or from
    the training batches; ``label_tau``: temperature of the probability; the objective's when None; ``warm`` (Objective,
    int): another objective for so many first epochs of every stage.
    """

    def __init__(
        self,
        objective: Objective,
        correspondence: Correspondence,
        *,
        label_pass: str = "eval",
        label_tau: float | None = None,
        warm: tuple[Objective, int] | None = None,
    ) -> None:
        self.warm = warm
        self.objective, self.correspondence = objective, correspondence
        self.label_pass, self.tau = label_pass, label_tau or objective.tau
        self.p: np.ndarray = np.zeros(0, dtype=np.float32)  # of the epoch's batches

    def start_epoch(self, view: EpochContext) -> None:
        """Forget the batches' probabilities."""
        self.p = np.full(len(view.data), np.nan, dtype=np.float32)
        self.mean_probability = None

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Mean of the objective over the batch."""
        f = view.forward(network, *batch, seed=seed)
        S = f.similarity()  # (B, B)
        if self.label_pass == "batch":
            self.p[f.rows] = matching_probability(S.detach(), self.tau, f.excluded).cpu().numpy()
        objective = self.objective
        if self.warm is not None and view.epoch <= self.warm[1]:
            objective = self.warm[0]
        return objective(S, f.of(self.correspondence.labels()), f.excluded).mean()

    def end_epoch(self, view: EpochContext) -> None:
        """Hand the epoch's probabilities to the estimator, if it wants them."""
        if not self.correspondence.wants(view.stage, view.epoch):
            return
        if self.label_pass == "eval":
            p = view.probability(0, self.tau, seed=view.seed())
        else:  # a batch that diverged says nothing about its pairs: they keep what they have
            p = np.where(np.isfinite(self.p), self.p, self.correspondence.value())
        self.correspondence.update(view.stage, view.epoch, p)
        self.mean_probability = float(p.mean())

    def labels(self) -> np.ndarray:
        """The estimator's labels."""
        return self.correspondence.labels()

    def value(self) -> np.ndarray:
        """The estimator's value."""
        return self.correspondence.value()

    def state(self) -> dict[str, Any]:
        """The estimator's state and the batches' probabilities so far."""
        return {"p_of_batches": self.p, **{f"labels.{k}": v for k, v in self.correspondence.state().items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.p = np.array(state["p_of_batches"], dtype=np.float32)
        prefix = "labels."
        self.correspondence.load_state({k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)})
