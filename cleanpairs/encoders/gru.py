"""Bidirectional GRU over packed sequences, its two directions averaged."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["BiGRU"]


class BiGRU(nn.Module):
    """(total, D) packed inputs -> (total, H) packed outputs: the mean of the forward and the backward state."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim_in, dim, bidirectional=True)

    def forward(self, x: Tensor, batch_sizes: Tensor) -> Tensor:
        """Outputs (total, H) of inputs ``x`` (total, D), step-major, with ``batch_sizes`` (L,) on the CPU."""
        out = self.rnn(PackedSequence(x, batch_sizes))[0].data  # (total, 2 H)
        half = out.shape[-1] // 2
        return (out[:, :half] + out[:, half:]) / 2
