"""One step: the loss of a batch, its gradient, and whether it is taken.

A step whose loss or gradient is not finite is not taken; ten in a row end the run. On a GPU nobody waits for that: the
optimiser looks at a flag on the device, and the figures of the steps are read together, every ``READ_EVERY`` of them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core import distributed
from cleanpairs.core.errors import RefusedError, ResourceError
from cleanpairs.trainer.context import EpochContext
from cleanpairs.trainer.guards import halves
from cleanpairs.trainer.strategy import TrainingStrategy
from cleanpairs.trainer.types import TrainingData, TrainingSettings, step_seed

MAX_NON_FINITE = 10  # consecutive steps without a finite loss before the run is refused
MAX_NAMED = 256  # pairs of a batch that a message names
READ_EVERY = 25  # steps on a GPU

Batch = tuple[np.ndarray, ...]


class Steps:
    """Takes the steps of an epoch, and counts.

    - ``loss_sum``, ``counted``, ``done``: of the pairs whose step was taken the losses' sum and the number, and all
      whose step was tried
    - ``last_loss``: of the latest step that was read; NaN if it was not taken
    - ``skipped``, ``skipped_in_row``: steps that were not taken, in the whole run, and one after the other
    - ``parts``: in how many a batch is computed, each with a backward pass of its own, where memory did not suffice
    """

    def __init__(self, settings: TrainingSettings, data: TrainingData, procedure: TrainingStrategy) -> None:
        self.settings, self.data, self.procedure = settings, data, procedure
        self.loss_sum, self.counted, self.done = 0.0, 0, 0
        self.last_loss = float("nan")
        self.skipped = self.skipped_in_row = 0
        self.parts = 1
        self.stop = False
        self.unread: list[tuple[Batch, bool, Tensor]] = []
        self.view: EpochContext
        self.optimizers: list[Any]

    def begin(self, view: EpochContext, optimizers: list[Any], partial: dict[str, Any] | None) -> None:
        """An epoch, gone on with from :meth:`partial` where it is given."""
        self.view, self.optimizers = view, optimizers
        self.unread.clear()
        self.loss_sum = 0.0 if partial is None else float(partial["loss_sum"])
        self.done = 0 if partial is None else int(partial["done"])
        self.counted = 0 if partial is None else int(partial["counted"])

    def partial(self) -> dict[str, Any]:
        """What :meth:`begin` goes on from, beside what :meth:`restore` does."""
        return {
            "loss_sum": self.loss_sum, "done": self.done, "counted": self.counted, "skipped_steps": self.skipped,
            "skipped_in_row": self.skipped_in_row, "batch_parts": self.parts,
        }  # fmt: skip

    def restore(self, past: dict[str, Any]) -> None:
        """Go on from the counts of an epoch's record, or of :meth:`partial`."""
        self.skipped = int(past.get("skipped_steps", 0))
        self.skipped_in_row = int(past.get("skipped_in_row", 0))
        self.parts = max(self.parts, int(past.get("batch_parts", 1)))

    # -- one step ---------------------------------------------------------------------------------------------------

    def take(self, k: int, batch: Batch, seed: int, stop: bool) -> None:
        """A step of network ``k``; ``stop``: whether this process was told to stop."""
        optimizer, network = self.optimizers[k], self.view.networks[k]
        while True:
            optimizer.zero_grad(set_to_none=True)
            parts = halves(batch, self.parts)
            try:
                loss, teaches = self.gradients(k, parts, seed)
                break
            except torch.cuda.OutOfMemoryError as error:
                shortage = str(error).splitlines()[0]
            self.fewer(batch, parts, shortage)  # not within the handler: its traceback holds what is to be freed
        world = distributed.world_size()
        told = loss.new_full((1,), float(stop)) if world > 1 else loss.new_zeros(1)
        figures = self.summed(network, torch.cat([loss.view(1) / world, told]))
        loss = figures[0]
        taken = torch.isfinite(loss)
        if teaches:
            learned = [p for group in optimizer.param_groups for p in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(learned, self.settings.grad_clip)
            taken = taken & torch.isfinite(norm)  # a finite loss may have a gradient that is not
            self.apply(optimizer, taken)
        self.done += sum(len(rows) for rows in batch)
        self.unread.append((batch, teaches, torch.stack([loss, taken.to(loss.dtype), figures[1]])))
        if len(self.unread) >= (1 if loss.device.type == "cpu" else READ_EVERY):
            self.read()

    @staticmethod
    def summed(network: nn.Module, figures: Tensor) -> Tensor:
        """Sums over the processes of ``figures`` (k,), and in place of the gradients, in one collective.

        A weight without a gradient, which it has then on no process, keeps none: the optimiser passes it over.
        """
        if distributed.world_size() == 1:
            return figures
        found = [p.grad for p in network.parameters() if p.grad is not None]
        box = torch.cat([figures.float(), *(g.flatten().float() for g in found)])
        torch.distributed.all_reduce(box)
        for g, total in zip(found, box[len(figures) :].split([g.numel() for g in found]), strict=True):
            g.copy_(total.view_as(g))
        return box[: len(figures)]

    @staticmethod
    def apply(optimizer: Any, taken: Tensor) -> None:
        """``optimizer.step`` where ``taken``, a flag on the device, says so."""
        optimizer.grad_scale, optimizer.found_inf = None, (~taken).to(torch.float32)
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def gradients(self, k: int, parts: list[Batch], seed: int) -> tuple[Tensor, bool]:
        """Mean loss over the parts of a batch, and whether it has a gradient, which is then in the weights.

        The parts' gradients add up to that of the batch where a pair's loss does not depend on the others; where those
        are its negatives, it has fewer of them.
        """
        view, network = self.view, self.view.networks[k]
        total, teaches = torch.zeros((), device=view.device), False
        size = sum(len(rows) for part in parts for rows in part)
        for number, part in enumerate(parts):
            own = seed if len(parts) == 1 else step_seed(seed, number)
            torch.default_generator.manual_seed(own)  # torch.manual_seed formats a stack on a machine without a GPU
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(own)
            view.staged[k].begin()
            loss = self.procedure.loss(view, k, part, own)
            view.changed()
            share = sum(len(rows) for rows in part) / size
            total = total + loss.detach() * share
            if loss.requires_grad:
                (loss if len(parts) == 1 else loss * share).backward()
                for p in network.parameters() if not distributed.is_first() else ():
                    if p.grad is not None:  # of the loss, which all processes compute alike: it counts once
                        p.grad.zero_()
                view.staged[k].finish()
                teaches = True
        return total, teaches

    def fewer(self, batch: Batch, parts: list[Batch], shortage: str) -> None:
        """Halve what is computed at once, for the rest of the run."""
        self.release()
        if distributed.world_size() > 1:
            raise ResourceError(
                f"the memory of the device does not hold the share of process {distributed.rank()} of a batch "
                f"({shortage}): compute it in stages, micro_batch=N (--micro-batch N), or take a smaller batch_size"
            )
        if len(halves(batch, 2 * len(parts))) == len(parts):
            raise ResourceError(
                f"the memory of the device does not hold {sum(len(rows) for rows in parts[0])} pairs of a batch "
                f"({shortage}): take a smaller model, fewer or smaller images, or device='cpu' (--device cpu)"
            )
        self.parts = 2 * len(parts)

    def release(self) -> None:
        """Give back the gradients, and what the device's allocator keeps."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for staged in self.view.staged:
            staged.begin()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # -- what the steps were ----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the figures of the steps since the last time."""
        if not self.unread:
            return
        read, self.unread = self.unread, []
        for (batch, teaches, _), (loss, taken, told) in zip(
            read, torch.stack([figures for *_, figures in read]).tolist(), strict=True
        ):
            self.stop |= told > 0
            self.last_loss = loss if taken else float("nan")
            if not taken:
                self.skip(batch)
                continue
            size = sum(len(rows) for rows in batch)
            self.loss_sum += loss * size
            self.counted += size
            if teaches:
                self.skipped_in_row = 0

    def skip(self, batch: Batch) -> None:
        """A step whose loss or gradient is not finite was not taken; ten in a row end the run."""
        self.skipped += 1
        self.skipped_in_row += 1
        if self.skipped_in_row >= MAX_NON_FINITE:
            rows = np.unique(np.concatenate(batch))
            pairs = (rows if self.data.pair_id is None else self.data.pair_id[rows]).tolist()
            more = f" and {len(pairs) - MAX_NAMED} more" if len(pairs) > MAX_NAMED else ""
            raise RefusedError(
                f"the loss or its gradient was not finite in {MAX_NON_FINITE} steps in a row; the last batch held the "
                f"pairs (pair_id) {', '.join(map(str, pairs[:MAX_NAMED]))}{more}; lower lr (--set method.lr), "
                "or check the vectors of these pairs"
            )
