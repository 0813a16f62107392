"""The training loop: the only caller of ``optimizer.step``.

A training is a list of pieces; each piece starts from fresh weights and a fresh optimiser, and the labels carry over
(CRCL's self-refining). All randomness is derived from (seed, piece, epoch, step), so a checkpoint needs no state of a
random generator, and a resumed run on the same CPU is the same to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.tokenizer import TokenTable, pack
from cleanpairs.errors import RefusedError
from cleanpairs.interrupt import Interrupts
from cleanpairs.objectives.base import Objective
from cleanpairs.ops.matching import duplicate_mask, matching_probability
from cleanpairs.scoring import as_input, embed_images, embed_texts, group_probability
from cleanpairs.training_state import Checkpoint, Position

__all__ = ["Correspondence", "EpochRecord", "Piece", "Trained", "Trainer", "TrainingData", "TrainingSettings"]

MAX_NON_FINITE = 10  # consecutive steps without a finite loss before the run is refused


@dataclass(frozen=True)
class Piece:
    """``epochs`` epochs from fresh weights; the learning rate falls to a tenth after ``lr_update`` of them."""

    epochs: int
    lr_update: int | None = None


@dataclass(frozen=True)
class TrainingData:
    """N usable pairs. ``images``: (M, R, D) float regions or (M, 3, H, W) uint8 pixels, maybe memory-mapped."""

    images: np.ndarray
    tokens: TokenTable  # N captions
    image_index: np.ndarray  # (N,) int64
    image_group: np.ndarray  # (N,) int64, of each pair's image
    text_group: np.ndarray  # (N,) int64

    def __len__(self) -> int:
        return len(self.image_index)


class Correspondence(Protocol):
    """An estimator of N soft correspondences that lives through a training."""

    def wants(self, piece: int, epoch: int) -> bool:
        """Whether p of this epoch (both from 1) will be used."""
        ...

    def update(self, piece: int, epoch: int, p: np.ndarray) -> None:
        """Take over the matching probabilities (N,) of an epoch."""
        ...

    def labels(self) -> np.ndarray:
        """Labels (N,) float32 for the next epoch's loss."""
        ...

    def value(self) -> np.ndarray:
        """The estimate (N,) float32 itself."""
        ...

    def state(self) -> dict[str, Any]:
        """Arrays and plain numbers that :meth:`load_state` goes on from."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        ...


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; see the estimators for what each setting means."""

    batch_size: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-4
    grad_clip: float = 2.0
    exclude_duplicates: bool = True
    label_pass: str = "eval"
    label_group: int = 64
    label_tau: float | None = None
    label_rounds: int = 4
    bucket: int = 8
    device: str = "cpu"
    precision: str = "32-true"
    seed: int = 0
    checkpoint_seconds: float = 20.0


@dataclass(frozen=True)
class EpochRecord:
    """One line of the metrics log. ``epoch`` counts within ``piece``; both from 1."""

    piece: int
    epoch: int
    loss: float
    pairs_per_second: float
    seconds: float
    lr: float
    mean_probability: float | None
    flagged: float
    val_rsum: float | None
    skipped_steps: int

    def to_dict(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


@dataclass
class Trained:
    """What a training leaves."""

    model: DualEncoder
    correspondence: Correspondence
    history: list[dict[str, Any]] = field(default_factory=list)
    best_val_rsum: float | None = None


def step_seed(*parts: int) -> int:
    """One 63-bit seed out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Trainer:
    """Trains a dual encoder with an objective and a correspondence estimator.

    Parameters
    ----------
    settings : TrainingSettings
    checkpoint : Checkpoint, optional
        Where to keep the state; without one the training cannot be resumed.
    on_epoch : callable, optional
        Called as ``on_epoch(record, y)`` after every epoch, with the (N,) raw labels.
    on_step : callable, optional
        Called as ``on_step(pairs_done, pairs_total, loss)``.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        *,
        checkpoint: Checkpoint | None = None,
        on_epoch: Callable[[EpochRecord, np.ndarray], None] | None = None,
        on_step: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self.settings, self.checkpoint = settings, checkpoint
        self.on_epoch, self.on_step = on_epoch, on_step

    def fit(
        self,
        data: TrainingData,
        pieces: Sequence[Piece],
        objective: Objective,
        correspondence: Correspondence,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None = None,
        resume: bool = False,
    ) -> Trained:
        """Train all pieces.

        Parameters
        ----------
        build : callable
            A freshly initialised model; called once a piece, with torch's seed set.
        validate : callable, optional
            Validation rSum of a model; the best epoch of the last piece is then kept instead of the last one.

        Raises
        ------
        RefusedError
            Fewer than two pairs, or ten steps in a row without a finite loss.
        KeyboardInterrupt
            On SIGINT or SIGTERM, after the state has been saved.
        """
        if len(data) < 2:
            raise RefusedError(
                f"training needs at least 2 usable pairs, found {len(data)}: "
                "a single pair has no negative to be told from"
            )
        with torch.random.fork_rng(devices=[]), Interrupts(enabled=self.checkpoint is not None) as interrupts:
            run = _Run(self, data, objective, correspondence, build, validate, interrupts)
            return run.train(pieces, resume)


class _Run:
    """One training in progress."""

    def __init__(
        self,
        trainer: Trainer,
        data: TrainingData,
        objective: Objective,
        correspondence: Correspondence,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None,
        interrupts: Interrupts,
    ) -> None:
        from lightning_fabric import Fabric

        self.trainer, self.data, self.objective, self.correspondence = trainer, data, objective, correspondence
        self.build, self.validate, self.interrupts = build, validate, interrupts
        self.settings = trainer.settings
        self.fabric = Fabric(accelerator=self.settings.device, devices=1, precision=self.settings.precision)  # type: ignore[arg-type]
        self.model: DualEncoder
        self.best: dict[str, Tensor] | None = None
        self.best_rsum: float | None = None
        self.history: list[dict[str, Any]] = []
        self.saved_at = time.monotonic()
        self.skipped = self.skipped_in_row = 0

    # -- pieces and epochs ------------------------------------------------------------------------------------------

    def train(self, pieces: Sequence[Piece], resume: bool) -> Trained:
        at = Position(1, 1, 0)
        restored = self.trainer.checkpoint.load() if resume and self.trainer.checkpoint is not None else None
        if restored is not None:
            at = restored.position
            self.correspondence.load_state(restored.labels)
            self.best, self.best_rsum, self.history = restored.best, restored.best_rsum, restored.history
            past = restored.partial or (self.history[-1] if self.history else {})
            self.skipped = int(past.get("skipped_steps", 0))
            self.skipped_in_row = int(past.get("skipped_in_row", 0))
        total = sum(p.epochs for p in pieces) * len(self.data)
        for number, piece in enumerate(pieces, start=1):
            if number < at.piece:
                continue
            self.start_piece(number)
            if restored is not None:
                self.raw.load_state_dict(restored.model)
                restored.load_optimizer(self.optimizer)
            for epoch in range(at.epoch if number == at.piece else 1, piece.epochs + 1):
                before = sum(p.epochs for p in pieces[: number - 1]) + epoch - 1
                first = at.step if restored is not None else 0
                partial = restored.partial if restored is not None else None
                restored = None
                last = number == len(pieces)
                self.set_lr(piece, epoch, last)
                self.epoch(number, epoch, first, partial, before * len(self.data), total, last)
                done = last and epoch == piece.epochs
                stop = self.interrupts.received is not None  # while labels were made: no step noticed it
                self.save(Position(number, epoch + 1, 0), force=done or stop or epoch == piece.epochs)
                if stop:
                    self.interrupts.raise_received()
            restored = None
        if self.best is not None:
            self.raw.load_state_dict(self.best)
        self.raw.eval()
        return Trained(self.raw, self.correspondence, self.history, self.best_rsum)

    def start_piece(self, number: int) -> None:
        torch.manual_seed(step_seed(self.settings.seed, number))
        self.raw = self.build()
        optimizer = torch.optim.AdamW(
            self.raw.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay, fused=True
        )
        self.model, self.optimizer = self.fabric.setup(self.raw, optimizer)  # type: ignore[arg-type]

    def set_lr(self, piece: Piece, epoch: int, last: bool) -> None:
        decayed = last and piece.lr_update is not None and epoch > piece.lr_update
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * (0.1 if decayed else 1.0)

    def epoch(
        self, piece: int, epoch: int, first: int, partial: dict[str, Any] | None, before: int, total: int, last: bool
    ) -> None:
        began = time.perf_counter()
        data, s = self.data, self.settings
        labels = torch.from_numpy(self.correspondence.labels())
        batches = self.batches(piece, epoch)
        n = len(data)
        p = np.zeros(n, dtype=np.float32) if partial is None else np.array(partial["p"], dtype=np.float32)
        loss_sum = 0.0 if partial is None else float(partial["loss_sum"])
        done = 0 if partial is None else int(partial["done"])
        counted = 0 if partial is None else int(partial["counted"])  # pairs whose step was taken
        started_at = done
        self.model.train()
        for step, rows in enumerate(batches):
            if step < first:
                continue
            loss, p_batch, order = self.step(rows, labels, step_seed(s.seed, piece, epoch, step))
            p[rows[order]] = p_batch
            done += len(rows)
            if np.isfinite(loss):
                loss_sum += loss * len(rows)
                counted += len(rows)
            if self.trainer.on_step is not None:
                self.trainer.on_step(before + done, total, loss)
            if self.interrupts.received:
                state = {
                    "p": p, "loss_sum": loss_sum, "done": done, "counted": counted, "skipped_steps": self.skipped,
                    "skipped_in_row": self.skipped_in_row,
                }  # fmt: skip
                self.save(Position(piece, epoch, step + 1), force=True, partial=state)
                self.interrupts.raise_received()
        trained = time.perf_counter() - began
        mean_p = None
        if self.correspondence.wants(piece, epoch):
            if s.label_pass == "eval":
                p = self.label_pass(step_seed(s.seed, piece, epoch))
            else:  # a batch that diverged says nothing about its pairs: they keep what they have
                p = np.where(np.isfinite(p), p, self.correspondence.value())
            self.correspondence.update(piece, epoch, p)
            mean_p = float(p.mean())
        rsum = None
        if self.validate is not None and last:
            rsum = self.validate(self.raw)
            if self.best_rsum is None or rsum > self.best_rsum:
                self.best_rsum = rsum
                self.best = {k: v.detach().cpu().clone() for k, v in self.raw.state_dict().items()}
        y = self.correspondence.value()
        record = EpochRecord(
            piece=piece, epoch=epoch, loss=loss_sum / max(counted, 1),
            pairs_per_second=(done - started_at) / max(trained, 1e-9), seconds=time.perf_counter() - began,
            lr=float(self.optimizer.param_groups[0]["lr"]), mean_probability=mean_p,
            flagged=float((self.correspondence.labels() == 0).mean()), val_rsum=rsum, skipped_steps=self.skipped,
        )  # fmt: skip
        self.history.append(record.to_dict())
        if self.trainer.on_epoch is not None:
            self.trainer.on_epoch(record, y)

    # -- one step ---------------------------------------------------------------------------------------------------

    def batches(self, piece: int, epoch: int) -> list[np.ndarray]:
        """Random batches of pairs of like caption length, in random order."""
        s, n = self.settings, len(self.data)
        rng = np.random.default_rng(step_seed(s.seed, piece, epoch, 1_000_003))
        order = rng.permutation(n)
        lengths = self.data.tokens.lengths
        batches: list[np.ndarray] = []
        span = s.batch_size * max(s.bucket, 1)
        for start in range(0, n, span):
            chunk = order[start : start + span]
            if s.bucket > 1:
                chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
            batches += [chunk[i : i + s.batch_size] for i in range(0, len(chunk), s.batch_size)]
        if len(batches) > 1 and len(batches[-1]) < max(2, s.batch_size // 4):
            tail = batches.pop()  # a few pairs have few negatives: they join the batch before
            batches[-1] = np.concatenate([batches[-1], tail])
        return [batches[i] for i in rng.permutation(len(batches))]

    def step(self, rows: np.ndarray, labels: Tensor, seed: int) -> tuple[float, np.ndarray, np.ndarray]:
        data, s, device = self.data, self.settings, self.fabric.device
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        tokens, order = pack(data.tokens, rows, drop=self.raw.text_drop, rng=rng)
        rows = rows[order]
        images = as_input(data.images[data.image_index[rows]], device)
        keep = None
        if images.dim() == 3 and images.shape[1] > 1 and self.raw.image_drop > 0:
            u = rng.random((len(rows), images.shape[1]), dtype=np.float32)
            kept = u >= self.raw.image_drop
            kept[np.arange(len(rows)), u.argmax(axis=1)] = True
            keep = torch.from_numpy(kept).to(device)
        excluded = None
        if s.exclude_duplicates:
            excluded = duplicate_mask(torch.from_numpy(data.image_group[rows]), torch.from_numpy(data.text_group[rows]))
            excluded = None if excluded is None else excluded.to(device)
        z_image, z_text = self.model(images, keep, tokens.to(device))  # (B, E), (B, E)
        S = self.raw.similarity(z_image.float(), z_text.float())  # (B, B)
        y = labels[torch.from_numpy(rows)].to(device)
        loss = self.objective(S, y, excluded).mean()
        p = matching_probability(S.detach(), self.objective.tau, excluded).cpu().numpy()
        value = float(loss.detach())
        if not np.isfinite(value):
            self.skip(rows)
            return float("nan"), p, order
        self.optimizer.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(self.model, self.optimizer, max_norm=s.grad_clip, error_if_nonfinite=False)  # type: ignore[arg-type]
        if norm is not None and not bool(torch.isfinite(norm)):  # a finite loss may have a gradient that is not
            self.skip(rows)
            return float("nan"), p, order
        self.optimizer.step()
        self.skipped_in_row = 0
        return value, p, order

    def skip(self, rows: np.ndarray) -> None:
        """A step whose loss or gradient is not finite is not taken; ten in a row end the run."""
        self.skipped += 1
        self.skipped_in_row += 1
        if self.skipped_in_row >= MAX_NON_FINITE:
            raise RefusedError(
                f"the loss or its gradient was not finite in {MAX_NON_FINITE} steps in a row; the last batch held the "
                f"pairs {sorted(rows.tolist())[:16]} ...; lower --set method.lr, or check the vectors of these rows"
            )

    def label_pass(self, seed: int) -> np.ndarray:
        """Matching probability (N,) of all pairs in evaluation mode, over random groups of the batch's size."""
        data, s = self.data, self.settings
        z_image = embed_images(self.raw, data.images, device=self.fabric.device)
        z_text = embed_texts(self.raw, data.tokens, device=self.fabric.device)
        return group_probability(
            z_image[data.image_index], z_text, data.image_group, data.text_group, tau=s.label_tau or self.objective.tau,
            group_size=s.label_group, rounds=s.label_rounds, seed=seed, exclude_duplicates=s.exclude_duplicates,
        )  # fmt: skip

    # -- state ------------------------------------------------------------------------------------------------------

    def save(self, position: Position, *, force: bool, partial: dict[str, Any] | None = None) -> None:
        checkpoint = self.trainer.checkpoint
        if checkpoint is None:
            return
        if not force and time.monotonic() - self.saved_at < self.settings.checkpoint_seconds:
            return
        checkpoint.save(
            position=position, model=self.raw.state_dict(), optimizer=self.optimizer,
            labels=self.correspondence.state(), best=self.best, best_rsum=self.best_rsum, history=self.history,
            partial=partial,
        )  # fmt: skip
        self.saved_at = time.monotonic()
