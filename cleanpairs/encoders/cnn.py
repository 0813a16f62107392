"""A small convolutional network, trained from scratch on the pixels: five convolutions and a grid of regions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Pixels to a 3x3 grid of regions of ``dim`` dimensions.

    Five convolutions with batch norm and ReLU, of which the first four halve the side, then adaptive average pooling
    to the grid and a linear map. Most of the work is done at low resolution, so that a training step on a CPU stays
    cheap: about 500 to 600 images a second, forward and backward, with one thread at 64x64 pixels. Batch norm, not
    group norm: from scratch on 5,000 product photographs it was 0.23 right after four epochs, group norm 0.19.
    """

    regions = 9

    def __init__(self, dim: int = 256, channels: Sequence[int] = (32, 64, 128, 192, 256)) -> None:
        super().__init__()
        self.dim = dim
        layers: list[nn.Module] = []
        last = len(channels) - 1
        for i, (c_in, c_out) in enumerate(zip([3, *channels], channels, strict=False)):
            kernel = 5 if i == 0 else 3
            layers += [
                nn.Conv2d(c_in, c_out, kernel, 1 if i == last and i > 0 else 2, kernel // 2, bias=False),
                nn.BatchNorm2d(c_out),
                nn.ReLU(inplace=True),
            ]
            nn.init.kaiming_normal_(layers[-3].weight, mode="fan_out", nonlinearity="relu")  # type: ignore[arg-type]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3))
        self.project = nn.Linear(channels[-1], dim)
        # torch's stubs lack this overload; channels last is a tenth faster on a CPU
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """Regions (B, 9, dim), row by row from the top left, of RGB (B, 3, H, W): uint8, or floats from 0 to 1."""
        dtype = self.project.weight.dtype
        if images.dtype == torch.uint8:
            x = images.to(dtype).div_(127.5).sub_(1.0)
        else:
            x = images.to(dtype) * 2.0 - 1.0
        x = x.contiguous(memory_format=torch.channels_last)  # (B, 3, H, W) in [-1, 1]
        cells = self.body(x).flatten(2).transpose(1, 2)  # (B, R, C)
        regions: Tensor = self.project(cells)  # (B, R, D)
        return regions
