"""What a method does within the training loop, and the plain one: one network, one objective, one label estimator."""

from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor, nn

from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer.context import EpochContext
from cleanpairs.trainer.types import TrainingStage


class Objective(Protocol):
    """A per-pair loss of a batch of B pairs."""

    @property
    def tau(self) -> float:
        """Temperature of the matching probability."""

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        """Unreduced loss (B,) of S (B, B), rows are images, and labels (B,) in [0, 1]."""


class TrainingStrategy:
    """A method in the loop. What must survive an interruption, within an epoch too, are the attributes ``kept``, arrays
    and plain numbers.

    An epoch is: ``start_epoch``. For each network in turn, ``loss`` of each of its batches. ``end_epoch``.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    networks: int = 1
    captions: np.ndarray | None = None  # (N,) int64: whose caption each pair is trained with in the next epoch
    mean_probability: float | None = None  # of the last epoch, for the log
    head_lr: float | None = None  # learning rate of the head. The model's when None
    note: str | None = None  # what a person should know of the last epoch, for the log
    dependence_is_known: bool = False  # whether images and captions are known to belong together, before the training
    meta_fingerprint: str = ""  # of the meta set, where the method has one
    needs_whole_graph: bool = False  # it takes gradients of gradients: a batch cannot be computed in pieces

    def head(self, model: Any) -> nn.Module | None:
        """Return what is learned in addition to a fresh ``model``. None by default."""
        return None

    def stages(self, given: list[TrainingStage]) -> list[TrainingStage]:
        """Return the stages of the settings, unless the pairs need others."""
        return given

    def start_epoch(self, view: EpochContext) -> None:
        """Look at all pairs before the epoch: split them, label them."""

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        """Return the epoch's batches of a network, each one or several groups of rows, by state and seeds only."""
        return view.all_batches(network)

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Scalar loss of a batch."""
        raise NotImplementedError

    def end_epoch(self, view: EpochContext) -> None:
        """Look at all pairs after the epoch."""

    def labels(self) -> np.ndarray:
        """Return labels (N,) float32 for the next epoch's loss: 0 for a pair taken as wrong."""
        raise NotImplementedError

    def value(self) -> np.ndarray:
        """Return the present soft correspondence (N,) float32 in [0, 1]."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what :meth:`load_state` resumes from."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`. Arrays are copied."""
        for name in self.kept:
            now = getattr(self, name)
            array = isinstance(now, np.ndarray)
            setattr(self, name, np.array(state[name], dtype=now.dtype) if array else type(now)(state[name]))


class Averaged(TrainingStrategy):
    """Labels that stay 1, and the mean of N figures over the epochs ``start`` to ``label_epochs`` (or the end)."""

    kept: ClassVar[tuple[str, ...]] = ("total", "counted")

    def __init__(self, n: int, *, start: int = 1, label_epochs: int | None = None) -> None:
        self.start, self.label_epochs = start, label_epochs
        self.total: np.ndarray = np.zeros(n, dtype=np.float64)
        self.counted = 0

    def wants(self, epoch: int) -> bool:
        """Whether the figures of this epoch (from 1) enter."""
        return self.start <= epoch and (self.label_epochs is None or epoch <= self.label_epochs)

    def update(self, epoch: int, p: np.ndarray) -> None:
        """Take over p (N,) of ``epoch``. A stage begins anew."""
        if not self.wants(epoch):
            return
        if epoch == self.start:
            self.total, self.counted = np.zeros(len(p), dtype=np.float64), 0
        self.total += p
        self.counted += 1

    def labels(self) -> np.ndarray:
        """Return ones (N,) float32."""
        return np.ones(len(self.total), dtype=np.float32)

    def value(self) -> np.ndarray:
        """Return the mean (N,) float32. 1 before any epoch."""
        if not self.counted:
            return np.ones(len(self.total), dtype=np.float32)
        return (self.total / self.counted).astype(np.float32)


class SingleNetwork(Averaged):
    """One network. The labels of N pairs weigh the objective. They follow the matching probability, if they change.

    ``label_pass`` {"eval", "batch"}: whether it comes from an evaluation pass in random groups, or from the training
    batches. ``warm``: another objective for so many first epochs of every stage. ``epochs``: of :class:`Averaged`.
    """

    kept: ClassVar[tuple[str, ...]] = (*Averaged.kept, "p_of_batches")

    def __init__(
        self, n: int, objective: Objective, *, label_pass: str = "eval", warm: tuple[Objective, int] | None = None,
        **epochs: Any,
    ) -> None:  # fmt: skip
        super().__init__(n, **epochs)
        self.objective, self.label_pass, self.warm = objective, label_pass, warm
        self.p_of_batches: np.ndarray = np.zeros(0, dtype=np.float32)  # in this epoch

    def start_epoch(self, view: EpochContext) -> None:
        """Forget the batches' probabilities."""
        self.p_of_batches = np.full(len(view.data), np.nan, dtype=np.float32)

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Mean of the objective over the batch."""
        f = view.forward(network, *batch, seed=seed)
        S = f.similarity()  # (B, B)
        if self.label_pass == "batch":
            p = matching_probability(S.detach(), self.objective.tau, f.excluded)
            self.p_of_batches[f.rows] = p.cpu().numpy()
        objective = self.objective
        if self.warm is not None and view.epoch <= self.warm[1]:
            objective = self.warm[0]
        return objective(S, f.of(self.labels()), f.excluded).mean()

    def end_epoch(self, view: EpochContext) -> None:
        """Take over the epoch's probabilities, if they are wanted."""
        if not self.wants(view.epoch):
            return
        if self.label_pass == "eval":
            p = view.probability(0, self.objective.tau, seed=view.seed())
        else:  # a batch that diverged says nothing about its pairs: they keep what they have
            p = np.where(np.isfinite(self.p_of_batches), self.p_of_batches, self.value())
        self.update(view.epoch, p)
        self.mean_probability = float(p.mean())
