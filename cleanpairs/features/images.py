"""The images of a corpus as one matrix that training can index: regions of a frozen encoder, vectors, or pixels."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from cleanpairs.core import ConfigError, check_choice
from cleanpairs.core.limits import decoding_limits
from cleanpairs.data import Pairs, cache_dir, load_pairs
from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.images import without_outliers
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.encoders.model_files import FrozenImages
from cleanpairs.encoders.sentences import fast_precision
from cleanpairs.features.rows import Chunk, Rows, compute_rows, digest

BATCH = 64  # images that are decoded and encoded at once. A killed run resumes between two batches
_in_memory: WeakKeyDictionary[Any, dict[str, Rows]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ImageMatrix:
    """M images."""

    array: np.ndarray  # (M, R, D) float regions or (M, 3, H, W) uint8 pixels
    failures: dict[int, str]  # image row -> why it has no features: they are zero
    encoder: str  # "features", "pretrained" or "efficientnet_lite0"
    image_size: int | None


def resolve_image_encoder(name: str, kind: str) -> str:
    """``auto`` made definite for images of ``kind`` ("features" or "bytes").

    Raises ConfigError: unknown name, or vectors of data that has none.
    """
    if name == "auto":
        return "features" if kind == "features" else "efficientnet_lite0"
    check_choice("the images", "image_encoder", name, ("auto", "features", "efficientnet_lite0"))
    if name == "features" and kind != "features":
        raise ConfigError("image encoder 'features' needs precomputed vectors, and the data has none; use 'auto'")
    return name


def image_matrix(pairs: Any, encoder: str = "auto", *, image_size: int | None = None) -> ImageMatrix:
    """All images as one matrix.

    Parameters
    ----------
    pairs : Pairs or data
        M images, as :func:`cleanpairs.load_pairs` takes them.
    encoder : {"auto", "features", "efficientnet_lite0"}
        What encodes the images. ``features`` are the vectors that the data brings.
    image_size : int, optional
        Pixels of a side of the square that ``efficientnet_lite0`` sees. The default is its own.

    Returns
    -------
    ImageMatrix
        Vectors (M, R, D) float, and why images cannot be used.

    Raises
    ------
    ConfigError
        There is no such encoder, or the data has nothing for it to encode.
    """
    pairs = load_pairs(pairs)
    name = resolve_image_encoder(encoder, pairs.images.kind)
    if name == "features":
        array = pairs.images.array()
        assert array is not None
        return ImageMatrix(*without_outliers(array), name, None)
    return encoded_matrix(pairs, _efficientnet(image_size), name)


@lru_cache(maxsize=1)
def _efficientnet(image_size: int | None) -> FrozenImages:
    from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0

    return EfficientNetLite0(image_size, precision=fast_precision("cpu"))


def encoded_matrix(pairs: Pairs, encoder: FrozenImages, name: str = "pretrained") -> ImageMatrix:
    """All images of ``pairs`` through a frozen encoder, (M, R, D) float. ConfigError: the data has vectors only.

    Of images on disk the cache directory keeps the features, else the images' object.
    """
    if pairs.images.only_vectors:
        raise ConfigError(
            f"the encoder {encoder.name} looks at the images, and the data has vectors only: name images with "
            "image_column (--column image=NAME), or leave the encoder out"
        )
    shape, transform, dtype = encoder.shape, encoder.transform, np.dtype(encoder.dtype)
    prefetch = 2 if any(transform.output_size) else 0  # whole images take much memory
    preparation = Preparation("cleanpairs.encoders.image_transform:pixels_of", asdict(transform), prefetch=prefetch)

    def chunks(first: int) -> Iterator[Chunk]:
        with Decoder(preparation, workers_for(len(pairs.images) - first)) as decoder:
            for batch in decoder.batches(pairs.images.iter_encoded(BATCH, first)):
                values, failures = np.zeros((batch.size, *shape), dtype), batch.failures
                if batch.arrays:
                    vectors = np.asarray(encoder.encode_pixels(batch.arrays), dtype)
                    finite = np.isfinite(vectors).reshape(len(vectors), -1).all(axis=1)
                    failures |= {int(row): "its features are not finite" for row in batch.rows[~finite]}
                    vectors[~finite] = 0
                    values[batch.rows - batch.start] = vectors
                yield batch.start, values, failures

    # A fit, its scores and parts of the pairs share the images' object.
    cached, key = _in_memory.setdefault(pairs.images, {}), encoder.cache_key or digest(encoder.fingerprint)
    if key not in cached:
        folder = None
        if not pairs.images.in_memory:
            # By the images' contents, also of files that the input only names, and by no caption. Where there are
            # vectors too, the groups are those of the vectors.
            images = pairs.image_group if pairs.images.kind == "bytes" else pairs.images.hashes()
            folder = cache_dir() / "images" / f"{digest(images.tobytes())}-{key}"
        cached[key] = compute_rows(
            len(pairs.images), shape, dtype, chunks, folder=folder, what="images", limits=decoding_limits()
        )
    array, failures = cached[key]
    array = array[:, None] if len(shape) == 1 else array
    return ImageMatrix(array, failures, name, transform.output_size[0] or None)


class _Pixels(FrozenImages):
    """No network: the features of an image are its pixels (3, H, W) uint8."""

    name, dtype = "of pixels", np.uint8

    def __init__(self, transform: ImageTransform) -> None:
        self.transform, self.shape = transform, (3, *transform.output_size)
        self.cache_key = f"pixels-{digest(repr(transform))}"

    def encode_pixels(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(pixels)


def pixel_matrix(pairs: Pairs, transform: ImageTransform) -> ImageMatrix:
    """All images of ``pairs`` as pixels (M, 3, H, W) uint8, for towers that are trained further. They are decoded and
    resized once. The cache directory holds 150 kB for an image of 224 x 224. ConfigError: the data has vectors only.
    """
    return encoded_matrix(pairs, _Pixels(transform))
