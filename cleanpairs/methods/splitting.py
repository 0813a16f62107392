"""What the methods that split the corpus by its losses have in common, for one network or two that teach each other.

Each epoch behind the warm-up splits a loss of every pair in two by a mixture. W is the posterior of the lower mode, the
probability of being clean. The papers' choices, ours and why: docs/methods/index.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.core.plain import part_of
from cleanpairs.correspondence.mixture import GuardedSplit, guarded_split
from cleanpairs.estimators import PairCleaner
from cleanpairs.objectives import InfoNCELoss, InfoNCEWithRCE, TripletLoss, pair_loss_mean
from cleanpairs.trainer import Averaged, BatchOutput, EpochContext, TrainingData, TrainingStage
from cleanpairs.trainer.strategy import Objective

UNSPLIT = 0.45  # losses that do not split give clean probabilities from 1 down to 1 - UNSPLIT: all are clean

# What the presets of the papers on SGRAF's backbones share.
PAPERS: dict[str, Any] = {
    "backbone": "sgr", "dim": 1024, "dim_sim": 256, "lr": 2e-4, "weight_decay": 0.0, "batch_size": 128,
    "eval_group_size": 128, "exclude_duplicates": False, "near_duplicates": False, "standardise": False,
    "image_drop": 0.0, "text_drop": 0.0, "label_epochs": None,
}  # fmt: skip


class FeatureMemory:
    """Vectors of pairs. The oldest make room for new ones. Of a pair that comes again only the newest vectors count.

    Parameters
    ----------
    size : int
        Pairs at most.
    device : str
        Where the vectors lie.
    """

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, device
        self.images = self.texts = torch.zeros(0, 0)  # (size, E) float32, from the first push on
        self.rows: np.ndarray = np.full(size, -1, dtype=np.int64)  # which pairs. -1: none, or one that came again
        self.pushed = 0  # rows, also those that have made room

    def __len__(self) -> int:
        return int((self.rows >= 0).sum())

    def push(self, images: Tensor, texts: Tensor, rows: np.ndarray) -> None:
        """Remember pairs. Of more than ``size`` the last ones stay.

        Parameters
        ----------
        images, texts : (n, E) Tensor
            Vectors.
        rows : (n,) int64
            Which pairs.
        """
        images, texts, rows = images[-self.size :], texts[-self.size :], rows[-self.size :]
        if not len(self.images):
            self.images, self.texts = (torch.zeros(self.size, z.shape[1], device=self.device) for z in (images, texts))
        self.rows[np.isin(self.rows, rows)] = -1
        at = (self.pushed + np.arange(len(rows))) % self.size
        place = torch.from_numpy(at).to(self.device)
        for stored, new in ((self.images, images), (self.texts, texts)):
            stored[place] = new.detach().to(self.device, torch.float32)
        self.rows[at] = rows
        self.pushed += len(rows)

    def near(self, z: Tensor, same: Tensor, k: int) -> Tensor:
        """Find the pairs that are nearest in one modality.

        Parameters
        ----------
        z : (n, E) Tensor
            Unit vectors.
        same : (size, E) Tensor
            The memory's ``images`` or ``texts``, of the same modality.
        k : int
            How many. All, if these are fewer.

        Returns
        -------
        (n, k) Tensor
            Rows of the memory.
        """
        old = torch.from_numpy(self.rows[: self.pushed] < 0).to(z.device)
        S = z @ same[: self.pushed].T  # rows behind these are empty
        return S.masked_fill(old, -torch.inf).topk(min(k, len(self)), dim=1).indices

    def state(self) -> dict[str, Any]:
        """Return what :meth:`load_state` resumes from."""
        vectors = {"images": self.images.cpu().numpy(), "texts": self.texts.cpu().numpy()}
        return {**vectors, "rows": self.rows, "pushed": self.pushed}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Parameters
        ----------
        state : dict
            What :meth:`state` gave.
        """
        self.images, self.texts = (
            torch.from_numpy(np.array(state[name], dtype=np.float32)).to(self.device) for name in ("images", "texts")
        )
        self.rows = np.array(state["rows"], dtype=np.int64)
        self.pushed = int(state["pushed"])


class Splitting(Averaged):
    """Strategy of a method that splits pairs. It overrides :meth:`judge` and :meth:`split_loss`.

    Its value is the mean of the labels over splits, of which the first ends the warm-up.

    Parameters
    ----------
    n : int
        Number of pairs.
    method : WarmupCleaner
        The method whose settings it takes.

    Notes
    -----
    A class has ``networks`` {1, 2} and a ``mixture`` {"gaussian", "beta"}. It says by ``apart`` whether clean and noisy
    pairs have batches of their own, and by ``half`` whether a step holds half a batch of each.
    """

    networks: int = 2
    mixture: ClassVar[str] = "gaussian"
    apart: ClassVar[bool] = True
    half: ClassVar[bool] = False
    kept: ClassVar[tuple[str, ...]] = ("w", "y", "split_known", "has_split", *Averaged.kept)

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, label_epochs=method.label_epochs)
        self.n, self.method = n, method
        self.warmup, self.clean_above = method.warmup, method.clean_above
        self.tau, self.margin = method.tau, method.margin
        self.warm_objective: Objective = method._warm_objective()
        self.triplet = TripletLoss(margin=self.margin, curve=method.curve, negatives="hard")
        by_triplet = method.clean_loss == "triplet"
        self.pair_objective: Objective = self.triplet if by_triplet else InfoNCEWithRCE(tau=self.tau)
        self.w = np.ones((self.networks, n), dtype=np.float32)  # probability of being clean, as each network sees it
        self.y = np.ones((self.networks, n), dtype=np.float32)  # labels for each network's training
        self.split_known = False  # a look at the losses has been taken
        self.has_split = np.zeros(self.networks, dtype=bool)  # and they did split
        self.memories: list[FeatureMemory] = []  # of the methods that have one a network

    def head(self, model: Any) -> nn.Module | None:
        """Return what is learned in addition to a model, and kept with it.

        Parameters
        ----------
        model : DualEncoder
            Which one.

        Returns
        -------
        Module or None
            That of the method, unless a strategy has another one.
        """
        return self.method._head(model)

    def judge(self, view: EpochContext) -> np.ndarray:
        """Set the labels ``y`` by the clean probabilities ``w``.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.

        Returns
        -------
        (N,) float
            The correspondence as this epoch sees it.
        """
        self.y[:] = self.w[::-1]
        return np.asarray(self.w.mean(axis=0))

    def warm_loss(self, view: EpochContext, network: int, f: BatchOutput) -> Tensor:
        """Loss of a batch in the warm-up.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        network : int
            Which network.
        f : BatchOutput
            The batch as the network sees it.

        Returns
        -------
        Tensor
            A scalar.
        """
        return self.reduced(self.warm_objective(f.similarity(), f.of(np.ones(self.n, np.float32)), f.excluded))

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        """Loss of a batch of clean and a batch of noisy pairs, by their labels.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        network : int
            Which network.
        clean : BatchOutput
            Clean pairs.
        noisy : BatchOutput, optional
            Noisy pairs, whose loss is weighted.

        Returns
        -------
        Tensor
            A scalar.
        """
        y = self.y[network]
        loss = self.pair_loss(clean, clean.of(y))
        return loss if noisy is None else loss + self.method.noisy_weight * self.pair_loss(noisy, noisy.of(y))

    def pair_loss(self, f: BatchOutput, y: Tensor) -> Tensor:
        """Loss of a batch of pairs by their labels.

        Parameters
        ----------
        f : BatchOutput
            The batch as the network sees it.
        y : (B,) Tensor in [0, 1]
            Labels.

        Returns
        -------
        Tensor
            A scalar.
        """
        return self.reduced(self.pair_objective(f.similarity(), y, f.excluded))

    def reduced(self, loss: Tensor) -> Tensor:
        """Losses of pairs to one of the batch.

        Parameters
        ----------
        loss : (B,) Tensor
            Losses of the pairs.

        Returns
        -------
        Tensor
            Their mean, or their sum.
        """
        return loss.sum() if self.method.reduction == "sum" else loss.mean()

    def clean_rows(self, network: int) -> np.ndarray:
        """Pairs that a network trains on as clean.

        Parameters
        ----------
        network : int
            Which network.

        Returns
        -------
        (m,) int64
            By the other network's split, where there are two.
        """
        return np.flatnonzero(self.w[(network + 1) % self.networks] > self.clean_above)

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        """Return all pairs in the warm-up, then clean and noisy ones in parallel, the noisy ones repeated.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        network : int
            Which network.

        Returns
        -------
        list of tuple of (B,) int64
            Rows of each step.
        """
        clean = self.clean_rows(network)
        if not self.apart or not self.split_known or len(clean) < 2:
            return view.all_batches(network)
        noisy = np.setdiff1d(np.arange(self.n), clean)
        size = max(2, view.settings.batch_size // 2) if self.half else view.settings.batch_size
        first = view.batches(clean, network, 1, size=size)
        second, lap = list[np.ndarray](), 2
        while len(noisy) >= 2 and len(second) < len(first):
            second += view.batches(noisy, network, lap, size=size)
            lap += 1
        return [*zip(first, second, strict=False)] or [(rows,) for rows in first]

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """See :class:`cleanpairs.trainer.TrainingStrategy`: the warm-up's loss, or the method's.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        network : int
            Which network.
        batch : tuple of (B,) int64
            Rows.
        seed : int
            Seed of dropout.

        Returns
        -------
        Tensor
            A scalar.
        """
        f = view.forward(network, *batch, seed=seed)
        if not self.split_known:
            return self.warm_loss(view, network, f)
        if len(batch) == 1:
            return self.split_loss(view, network, f, None)
        return self.split_loss(view, network, f.select(f.source == 0), f.select(f.source == 1))

    def end_epoch(self, view: EpochContext) -> None:
        """Split by the losses, label, and take the labels into the value.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        """
        self.note = None
        asked_before = not self.warmup and not self.split_known  # the first epoch
        epoch = view.epoch - self.warmup + 1 - asked_before  # 1: the first split
        if epoch < 1 and not view.last:
            return
        if self.split_known and view.last and not self.wants(max(epoch, 1)):
            return
        notes = []
        for k in range(self.networks):
            losses = self.losses(view, k)
            split = self.divide(k, losses)
            self.w[k] = split.clean
            self.has_split[k] |= split.refused is None
            if not self.has_split[k]:  # all count as clean, the order among them is kept
                self.w[k] = 1 - UNSPLIT * losses
            if split.refused:
                notes.append(f"network {k + 1}: {split.refused}" if self.networks > 1 else split.refused)
        self.note = "; ".join(notes) or None
        value = self.judge(view)
        self.split_known = True
        self.mean_probability = float(value.mean())
        self.update(max(epoch, 1), value)

    def divide(self, network: int, losses: np.ndarray) -> GuardedSplit:
        """Split by the losses of a network.

        Parameters
        ----------
        network : int
            Which network.
        losses : (N,) float in [0, 1]
            Losses of all pairs.

        Returns
        -------
        GuardedSplit
            The previous split where this one is implausible.
        """
        return guarded_split(losses, self.mixture, self.w[network] if self.has_split[network] else None)

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        """Return what is split: a loss of every pair in evaluation mode.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        network : int
            Which network.

        Returns
        -------
        (N,) float
            Scaled to [0, 1].
        """
        if self.method.split_by == "probability":
            return 1 - view.probability(network, self.tau)
        return scaled(view.figure(network, lambda S, excluded: pair_loss_mean(S, excluded, self.margin)))

    def labels(self) -> np.ndarray:
        """Return 0 for pairs that no network trains on as clean, else 1."""
        return np.asarray((self.w > self.clean_above).any(axis=0), dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """Splits, labels, sums and memories."""
        found = super().state()
        for k, memory in enumerate(self.memories):
            found |= {f"memory.{k}.{name}": value for name, value in memory.state().items()}
        return found

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Parameters
        ----------
        state : dict
            What :meth:`state` gave.
        """
        super().load_state(state)
        for k, memory in enumerate(self.memories):
            memory.load_state(part_of(state, f"memory.{k}."))


def scaled(x: np.ndarray) -> np.ndarray:
    """Scale by minimum and maximum.

    Parameters
    ----------
    x : (N,) float
        Values.

    Returns
    -------
    (N,) float
        In [0, 1]. Zeros where all are alike but for rounding.
    """
    spread = float(np.ptp(x)) if len(x) else 0.0
    return np.asarray((x - x.min()) / spread if spread > 1e-5 else np.zeros_like(x))


@dataclass(kw_only=True, eq=False, repr=False)
class WarmupCleaner(PairCleaner):
    """Parameters of the methods that split after a warm-up. Which strategy they train by is ``_strategy``.

    Parameters
    ----------
    warmup : int
        Epochs on all pairs before the first split.
    label_epochs : int, optional
        How many splits enter the correspondence, from the end of the warm-up on, one an epoch. None: all.
    """

    warmup: int = whole(4, 1)
    label_epochs: int | None = whole(4, 1, none=True)
    epochs: int = 12
    weight_decay: float = 0.0

    # Settings of those that have them, see :class:`SplittingCleaner`. No parameters here.
    warm_loss = "rce"
    split_by = "probability"
    clean_loss = "rce"
    reduction = "mean"
    margin, curve, clean_above = 0.2, 10.0, 0.5

    _strategy: ClassVar[type[Splitting]]

    def _stages(self) -> list[TrainingStage]:
        return self._one_stage(self.warmup)

    def _make_strategy(self, data: TrainingData) -> Splitting:
        return self._strategy(len(data), self)

    def _warm_objective(self) -> Objective:
        if self.warm_loss in ("mean", "sum"):
            return TripletLoss(margin=self.margin, negatives=self.warm_loss)
        return InfoNCELoss(tau=self.tau) if self.warm_loss == "infonce" else InfoNCEWithRCE(tau=self.tau)


@dataclass(kw_only=True, eq=False, repr=False)
class SplittingCleaner(WarmupCleaner):
    """Parameters of the methods that split as NCR does.

    Parameters
    ----------
    warm_loss : {"rce", "mean", "sum", "infonce"}
        Loss of the warm-up. The cross entropy with its reverse is "rce" (:mod:`cleanpairs.objectives`), without it
        "infonce". The triplet over the mean of the negatives is "mean", over their sum "sum".

    split_by : {"probability", "triplet"}
        What is split. With "probability" it is 1 minus the matching probability at ``tau``. With "triplet" it is the
        triplet loss over the mean of the negatives.

    clean_loss : {"rce", "triplet"}
        Loss of a pair with the label y after the warm-up. With "rce" it is y times the cross entropy with its
        reverse. With "triplet" it is the papers' triplet of the hardest negatives, whose soft margin depends on y.

    margin : float
        Alpha of the soft margin alpha (m^y - 1) / (m - 1).

    curve : float
        m of the soft margin.

    clean_above : float in [0, 1]
        Pairs with a clean probability above it are trained on as clean.
    """

    warm_loss: str = choice("rce", "mean", "sum", "infonce")
    split_by: str = choice("probability", "triplet")
    clean_loss: str = choice("rce", "triplet")
    margin: float = number(0.2, above=0)
    curve: float = number(10.0, above=1)
    clean_above: float = number(0.5, least=0, below=1)

    _papers: ClassVar[dict[str, Any]] = {
        **PAPERS, "warmup": 5, "split_by": "triplet", "clean_loss": "triplet", "warm_loss": "mean", "epochs": 40,
        "lr_update": 30,
    }  # fmt: skip
