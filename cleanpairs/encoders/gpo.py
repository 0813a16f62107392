r"""Generalised pooling operator (Chen et al., CVPR 2021, "Learning the best pooling strategy", section 4).

For a set of L vectors in E dimensions, with x_(k) the k-th largest value of each dimension:

    v = sum_k theta_k x_(k),     theta = softmax_k(f(PE(1..L)) / 0.1),     sum_k theta_k = 1

f is a BiGRU over positional encodings (its two directions averaged) and a linear layer; PE is the sinusoidal encoding.
theta depends on L only, so it is computed once for each length that occurs in the batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def _positional_encoding(length: int, dim: int) -> Tensor:
    """Sinusoidal encoding (length, dim) of the positions 0 .. length - 1."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * -(math.log(10000.0) / dim))
    pe = torch.zeros(length, dim)
    pe[:, 0::2] = torch.sin(position * rate)
    pe[:, 1::2] = torch.cos(position * rate)
    return pe


class GPO(nn.Module):
    """Pool sets of vectors with learned weights over their sorted values.

    ``d_pe``, ``d_hidden``: size of the positional encoding and of the BiGRU; ``temperature``: of the softmax over
    positions.
    """

    def __init__(self, d_pe: int = 32, d_hidden: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        self.d_pe, self.temperature = d_pe, temperature
        self.gru = nn.GRU(d_pe, d_hidden, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(d_hidden, 1, bias=False)

    def weights(self, lengths: Tensor) -> Tensor:
        """theta (n, L) of n distinct ``lengths`` (n,), longest first; zero behind each length."""
        longest = int(lengths[0])
        pe = _positional_encoding(longest, self.d_pe).to(self.linear.weight)
        packed = nn.utils.rnn.pack_padded_sequence(pe.expand(len(lengths), -1, -1), lengths.cpu(), batch_first=True)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)  # (n, L, 2 H)
        half = hidden.shape[-1] // 2
        scores = self.linear((hidden[..., :half] + hidden[..., half:]) / 2).squeeze(-1)  # (n, L)
        behind = torch.arange(longest, device=scores.device) >= lengths.to(scores.device)[:, None]
        return (scores / self.temperature).masked_fill(behind, float("-inf")).softmax(dim=1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Pooled vectors (B, E) of sets ``x`` (B, L, E), of which the first ``lengths`` (B,) int64, >= 1, count."""
        B, L, _ = x.shape
        if lengths is None:
            theta = self.weights(torch.tensor([L])).expand(B, -1)  # (B, L)
        else:
            distinct, inverse = torch.unique(lengths, return_inverse=True)
            theta = self.weights(distinct.flip(0)).flip(0)[inverse]  # (B, max length)
            L = theta.shape[1]
            x = x[:, :L]
            behind = torch.arange(L, device=x.device) >= lengths[:, None]  # (B, L)
            x = x.masked_fill(behind[..., None], float("-inf"))
        x = x.transpose(1, 2).sort(dim=-1, descending=True).values  # (B, E, L)
        if lengths is not None:
            x = x.masked_fill(behind[:, None, :], 0.0)  # -inf * 0 would be NaN
        return torch.bmm(x, theta.to(x.dtype)[..., None]).squeeze(-1)  # (B, E)
