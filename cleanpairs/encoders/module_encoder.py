"""Any torch module as a frozen image encoder, with what prepares its pixels."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cleanpairs.core.errors import ConfigError
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.model_files import in_batches

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def IMAGENET(size: int = 224) -> ImageTransform:  # noqa: N802 - a preset, named as one
    """What most networks trained on ImageNet take: the short edge to 8/7 of ``size``, its centre, standardised."""
    return ImageTransform(
        shortest_edge=round(size * 8 / 7), height=None, width=None, crop=(size, size),
        resample=Image.Resampling.BICUBIC, scale=1 / 255, mean=IMAGENET_MEAN, std=IMAGENET_STD,
    )  # fmt: skip


class ModuleEncoder:
    """A frozen module that makes (B, D) vectors or (B, R, D) regions of (B, 3, H, W) pixels; its mode is put back.

    - ``transform`` callable: a list of B RGB images of Pillow to a tensor (B, 3, H, W); :func:`IMAGENET` when None
    - ``name``, ``fingerprint``: the module's class; SHA-256 over that, its weights and its transform
    - ``shape``: of what it makes of one image: (D,) or (R, D)

    Raises ConfigError: it does not map (B, 3, H, W) to (B, D) or (B, R, D).
    """

    def __init__(
        self, module: nn.Module, transform: Callable[[Sequence[Image.Image]], Tensor] | None = None, device: str = "cpu"
    ) -> None:
        self.module, self.transform, self.device = module, transform or IMAGENET(), device
        self.name = type(module).__qualname__
        self.fingerprint = module_fingerprint(module, self.transform)
        probe = self._run([Image.new("RGB", (256, 256), color) for color in ("white", "black")])
        if probe.ndim not in (2, 3) or len(probe) != 2 or not probe[0].size:
            raise ConfigError(
                f"image_encoder {self.name} must map (B, 3, H, W) to (B, D) or (B, R, D), and 2 images became "
                f"{tuple(probe.shape)}: wrap it in a module that pools or reshapes its output"
            )
        self.shape = tuple(probe.shape[1:])

    def encode_images(self, images: Sequence[Image.Image], batch_size: int = 32) -> np.ndarray:
        """(n, D) or (n, R, D) float32 of n decoded images."""
        return in_batches(self._run, images, batch_size, self.shape)

    def encode_pixels(self, pixels: np.ndarray, batch_size: int = 32) -> np.ndarray:
        """As :meth:`encode_images`, of pixels (n, 3, H, W) uint8 that an :class:`ImageTransform` has made."""
        return in_batches(lambda some: self._run(torch.from_numpy(some)), pixels, batch_size, self.shape)

    @torch.inference_mode()
    def _run(self, images: Sequence[Image.Image] | Tensor) -> np.ndarray:
        training = self.module.training
        self.module.eval().to(self.device)
        try:
            if isinstance(images, Tensor):
                assert isinstance(self.transform, ImageTransform)
                x = self.transform.standardise(images)
            else:
                x = self.transform(images)
            out: Any = self.module(x.to(self.device))  # (b, 3, H, W)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"image_encoder {self.name} fails on images, check its transform: {error}") from error
        finally:
            self.module.train(training)
        if not isinstance(out, Tensor):
            raise ConfigError(f"image_encoder {self.name} must return a tensor, found {type(out).__name__}")
        return np.asarray(out.float().cpu().numpy())


def module_fingerprint(module: nn.Module, transform: Any) -> str:
    """SHA-256 over class, weights and transform (by its fields, or by its name where it is a function)."""
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}".encode())
    for name, value in module.state_dict().items():
        array = value.detach().cpu().contiguous()
        digest.update(f"{name}{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    plain = repr(transform) if isinstance(transform, ImageTransform) else getattr(transform, "__qualname__", None)
    digest.update(str(plain or type(transform).__qualname__).encode())
    return digest.hexdigest()
