"""The images of a corpus as one matrix that training can index: regions of a frozen encoder, vectors, or pixels.

Precomputed vectors are used as they are. Encoded images go through a frozen encoder once, in batches, into a file in
the cache directory, keyed by the input's fingerprint and the encoder; ``cnn`` keeps the pixels, resized.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import IMAGE_ENCODERS
from cleanpairs.data import Pairs, cache_dir
from cleanpairs.data.decoding import RGB, SQUARE, Decoder, Preparation, workers_for
from cleanpairs.features.rows import Chunk, Progress, Rows, compute_rows, digest

if TYPE_CHECKING:  # it brings torch
    from cleanpairs.encoders.image_transform import ImageTransform
    from cleanpairs.encoders.module_encoder import ModuleEncoder
    from cleanpairs.encoders.pretrained import PretrainedCLIP

Encode = Callable[[list[np.ndarray]], np.ndarray]  # of prepared images
DEFAULT_SIZE = {"cnn": 64, "efficientnet_lite0": 224}
BATCH = 64  # images that are decoded and encoded at once: where a killed run goes on
_IN_MEMORY: WeakKeyDictionary[Any, dict[str, Rows]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ImageMatrix:
    """M images: ``array`` (M, R, D) float regions or (M, 3, H, W) uint8 pixels; ``failures``: image row -> why not.

    The rows of failed images are zero. ``encoder``: "features", "pretrained", or a name of the image encoder registry.
    """

    array: np.ndarray
    failures: dict[int, str]
    encoder: str
    image_size: int | None


def resolve_image_encoder(name: str, kind: str) -> str:
    """``auto`` made definite for images of ``kind`` ("features" or "bytes").

    Raises ConfigError: unknown name, or pixels asked of data that has only vectors.
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
) -> ImageMatrix:
    """All images of ``pairs`` as one matrix, by ``auto``, ``features``, ``efficientnet_lite0`` or ``cnn``.

    ``image_size``: side in pixels of the square that the encoder sees; ``progress(done, total)`` is called after each
    batch.
    """
    name = resolve_image_encoder(encoder, pairs.images.kind)
    if name == "features":
        array = pairs.images.array()
        assert array is not None
        return ImageMatrix(array, {}, name, None)
    size = image_size or DEFAULT_SIZE[name]
    if name == "cnn":
        chunks = _chunks(
            pairs, (3, size, size), np.uint8, SQUARE(size), lambda found: np.stack(found).transpose(0, 3, 1, 2)
        )
        rows = compute_rows(len(pairs.images), (3, size, size), np.uint8, chunks, progress=progress)
        return ImageMatrix(rows.array, rows.failures, name, size)
    from cleanpairs.encoders.bert import fast_precision

    precision = fast_precision("cpu")
    network = IMAGE_ENCODERS.load(name)(precision=precision)

    def encode(squares: list[np.ndarray]) -> np.ndarray:
        return np.asarray(network.encode(_pictures(squares), image_size=size))  # in its size already: not resized again

    key = f"{name}-{size}-{network.weights_sha256[:8]}" + ("" if precision.itemsize == 4 else "-bf16")
    rows = _rows(pairs, key, (network.regions, network.dim), np.float16, SQUARE(size), encode, progress)
    return ImageMatrix(rows.array, rows.failures, name, size)


def encoded_matrix(
    pairs: Pairs, encoder: "PretrainedCLIP | ModuleEncoder", *, progress: Progress | None = None
) -> ImageMatrix:
    """All images of ``pairs`` through a frozen encoder that is at hand, (M, R, D) float32; kept as in the cache.

    Raises ConfigError: the data has vectors only.
    """
    _need_images(pairs, encoder.name)
    shape = encoder.shape
    preparation, encode = _prepared_for(encoder)
    rows = _rows(pairs, digest(encoder.fingerprint), shape, np.float32, preparation, encode, progress)
    array = rows.array if len(shape) == 2 else rows.array[:, None]
    return ImageMatrix(array, rows.failures, "pretrained", None)


def pixel_matrix(pairs: Pairs, transform: "ImageTransform", *, progress: Progress | None = None) -> ImageMatrix:
    """All images of ``pairs`` as the pixels (M, 3, H, W) uint8 that a network takes, for towers that are trained on.

    Decoded and resized once, so that an epoch costs no decoding: 150 kB an image of 224 x 224 in the cache directory.
    """
    _need_images(pairs, "of pixels")
    shape = (3, *transform.output_size)
    key = f"pixels-{digest(repr(transform))}"
    rows = _rows(pairs, key, shape, np.uint8, _transformed(transform), np.stack, progress)
    return ImageMatrix(rows.array, rows.failures, "pretrained", transform.output_size[0])


def _need_images(pairs: Pairs, name: str) -> None:
    if pairs.images.kind == "features" and not any(
        data is not None for _, chunk in pairs.images.iter_encoded(64) for data in chunk
    ):
        raise ConfigError(
            f"the encoder {name} looks at the images, and the data has vectors only: name images with image_column "
            "(--image-column), or leave the encoder out"
        )


def _rows(
    pairs: Pairs,
    encoder_key: str,
    shape: tuple[int, ...],
    dtype: Any,
    preparation: Preparation,
    encode: Encode,
    progress: Progress | None,
) -> Rows:
    """The rows of all images: of the cache directory, where the pairs are on disk; else as long as the images live."""
    chunks = _chunks(pairs, shape, dtype, preparation, encode)
    if pairs.source.kind != "memory":
        # By the images' contents, also of files that the input only names; whatever captions stand beside them.
        folder = cache_dir() / "images" / f"{digest(pairs.image_group.tobytes())}-{encoder_key}"
        return compute_rows(len(pairs.images), shape, dtype, chunks, folder=folder, progress=progress)
    kept = _IN_MEMORY.setdefault(pairs.images, {})  # a fit, its scores and repairs share the images' object
    if encoder_key not in kept:
        kept[encoder_key] = compute_rows(len(pairs.images), shape, dtype, chunks, progress=progress)
    return kept[encoder_key]


def _chunks(
    pairs: Pairs, shape: tuple[int, ...], dtype: Any, preparation: Preparation, encode: Encode
) -> Callable[[int], Iterator[Chunk]]:
    """Decode and encode images from one on; what cannot be decoded is zero and is written down."""

    def chunks(first: int) -> Iterator[Chunk]:
        encoded = (part for part in pairs.images.iter_encoded(BATCH) if part[0] + len(part[1]) > first)
        with Decoder(preparation, workers_for(len(pairs.images) - first)) as decoder:
            for batch in decoder.batches(encoded):
                values, failures = np.zeros((batch.size, *shape), dtype), batch.failures
                if batch.arrays:
                    found = np.asarray(encode(batch.arrays), dtype)
                    finite = np.isfinite(found).reshape(len(found), -1).all(axis=1)
                    failures |= {int(row): "its features are not finite" for row in batch.rows[~finite]}
                    found[~finite] = 0
                    values[batch.rows - batch.start] = found
                yield batch.start, values, failures

    return chunks


def _prepared_for(encoder: "PretrainedCLIP | ModuleEncoder") -> tuple[Preparation, Encode]:
    """What a worker makes of an image, and what ``encoder`` makes of a batch of it: of pixels, where a worker can be
    told their transform, else of the whole picture.
    """
    from cleanpairs.encoders.image_transform import ImageTransform

    if isinstance(encoder.transform, ImageTransform):
        return _transformed(encoder.transform), lambda pixels: encoder.encode_pixels(np.stack(pixels))
    return RGB, lambda pictures: encoder.encode_images(_pictures(pictures))


def _transformed(transform: "ImageTransform") -> Preparation:
    return Preparation("cleanpairs.encoders.image_transform:pixels_of", asdict(transform))


def _pictures(arrays: list[np.ndarray]) -> list[Any]:
    """Images of Pillow, of (H, W, 3) uint8 each."""
    from PIL import Image

    return [Image.fromarray(array) for array in arrays]
