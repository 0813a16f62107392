"""The training loop: the only caller of ``optimizer.step``.

A training is a list of pieces; each piece starts from fresh weights and a fresh optimiser, and the labels carry over
(CRCL's self-refining). A method trains one network, or two in turn. All randomness is derived from (seed, piece, epoch,
step), so a checkpoint needs no state of a random generator, and a resumed run on the same CPU is the same to the bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.errors import RefusedError, ResourceError
from cleanpairs.interrupt import Interrupts
from cleanpairs.trainer.guards import APART, COLLAPSED, Diverged, collapse, explosion, halves
from cleanpairs.trainer.procedure import Procedure
from cleanpairs.trainer.types import EpochRecord, Piece, Trained, TrainingData, TrainingSettings, step_seed
from cleanpairs.trainer.view import Network, View
from cleanpairs.training_state import Checkpoint, Position, Restored

__all__ = ["MAX_NON_FINITE", "Trainer"]

MAX_NON_FINITE = 10  # consecutive steps without a finite loss before the run is refused
MAX_NAMED = 256  # pairs of a batch that a message names


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
            Fewer than two pairs, ten steps in a row without a finite loss, or a training that diverges again after it
            went back to its last good state with half the learning rate.
        ResourceError
            The memory of the GPU does not hold two pairs.
        KeyboardInterrupt
            On SIGINT or SIGTERM, after the state has been saved.
        """
        if len(data) < 2:
            raise RefusedError(
                f"training needs at least 2 usable pairs, found {len(data)}: "
                "a single pair has no negative to be told from"
            )
        with torch.random.fork_rng(devices=[]), Interrupts(enabled=self.checkpoint is not None) as interrupts:
            run = _Run(self, data, procedure, build, validate, interrupts)
            return run.train(pieces, run.load() if resume else None)


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
        self.parts = 1  # of a batch, each with a backward pass of its own: more than one where memory did not suffice
        self.began: list[
            tuple[float, float]
        ] = []  # how near each other all images, and all captions, of a network were
        self.fallbacks = 0  # times that it went back to a good state, with half the learning rate
        self.saved = False
        self.beginning = copy.deepcopy(procedure.state())

    # -- pieces and epochs ------------------------------------------------------------------------------------------

    def load(self) -> Restored | None:
        """The state that was saved, if one was."""
        return self.trainer.checkpoint.load() if self.trainer.checkpoint is not None else None

    def train(self, pieces: Sequence[Piece], restored: Restored | None) -> Trained:
        """All pieces; where they diverge, once more from the last good state, which is never a diverged one."""
        while True:
            try:
                return self.pieces(pieces, restored)
            except Diverged as found:
                if self.fallbacks:
                    raise RefusedError(
                        f"the training diverged again at half the learning rate: {found}; lower --set method.lr "
                        "further, or look at the vectors and captions of the input"
                    ) from found
                restored = self.load() if self.saved else None
                self.fallbacks = 1

    def pieces(self, pieces: Sequence[Piece], restored: Restored | None) -> Trained:
        at = Position(1, 1, 0)
        if restored is not None:
            at = restored.position
            self.saved = True
            self.procedure.load_state(restored.labels)
            self.best, self.best_rsum, self.history = restored.best, restored.best_rsum, restored.history
            past = restored.partial or (self.history[-1] if self.history else {})
            self.skipped = int(past.get("skipped_steps", 0))
            self.skipped_in_row = int(past.get("skipped_in_row", 0))
            self.parts = max(self.parts, int(past.get("batch_parts", 1)))
            self.fallbacks = max(self.fallbacks, int(past.get("fallbacks", 0)))
        elif self.fallbacks:  # there is no good state but the beginning
            self.procedure.load_state(copy.deepcopy(self.beginning))
            self.best, self.best_rsum, self.history = None, None, []
            self.skipped = self.skipped_in_row = 0
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
            groups: list[dict[str, Any]] = [{"params": list(network.model.parameters())}] if own is None else own(s.lr)
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
        self.began = [collapse(self.view, k) for k in range(len(networks))]

    def restore(self, restored: Restored) -> None:
        for k, (network, optimizer) in enumerate(zip(self.view.networks, self.optimizers, strict=True)):
            network.load_state_dict(_part(restored.model, f"{k}."))
            restored.load_optimizer(optimizer, k)

    def set_lr(self, piece: Piece, epoch: int, last: bool) -> None:
        decayed = last and piece.lr_update is not None and epoch > piece.lr_update
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * (0.1 if decayed else 1.0) * 0.5**self.fallbacks

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
                    "skipped_in_row": self.skipped_in_row, "batch_parts": self.parts, "fallbacks": self.fallbacks,
                }  # fmt: skip
                self.save(Position(view.piece, view.epoch, step + 1), force=True, partial=state)
                self.interrupts.raise_received()
        trained = time.perf_counter() - started
        view.changed()
        if counted:
            self.watch(loss_sum / counted)
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
            note="; ".join(filter(None, [procedure.note, *self.notes()])) or None,
            batch_parts=self.parts, fallbacks=self.fallbacks,
        )  # fmt: skip
        self.history.append(record.to_dict())
        if self.trainer.on_epoch is not None:
            self.trainer.on_epoch(record, procedure.value())

    # -- one step ---------------------------------------------------------------------------------------------------

    def step(self, k: int, batch: tuple[np.ndarray, ...], seed: int) -> float:
        """Loss of a step of network ``k``; NaN if it was not taken."""
        optimizer = self.optimizers[k]
        while True:
            optimizer.zero_grad(set_to_none=True)
            parts = halves(batch, self.parts)
            try:
                value, teaches = self.gradients(k, parts, seed)
                break
            except torch.cuda.OutOfMemoryError as error:
                shortage = str(error).splitlines()[0]
            self.fewer(batch, parts, shortage)  # not within the handler: its traceback holds what is to be freed
        if not np.isfinite(value):
            self.skip(batch)
            return float("nan")
        if not teaches:  # nothing in this batch has anything to teach
            return value
        norm = self.fabric.clip_gradients(
            self.view.wrapped[k], optimizer, max_norm=self.settings.grad_clip, error_if_nonfinite=False
        )
        if norm is not None and not bool(torch.isfinite(norm)):  # a finite loss may have a gradient that is not
            self.skip(batch)
            return float("nan")
        optimizer.step()
        self.skipped_in_row = 0
        return value

    def notes(self) -> list[str]:
        """What a person should know of how it goes on."""
        found = [f"batches are computed in {self.parts} parts, as memory does not hold them"] if self.parts > 1 else []
        if self.fallbacks:
            found.append("after a divergence at half the learning rate")
        return found

    def gradients(self, k: int, parts: list[tuple[np.ndarray, ...]], seed: int) -> tuple[float, bool]:
        """Mean loss over the parts of a batch, and whether it has a gradient, which is then in the weights.

        The parts' gradients add up to that of the batch where a pair's loss does not depend on the others; where those
        are its negatives, it has fewer of them.
        """
        total, teaches = 0.0, False
        size = sum(len(rows) for part in parts for rows in part)
        for number, part in enumerate(parts):
            own = seed if len(parts) == 1 else step_seed(seed, number)
            torch.manual_seed(own)
            loss = self.procedure.loss(self.view, k, part, own)
            self.view.changed()
            value = float(loss.detach())
            if not np.isfinite(value):
                return float("nan"), False
            share = sum(len(rows) for rows in part) / size
            total += value * share
            if loss.requires_grad:
                self.fabric.backward(loss if len(parts) == 1 else loss * share)
                teaches = True
        return total, teaches

    def fewer(self, batch: tuple[np.ndarray, ...], parts: list[tuple[np.ndarray, ...]], shortage: str) -> None:
        """Halve what is computed at once, for the rest of the run."""
        self.release()
        if len(halves(batch, 2 * len(parts))) == len(parts):
            raise ResourceError(
                f"the memory of the device does not hold {sum(len(rows) for rows in parts[0])} pairs of a batch "
                f"({shortage}): take a smaller model, fewer or smaller images, or --device cpu"
            )
        self.parts = 2 * len(parts)

    def release(self) -> None:
        """Give back the gradients, and what the device's allocator keeps."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def watch(self, loss: float) -> None:
        """Notice a training that has diverged, before its labels and its weights are kept."""
        view = self.view
        if explosion(loss, [float(line["loss"]) for line in self.history]):
            raise Diverged(f"the mean loss of epoch {view.epoch} of piece {view.piece} is {loss:.4g}")
        for k in range(len(view.networks) if view.epoch > 1 else 0):
            for cosine, began, what in zip(collapse(view, k), self.began[k], ("images", "captions"), strict=True):
                if cosine > COLLAPSED and began < APART:
                    raise Diverged(
                        f"after epoch {view.epoch} of piece {view.piece} all {what} are one point "
                        f"(mean cosine {cosine:.4f})"
                    )

    def skip(self, batch: tuple[np.ndarray, ...]) -> None:
        """A step whose loss or gradient is not finite is not taken; ten in a row end the run."""
        self.skipped += 1
        self.skipped_in_row += 1
        if self.skipped_in_row >= MAX_NON_FINITE:
            rows = np.unique(np.concatenate(batch))
            pairs = (rows if self.data.pair_id is None else self.data.pair_id[rows]).tolist()
            more = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
            raise RefusedError(
                f"the loss or its gradient was not finite in {MAX_NON_FINITE} steps in a row; the last batch held the "
                f"pairs (pair_id) {', '.join(map(str, pairs[:MAX_NAMED]))}{more}; lower --set method.lr, or check the "
                "vectors of these pairs"
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
        self.saved = True
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
