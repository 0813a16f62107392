"""The small CNN: shapes, pixel scaling, the grid's geometry, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cleanpairs.encoders.backbone import SmallCNN


@pytest.mark.parametrize("batch", [0, 1, 2, 5])
@pytest.mark.parametrize("size", [(64, 64), (96, 96), (17, 40)])
def test_shape(batch: int, size: tuple[int, int]) -> None:
    net = SmallCNN().eval()
    regions = net(torch.zeros(batch, 3, *size, dtype=torch.uint8))
    assert regions.shape == (batch, net.regions, net.dim) == (batch, 9, 256)
    assert regions.dtype == torch.float32


def test_bytes_and_floats_are_the_same_picture() -> None:
    torch.manual_seed(0)
    net = SmallCNN(dim=8, channels=(4, 8)).eval()
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(net(pixels), net(pixels.float() / 255), atol=1e-5, rtol=1e-5)


def test_the_input_is_not_written_to() -> None:
    net = SmallCNN(dim=8, channels=(4, 8)).eval()
    pixels = torch.rand(2, 3, 32, 32)
    before = pixels.clone()
    net(pixels)
    assert torch.equal(pixels, before)


def test_a_region_sees_its_own_corner_and_not_the_opposite_one() -> None:
    torch.manual_seed(0)
    net = SmallCNN(dim=8, channels=(4, 8, 8)).eval()
    for row, column, index in [(0, 0, 0), (0, 2, 2), (2, 0, 6), (2, 2, 8)]:
        x = torch.rand(1, 3, 96, 96, requires_grad=True)
        net(x)[0, index].square().sum().backward()
        seen = x.grad[0].abs().sum(0).reshape(3, 32, 3, 32).sum((1, 3))  # (3, 3) cells
        assert seen.argmax() == index
        assert seen[2 - row, 2 - column] == 0


def test_it_learns_colours_and_places() -> None:
    """A red or green square, in one of two corners: four classes from 64 pictures."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 4
    pixels = torch.randint(0, 60, (64, 3, 32, 32), dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        corner = slice(0, 12) if label // 2 == 0 else slice(20, 32)
        pixels[i, label % 2, corner, corner] = 220
    net = SmallCNN(dim=16, channels=(8, 16, 16))
    head = nn.Linear(9 * 16, 4)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(net(pixels).flatten(1)), labels)
        loss.backward()
        optimizer.step()
    net.eval()
    assert (head(net(pixels).flatten(1)).argmax(1) == labels).all()
