"""The images of a corpus as one matrix that training can index: regions of a frozen encoder, vectors, or pixels.

Precomputed vectors are used as they are. Encoded images go through a frozen encoder once, in batches, into a file in
the cache directory, keyed by the input's fingerprint and the encoder; ``cnn`` keeps the pixels, resized.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.data import Pairs, cache_dir, read_image
from cleanpairs.data.atomic import staged_directory
from cleanpairs.errors import ConfigError, DataError
from cleanpairs.registry import IMAGE_ENCODERS

__all__ = ["ImageMatrix", "image_matrix", "resolve_image_encoder"]

Progress = Callable[[int, int], None]
DEFAULT_SIZE = {"cnn": 64, "efficientnet_lite0": 224}


@dataclass(frozen=True)
class ImageMatrix:
    """M images: ``array`` (M, R, D) float regions or (M, 3, H, W) uint8 pixels; ``failures``: image row -> why not.

    The rows of failed images are zero. ``encoder`` is "features", or a name of the image encoder registry.
    """

    array: np.ndarray
    failures: dict[int, str]
    encoder: str
    image_size: int | None


def resolve_image_encoder(name: str, kind: str) -> str:
    """``auto`` made definite for images of ``kind`` ("features" or "bytes").

    Raises
    ------
    ConfigError
        Unknown name, or pixels asked of data that has only vectors.
    """
    if name == "auto":
        return "features" if kind == "features" else "efficientnet_lite0"
    if name == "features":
        if kind != "features":
            raise ConfigError("image encoder 'features' needs precomputed vectors, and the data has none; use 'auto'")
        return name
    IMAGE_ENCODERS.entry(name)
    return name


def image_matrix(
    pairs: Pairs,
    encoder: str = "auto",
    *,
    image_size: int | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> ImageMatrix:
    """All images of ``pairs`` as one matrix.

    Parameters
    ----------
    encoder : str
        ``auto``, ``features``, ``efficientnet_lite0`` or ``cnn``.
    image_size : int, optional
        Side in pixels of the square that the encoder sees; the encoder's default when not given.
    progress : callable, optional
        Called as ``progress(done, total)`` after each batch.
    cache : bool
        Keep the result of a frozen encoder in the cache directory, and look there first.
    """
    name = resolve_image_encoder(encoder, pairs.images.kind)
    if name == "features":
        array = pairs.images.array()
        assert array is not None
        return ImageMatrix(array, {}, name, None)
    size = image_size or DEFAULT_SIZE[name]
    if name == "cnn":
        shape: tuple[int, ...] = (3, size, size)
        return _fill(pairs, name, size, np.zeros((len(pairs.images), *shape), np.uint8), _pixels, progress)
    network = IMAGE_ENCODERS.load(name)()
    shape = (network.regions, network.dim)
    images = hashlib.sha256(pairs.image_group.tobytes()).hexdigest()  # also of files that the input only names
    key = f"{pairs.source.fingerprint[:24]}-{images[:16]}-{name}-{size}-{network.weights_sha256[:8]}"
    folder = cache_dir() / "features" / key
    use_cache = cache and pairs.source.kind != "memory"
    if use_cache and (folder / "features.npy").exists():
        return _cached(folder, name, size, len(pairs.images))

    def encode(images: list[Any], side: int) -> np.ndarray:
        return np.asarray(network.encode(images, image_size=side))

    if not use_cache:
        return _fill(pairs, name, size, np.zeros((len(pairs.images), *shape), np.float16), encode, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with staged_directory(folder, overwrite=True) as staging:
        out = np.lib.format.open_memmap(
            Path(staging) / "features.npy", mode="w+", dtype=np.float16, shape=(len(pairs.images), *shape)
        )
        filled = _fill(pairs, name, size, out, encode, progress)
        out.flush()
        (Path(staging) / "failures.tsv").write_text(
            "".join(f"{row}\t{' '.join(reason.split())}\n" for row, reason in filled.failures.items()), encoding="utf-8"
        )
    return _cached(folder, name, size, len(pairs.images))


def _cached(folder: Path, name: str, size: int, n: int) -> ImageMatrix:
    array = np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)
    if len(array) != n:
        raise DataError(f"the cached features {folder} hold {len(array)} images, not {n}; delete that folder")
    failures: dict[int, str] = {}
    for line in (folder / "failures.tsv").read_text(encoding="utf-8").splitlines():
        row, _, reason = line.partition("\t")
        failures[int(row)] = reason
    return ImageMatrix(array, failures, name, size)


def _pixels(images: list[Any], size: int) -> np.ndarray:
    """(b, 3, size, size) uint8; the whole picture is resized to a square."""
    from PIL import Image

    resized = [np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)) for image in images]
    return np.stack(resized).transpose(0, 3, 1, 2)


def _fill(
    pairs: Pairs,
    name: str,
    size: int,
    out: np.ndarray,
    encode: Callable[[list[Any], int], np.ndarray],
    progress: Progress | None,
) -> ImageMatrix:
    """Decode and encode all images into ``out``; what cannot be decoded stays zero and is written down."""
    failures: dict[int, str] = {}
    total = len(pairs.images)
    for start, chunk in pairs.images.iter_encoded(64):
        rows, decoded = [], []
        for offset, data in enumerate(chunk):
            try:
                if data is None:
                    raise DataError("there is no image")
                decoded.append(read_image(data))
                rows.append(start + offset)
            except DataError as error:
                failures[start + offset] = str(error)
        if decoded:
            values = encode(decoded, size)
            finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            for row in np.asarray(rows)[~finite]:
                failures[int(row)] = "its features are not finite"
            values[~finite] = 0
            out[rows] = values
        if progress is not None:
            progress(min(start + len(chunk), total), total)
    return ImageMatrix(out, failures, name, size)
