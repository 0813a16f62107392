"""The training loop: the only caller of ``optimizer.step``.

A training is a list of stages. Each starts from fresh weights and a fresh optimiser, and the labels carry over (CRCL's
self-refining). All randomness is derived from (seed, stage, epoch, step). So a checkpoint is tensors and plain JSON,
and needs no state of a generator. A resumed run on the same CPU is the same to the bit.

A training that has diverged goes back once to the last good checkpoint, or its beginning, and continues at half the
learning rate. A second time it is refused. Signs are (dev/LOG.md has the figures of all recipes):

    collapse    the mean cosine of any two images, or captions, of a sample is above .999 behind the first epoch of
                a stage, and was below .99 when it began
    explosion   the mean loss of the epoch is ten times as large as any before it, and as 1
"""

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core import distributed, reading
from cleanpairs.core.errors import ConfigError, DataError, RefusedError, ResourceError
from cleanpairs.core.interrupt import Interrupts
from cleanpairs.core.plain import part_of
from cleanpairs.core.torch_state import default_modes, evaluating, seeded
from cleanpairs.data.arrays import read_tensors, write_tensors
from cleanpairs.data.atomic import staged_file
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.trainer.context import EpochContext, Network, on_device
from cleanpairs.trainer.strategy import TrainingStrategy
from cleanpairs.trainer.types import EpochRecord, Trained, TrainingData, TrainingSettings, TrainingStage, step_seed

MAX_NON_FINITE = 10  # consecutive steps without a finite loss before the run is refused
READ_EVERY = {"cpu": 1, "cuda": 25}  # steps, whose outcomes are read together: on a GPU nobody waits for each
GROUPS = ("model", "optimizer", "best", "labels", "partial")  # fields that are tables by name

Batch = tuple[np.ndarray, ...]


class Position(NamedTuple):
    """Where to resume: ``step`` batches of ``epoch`` of ``stage`` are done (stage and epoch from 1)."""

    stage: int
    epoch: int
    step: int


@dataclass(frozen=True)
class TrainingState:
    """What a training resumes from. ``optimizer``: of :func:`moments`."""

    position: Position
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    labels: dict[str, Any]
    best: dict[str, Tensor] | None
    best_rsum: float | None
    history: list[dict[str, Any]]
    partial: dict[str, Any] | None


def moments(optimizers: Sequence[Any]) -> dict[str, Tensor]:
    """Return the optimisers' state of each weight: ``<network>.<parameter number>.<name>``."""
    return {
        f"{network}.{number}.{name}": torch.as_tensor(value)
        for network, optimizer in enumerate(optimizers)
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def load_moments(optimizers: Sequence[Any], found: dict[str, Tensor]) -> None:
    """Put what :func:`moments` found back into fresh optimisers."""
    states = [optimizer.state_dict() for optimizer in optimizers]
    for name, value in found.items():
        network, number, key = name.split(".", 2)
        states[int(network)]["state"].setdefault(int(number), {})[key] = value
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)


class Checkpoint:
    """The file ``last.safetensors`` in ``directory``. Refused if ``fingerprint``, of input and settings, is another."""

    def __init__(self, directory: str | Path, fingerprint: str) -> None:
        self.path = Path(directory) / "last.safetensors"
        self.fingerprint = fingerprint

    def save(self, state: TrainingState) -> None:
        """Replace the file, atomically."""
        flat = {f"{group}.{key}": v for group in GROUPS for key, v in (getattr(state, group) or {}).items()}
        tensors = {
            name: torch.as_tensor(v).detach().cpu().contiguous().clone()
            for name, v in flat.items()
            if isinstance(v, np.ndarray | Tensor)
        }
        head = {
            "fingerprint": self.fingerprint,
            "position": state.position,
            "best_rsum": state.best_rsum,
            "history": state.history,
            "plain": {name: v for name, v in flat.items() if name not in tensors},
            "partial": state.partial is not None,
        }
        with staged_file(self.path, overwrite=True) as path:
            write_tensors(tensors, path, metadata={"state": json.dumps(head)})

    def load(self) -> TrainingState | None:
        """Return the saved state, or None. DataError: the file is damaged, or belongs to other data or settings."""
        from safetensors import SafetensorError

        if not self.path.exists():
            return None
        errors = SafetensorError, KeyError, TypeError, ValueError
        with reading(f"the checkpoint {self.path}", "read (start again with --overwrite)", *errors):
            tensors, metadata = read_tensors(self.path, "pt")
            head = json.loads(metadata["state"])
            position, fingerprint = Position(*head["position"]), head["fingerprint"]
            best_rsum, history, plain, partly = (head[k] for k in ("best_rsum", "history", "plain", "partial"))
            if not (isinstance(history, list) and isinstance(plain, dict)):
                raise TypeError("its history and its labels are not what was written")
        if fingerprint != self.fingerprint:
            raise DataError(
                f"the checkpoint {self.path} belongs to other data or settings, or to another version of cleanpairs; "
                "resume with the same ones, or start again with --overwrite"
            )
        model, optimizer, best, labels, partial = (part_of({**tensors, **plain}, f"{group}.") for group in GROUPS)
        labels = {name: value.numpy() if isinstance(value, Tensor) else value for name, value in labels.items()}
        known = best or None, best_rsum, history, partial if partly else None
        return TrainingState(position, model, optimizer, labels, *known)


class _Diverged(Exception):  # noqa: N818 - no error until it comes twice
    pass


@dataclass
class Trainer:
    """Trains the dual encoder of a method, or two of them, as its strategy says.

    Without a ``checkpoint`` the training cannot be resumed. After every epoch ``on_epoch(record, y)`` is called, with
    the raw labels (N,). After every step ``on_step(pairs_done, pairs_total, loss)`` is called. The total may be an
    estimate.
    """

    settings: TrainingSettings
    checkpoint: Checkpoint | None = None
    on_epoch: Callable[[EpochRecord, np.ndarray], None] | None = None
    on_step: Callable[[int, int, float], None] | None = None

    def fit(
        self,
        data: TrainingData,
        stages: Sequence[TrainingStage],
        strategy: TrainingStrategy,
        build: Callable[[], DualEncoder],
        validate: Callable[[DualEncoder], float] | None = None,
        resume: bool = False,
    ) -> Trained:
        """Train all stages.

        A freshly initialised model comes from ``build``, which is called once a stage and network, with torch's seed
        set. By the rSum of ``validate`` the best epoch of the last stage is kept.

        Raises RefusedError: ten steps in a row without a finite loss, or a training that diverges again after it went
        back to its last good state. ResourceError: the memory of the GPU does not hold four pairs.
        KeyboardInterrupt: on a signal, after the state has been saved.
        """
        if (self.settings.micro_batch is not None or distributed.world_size() > 1) and strategy.needs_whole_graph:
            raise ConfigError(
                "this method takes gradients of gradients, which need the whole batch in one graph: train it in one "
                "process and without micro_batch, or take another method"
            )
        self.data, self.strategy, self.build, self.validate = data, strategy, build, validate
        self.optimizers: list[Any] = []
        self.saved_at, self.saved = time.monotonic(), resume
        self.fallbacks = 0  # times that it went back, with half the learning rate
        self.unread: list[tuple[Batch, bool, Tensor]] = []  # steps, whether they teach, and their loss and outcome
        self.last_loss = float("nan")  # of the latest step that was read
        self.stopping = False  # whether any process is to stop
        self.micro_batch = self.settings.micro_batch  # halved where memory does not suffice
        self.device_images = on_device(data.images, torch.device(self.settings.device))
        labels = copy.deepcopy(strategy.state())
        beginning = TrainingState(Position(1, 1, 0), {}, {}, labels, None, None, [], None)
        with default_modes(), Interrupts(enabled=self.checkpoint is not None) as self.interrupts:
            while True:
                try:
                    kept = self.checkpoint.load() if self.saved and self.checkpoint is not None else None
                    return self._stages(stages, kept or beginning)
                except _Diverged as found:
                    if self.fallbacks:
                        raise RefusedError(
                            f"the training diverged again at half the learning rate: {found}; lower lr "
                            "(--set method.lr) further, or look at the vectors and captions of the input"
                        ) from found
                    self.fallbacks, self.saved = 1, distributed.all_reduce_max(self.saved) > 0

    def _stages(self, stages: Sequence[TrainingStage], restored: TrainingState) -> Trained:
        at, step, partial = restored.position, restored.position.step, restored.partial
        self.strategy.load_state(restored.labels)
        self.best, self.best_rsum, self.history = restored.best, restored.best_rsum, [*restored.history]
        past = partial or (self.history[-1] if self.history else {})
        # Steps that were not taken, in the whole run, and one after the other.
        self.skipped, self.skipped_in_row = past.get("skipped_steps", 0), past.get("skipped_in_row", 0)
        self.micro_batch = past.get("micro_batch", self.micro_batch)
        self.fallbacks = max(self.fallbacks, past.get("fallbacks", 0))
        epochs = sum(p.epochs for p in stages)
        for number, stage in enumerate(stages, start=1):
            if number < at.stage:
                continue
            self._start_stage(number)
            if restored.model:
                torch.nn.ModuleList(self.view.networks).load_state_dict(restored.model)
                load_moments(self.optimizers, restored.optimizer)
                restored.model.clear()  # once, and not kept through the training
                restored.optimizer.clear()
            for epoch in range(at.epoch if number == at.stage else 1, stage.epochs + 1):
                before = sum(p.epochs for p in stages[: number - 1]) + epoch - 1
                last = number == len(stages)
                decay = stage.decay(epoch) if last else 1.0
                for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                    group["lr"] = group["initial_lr"] * decay * 0.5**self.fallbacks
                self.view.stage, self.view.epoch, self.view.last = number, epoch, last and epoch == stage.epochs
                self._epoch(step, partial, before, epochs, last)
                step, partial = 0, None
                of_stage = (line["loss"] for line in self.history if line["stage"] == number)
                if epoch == stage.epochs and self.skipped_in_row and not any(of_stage):  # 0 of an epoch without a step
                    raise RefusedError(
                        f"the loss or its gradient was not finite in any step of stage {number}; lower lr (--set "
                        "method.lr), or check the loss and the vectors of the pairs"
                    )
                done = last and epoch == stage.epochs
                # While labels were made: no step noticed it.
                stop = distributed.all_reduce_max(self.interrupts.received is not None) > 0
                self._save(Position(number, epoch + 1, 0), force=done or stop or epoch == stage.epochs)
                if stop:
                    self.interrupts.raise_received()
        if self.best is not None:
            torch.nn.ModuleList(self.view.networks).load_state_dict(self.best)
        heads = [network.head for network in self.view.networks]
        return Trained(self._model().eval(), self.strategy.value(), self.history, self.best_rsum, heads)

    def _model(self) -> Any:
        """Return what retrieves: the only model, or the mean of two."""
        models = [network.model for network in self.view.networks]
        return models[0] if len(models) == 1 else Ensemble(models)

    def _start_stage(self, number: int) -> None:
        s = self.settings
        networks, self.optimizers = [], []
        for k in range(self.strategy.networks):
            with seeded(step_seed(s.seed, number, *([k] if k else []))):
                model = self.build()
                network: Any = Network(model, self.strategy.head(model))
            if s.device == "cuda" and distributed.world_size() > 1:  # torch has no such norm for CPUs
                network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
            # A pretrained network has weights that stay, and others that want a rate of their own.
            own = getattr(model, "parameter_groups", None)
            groups: list[dict[str, Any]] = [{"params": list(network.model.parameters())}] if own is None else own(s.lr)
            if network.head is not None:
                groups.append({"params": list(network.head.parameters()), "lr": self.strategy.head_lr or s.lr})
            optimizer = torch.optim.AdamW(groups, lr=s.lr, weight_decay=s.weight_decay, fused=True)
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]
            for x in (*network.parameters(), *network.buffers()) if distributed.world_size() > 1 else ():
                torch.distributed.broadcast(x.data, 0)
            network.to(s.device)
            networks.append(network)
            self.optimizers.append(optimizer)
        self.view = EpochContext(self.data, s, networks, self.device_images)
        self.view.micro_batch = self.micro_batch
        # How near each other all images, and all captions, of a network were.
        self.began = [self._collapse(k) for k in range(len(networks))]

    def _epoch(self, first: int, partial: dict[str, Any] | None, before: int, epochs: int, last: bool) -> None:
        """One epoch, from step ``first`` on. ``before`` of all ``epochs`` are done."""
        began = time.perf_counter()
        view, strategy, s = self.view, self.strategy, self.settings
        if partial is None:
            strategy.start_epoch(view)
            self._same_labels()
        view.captions, strategy.mean_probability = strategy.captions, None  # of this epoch, or there is none
        steps = [(k, batch) for k in range(strategy.networks) for batch in strategy.batches(view, k)]
        pairs = sum(len(rows) for _, batch in steps for rows in batch)
        # Of the pairs whose step was taken the losses' sum and the number, and all whose step was tried.
        past = partial or {}
        self.loss_sum, self.counted, self.done = past.get("loss_sum", 0.0), past.get("counted", 0), past.get("done", 0)
        started_at, started = self.done, time.perf_counter()
        for network in view.networks:
            network.train()
        for step, (k, batch) in enumerate(steps):
            if step < first:
                continue
            if step + 1 < len(steps):
                view.expect(*steps[step + 1], step_seed(s.seed, view.stage, view.epoch, step + 1))
            seed = step_seed(s.seed, view.stage, view.epoch, step)
            self._take(k, batch, seed)
            if self.on_step is not None and distributed.rank() == 0:
                self.on_step(before * pairs + self.done, epochs * pairs, self.last_loss)
            if self.stopping if distributed.world_size() > 1 else self.interrupts.received:
                self._read()
                known = {name: getattr(self, name) for name in ("loss_sum", "counted", "done", "skipped_in_row")}
                known |= {"skipped_steps": self.skipped, "micro_batch": self.micro_batch, "fallbacks": self.fallbacks}
                self._save(Position(view.stage, view.epoch, step + 1), force=True, partial=known)
                self.interrupts.raise_received()
        self._read()
        trained = time.perf_counter() - started
        view.changed()
        if self.counted:
            self._watch(self.loss_sum / self.counted)
        strategy.end_epoch(view)
        self._same_labels()
        rsum = None
        if self.validate is not None and last:
            rsum = distributed.broadcast(self.validate(self._model()))
            if self.best_rsum is None or rsum > self.best_rsum:
                self.best_rsum = rsum
                weights = torch.nn.ModuleList(view.networks).state_dict()
                self.best = {name: value.detach().cpu().clone() for name, value in weights.items()}
        record = EpochRecord(
            stage=view.stage, epoch=view.epoch, loss=self.loss_sum / max(self.counted, 1),
            pairs_per_second=(self.done - started_at) / max(trained, 1e-9), seconds=time.perf_counter() - began,
            lr=float(self.optimizers[0].param_groups[0]["lr"]), mean_probability=strategy.mean_probability,
            flagged=float((strategy.labels() == 0).mean()), val_rsum=rsum, skipped_steps=self.skipped,
            note="; ".join(filter(None, [strategy.note, *self._notes()])) or None,
            micro_batch=self.micro_batch, fallbacks=self.fallbacks,
        )  # fmt: skip
        self.history.append(vars(record).copy())
        if self.on_epoch is not None and distributed.rank() == 0:
            self.on_epoch(record, strategy.value())

    def _take(self, k: int, batch: Batch, seed: int) -> None:
        optimizer = self.optimizers[k]
        while True:
            optimizer.zero_grad(set_to_none=True)
            try:
                loss, teaches = self._gradients(k, batch, seed)
                break
            except torch.cuda.OutOfMemoryError as error:
                shortage = str(error).splitlines()[0]
            # Not within the handler: its traceback holds what is to be freed.
            self._fewer(sum(map(len, batch)), shortage)
        loss, stops = self._summed(k, loss)
        taken = torch.isfinite(loss)
        if teaches:
            learned = [p for group in optimizer.param_groups for p in group["params"]]
            # A finite loss may have a gradient that is not.
            taken = taken & torch.isfinite(torch.nn.utils.clip_grad_norm_(learned, self.settings.grad_clip))
            optimizer.grad_scale, optimizer.found_inf = None, (~taken).float()  # the optimiser looks, on the device
            optimizer.step()
        self.done += sum(map(len, batch))
        self.unread.append((batch, teaches, torch.stack([loss, taken.to(loss.dtype), stops])))
        if len(self.unread) >= READ_EVERY[loss.device.type]:
            self._read()

    def _read(self) -> None:
        unread, self.unread = self.unread, []
        outcomes = torch.stack([outcome for *_, outcome in unread]).tolist() if unread else []
        for (batch, teaches, _), (loss, taken, stops) in zip(unread, outcomes, strict=True):
            self.stopping |= stops > 0
            self.last_loss = loss if taken else float("nan")
            if not taken:
                self._skip(batch)
                continue
            size = sum(map(len, batch))
            self.loss_sum += loss * size
            self.counted += size
            if teaches:
                self.skipped_in_row = 0

    def _gradients(self, k: int, batch: Batch, seed: int) -> tuple[Tensor, bool]:
        """The loss of a batch, and whether it has a gradient, which is then in the weights. Its graph ends here."""
        view = self.view
        with seeded(seed):
            view.staged[k].halves.clear()
            loss = self.strategy.loss(view, k, batch, seed)
            view.changed()
            if loss.requires_grad:
                loss.backward()
                for p in view.networks[k].parameters() if distributed.rank() > 0 else ():
                    if p.grad is not None:  # of the loss, which all processes compute alike: it counts once
                        p.grad.zero_()
                view.staged[k].finish()
        return loss.detach(), loss.requires_grad

    def _summed(self, k: int, loss: Tensor) -> Tensor:
        """Return the loss and whether a process is to stop, (2,). The gradients of network ``k`` become their sums over
        the processes, in one collective. A weight without a gradient has none on any process, and keeps none.
        """
        world = distributed.world_size()
        figures = torch.stack([loss / world, loss.new_tensor(float(self.interrupts.received is not None))])
        if world == 1:
            return figures
        found = [p.grad for p in self.view.networks[k].parameters() if p.grad is not None]
        box = torch.cat([figures.float(), *(g.flatten().float() for g in found)])
        torch.distributed.all_reduce(box)
        for g, total in zip(found, box[2:].split([g.numel() for g in found]), strict=True):
            g.copy_(total.view_as(g))
        return box[:2]

    def _fewer(self, size: int, shortage: str) -> None:
        """Halve what of a batch of ``size`` pairs goes through the towers at once, for the rest of the run."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for staged in self.view.staged:
            staged.halves.clear()
        self.view.prefetched.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        world = distributed.world_size()
        at_once = min(-(-size // world), self.micro_batch or size)
        least = 4  # pairs that the memory has to hold at once
        if at_once <= least or self.strategy.needs_whole_graph or world > 1:  # others may be further already
            raise ResourceError(
                f"the memory of the device does not hold {at_once} pairs of a batch ({shortage}): take a smaller model "
                "or batch_size, with several processes a smaller micro_batch, fewer or smaller images, "
                "or device='cpu' (--device cpu)"
            )
        self.micro_batch = self.view.micro_batch = max(least, -(-at_once // 2))

    def _skip(self, batch: Batch) -> None:
        self.skipped += 1
        self.skipped_in_row += 1
        if self.skipped_in_row >= MAX_NON_FINITE:
            rows = np.unique(np.concatenate(batch))
            pairs = (rows if self.data.pair_id is None else self.data.pair_id[rows]).tolist()
            named = 256
            more = f" and {len(pairs) - named} more" if len(pairs) > named else ""
            raise RefusedError(
                f"the loss or its gradient was not finite in {MAX_NON_FINITE} steps in a row; the last batch held the "
                f"pairs (pair_id) {', '.join(map(str, pairs[:named]))}{more}; lower lr (--set method.lr), "
                "or check the vectors of these pairs"
            )

    def _notes(self) -> Iterator[str]:
        if self.micro_batch != self.settings.micro_batch:
            yield f"batches are computed in pieces of {self.micro_batch} pairs, as memory does not hold them whole"
        if self.fallbacks:
            yield "after a divergence at half the learning rate"

    def _watch(self, loss: float) -> None:
        view, found = self.view, None
        before = [abs(line["loss"]) for line in self.history if line["loss"]]  # 0 of an epoch without a finite step
        if before and abs(loss) > 10 * max(1.0, *before):
            found = f"the mean loss of epoch {view.epoch} of stage {view.stage} is {loss:.4g}"
        for k in range(len(view.networks) if view.epoch > 1 else 0):
            for cosine, began, what in zip(self._collapse(k), self.began[k], ("images", "captions"), strict=True):
                if cosine > 0.999 and began < 0.99:
                    found = (
                        f"after epoch {view.epoch} of stage {view.stage} all {what} are one point (mean cosine "
                        f"{cosine:.4f})"
                    )
        found = distributed.broadcast(found)
        if found is not None:
            raise _Diverged(found)

    @torch.no_grad()
    def _collapse(self, network: int) -> list[float]:
        """Return the mean cosine of any two images, and captions, of a sample. 0 where there is only one."""
        view, data, model = self.view, self.data, self.view.networks[network].model
        rows = np.random.default_rng(view.seed(11, network)).permutation(len(data))[:64]
        found = []
        with evaluating(model):
            for group, image in ((data.image_group, True), (data.text_group, False)):
                distinct = rows[np.unique(group[rows], return_index=True)[1]]
                k = len(distinct)
                z = model.vector(view.encode(network, distinct, image=image)).float()  # (k, E)
                found.append((float(z.sum(dim=0).square().sum()) - k) / (k * (k - 1)) if k > 1 else 0.0)
        return found

    def _same_labels(self) -> None:
        """Take over the first process's labels, from which others may differ in the last digit."""
        if distributed.world_size() > 1:
            self.strategy.load_state(distributed.broadcast(self.strategy.state()))

    def _save(self, position: Position, *, force: bool, partial: dict[str, Any] | None = None) -> None:
        if self.checkpoint is None or distributed.rank() > 0:
            return
        if not force and time.monotonic() - self.saved_at < self.settings.checkpoint_seconds:
            return
        weights = torch.nn.ModuleList(self.view.networks).state_dict()
        known = self.strategy.state(), self.best, self.best_rsum, self.history, partial
        self.checkpoint.save(TrainingState(position, weights, moments(self.optimizers), *known))
        self.saved_at, self.saved = time.monotonic(), True
