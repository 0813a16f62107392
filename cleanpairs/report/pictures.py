"""Thumbnails as data addresses, each image read and shrunk once however often the page shows it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from cleanpairs.core.errors import DataError
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs

__all__ = ["THUMBNAIL", "Pictures"]

THUMBNAIL = 160  # longest side in pixels: shown at half of it on a dense screen
READ_AT_ONCE = 64


class Pictures:
    """Image row -> data address, None where there is no picture or it cannot be decoded; ``missing`` says which."""

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        self._known: dict[int, str | None] = {}
        vectors = pairs.images.kind != "bytes"
        self.missing = "no picture: the data holds vectors" if vectors else "the picture cannot be read"

    def load(self, pair_ids: Iterable[int] | np.ndarray) -> None:
        """Read what is not known yet of these pairs' images, in the order of their rows."""
        ids = np.fromiter((int(i) for i in pair_ids), dtype=np.int64)
        rows = [m for m in np.unique(self._pairs.image_index[ids]).tolist() if m not in self._known]
        for start in range(0, len(rows), READ_AT_ONCE):
            part = rows[start : start + READ_AT_ONCE]
            for m, data in zip(part, self._pairs.images.read(part), strict=True):
                self._known[m] = None if data is None else _thumbnail(data)

    def of_pair(self, pair_id: int) -> str | None:
        """Of a pair that :meth:`load` was told of."""
        return self._known[int(self._pairs.image_index[pair_id])]


def _thumbnail(data: bytes) -> str | None:
    """A small JPEG, without the original's metadata; None where it cannot be decoded."""
    try:
        small = read_image(data)
    except DataError:
        return None
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
