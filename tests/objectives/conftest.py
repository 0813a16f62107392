"""Similarities for losses that are compared with double loops."""

import torch
from torch import Tensor

# On which the papers' public code was asked.
S4 = [[0.82, 0.31, 0.15, 0.44], [0.27, 0.55, 0.61, 0.12], [0.05, 0.48, 0.39, 0.36], [0.33, 0.22, 0.58, 0.71]]


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
