"""The training loop: the only caller of ``optimizer.step``.

A training is a list of stages; each stage starts from fresh weights and a fresh optimiser, and the labels carry over
(CRCL's self-refining). A method trains one network, or two in turn. All randomness is derived from (seed, stage, epoch,
step), so a checkpoint needs no state of a random generator, and a resumed run on the same CPU is the same to the bit.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core import distributed
from cleanpairs.core.errors import ConfigError, RefusedError
from cleanpairs.core.interrupt import Interrupts
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.trainer.checkpoints import Checkpoint, Position, TrainingState, moments
from cleanpairs.trainer.context import Compiled, EpochContext, Network
from cleanpairs.trainer.guards import APART, COLLAPSED, Diverged, collapse, explosion
from cleanpairs.trainer.inputs import on_device
from cleanpairs.trainer.step import Steps
from cleanpairs.trainer.strategy import TrainingStrategy
from cleanpairs.trainer.types import EpochRecord, Trained, TrainingData, TrainingSettings, TrainingStage, step_seed


@dataclass
class Trainer:
    """Trains the dual encoder, or two of them, of a procedure.

    ``checkpoint`` Checkpoint: where to keep the state; without one the training cannot be resumed; ``on_epoch``: called
    as ``on_epoch(record, y)`` after every epoch, with the (N,) raw labels; ``on_step``: called as ``on_step(pairs_done,
    pairs_total, loss)``; the total is as good as it is known.
    """

    settings: TrainingSettings
    checkpoint: Checkpoint | None = None
    on_epoch: Callable[[EpochRecord, np.ndarray], None] | None = None
    on_step: Callable[[int, int, float], None] | None = None

    def fit(
        self,
        data: TrainingData,
        stages: Sequence[TrainingStage],
        procedure: TrainingStrategy,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None = None,
        resume: bool = False,
    ) -> Trained:
        """Train all stages.

        ``procedure``: what the method does; it holds the labels; ``build``: a freshly initialised model; called once a
        stage and network, with torch's seed set; ``validate``: rSum of a model; the best epoch of the last stage is
        then kept instead of the last one.
        Raises RefusedError: fewer than two pairs, ten steps in a row without a finite loss, or a training that diverges
        again after it went back to its last good state with half the learning rate; ResourceError: the memory of the
        GPU does not hold two pairs; KeyboardInterrupt: on a signal, after the state has been saved.
        """
        if len(data) < 2:
            raise RefusedError(
                f"training needs at least 2 usable pairs, found {len(data)}: "
                "a single pair has no negative to be told from"
            )
        in_stages = distributed.world_size() > 1 or self.settings.micro_batch is not None
        if in_stages and getattr(procedure, "needs_whole_graph", False):
            raise ConfigError(
                "this method takes gradients of gradients, which need the whole batch in one graph: train it in one "
                "process and without micro_batch (--micro-batch), or take another method"
            )
        self.data, self.procedure, self.build, self.validate = data, procedure, build, validate
        self.optimizers: list[Any] = []
        self.best: dict[str, Tensor] | None = None
        self.best_rsum: float | None = None
        self.history: list[dict[str, Any]] = []
        self.saved_at, self.saved = time.monotonic(), False
        self.steps = Steps(self.settings, data, procedure)
        self.held = on_device(data.images, torch.device(distributed.local_device(self.settings.device)))
        self.fallbacks = 0  # times that it went back to a good state, with half the learning rate
        self.beginning = copy.deepcopy(procedure.state())
        with torch.random.fork_rng(devices=[]), Interrupts(enabled=self.checkpoint is not None) as self.interrupts:
            return self._train(stages, self._load() if resume else None)

    # -- stages and epochs ------------------------------------------------------------------------------------------

    def _load(self) -> TrainingState | None:
        """The state that was saved, if one was; every process reads it."""
        distributed.together()
        return self.checkpoint.load() if self.checkpoint is not None else None

    def _train(self, stages: Sequence[TrainingStage], restored: TrainingState | None) -> Trained:
        """All stages; where they diverge, once more from the last good state, which is never a diverged one."""
        while True:
            try:
                return self._stages(stages, restored)
            except Diverged as found:
                if self.fallbacks:
                    raise RefusedError(
                        f"the training diverged again at half the learning rate: {found}; lower lr (--set method.lr) "
                        "further, or look at the vectors and captions of the input"
                    ) from found
                restored = self._load() if distributed.any_of(self.saved) else None
                self.fallbacks = 1

    def _stages(self, stages: Sequence[TrainingStage], restored: TrainingState | None) -> Trained:
        at = Position(1, 1, 0)
        if restored is not None:
            at = restored.position
            self.saved = True
            self.procedure.load_state(restored.labels)
            self.best, self.best_rsum, self.history = restored.best, restored.best_rsum, restored.history
            past = restored.partial or (self.history[-1] if self.history else {})
            self.steps.restore(past)
            self.fallbacks = max(self.fallbacks, int(past.get("fallbacks", 0)))
        elif self.fallbacks:  # there is no good state but the beginning
            self.procedure.load_state(copy.deepcopy(self.beginning))
            self.best, self.best_rsum, self.history = None, None, []
            self.steps.restore({})
        epochs = sum(p.epochs for p in stages)
        for number, stage in enumerate(stages, start=1):
            if number < at.stage:
                continue
            self._start_stage(number)
            if restored is not None:
                self._restore(restored)
            for epoch in range(at.epoch if number == at.stage else 1, stage.epochs + 1):
                before = sum(p.epochs for p in stages[: number - 1]) + epoch - 1
                first = at.step if restored is not None else 0
                partial = restored.partial if restored is not None else None
                restored = None
                last = number == len(stages)
                self._set_lr(stage, epoch, last)
                self.view.stage, self.view.epoch, self.view.last = number, epoch, last and epoch == stage.epochs
                self._epoch(first, partial, before, epochs, last)
                done = last and epoch == stage.epochs
                stop = distributed.any_of(
                    self.interrupts.received is not None
                )  # while labels were made: no step noticed it
                self._save(Position(number, epoch + 1, 0), force=done or stop or epoch == stage.epochs)
                if stop:
                    self.interrupts.raise_received()
            restored = None
        if self.best is not None:
            for k, network in enumerate(self.view.networks):
                network.load_state_dict(_part(self.best, f"{k}."))
        model = _one([network.model for network in self.view.networks]).eval()
        heads = [network.head for network in self.view.networks]
        return Trained(model, self.procedure.value(), self.history, self.best_rsum, heads)

    def _start_stage(self, number: int) -> None:
        s, device = self.settings, distributed.local_device(self.settings.device)
        networks, self.optimizers = [], []
        for k in range(self.procedure.networks):
            torch.manual_seed(step_seed(s.seed, number, *([k] if k else [])))
            model = self.build()
            network = Network(model, self.procedure.head(model))
            if device.startswith("cuda:"):  # several processes; torch has no such norm for CPUs
                network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
            # A pretrained network has weights that stay, and others that want a rate of their own.
            own = getattr(model, "parameter_groups", None)
            groups: list[dict[str, Any]] = [{"params": list(network.model.parameters())}] if own is None else own(s.lr)
            if network.head is not None:
                groups.append({"params": list(network.head.parameters()), "lr": self.procedure.head_lr() or s.lr})
            optimizer = torch.optim.AdamW(groups, lr=s.lr, weight_decay=s.weight_decay, fused=True)
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]
            for x in (*network.parameters(), *network.buffers()) if distributed.world_size() > 1 else ():
                torch.distributed.broadcast(x.data, 0)
            network.to(device)
            if s.compile:
                network.compiled = Compiled(network.model)
            networks.append(network)
            self.optimizers.append(optimizer)
        self.view = EpochContext(self.data, s, networks, self.held)
        # How near each other all images, and all captions, of a network were.
        self.began = [collapse(self.view, k) for k in range(len(networks))]

    def _restore(self, restored: TrainingState) -> None:
        for k, (network, optimizer) in enumerate(zip(self.view.networks, self.optimizers, strict=True)):
            network.load_state_dict(_part(restored.model, f"{k}."))
            restored.load_optimizer(optimizer, k)

    def _set_lr(self, stage: TrainingStage, epoch: int, last: bool) -> None:
        decay = stage.decay(epoch) if last else 1.0
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * decay * 0.5**self.fallbacks

    def _epoch(self, first: int, partial: dict[str, Any] | None, before: int, epochs: int, last: bool) -> None:
        """One epoch, from step ``first`` on; ``before`` of all ``epochs`` are done."""
        began = time.perf_counter()
        view, procedure, s = self.view, self.procedure, self.settings
        if partial is None:
            procedure.start_epoch(view)
            self._same_labels()
        view.captions = procedure.captions
        steps = [(k, batch) for k in range(procedure.networks) for batch in procedure.batches(view, k)]
        pairs = sum(len(rows) for _, batch in steps for rows in batch)
        counts = self.steps
        counts.begin(view, self.optimizers, partial)
        started_at, started = counts.done, time.perf_counter()
        for network in view.networks:
            network.train()
        for step, (k, batch) in enumerate(steps):
            if step < first:
                continue
            if view.ahead is not None and step + 1 < len(steps):
                view.ahead.expect(*steps[step + 1], step_seed(s.seed, view.stage, view.epoch, step + 1))
            seed = step_seed(s.seed, view.stage, view.epoch, step)
            counts.take(k, batch, seed, self.interrupts.received is not None)
            if self.on_step is not None and distributed.is_first():
                self.on_step(before * pairs + counts.done, epochs * pairs, counts.last_loss)
            alone = distributed.world_size() == 1
            if self.interrupts.received if alone else counts.stop:
                counts.read()
                state = {**counts.partial(), "fallbacks": self.fallbacks}
                self._save(Position(view.stage, view.epoch, step + 1), force=True, partial=state)
                self.interrupts.raise_received()
        counts.read()
        trained = time.perf_counter() - started
        view.changed()
        if counts.counted:
            self._watch(counts.loss_sum / counts.counted)
        procedure.end_epoch(view)
        self._same_labels()
        rsum = None
        if self.validate is not None and last:
            rsum = distributed.of_first(self.validate(_one([network.model for network in view.networks])))
            if self.best_rsum is None or rsum > self.best_rsum:
                self.best_rsum = rsum
                self.best = _states(view.networks, copy=True)
        record = EpochRecord(
            stage=view.stage, epoch=view.epoch, loss=counts.loss_sum / max(counts.counted, 1),
            pairs_per_second=(counts.done - started_at) / max(trained, 1e-9), seconds=time.perf_counter() - began,
            lr=float(self.optimizers[0].param_groups[0]["lr"]), mean_probability=procedure.mean_probability,
            flagged=float((procedure.labels() == 0).mean()), val_rsum=rsum, skipped_steps=counts.skipped,
            note="; ".join(filter(None, [procedure.note, *self._notes()])) or None,
            batch_parts=counts.parts, fallbacks=self.fallbacks,
        )  # fmt: skip
        self.history.append(record.to_dict())
        if self.on_epoch is not None and distributed.is_first():
            self.on_epoch(record, procedure.value())

    def _notes(self) -> list[str]:
        """What a person should know of how it goes on."""
        parts = self.steps.parts
        found = [f"batches are computed in {parts} parts, as memory does not hold them"] if parts > 1 else []
        failed = {n.compiled.failed for n in self.view.networks if n.compiled is not None and n.compiled.failed}
        found += [f"the towers are not compiled, as torch.compile failed ({what})" for what in sorted(failed)]
        if self.fallbacks:
            found.append("after a divergence at half the learning rate")
        return found

    def _watch(self, loss: float) -> None:
        """Notice a training that has diverged, before its labels and its weights are kept."""
        view = self.view
        if explosion(loss, [float(line["loss"]) for line in self.history]):
            raise Diverged(f"the mean loss of epoch {view.epoch} of stage {view.stage} is {loss:.4g}")
        for k in range(len(view.networks) if view.epoch > 1 else 0):
            for cosine, began, what in zip(collapse(view, k), self.began[k], ("images", "captions"), strict=True):
                if cosine > COLLAPSED and began < APART:
                    raise Diverged(
                        f"after epoch {view.epoch} of stage {view.stage} all {what} are one point "
                        f"(mean cosine {cosine:.4f})"
                    )

    def _same_labels(self) -> None:
        """What a method says of the pairs is what the first process says: others may differ in the last digit."""
        if distributed.world_size() > 1:
            self.procedure.load_state(distributed.of_first(self.procedure.state()))

    # -- state ------------------------------------------------------------------------------------------------------

    def _save(self, position: Position, *, force: bool, partial: dict[str, Any] | None = None) -> None:
        if self.checkpoint is None or not distributed.is_first():
            return
        if not force and time.monotonic() - self.saved_at < self.settings.checkpoint_seconds:
            return
        model, optimizer = _states(self.view.networks), moments(self.optimizers)
        labels = self.procedure.state()
        self.checkpoint.save(
            TrainingState(position, model, optimizer, labels, self.best, self.best_rsum, self.history, partial)
        )
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
