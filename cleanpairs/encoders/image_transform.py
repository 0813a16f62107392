"""Decoded images to the pixels that a pretrained network was trained on, by ``preprocessor_config.json``.

The pixels are those of transformers' processors for CLIP and SigLIP in their Pillow form, which has no name there. One
thing differs: long strips are cut before they are enlarged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image

from cleanpairs.core import ConfigError, DataError

if TYPE_CHECKING:  # the processes that decode images import this module, and need no torch
    from torch import Tensor

MAX_ASPECT = 32  # a strip is cut to it before its short edge is enlarged: 1 x 64,000,000 pixels would grow 50,000-fold


@dataclass(frozen=True)
class ImageTransform:
    """A model's image preparation: resize, cut the centre out, and ``(x * scale - mean) / std`` of 0 to 255. Without
    settings images stay whole: the encoder prepares them itself.
    """

    shortest_edge: int | None = None  # what the shorter side is brought to, with the aspect kept
    height: int | None = None  # or the size that the whole image is brought to
    width: int | None = None
    crop: tuple[int, int] | None = None  # (height, width) of the centre, filled up with zeros. None: no cut
    resample: Image.Resampling | None = None  # Pillow's filter. None: no resizing
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @classmethod
    def from_config(cls, config: dict[str, Any], model_type: str, model: object) -> Self:
        """The transform of ``model`` by its preprocessor_config.json. ConfigError: a setting is not supported."""
        config = {**_defaults(model_type), **{key: value for key, value in config.items() if value is not None}}
        size: Any = config["size"]
        crop: Any = config.get("crop_size")
        size = {"shortest_edge": size} if isinstance(size, int) else size
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        normalise = config.get("do_normalize", True)
        try:
            size = {key: int(value) for key, value in size.items() if value is not None}
            cut = config["do_center_crop"]
            transform = cls(
                size.pop("shortest_edge", None),
                size.pop("height", None),
                size.pop("width", None),
                (int(crop["height"]), int(crop["width"])) if cut else None,
                Image.Resampling(config.get("resample", 3)) if config.get("do_resize", True) else None,
                float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0,
                tuple(float(v) for v in config["image_mean"]) if normalise else (0.0, 0.0, 0.0),
                tuple(float(v) for v in config["image_std"]) if normalise else (1.0, 1.0, 1.0),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{model} does not say how to prepare images: {error!r}") from error
        resized = transform.resample is not None
        square = transform.height is not None and transform.width is not None and transform.shortest_edge is None
        known = not size and (square or transform.shortest_edge is not None or not resized)
        if not known or config.get("do_pad") or not (transform.crop or (resized and square)):
            found = {name: config.get(name) for name in ("do_resize", "size", "do_center_crop", "crop_size", "do_pad")}
            raise ConfigError(
                f"{model}: images must come out in one size, by a size of height and width or by a centre crop, and "
                f"without padding, found {found}: take another model"
            )
        return transform

    @property
    def output_size(self) -> tuple[int, int]:
        """The size (H, W) of the pixels."""
        return self.crop or (self.height or 0, self.width or 0)

    def __call__(self, images: Sequence[Image.Image]) -> "Tensor":
        """Images of any mode and size to pixels (B, 3, H, W) float32. Transparent is white. DataError: one is empty."""
        import torch

        return self.standardise(torch.from_numpy(self.pixels(images)))

    def pixels(self, images: Sequence[Image.Image]) -> np.ndarray:
        """As :meth:`__call__`, but (B, 3, H, W) uint8, not yet standardised: a quarter of the bytes to keep."""
        prepared = [self._resize(to_rgb(image)) for image in images]
        if self.crop is not None:
            prepared = [_cut(image, self.crop[1], self.crop[0]) for image in prepared]
        return np.ascontiguousarray(np.stack([np.asarray(image) for image in prepared]).transpose(0, 3, 1, 2))

    def standardise(self, pixels: "Tensor") -> "Tensor":
        """Pixels (B, 3, H, W) from 0 to 255, as :meth:`pixels` makes them, to float32 as the network wants them."""
        import torch

        mean, std = (torch.tensor(v, device=pixels.device).view(3, 1, 1) for v in (self.mean, self.std))
        return pixels.float().mul_(self.scale).sub_(mean).div_(std)

    def _resize(self, image: Image.Image) -> Image.Image:
        if self.resample is None:
            return image
        if self.shortest_edge is None:
            return image.resize((self.width or 1, self.height or 1), self.resample)
        short, long = sorted(image.size)
        if long > MAX_ASPECT * short:
            image = _cut(image, min(image.width, MAX_ASPECT * short), min(image.height, MAX_ASPECT * short))
            short, long = sorted(image.size)
        edge, other = self.shortest_edge, int(self.shortest_edge * long / short)
        size = (edge, other) if image.width <= image.height else (other, edge)
        return image.resize(size, self.resample)


def _defaults(model_type: str) -> dict[str, Any]:
    """The defaults of transformers' own image processors, for keys that the file leaves out."""
    clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    half = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    cut = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True}
    whole = {"size": {"height": 224, "width": 224}, "do_center_crop": False}
    known: dict[str, dict[str, Any]] = {
        "clip": {**cut, **clip},
        "metaclip_2": {**cut, **clip},
        "siglip": {**whole, **half},
        "vision-encoder-decoder": {**whole, **half, "resample": 2},  # of ViT
        "blip": {**whole, **clip, "size": {"height": 384, "width": 384}},
        "git": {**cut, **clip},
    }
    return known[model_type]


def pixels_of(image: Image.Image, **fields: Any) -> np.ndarray:
    """(3, H, W) uint8 of one image, by the transform of these fields, as JSON has them. For workers."""
    return np.asarray(ImageTransform(**fields).pixels([image])[0])


def pictures_of(pixels: np.ndarray) -> list[Image.Image]:
    """Images of pixels (m, 3, H, W) uint8. Raises DataError: they have another shape or type."""
    if pixels.dtype != np.uint8 or pixels.shape[1] != 3:
        raise DataError(f"pixels must be uint8 (m, 3, H, W), found {pixels.dtype} {pixels.shape}")
    return [Image.fromarray(np.ascontiguousarray(x.transpose(1, 2, 0))) for x in pixels]


def _cut(image: Image.Image, width: int, height: int) -> Image.Image:
    """Cut out the centre, ``width`` x ``height``. Black beyond the border."""
    left, top = (image.width - width) // 2, (image.height - height) // 2  # rounds down, below 0 too
    return image.crop((left, top, left + width, top + height))


def to_rgb(image: Image.Image) -> Image.Image:
    """The image in RGB, laid on white where it is transparent."""
    if 0 in image.size:
        raise DataError(f"an image of {image.width}x{image.height} pixels has nothing to encode; leave it out")
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):  # Pillow's convert would clip 16 bits to 8, not scale them
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")
