"""Descending sort along a short axis, with its gradient.

On a CPU, numpy's argsort (vectorised) is 3 to 4 times faster than torch's; on a GPU torch sorts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["sort_descending"]


class _SortDescending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and x.dtype == torch.float32:
            order = torch.from_numpy(np.argsort(x.detach().neg().numpy(), axis=-1))
        else:
            order = x.argsort(dim=-1, descending=True)
        ctx.save_for_backward(order)
        return x.gather(-1, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (order,) = ctx.saved_tensors
        (grad,) = grads
        return torch.empty_like(grad).scatter_(-1, order, grad)


def sort_descending(x: Tensor) -> Tensor:
    """``x`` (..., L) sorted along the last axis, largest first; differentiable."""
    return _SortDescending.apply(x)
