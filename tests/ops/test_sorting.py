"""The fast descending sort against torch.sort, value and gradient."""

from __future__ import annotations

import pytest
import torch

from cleanpairs.ops.sorting import sort_descending


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (4, 5, 9), (0, 3), (2, 36)])
def test_value_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g, dtype=dtype).requires_grad_()
    weight = torch.randn(shape, generator=g, dtype=dtype)
    got, want = sort_descending(x), torch.sort(x, dim=-1, descending=True).values
    assert torch.equal(got, want)
    (a,) = torch.autograd.grad((got * weight).sum(), x)
    (b,) = torch.autograd.grad((want * weight).sum(), x)
    assert torch.equal(a, b)


def test_what_is_left_out_goes_to_the_end() -> None:
    x = torch.tensor([[1.0, float("-inf"), 3.0, float("-inf"), 2.0]])
    assert sort_descending(x).tolist() == [[3.0, 2.0, 1.0, float("-inf"), float("-inf")]]


def test_ties_keep_all_values_and_all_gradient() -> None:
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0]], requires_grad=True)
    y = sort_descending(x)
    assert y.tolist() == [[2.0, 2.0, 1.0, 1.0]]
    (gradient,) = torch.autograd.grad((y * torch.tensor([8.0, 4.0, 2.0, 1.0])).sum(), x)
    assert sorted(gradient[0].tolist()) == [1.0, 2.0, 4.0, 8.0]
    assert float(gradient[0, 0] + gradient[0, 2]) == 12.0
