"""The two towers of VSE infinity: regions -> vector, words -> vector, both pooled by GPO."""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from cleanpairs.encoders.tokenizer import PackedTokens

WORD_DROPOUT = 0.4  # of the word embedding


def l2_normalise(x: Tensor) -> Tensor:
    """Rows of ``x`` (B, E) on the unit sphere, in full precision at least. A zero row stays zero."""
    return nn.functional.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1, eps=1e-8)


class Standardised(nn.Module):
    """Vectors (..., D) less their mean, in standard deviations. Until it is fitted they stay as they are."""

    def add_moments(self, dim: int) -> Self:
        """Add the moments of vectors of ``dim`` dimensions. Return the module itself."""
        self.register_buffer("shift", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        return self

    @torch.no_grad()
    def fit_input(self, mean: Tensor, std: Tensor) -> None:
        """Fix the mean and the deviation of the input, (D,) each. A dimension that is constant becomes 0."""
        self.shift.copy_(mean)  # type: ignore[operator]
        # Rounding leaves a constant dimension a little deviation.
        self.scale.copy_((std > 1e-6 * mean.abs()) / std.clamp_min(1e-6))  # type: ignore[operator]

    def standardised(self, x: Tensor) -> Tensor:
        """Return ``x`` (..., D), standardised."""
        return (x - self.shift) * self.scale  # type: ignore[operator]


def _mean_direction(x: Tensor) -> Tensor:
    """The mean (..., H) of the two directions of a recurrent network, which are side by side in ``x`` (..., 2 H)."""
    return x.unflatten(-1, (2, -1)).mean(dim=-2)


class GPO(nn.Module):
    r"""Generalised pooling operator (Chen et al., CVPR 2021, "Learning the best pooling strategy", section 4).

    For a set of L vectors in E dimensions, with x_(k) the k-th largest value of each dimension:

        v = sum_k theta_k x_(k),     theta = softmax_k(f(PE(1..L)) / 0.1),     sum_k theta_k = 1

    Here f is a BiGRU over sinusoidal encodings of the positions (its two directions averaged) and a linear layer.
    The weights theta depend on L only, so they are computed once for each length in the batch.

    ``d_pe``, ``d_hidden``: size of the positional encoding and of the BiGRU.
    """

    def __init__(self, d_pe: int = 32, d_hidden: int = 32) -> None:
        super().__init__()
        self.d_pe = d_pe
        self.gru = nn.GRU(d_pe, d_hidden, 1, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(d_hidden, 1, bias=False)

    def weights(self, lengths: Tensor) -> Tensor:
        """theta (n, L) of n distinct ``lengths`` (n,), longest first. Zero behind each length."""
        longest = int(lengths[0])
        rate = torch.exp(torch.arange(0, self.d_pe, 2, dtype=torch.float32) * -(math.log(10000.0) / self.d_pe))
        angle = torch.arange(longest, dtype=torch.float32)[:, None] * rate
        pe = torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1).to(self.linear.weight)  # (L, d_pe)
        packed = pack_padded_sequence(pe.expand(len(lengths), -1, -1), lengths.cpu(), batch_first=True)
        hidden, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)  # (n, L, 2 H)
        scores = self.linear(_mean_direction(hidden)).squeeze(-1)  # (n, L)
        behind = torch.arange(longest, device=scores.device) >= lengths.to(scores.device)[:, None]
        return (scores / 0.1).masked_fill(behind, float("-inf")).softmax(dim=1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Pooled vectors (B, E) of sets ``x`` (B, L, E), of which the first ``lengths`` (B,) int64, >= 1, count."""
        if lengths is None:
            theta = self.weights(torch.tensor([x.shape[1]])).expand(len(x), -1)  # (B, L)
        else:
            distinct, inverse = torch.unique(lengths, return_inverse=True)
            theta = self.weights(distinct.flip(0)).flip(0)[inverse]  # (B, max length)
            x = x[:, : theta.shape[1]]
            behind = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]  # (B, L)
            x = x.masked_fill(behind[..., None], float("-inf"))
        x = x.transpose(1, 2).sort(dim=-1, descending=True).values  # (B, E, L)
        if lengths is not None:
            x = x.masked_fill(behind[:, None, :], 0.0)  # -inf * 0 would be NaN
        return torch.bmm(x, theta.to(x.dtype)[..., None]).squeeze(-1)  # (B, E)


class RegionTower(Standardised):
    """Regions (B, R, D) -> linear + residual MLP -> GPO -> unit vectors (B, E).

    Regions left out in training do not enter the MLP, so its batch norm sees the kept ones only, as in the papers.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim_in, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim_in, dim // 2), nn.BatchNorm1d(dim // 2), nn.ReLU(inplace=True), nn.Linear(dim // 2, dim)
        )
        self.pool = GPO()
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.add_moments(dim_in)

    def project(self, x: Tensor) -> Tensor:
        """Regions (n, D) to (n, E)."""
        x = self.standardised(x)
        return self.linear(x) + self.mlp(x)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Unit vectors (B, E) of regions ``x`` (B, R, D). ``keep`` (B, R) bool, at least one a row, for training."""
        B, R, D = x.shape
        if keep is None or R == 1:
            regions = self.project(x.reshape(B * R, D)).view(B, R, -1)
            return l2_normalise(regions[:, 0] if R == 1 else self.pool(regions))
        kept = self.project(x[keep])  # (total, E)
        regions = kept.new_zeros(B, R, kept.shape[-1])
        regions[torch.arange(R, device=x.device) < keep.sum(dim=1)[:, None]] = kept
        return l2_normalise(self.pool(regions, keep.sum(dim=1)))


class BiGRU(nn.Module):
    """(total, D) packed inputs -> (total, H) packed outputs: the mean of the forward and the backward state."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim_in, dim, bidirectional=True)

    def forward(self, x: Tensor, batch_sizes: Tensor) -> Tensor:
        """Outputs (total, H) of inputs (total, D), step-major, with ``batch_sizes`` (L,) on the CPU."""
        return _mean_direction(self.rnn(PackedSequence(x, batch_sizes))[0].data)


def summed(x: Tensor, tokens: PackedTokens) -> Tensor:
    """Sums (B, H) over each sequence of packed rows ``x`` (total, H)."""
    sizes = tokens.batch_sizes  # step-major: step t holds the first batch_sizes[t] captions
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    owner = (torch.arange(len(starts)) - starts).to(x.device)  # (total,)
    return x.new_zeros(len(tokens.lengths), x.shape[1]).index_add_(0, owner, x)


def padded(x: Tensor, tokens: PackedTokens) -> Tensor:
    """Packed rows ``x`` (total, H) as (B, L, H), zeros behind each sequence."""
    L = len(tokens.batch_sizes)
    present = torch.arange(L, device=x.device)[:, None] < tokens.lengths  # (L, B)
    out = x.new_zeros(L, len(tokens.lengths), x.shape[-1])
    out[present] = x  # pad_packed_sequence takes ten times as long, with its gradient
    return out.transpose(0, 1)


class WordTower(nn.Module):
    """Packed words -> embedding -> BiGRU (directions averaged) -> GPO -> unit vectors (B, E)."""

    def __init__(self, vocabulary: int, dim: int, *, dim_word: int = 300) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim_word)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(WORD_DROPOUT)
        self.gru = BiGRU(dim_word, dim)
        self.pool = GPO()

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        x = self.dropout(self.embedding(tokens.ids))  # (total, W)
        hidden = self.gru(x, tokens.batch_sizes)  # (total, E), step-major
        return l2_normalise(self.pool(padded(hidden, tokens), tokens.lengths))
