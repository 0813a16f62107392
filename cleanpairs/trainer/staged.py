r"""A step in two stages: the batch becomes embeddings, the loss of the embeddings is taken, then the towers learn.

The loss of a contrastive method needs the embeddings of the whole batch, its gradient does not need all towers at once:

    dL/dw = sum_i dL/dz_i dz_i/dw

so dL/dz is computed once, from embeddings alone, and the sum runs in stages, or on several processes:

- **gradient cache** (Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"): the
  embeddings are computed in stages without a graph, and each stage once more with one, when dL/dz is known. The memory
  of the towers is that of a stage, for one more forward pass;
- **several processes**: each embeds its share, all get all embeddings and compute the same loss of the global batch,
  each takes the gradient of its own share into the towers, and the weights' gradients are summed. What a gather with
  gradients and a reduce-scatter would give, with one collective less, since the gradient is known everywhere.

Both forward passes of a stage draw the same dropout: the generator is seeded for each. The running statistics of batch
norm move with the second pass only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from cleanpairs.encoders.base import Local, State
from cleanpairs.trainer.shares import Shares
from cleanpairs.trainer.types import step_seed

Run = Callable[[np.ndarray], tuple[State, State]]


@dataclass
class _Half:
    """A forward whose gradient has come as far as the embeddings."""

    shares: Shares
    run: Run
    seed: int
    leaves: tuple[Tensor, Tensor]  # of the images and the texts of the whole batch
    kept: tuple[State, State] | None  # of the own share with its graph, where there is one stage


@dataclass
class Staged:
    """The forwards of a step of one network, and the way back; ``micro_batch``: pairs that a process takes through the
    towers at once; all when None.
    """

    module: nn.Module
    micro_batch: int | None = None
    halves: list[_Half] = field(default_factory=list)

    def begin(self) -> None:
        """A new step: what a step that failed has left is forgotten."""
        self.halves.clear()

    def states(self, size: int, run: Run, seed: int, width: int | None = None) -> tuple[State, State]:
        """States of the images and the texts of a batch of ``size`` pairs.

        ``run``: states of the pairs at the given positions of the batch, (b,) int64, ascending; ``seed``: of dropout,
        which every process and stage draws for itself; ``width``: words of the longest caption of the batch.
        """
        shares = Shares.of(size, self.micro_batch)
        if shares.plain:
            return run(shares.stages[0])
        kept = None
        if len(shares.stages) == 1:
            torch.manual_seed(step_seed(seed, shares.rank, 0))
            kept = run(shares.stages[0])
            found = [kept]
        else:
            before = [b.clone() for b in self.module.buffers()]
            found = []
            with torch.no_grad():
                for k, stage in enumerate(shares.stages):
                    torch.manual_seed(step_seed(seed, shares.rank, k))
                    found.append(run(stage))
                for buffer, old in zip(self.module.buffers(), before, strict=True):
                    buffer.copy_(old)
        torch.manual_seed(seed)  # what follows is the same on all processes, and as after a plain step without dropout
        images = shares.whole([image for image, _ in found])
        texts = shares.whole([text for _, text in found], width)
        if torch.is_grad_enabled():
            leaves = (_tensor(images).requires_grad_(), _tensor(texts).requires_grad_())
            self.halves.append(_Half(shares, run, seed, leaves, kept))
        return images, texts

    def finish(self) -> None:
        """Take the gradient of the embeddings, which a backward pass has left there, into the weights."""
        for half in self.halves:
            for k, stage in enumerate(half.shares.stages):
                states = half.kept
                if states is None:
                    torch.manual_seed(step_seed(half.seed, half.shares.rank, k))
                    states = half.run(stage)
                stand_in = self._inner(half, stage, states)
                if stand_in is not None:
                    stand_in.backward()
        self.halves.clear()

    def _inner(self, half: _Half, stage: np.ndarray, states: Sequence[State]) -> Tensor | None:
        """<z, dL/dz> of a stage: its gradient is the loss's."""
        total = None
        for leaf, state in zip(half.leaves, states, strict=True):
            z = _tensor(state)
            if leaf.grad is None or not z.requires_grad:
                continue
            g = leaf.grad[torch.from_numpy(stage).to(leaf.device)]
            if isinstance(state, Local):
                g = g[:, : z.shape[1]]
            if half.shares.world > 1 and not half.shares.divided and half.shares.rank > 0:
                g = torch.zeros_like(g)
            inner = (z * g).sum()
            total = inner if total is None else total + inner
        return total


def _tensor(state: State) -> Tensor:
    """What of a state has a gradient."""
    return state.parts if isinstance(state, Local) else state
