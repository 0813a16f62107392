"""The training loop: the only caller of ``optimizer.step``.

A training is a list of pieces; each piece starts from fresh weights and a fresh optimiser, and the labels carry over
(CRCL's self-refining). A method trains one network, or two in turn. All randomness is derived from (seed, piece, epoch,
step), so a checkpoint needs no state of a random generator, and a resumed run on the same CPU is the same to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.errors import RefusedError
from cleanpairs.interrupt import Interrupts
from cleanpairs.trainer.procedure import Procedure
from cleanpairs.trainer.types import EpochRecord, Piece, Trained, TrainingData, TrainingSettings, step_seed
from cleanpairs.trainer.view import Network, View
from cleanpairs.training_state import Checkpoint, Position, Restored

__all__ = ["MAX_NON_FINITE", "Trainer"]

MAX_NON_FINITE = 10  # consecutive steps without a finite loss before the run is refused


class Trainer:
    """Trains the dual encoder, or two of them, of a procedure.

    Parameters
    ----------
    settings : TrainingSettings
    checkpoint : Checkpoint, optional
        Where to keep the state; without one the training cannot be resumed.
    on_epoch : callable, optional
        Called as ``on_epoch(record, y)`` after every epoch, with the (N,) raw labels.
    on_step : callable, optional
        Called as ``on_step(pairs_done, pairs_total, loss)``; the total is as good as it is known.
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
        procedure: Procedure,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None = None,
        resume: bool = False,
    ) -> Trained:
        """Train all pieces.

        Parameters
        ----------
        procedure : Procedure
            What the method does; it holds the labels.
        build : callable
            A freshly initialised model; called once a piece and network, with torch's seed set.
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
            return _Run(self, data, procedure, build, validate, interrupts).train(pieces, resume)


class _Run:
    """One training in progress."""

    def __init__(
        self,
        trainer: Trainer,
        data: TrainingData,
        procedure: Procedure,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None,
        interrupts: Interrupts,
    ) -> None:
        from lightning_fabric import Fabric

        self.trainer, self.data, self.procedure = trainer, data, procedure
        self.build, self.validate, self.interrupts = build, validate, interrupts
        self.settings = trainer.settings
        self.fabric = Fabric(accelerator=self.settings.device, devices=1, precision=self.settings.precision)  # type: ignore[arg-type]
        self.view: View
        self.optimizers: list[Any] = []
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
            self.procedure.load_state(restored.labels)
            self.best, self.best_rsum, self.history = restored.best, restored.best_rsum, restored.history
            past = restored.partial or (self.history[-1] if self.history else {})
            self.skipped = int(past.get("skipped_steps", 0))
            self.skipped_in_row = int(past.get("skipped_in_row", 0))
        epochs = sum(p.epochs for p in pieces)
        for number, piece in enumerate(pieces, start=1):
            if number < at.piece:
                continue
            self.start_piece(number)
            if restored is not None:
                self.restore(restored)
            for epoch in range(at.epoch if number == at.piece else 1, piece.epochs + 1):
                before = sum(p.epochs for p in pieces[: number - 1]) + epoch - 1
                first = at.step if restored is not None else 0
                partial = restored.partial if restored is not None else None
                restored = None
                last = number == len(pieces)
                self.set_lr(piece, epoch, last)
                self.view.piece, self.view.epoch, self.view.last = number, epoch, last and epoch == piece.epochs
                self.epoch(first, partial, before, epochs, last)
                done = last and epoch == piece.epochs
                stop = self.interrupts.received is not None  # while labels were made: no step noticed it
                self.save(Position(number, epoch + 1, 0), force=done or stop or epoch == piece.epochs)
                if stop:
                    self.interrupts.raise_received()
            restored = None
        if self.best is not None:
            for k, network in enumerate(self.view.networks):
                network.load_state_dict(_part(self.best, f"{k}."))
        model = _one([network.model for network in self.view.networks]).eval()
        heads = [network.head for network in self.view.networks]
        return Trained(model, self.procedure.value(), self.history, self.best_rsum, heads)

    def start_piece(self, number: int) -> None:
        s = self.settings
        networks, wrapped, self.optimizers = [], [], []
        for k in range(self.procedure.networks):
            torch.manual_seed(step_seed(s.seed, number, *([k] if k else [])))
            model = self.build()
            network = Network(model, self.procedure.head(model))
            # A pretrained network has weights that stay, and others that want a rate of their own.
            own = getattr(model, "parameter_groups", None)
            groups: list[dict[str, Any]] = [{"params": list(network.model.parameters())}] if own is None else own()
            if network.head is not None:
                groups.append({"params": list(network.head.parameters()), "lr": self.procedure.head_lr() or s.lr})
            optimizer = torch.optim.AdamW(groups, lr=s.lr, weight_decay=s.weight_decay, fused=True)
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]
            module, optimizer = self.fabric.setup(network, optimizer)
            networks.append(network)
            wrapped.append(module)
            self.optimizers.append(optimizer)
        self.view = View(self.data, s, networks, wrapped, self.fabric)

    def restore(self, restored: Restored) -> None:
        for k, (network, optimizer) in enumerate(zip(self.view.networks, self.optimizers, strict=True)):
            network.load_state_dict(_part(restored.model, f"{k}."))
            restored.load_optimizer(optimizer, k)

    def set_lr(self, piece: Piece, epoch: int, last: bool) -> None:
        decayed = last and piece.lr_update is not None and epoch > piece.lr_update
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (0.1 if decayed else 1.0)

    def epoch(self, first: int, partial: dict[str, Any] | None, before: int, epochs: int, last: bool) -> None:
        """One epoch, from step ``first`` on; ``before`` of all ``epochs`` are done."""
        began = time.perf_counter()
        view, procedure, s = self.view, self.procedure, self.settings
        if partial is None:
            procedure.start_epoch(view)
        steps = [(k, batch) for k in range(procedure.networks) for batch in procedure.batches(view, k)]
        pairs = sum(len(rows) for _, batch in steps for rows in batch)
        loss_sum = 0.0 if partial is None else float(partial["loss_sum"])
        done = 0 if partial is None else int(partial["done"])
        counted = 0 if partial is None else int(partial["counted"])  # pairs whose step was taken
        started_at, started = done, time.perf_counter()
        for network in view.networks:
            network.train()
        for step, (k, batch) in enumerate(steps):
            if step < first:
                continue
            loss = self.step(k, batch, step_seed(s.seed, view.piece, view.epoch, step))
            size = sum(len(rows) for rows in batch)
            done += size
            if np.isfinite(loss):
                loss_sum += loss * size
                counted += size
            if self.trainer.on_step is not None:
                self.trainer.on_step(before * pairs + done, epochs * pairs, loss)
            if self.interrupts.received:
                state = {
                    "loss_sum": loss_sum, "done": done, "counted": counted, "skipped_steps": self.skipped,
                    "skipped_in_row": self.skipped_in_row,
                }  # fmt: skip
                self.save(Position(view.piece, view.epoch, step + 1), force=True, partial=state)
                self.interrupts.raise_received()
        trained = time.perf_counter() - started
        view.changed()
        procedure.end_epoch(view)
        rsum = None
        if self.validate is not None and last:
            rsum = self.validate(_one([network.model for network in view.networks]))
            if self.best_rsum is None or rsum > self.best_rsum:
                self.best_rsum = rsum
                self.best = _states(view.networks, copy=True)
        record = EpochRecord(
            piece=view.piece, epoch=view.epoch, loss=loss_sum / max(counted, 1),
            pairs_per_second=(done - started_at) / max(trained, 1e-9), seconds=time.perf_counter() - began,
            lr=float(self.optimizers[0].param_groups[0]["lr"]), mean_probability=procedure.mean_probability,
            flagged=float((procedure.labels() == 0).mean()), val_rsum=rsum, skipped_steps=self.skipped,
            note=procedure.note,
        )  # fmt: skip
        self.history.append(record.to_dict())
        if self.trainer.on_epoch is not None:
            self.trainer.on_epoch(record, procedure.value())

    # -- one step ---------------------------------------------------------------------------------------------------

    def step(self, k: int, batch: tuple[np.ndarray, ...], seed: int) -> float:
        """Loss of a step of network ``k``; NaN if it was not taken."""
        torch.manual_seed(seed)
        optimizer = self.optimizers[k]
        loss = self.procedure.loss(self.view, k, batch, seed)
        self.view.changed()
        value = float(loss.detach())
        if not np.isfinite(value):
            self.skip(batch)
            return float("nan")
        optimizer.zero_grad(set_to_none=True)
        if not loss.requires_grad:  # nothing in this batch has anything to teach
            return value
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(
            self.view.wrapped[k], optimizer, max_norm=self.settings.grad_clip, error_if_nonfinite=False
        )
        if norm is not None and not bool(torch.isfinite(norm)):  # a finite loss may have a gradient that is not
            self.skip(batch)
            return float("nan")
        optimizer.step()
        self.skipped_in_row = 0
        return value

    def skip(self, batch: tuple[np.ndarray, ...]) -> None:
        """A step whose loss or gradient is not finite is not taken; ten in a row end the run."""
        self.skipped += 1
        self.skipped_in_row += 1
        if self.skipped_in_row >= MAX_NON_FINITE:
            raise RefusedError(
                f"the loss or its gradient was not finite in {MAX_NON_FINITE} steps in a row; the last batch held the "
                f"pairs {sorted(np.concatenate(batch).tolist())[:16]} ...; lower --set method.lr, or check the vectors "
                "of these rows"
            )

    # -- state ------------------------------------------------------------------------------------------------------

    def save(self, position: Position, *, force: bool, partial: dict[str, Any] | None = None) -> None:
        checkpoint = self.trainer.checkpoint
        if checkpoint is None:
            return
        if not force and time.monotonic() - self.saved_at < self.settings.checkpoint_seconds:
            return
        checkpoint.save(
            position=position, model=_states(self.view.networks), optimizers=self.optimizers,
            labels=self.procedure.state(), best=self.best, best_rsum=self.best_rsum, history=self.history,
            partial=partial,
        )  # fmt: skip
        self.saved_at = time.monotonic()


def _one(models: list[Any]) -> Any:
    """The model that retrieves: the only one, or the mean of two."""
    return models[0] if len(models) == 1 else Ensemble(models)


def _states(modules: Sequence[Any], *, copy: bool = False) -> dict[str, Tensor]:
    """Weights of several modules in one table: ``<number>.<name>``."""
    return {
        f"{k}.{name}": value.detach().cpu().clone() if copy else value
        for k, module in enumerate(modules)
        for name, value in module.state_dict().items()
    }


def _part(table: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in table.items() if name.startswith(prefix)}
