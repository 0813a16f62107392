"""Small pictures for people, decoded under the limits of a fit."""

import threading
from collections.abc import Iterator
from functools import cache

import numpy as np

from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.images import ImageSource


def thumbnails(images: ImageSource, rows: np.ndarray, size: int) -> Iterator[bytes | None]:
    """A small JPEG of each of the images `rows` (k,), without the original's metadata. None where there is none."""
    parts = (rows[start : start + 32].tolist() for start in range(0, len(rows), 32))
    with Decoder(_shrunk(size), workers_for(len(rows))) as decoder:
        for batch in decoder.batches((0, images.read(part)) for part in parts):
            made = dict(zip(batch.rows.tolist(), batch.arrays, strict=True))
            yield from (made[i].tobytes() if i in made else None for i in range(batch.size))


def thumbnail(data: bytes, size: int) -> bytes | None:
    """The small JPEG of one image. The process that decodes lives on, for the next call."""
    with _ONE_AT_A_TIME:
        (batch,) = _shrinking(size).batches([(0, [data])])
    return batch.arrays[0].tobytes() if batch.arrays else None


_ONE_AT_A_TIME = threading.Lock()


@cache
def _shrinking(size: int) -> Decoder:
    return Decoder(_shrunk(size), min(1, workers_for(1)))


def _shrunk(size: int) -> Preparation:
    return Preparation("cleanpairs.data.images:small_jpeg", {"size": size}, about=size)
