r"""Bidirectional GRU over packed sequences, its two directions averaged.

    r = sigma(i_r + a_r)    z = sigma(i_z + a_z)    n = tanh(i_n + r a_n)    h' = n + z (h - n)
    i = W x + b,  a = U h + c,  each in three thirds

On a GPU it is cuDNN's. On a CPU the steps are taken here, for two reasons: PyTorch adds to a weight gradient of 3 E^2
entries at every step, where one product over all steps will do; and it multiplies U by the zeros that a sequence begins
with, which for captions is one row in twelve. The parameters are those of `torch.nn.GRU` in either case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

__all__ = ["BiGRU"]

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class BiGRU(nn.Module):
    """(total, D) packed inputs -> (total, H) packed outputs: the mean of the forward and the backward state."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim_in, dim, bidirectional=True)

    def forward(self, x: Tensor, batch_sizes: Tensor) -> Tensor:
        """Outputs (total, H) of inputs ``x`` (total, D), step-major, with ``batch_sizes`` (L,) on the CPU."""
        if x.device.type == "cpu" and x.dtype == self.rnn.weight_hh_l0.dtype and not torch.is_autocast_enabled("cpu"):
            sizes = batch_sizes.tolist()
            ways = [
                _Direction.apply(x, sizes, back, *(getattr(self.rnn, name + end) for name in NAMES))
                for back, end in ((False, ""), (True, "_reverse"))
            ]
            return (ways[0] + ways[1]) / 2
        out = self.rnn(PackedSequence(x, batch_sizes))[0].data  # (total, 2 H)
        half = out.shape[-1] // 2
        return (out[:, :half] + out[:, half:]) / 2


def _steps(sizes: list[int], back: bool) -> list[tuple[slice, slice, int]]:
    """Of each step in the order they are taken: its rows, those of the states it continues, and how many these are.

    Rows beyond these begin with zeros. Sequences are sorted by length, so that going forward all rows of a step
    continue, from the first ones of the step before; going back, the first ones of the step do.
    """
    start = [0]
    for size in sizes:
        start.append(start[-1] + size)
    steps, before = [], -1
    for t in reversed(range(len(sizes))) if back else range(len(sizes)):
        continued = 0 if before < 0 else min(sizes[before], sizes[t])
        origin = start[before] if before >= 0 else 0
        steps.append((slice(start[t], start[t + 1]), slice(origin, origin + continued), continued))
        before = t
    return steps


class _Direction(torch.autograd.Function):
    """States (total, H) of one direction."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sizes: list[int], back: bool, W: Tensor, U: Tensor, b: Tensor, c: Tensor
    ) -> Tensor:
        H = U.shape[1]
        gates = torch.addmm(b, x, W.T)  # (total, 3 H): what the inputs say, and then r, z and n
        hidden = gates.new_empty(len(x), H)
        recurrent = gates.new_empty(len(x), H)  # a_n
        U_t, c_n = U.T, c[2 * H :]
        gates[:, : 2 * H] += c[: 2 * H]
        for rows, origin, k in _steps(sizes, back):
            i, h, a_n = gates[rows], hidden[rows], recurrent[rows]
            a_n.copy_(c_n.expand_as(a_n))
            if k:
                a = hidden[origin] @ U_t  # (k, 3 H)
                i[:k, : 2 * H] += a[:, : 2 * H]
                a_n[:k] += a[:, 2 * H :]
            rz, n = i[:, : 2 * H].sigmoid_(), i[:, 2 * H :]
            n.addcmul_(rz[:, :H], a_n).tanh_()
            z = rz[:, H:]
            torch.addcmul(n, z, n, value=-1, out=h)
            if k:
                h[:k].addcmul_(z[:k], hidden[origin])
        ctx.save_for_backward(x, W, U, gates, hidden, recurrent)
        ctx.sizes, ctx.back = sizes, back
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, W, U, gates, hidden, recurrent = ctx.saved_tensors
        H, steps = U.shape[1], _steps(ctx.sizes, ctx.back)
        d_hidden = grads[0].clone(memory_format=torch.contiguous_format)  # what later steps say is added
        d = torch.empty_like(gates)  # of a
        d_n = torch.empty_like(hidden)  # of i_n; of i_r and i_z it is that of a_r and a_z
        for rows, origin, k in reversed(steps):
            r, z, n = gates[rows].split(H, dim=1)
            d_h, (d_r, d_z, d_an), d_in = d_hidden[rows], d[rows].split(H, dim=1), d_n[rows]
            kept = d_h * z
            torch.sub(d_h, kept, out=d_in)
            torch.mul(d_in, n, out=d_z).mul_(z).neg_()  # -dh n z (1 - z), and h's part of it
            if k:
                d_z[:k].addcmul_(d_in[:k] * z[:k], hidden[origin])
            d_in.sub_(d_in * n * n)  # dh (1 - z) (1 - n^2)
            torch.mul(d_in, r, out=d_an)
            torch.mul(d_an, recurrent[rows], out=d_r)
            d_r.sub_(d_r * r)
            if k:
                d_hidden[origin] += torch.addmm(kept[:k], d[rows][:k], U)
        d_U = _product([(d[rows][:k], hidden[origin]) for rows, origin, k in steps if k], U)
        d_c = d.sum(dim=0)
        d[:, 2 * H :] = d_n
        d_x = d @ W if ctx.needs_input_grad[0] else None
        return d_x, None, None, d.T @ x, d_U, d.sum(dim=0), d_c


def _product(parts: list[tuple[Tensor, Tensor]], like: Tensor) -> Tensor:
    """Sum of ``left.T @ right`` over the steps as one product."""
    if not parts:
        return torch.zeros_like(like)
    left, right = (torch.cat(side) for side in zip(*parts, strict=True))
    return left.T @ right
