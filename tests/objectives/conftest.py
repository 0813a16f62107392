"""Similarities for losses that are compared with double loops."""

import torch
from torch import Tensor


def batch(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Similarities (n, n) that want their gradient, and labels (n,)."""
    g = torch.Generator().manual_seed(seed)
    S = torch.rand(n, n, generator=g, dtype=torch.float64) * 1.6 - 0.8
    return S.requires_grad_(), torch.rand(n, generator=g, dtype=torch.float64)


def assert_same(ours: Tensor, slow: Tensor, S: Tensor, rtol: float = 1e-9) -> None:
    """One loss a pair, of equal value and equal gradient."""
    assert ours.shape == (len(S),) and ours.dtype == torch.float64
    torch.testing.assert_close(ours, slow, rtol=rtol, atol=1e-11)
    w = torch.linspace(0.5, 2.0, len(S), dtype=torch.float64)
    found, wanted = (torch.autograd.grad((w * loss).sum(), S)[0] for loss in (ours, slow))
    torch.testing.assert_close(found, wanted, rtol=10 * rtol, atol=1e-10)
