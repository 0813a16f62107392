"""Pictures of any mode to RGB. Without torch: the processes that decode images import it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from cleanpairs.core.errors import DataError


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
