"""Any torch module as a frozen image encoder: a network of timm, or one of your own."""

import hashlib
from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from cleanpairs.core import ConfigError
from cleanpairs.core.torch_state import evaluating
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.model_files import FrozenImages

Prepare = Callable[[Sequence[Image.Image]], Tensor]  # B RGB images to pixels (B, 3, H, W)


def IMAGENET(size: int = 224) -> ImageTransform:  # noqa: N802 - a preset, named as one
    """The usual preparation for ImageNet: the short edge to 8/7 of ``size``, its centre, standardised."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    edge, cubic = round(size * 8 / 7), Image.Resampling.BICUBIC
    return ImageTransform(edge, crop=(size, size), resample=cubic, scale=1 / 255, mean=mean, std=std)


class ModuleEncoder(FrozenImages):
    """A module in evaluation mode that turns pixels (B, 3, H, W) into vectors (B, D) or regions (B, R, D).

    RGB images become pixels by ``prepare``, or by :func:`IMAGENET` when None. The ``fingerprint`` is a SHA-256 over its
    class, its weights, and ``prepare`` by its fields, or its name if a function. In the ``cache_key`` are also the
    pixels that it makes of two images.

    Raises ConfigError: the module returns something else.
    """

    shape: tuple[int, ...] = ()  # of nothing yet

    def __init__(self, module: nn.Module, prepare: Prepare | None = None, device: str = "cpu") -> None:
        self.module, self.device, self.name = module, device, type(module).__qualname__
        prepare = prepare or IMAGENET()
        whole = ImageTransform(), prepare  # of another function, which takes whole images
        self.transform, self.prepare = (prepare, None) if isinstance(prepare, ImageTransform) else whole
        try:
            with torch.inference_mode():
                pixels = prepare([ramp("L").convert("RGB") for ramp in (Image.linear_gradient, Image.radial_gradient)])
                probe = self.vectors(pixels).cpu()
            self.shape = tuple(probe.shape[1:])
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"image_encoder {self.name} fails on images, check its transform: {error}") from error
        if probe.ndim not in (2, 3) or len(probe) != 2 or not probe[0].numel():
            raise ConfigError(
                f"image_encoder {self.name} must map (B, 3, H, W) to (B, D) or (B, R, D), and 2 images became "
                f"{tuple(probe.shape)}: wrap it in a module that pools or reshapes its output"
            )
        how = repr(prepare) if self.prepare is None else getattr(prepare, "__qualname__", type(prepare).__qualname__)
        digest = hashlib.sha256(f"{type(module).__module__}.{self.name}{self.shape}{how}".encode())
        for name, value in (*module.state_dict().items(), ("pixels", pixels)):
            self.fingerprint = digest.hexdigest()  # in the end without the pixels, which a release of Pillow may change
            digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        self.cache_key = digest.hexdigest()

    def vectors(self, x: Tensor) -> Tensor:
        """Features (n, *shape) of n images' pixels by ``prepare``. ConfigError: they have another shape."""
        with evaluating(self.module.to(self.device)):
            vectors = self.module(x.to(self.device))
        if not isinstance(vectors, Tensor):
            raise TypeError(f"a tensor was expected of the module, found {type(vectors).__name__}")
        if self.shape and vectors.shape != (len(x), *self.shape):
            raise ConfigError(
                f"image_encoder {self.name} must give all images the same shape: {len(x)} became "
                f"{tuple(vectors.shape)}, and (B, {', '.join(map(str, self.shape))}) was expected"
            )
        return vectors
