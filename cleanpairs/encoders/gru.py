"""Bidirectional GRU over packed sequences, its two directions averaged."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cleanpairs.encoders.tokenizer import PackedTokens


class BiGRU(nn.Module):
    """(total, D) packed inputs -> (total, H) packed outputs: the mean of the forward and the backward state."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim_in, dim, bidirectional=True)

    def forward(self, x: Tensor, batch_sizes: Tensor) -> Tensor:
        """Outputs (total, H) of inputs (total, D), step-major, with ``batch_sizes`` (L,) on the CPU."""
        out = self.rnn(PackedSequence(x, batch_sizes))[0].data  # (total, 2 H)
        half = out.shape[-1] // 2
        return (out[:, :half] + out[:, half:]) / 2


def padded(x: Tensor, tokens: PackedTokens) -> Tensor:
    """(B, L, H) of packed rows ``x`` (total, H), zeros behind each sequence."""
    L = len(tokens.batch_sizes)
    present = torch.arange(L, device=x.device)[:, None] < tokens.lengths  # (L, B)
    out = x.new_zeros(L, len(tokens.lengths), x.shape[-1])
    out[present] = x
    return out.transpose(0, 1)
