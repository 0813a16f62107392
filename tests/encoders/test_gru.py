"""The steps taken on a CPU against `torch.nn.GRU`, in value and gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from cleanpairs.encoders.gru import BiGRU


def by_torch(model: BiGRU, x: Tensor, batch_sizes: Tensor) -> Tensor:
    out = model.rnn(PackedSequence(x, batch_sizes))[0].data
    return sum(out.chunk(2, dim=1)) / 2


@pytest.mark.parametrize("sizes", [[1], [3], [1, 1, 1, 1], [2, 1], [5, 5, 3, 1], [7, 4, 4, 4, 2, 1]])
def test_as_torch(sizes: list[int]) -> None:
    torch.manual_seed(0)
    model, batch_sizes = BiGRU(3, 4).double(), torch.tensor(sizes)
    x = torch.randn(sum(sizes), 6, dtype=torch.float64)[:, ::2].requires_grad_()  # not contiguous
    ours, theirs = model(x, batch_sizes), by_torch(model, x, batch_sizes)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    weight, wanted = torch.randn_like(ours), [x, *model.parameters()]
    for mine, expected in zip(*(torch.autograd.grad((weight * y).sum(), wanted) for y in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-11, atol=1e-13)


def test_gradcheck() -> None:
    torch.manual_seed(1)
    model, batch_sizes = BiGRU(2, 3).double(), torch.tensor([3, 2, 2])
    x = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: model(x, batch_sizes), (x, *model.parameters()))


def test_float32_and_what_needs_no_gradient() -> None:
    torch.manual_seed(2)
    model, batch_sizes = BiGRU(8, 16), torch.tensor([6, 6, 5, 2, 1])
    x = 3 * torch.randn(20, 8)
    torch.testing.assert_close(model(x, batch_sizes), by_torch(model, x, batch_sizes), rtol=1e-5, atol=1e-6)
    model(x, batch_sizes).sum().backward()  # a frozen input: the parameters learn all the same
    assert all(bool(p.grad.any()) for p in model.parameters() if p.grad is not None)
    for p in model.parameters():
        p.requires_grad_(False)
    with torch.inference_mode():
        assert not model(x, batch_sizes).requires_grad


def test_the_gradient_can_be_asked_twice_and_the_state_is_that_of_torch() -> None:
    model, batch_sizes = BiGRU(2, 3), torch.tensor([2, 1])
    x = torch.randn(3, 2, requires_grad=True)
    loss = model(x, batch_sizes).square().sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert set(model.state_dict()) == {f"rnn.{name}" for name in torch.nn.GRU(2, 3, bidirectional=True).state_dict()}


def test_autocast_is_left_to_torch() -> None:
    model, batch_sizes = BiGRU(4, 4), torch.tensor([2, 1])
    x = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(x, batch_sizes)).all()
