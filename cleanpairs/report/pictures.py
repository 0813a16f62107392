"""Thumbnails as data addresses, each image read and shrunk once however often the page shows it."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import numpy as np

from cleanpairs.audit.fragment import thumbnail
from cleanpairs.data.pairs import Pairs

THUMBNAIL = 160  # longest side in pixels: shown at half of it on a dense screen
READ_AT_ONCE = 64
_PREFIX = "data:image/jpeg;base64,"


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
                small = None if data is None else thumbnail(data, THUMBNAIL)
                self._known[m] = None if small is None else _PREFIX + base64.b64encode(small).decode("ascii")

    def of_pair(self, pair_id: int) -> str | None:
        """Of a pair that :meth:`load` was told of."""
        return self._known[int(self._pairs.image_index[pair_id])]
