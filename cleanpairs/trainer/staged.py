r"""Gradient cache (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"): a batch
in pieces, with the loss and the gradient of the whole.

The loss of a contrastive method needs the embeddings of the whole batch, its gradient does not need all towers at once:

    dL/dw = sum_i dL/dz_i dz_i/dw

so dL/dz is computed once, from embeddings alone, and the sum runs in pieces, or on several processes:

- **pieces**: the embeddings are computed piece by piece without a graph, and each piece once more with one, when dL/dz
  is known. The memory of the towers is that of a piece, for one more forward pass;
- **several processes**: each embeds its share, all get all embeddings and compute the same loss of the whole batch,
  each takes the gradient of its own share into the towers, and the weights' gradients are summed. What a gather with
  gradients and a reduce-scatter would give, with one collective less, since the gradient is known everywhere.

Both passes of a piece draw the same dropout: the generator is seeded for each. The running statistics of batch norm
move with the second pass only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.core import distributed
from cleanpairs.encoders.base import Local, State
from cleanpairs.trainer.types import step_seed

Run = Callable[[np.ndarray], tuple[State, State]]


def pieces(size: int, micro_batch: int | None) -> list[np.ndarray]:
    """Positions (b,) int64 of the pairs of each piece of ``micro_batch`` pairs at most, ascending; all when None.

    Of several processes these are this one's pieces, as many as of each; of fewer pairs than processes each one takes
    all. Packed captions stand longest first, so every n-th pair makes pieces of about as many words each.
    """
    world, rank = distributed.world_size(), distributed.rank()
    if size < world:
        return [np.arange(size)]
    n = 1 if micro_batch is None else max(1, min(size // world, -(-size // (world * micro_batch))))
    return [np.arange(rank + k * world, size, n * world) for k in range(n)]


class _Half(NamedTuple):
    """A forward whose gradient has come as far as the embeddings, ``leaves`` of the images and the texts; ``found``:
    the states of the only piece with its graph, None of several pieces.
    """

    pieces: list[np.ndarray]
    run: Run
    seed: int
    leaves: tuple[Tensor, Tensor]
    found: tuple[State, State] | None


@dataclass
class Staged:
    """The forwards of a step of one network, and the way back."""

    module: nn.Module
    halves: list[_Half] = field(default_factory=list)

    def begin(self) -> None:
        """A new step: what a step that failed has left is forgotten."""
        self.halves.clear()

    def states(self, size: int, cut: list[np.ndarray], run: Run, seed: int) -> tuple[State, State]:
        """States of the images and the texts of a batch of ``size`` pairs that is ``cut`` (:func:`pieces`).

        ``run``: states of the pairs of a piece; ``seed``: of dropout, which every process and piece draws for itself.
        """
        if len(cut[0]) == size:
            return run(cut[0])
        before, found, graph = [b.clone() for b in self.module.buffers()], [], torch.is_grad_enabled()
        with torch.set_grad_enabled(graph and len(cut) == 1):
            for k, piece in enumerate(cut):
                torch.manual_seed(step_seed(seed, distributed.rank(), k))
                found.append(run(piece))
        for buffer, old in zip(self.module.buffers(), before, strict=True):
            if len(cut) > 1:
                buffer.copy_(old)
        torch.manual_seed(seed)  # what follows is the same on all processes, and as after a plain step without dropout
        images, texts = (_whole(states, cut, size) for states in zip(*found, strict=True))
        if graph:
            leaves = (_tensor(images).requires_grad_(), _tensor(texts).requires_grad_())
            self.halves.append(_Half(cut, run, seed, leaves, found[0] if len(cut) == 1 else None))
        return images, texts

    def finish(self) -> None:
        """Take the gradient of the embeddings, which a backward pass has left there, into the weights."""
        for half in self.halves:
            for k, piece in enumerate(half.pieces):
                torch.manual_seed(step_seed(half.seed, distributed.rank(), k))
                inner = []  # <z, dL/dz>: its gradient is the loss's
                for leaf, state in zip(half.leaves, half.found or half.run(piece), strict=True):
                    z = _tensor(state)
                    if leaf.grad is not None and z.requires_grad:
                        g = leaf.grad[torch.from_numpy(piece).to(leaf.device)]
                        inner.append((z * (g[:, : z.shape[1]] if isinstance(state, Local) else g)).sum())
                if inner:
                    torch.stack(inner).sum().backward()
        self.halves.clear()


def _tensor(state: State) -> Tensor:
    """What of a state has a gradient."""
    return state.parts if isinstance(state, Local) else state


def _whole(states: Sequence[State], cut: list[np.ndarray], size: int) -> State:
    """The state of all B pairs, in the batch's order, of those of the pieces of all processes; without gradient."""
    order = torch.from_numpy(np.argsort(np.concatenate(cut)))

    def rows(parts: list[Tensor]) -> Tensor:
        return distributed.gathered(torch.cat(parts)[order.to(parts[0].device)], size)

    if not isinstance(states[0], Local):
        return rows([_tensor(s) for s in states])
    local = [s for s in states if isinstance(s, Local)]
    width = distributed.most(max(s.parts.shape[1] for s in local))
    padded = [nn.functional.pad(s.parts, (0, 0, 0, width - s.parts.shape[1])) for s in local]
    return Local(rows(padded), rows([s.lengths for s in local]))
