"""Gradients of one step that several processes share: what each has found becomes the sum, in one collective."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cleanpairs.core import distributed

__all__ = ["forget_gradients", "sum_gradients", "weights_of_first"]


def forget_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """What a loss that all processes compute alike has left counts once: the first process keeps it."""
    if not distributed.is_first():
        for p in parameters:
            if p.grad is not None:
                p.grad.zero_()


def sum_gradients(parameters: Iterable[nn.Parameter], figures: Tensor) -> Tensor:
    """Sum gradients and ``figures`` (k,) float over the processes, in place; the figures' sums (k,).

    A weight that has no gradient, which it has then on no process, keeps none, so that the optimiser passes it over as
    it does with one process.
    """
    if distributed.world_size() == 1:
        return figures
    found = [p.grad for p in parameters if p.grad is not None]
    box = torch.cat([figures.float(), *(g.flatten().float() for g in found)])
    torch.distributed.all_reduce(box)
    at = len(figures)
    for g in found:
        g.copy_(box[at : at + g.numel()].view_as(g))
        at += g.numel()
    return box[: len(figures)]


def weights_of_first(module: nn.Module) -> None:
    """Weights and buffers as the first process has them."""
    if distributed.world_size() == 1:
        return
    with torch.no_grad():
        for x in [*module.parameters(), *module.buffers()]:
            torch.distributed.broadcast(x.data, 0)
