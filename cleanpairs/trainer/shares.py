"""Which pairs of a batch a process, and a stage of its work, computes; and the inputs of those alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core import distributed
from cleanpairs.encoders.base import Local, State
from cleanpairs.encoders.tokenizer import PackedTokens


@dataclass(frozen=True)
class Shares:
    """How B pairs are divided: every ``world``-th one is a process's, and every n-th of those is in a stage.

    Packed captions stand longest first, so shares and stages have about as many words each. Where there are fewer pairs
    than processes every process computes all of them (``divided`` is False), and the first one's gradient counts.
    """

    size: int
    world: int
    rank: int
    stages: tuple[np.ndarray, ...]  # positions in the batch, ascending, of this process

    @classmethod
    def of(cls, size: int, micro_batch: int | None) -> "Shares":
        """The shares of this process; a stage holds about ``micro_batch`` pairs at most, or all."""
        world, rank = distributed.world_size(), distributed.rank()
        divided = size >= world
        own = np.arange(rank, size, world) if divided else np.arange(size)
        least = size // world if divided else size  # in the smallest share: all processes have as many stages
        most = -(-size // world) if divided else size
        n = 1 if micro_batch is None else max(1, min(least, -(-most // micro_batch)))
        return cls(size, world, rank, tuple(own[k::n] for k in range(n)))

    @property
    def divided(self) -> bool:
        """Whether the processes compute different pairs."""
        return self.world > 1 and self.size >= self.world

    @property
    def plain(self) -> bool:
        """Whether one process computes all at once."""
        return self.world == 1 and len(self.stages) == 1

    def whole(self, stages: Sequence[State], width: int | None = None) -> State:
        """The state of all B pairs, in the batch's order, without gradient, of those of the stages.

        ``width``: parts of the widest text of the batch, where states are :class:`Local`.
        """
        if isinstance(stages[0], Local):
            width = max([width or 0, *(s.parts.shape[1] for s in stages if isinstance(s, Local))])
            parts = [_padded(s.parts, width) for s in stages if isinstance(s, Local)]
            return Local(self._rows(parts), self._rows([s.lengths for s in stages if isinstance(s, Local)]))
        return self._rows([s for s in stages if isinstance(s, Tensor)])

    def _rows(self, stages: Sequence[Tensor]) -> Tensor:
        """(B, ...) of the stages' rows."""
        own = join(stages, [p // self.world if self.divided else p for p in self.stages])
        if not self.divided:
            return own
        gathered = distributed.gather_rows(own, -(-self.size // self.world))  # (world, most, ...)
        return gathered.transpose(0, 1).flatten(0, 1)[: self.size].contiguous()


def join(stages: Sequence[Tensor], positions: Sequence[np.ndarray]) -> Tensor:
    """(n, ...) whose rows ``positions[k]`` are ``stages[k]``; without gradient."""
    if len(stages) == 1:
        return stages[0].detach()
    out = stages[0].new_empty(sum(map(len, stages)), *stages[0].shape[1:])
    for stage, at in zip(stages, positions, strict=True):
        out[torch.from_numpy(at).to(out.device)] = stage.detach()
    return out


def take_packed(tokens: PackedTokens, rows: np.ndarray) -> PackedTokens:
    """The chosen sequences (b,) int64, ascending, of packed ones on the CPU: packed themselves."""
    at = torch.from_numpy(rows)
    sizes = tokens.batch_sizes
    present = at[None, :] < sizes[:, None]  # (L, b)
    starts = sizes.cumsum(0) - sizes
    left = present.sum(dim=1)
    sentences = None if tokens.sentences is None else tokens.sentences[at]
    return PackedTokens(tokens.ids[(starts[:, None] + at)[present]], left[left > 0], tokens.lengths[at], sentences)


def _padded(parts: Tensor, width: int) -> Tensor:
    """(B, L, D) to (B, width, D), zeros behind."""
    return torch.nn.functional.pad(parts, (0, 0, 0, width - parts.shape[1]))
