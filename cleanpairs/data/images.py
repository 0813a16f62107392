"""M images: vectors in memory or mapped, or encoded bytes that are read when they are needed."""

import base64
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path, PureWindowsPath
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from cleanpairs.core import DataError, limit, without_secrets
from cleanpairs.core.regular import error_text, read_bytes, reading
from cleanpairs.data.formats.file_names import IMAGES
from cleanpairs.data.text import NOT_FINITE, content_hash
from cleanpairs.ops.columns import numbered
from cleanpairs.ops.mapped import blocks

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
Pick = Callable[[np.ndarray], Iterator[bytes | None]]  # from rising rows (k,) to their encoded images


class ImageSource:
    """M images: vectors (M, R, D), perhaps memory-mapped (``kind`` "features"), encoded images ("bytes"), or both.

    When encoded images are needed, ``pick(rows)`` of rising rows yields them, None where there is none. ``in_memory``:
    no file holds them, so nothing computed from them is cached on disk.
    """

    in_memory = False

    def __init__(self, n: int, pick: Pick | None = None, vectors: np.ndarray | None = None) -> None:
        self._n, self._pick, self._vectors = n, pick or partial(map, {}.get), vectors
        self._hashes: np.ndarray | None = None
        self.kind = "bytes" if vectors is None else "features"

    def __len__(self) -> int:
        return self._n

    def with_vectors(self, vectors: np.ndarray) -> "ImageSource":
        """The same images with vectors (M, R, D), which are used before them."""
        return ImageSource(len(vectors), self._pick, vectors)

    def iter_encoded(self, batch_size: int, first: int = 0) -> Iterator[tuple[int, list[bytes | None]]]:
        """(First index, encoded images, None where there is none), in order, from image ``first`` on."""
        images = self._pick(np.arange(first, self._n))
        return numbered(iter(lambda: list(islice(images, batch_size)), []), first)

    def read(self, indices: Sequence[int]) -> list[bytes | None]:
        """Encoded images at ``indices``, for thumbnails. None where there is none."""
        rows, at = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        images = list(self._pick(rows))
        return [images[i] if i < len(images) else None for i in at.tolist()]

    def at(self, rows: np.ndarray) -> "ImageSource":
        """The encoded images ``rows`` (k,), rising, numbered from 0."""
        return ImageSource(len(rows), lambda at: self._pick(rows[at]))

    def hashes(self) -> np.ndarray:
        """Content hashes (M,) int64 of the encoded images, 0 where there is none. They are read once."""
        if self._hashes is None:
            self._hashes = np.zeros(self._n, np.int64)
            for start, chunk in self.iter_encoded(64):
                self._hashes[start : start + len(chunk)] = [content_hash(data) if data else 0 for data in chunk]
        return self._hashes

    @property
    def only_vectors(self) -> bool:
        """Whether there are vectors and no encoded image. Images are read until one is found."""
        return self._vectors is not None and all(data is None for data in self._pick(np.arange(self._n)))

    def array(self) -> np.ndarray | None:
        """(M, R, D) vectors. None where there are encoded images only."""
        return self._vectors


def encoded_list(images: Sequence[bytes | None]) -> ImageSource:
    """Encoded images in memory."""
    source = ImageSource(len(images), partial(map, images.__getitem__))
    source.in_memory = True
    return source


def resolve_path(path: str, root: Path, table_folder: Path | None = None) -> Path:
    """The file of an image path under ``root``. Raises DataError: a URL, or a path (or a link) that leaves ``root``.

    Where the path names no file, it may be relative to the ``table_folder``, below ``root``, or one of the paths of
    :func:`_candidate_paths`.
    """
    if path[:5].lower() == "file:":
        path = unquote(urlsplit(path).path)
    if "://" in path:
        shown = without_secrets(path)[:120]
        raise DataError(f"the image {shown!r} is a URL, and nothing is fetched: download it by img2dataset")
    with reading(f"the image path {path[:120]!r}", "followed", ValueError, RuntimeError):  # links in a circle
        base = root.resolve()
        file = (base / path).resolve()
        if not os.path.exists(file):
            ends = (base / end for end in _candidate_paths(path, base))
            for end in ends if table_folder is None else chain([table_folder / path], ends):
                if end.is_file() and (resolved := end.resolve()).is_relative_to(base):
                    return resolved
    if not file.is_relative_to(base):
        remedy = "" if os.path.exists(file) else ", and no end of it is there"
        if not remedy and os.path.isabs(path) and file.suffix.lower() in IMAGES:
            remedy = f"; --image-root {quote(str(file.parent))} takes it in"
        if Path(os.path.abspath(base / path)).is_relative_to(base):
            remedy = f"; it is a link, and --image-root {quote(os.path.commonpath([base, file]))} takes in {file}"
        raise DataError(f"the image path {path[:120]!r} leaves the image root {root}{remedy}")
    return file


def _candidate_paths(path: str, base: Path) -> Iterator[str]:
    """Paths that ``path`` can mean: the first of ``a.jpg|b.jpg``, ``a.jpg`` for ``a.jpg#0``, ``12.jpg`` for ``12``. Of
    an absolute path, a Windows path, or one whose first folder is not below ``base``: its ends, the longest first.
    """
    plain = re.sub(r"#\d+$", "", path.partition("|")[0].strip())
    parts = PureWindowsPath(plain).parts
    ends = [plain] if plain else []
    if plain.startswith("/") or "\\" in plain or (len(parts) > 1 and not os.path.lexists(base / parts[0])):
        ends += ["/".join(parts[k:]) for k in range(len(parts))]
    for end in ends:
        yield end
        if Path(plain).suffix.lower() not in IMAGES:
            yield from (end + ending for ending in IMAGES)


def image_cells(column: pa.Array) -> list[Any]:
    """The cells of an Arrow column of images. A path that is not UTF-8 is decoded as Python decodes file names."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        if pa.types.is_dictionary(column.type):
            return image_cells(column.dictionary_decode())
        if pa.types.is_struct(column.type):
            names = [f.name for f in column.type if f.name in ("bytes", "path")]
            rows = zip(*(image_cells(column.field(name)) for name in names), strict=True)
            return [dict(zip(names, row, strict=True)) for row in rows]
        return [cell if cell is None else os.fsdecode(cell) for cell in column.cast(pa.binary()).to_pylist()]


def encoded_bytes(value: Any, file: str, root: str | None) -> bytes | None:
    """As :func:`cell_bytes`, but None where there is no image that may be read."""
    table_folder = Path(file).parent
    with suppress(DataError):
        return cell_bytes(value, table_folder if root is None else Path(root), table_folder)
    return None


def cell_bytes(value: Any, root: Path, table_folder: Path | None = None) -> bytes:
    """The encoded image that one cell of an image column holds, or names, as of :func:`resolve_path`. DataError with
    the reason otherwise.
    """
    if isinstance(value, list):
        if len(value) > 1:
            raise DataError(f"the cell holds {len(value)} images, and a pair has one")
        value = value[0] if value else None
    if isinstance(value, dict):
        value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
    if value is None:
        raise DataError("there is no image")
    content = value if isinstance(value, bytes) else embedded(str(value))
    if content is None:
        file = resolve_path(str(value), root, table_folder)
        with reading(name := f"the image file {str(value)[:120]!r}"):
            if not file.is_file():
                windows = "; it is a Windows path, and no end of it is under the image root" * ("\\" in str(value))
                raise DataError(f"{name} is missing{windows}")
            if file.stat().st_size > (most := limit("image_bytes")):
                raise DataError(f"{name} is larger than {most} bytes")
            content = read_bytes(file)
    if not content:
        raise DataError("the image has zero bytes")
    return content


def named_file(value: Any) -> str | None:
    """The path of the file that one cell of an image column names. None where the cell holds the image, or none."""
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else None
    return value if isinstance(value, str) and value and embedded(value) is None else None


def ambiguous_paths(named: Mapping[int, tuple[str, str]], root: str | None) -> dict[int, str]:
    """Rows whose image is unknown: the path does not exist, and the file that it can mean is also that of another path.

    ``named``: row -> the path of its image, and the folder of the table that names it. ``root`` as of
    :func:`resolve_path`, None for that folder. Returns row -> reason.
    """

    def existing(path: str, folder: str) -> str | None:
        places = (os.path.join(base, path) for base in (root or folder, folder))
        return next((place for place in places if "\0" not in path and os.path.exists(place)), None)

    places = {each: existing(*each) for each in set(named.values())}
    if all(places.values()):
        return {}
    paths: dict[str, set[str]] = {}  # file -> all paths for it
    guessed: dict[tuple[str, str], str] = {}
    for (path, folder), place in places.items():
        plain = path if place else re.sub(r"#\d+$|\|.*", "", path)
        place = place or existing(plain, folder)
        with suppress(DataError):
            file = os.path.realpath(place or resolve_path(plain, Path(root or folder), Path(folder)))
            paths.setdefault(file, set()).add(plain)
            if not place:
                guessed[path, folder] = file
    return {
        row: "{!r} and {!r} end in the name of one file".format(*sorted(paths[guessed[each]])[:2])
        for row, each in named.items()
        if each in guessed and len(paths[guessed[each]]) > 1
    }


def embedded(text: str) -> bytes | None:
    """The image that a text holds, as base64 or as a data URL. None where it holds none."""
    head, comma, data = text.partition(",")
    if not (comma and head.lower().startswith("data:") and head.lower().endswith(";base64")):
        if len(text) < 100 or not text.startswith(("/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD", "Qk", "SUkq", "TU0AK")):
            return None
        data = text
    with suppress(ValueError):
        return base64.b64decode("".join(data.split()), validate=True)
    return None


def vector_groups(array: np.ndarray) -> np.ndarray:
    """Content hash (M,) int64 of each image's vectors, as float32: the same in every precision that holds them."""
    groups = np.empty(len(array), dtype=np.int64)
    for rows in blocks(len(array), 1024):
        with np.errstate(over="ignore"):  # what float32 cannot hold is quarantined
            block = np.ascontiguousarray(array[rows], dtype=np.float32)
        groups[rows] = [content_hash(row.data) for row in block.reshape(len(block), -1).view(np.uint8)]
    return groups


def largest_numbers(array: np.ndarray) -> np.ndarray:
    """The largest number (n,), without its sign, of each of n vectors, or of its regions, (n, ...). NaN stays."""
    axes, size = tuple(range(1, array.ndim)), np.empty(len(array))
    with np.errstate(invalid="ignore"):
        for rows in blocks(len(array), 1024):
            block = array[rows]
            if array.dtype == np.float16:  # comparing them is slow. Their bits without the sign have the same order
                size[rows] = (block.view(np.uint16) & 0x7FFF).max(axis=axes).view(np.float16)
            else:
                block = block.astype(np.promote_types(array.dtype, np.float32), copy=False)
                size[rows] = np.maximum(block.max(axis=axes), -block.min(axis=axes))
    return size


def comparable_vectors(array: np.ndarray, what: str = "vector") -> tuple[np.ndarray, dict[int, str]]:
    """Vectors, or regions, (n, ...), zero where one is not finite, and row -> why it cannot be compared.

    ``what``: their name in the reasons.
    """
    size = largest_numbers(array)
    most = np.finfo(np.float32).max
    kinds = {"is zero": size < 1e-18, NOT_FINITE: ~(size <= most)}  # the square of 1e-18 is 0 in float32
    if kinds[NOT_FINITE].any():
        array = np.array(array)
        array[kinds[NOT_FINITE]] = 0
    return array, {i: f"its {what} {why}" for why, rows in kinds.items() for i in np.flatnonzero(rows).tolist()}


def without_outliers(array: np.ndarray, what: str = "vector") -> tuple[np.ndarray, dict[int, str]]:
    """As :func:`comparable_vectors`, zero where one is far larger than most, as it would move the mean of all."""
    size = largest_numbers(array)
    far = size > 100 * np.median(size[size > 0]) if (size > 0).any() else np.zeros(len(size), bool)
    if far.any():
        array = np.array(array)
        array[far] = 0
    return array, dict.fromkeys(np.flatnonzero(far).tolist(), f"its {what} is more than 100 times as large as most")


def read_image(data: bytes, *, about: int | None = None) -> Any:
    """Decode an image to RGB (PIL.Image.Image), upright, on white where it is transparent.

    It is JPEG, PNG, WebP, GIF (first frame), BMP, TIFF or AVIF. A side of ``about`` pixels is enough, so a JPEG is
    decoded at an eighth, a quarter or half of its size. Gray of more than 8 bits is scaled by its range.

    Raises DataError, with the reason: the image cannot be decoded, whole, within the limits.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    max_pixels, max_scans = limit("pixels"), 100  # each scan goes over all pixels. Encoders make ten
    if len(data) > (most := limit("image_bytes")):
        raise DataError(f"the image has {len(data)} bytes, more than {most}")
    if data.startswith(b"\xff\xd8") and (scans := data.count(b"\xff\xda")) > max_scans:
        raise DataError(f"the image is a JPEG of {scans} scans, more than {max_scans}")
    try:
        with warnings.catch_warnings(action="ignore"):
            image: Any = _opened(data)
            if image.width * image.height > max_pixels:
                raise DataError(f"the image has {image.width}x{image.height} pixels, more than {max_pixels}")
            if about is not None:
                image.draft(None, (about, about))
            deep, tags = any(";16" in str(tile) for tile in image.tile), getattr(image, "tag_v2", {})
            image.load()
            with suppress(Exception):  # the pixels are whole: a broken note of the orientation is no fault
                image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I") or image.mode == "F":
                image = Image.fromarray(_eight_bits(np.asarray(image), tags))
            elif deep and image.mode[:3] == "RGB" and 0 < max(high for _, high in image.getextrema()[:3]) < 16:
                # Pillow has kept the upper 8 bits alone
                raise DataError("the image has 16 bits a channel and uses the lower 12 at most: save it with 8")
            if image.has_transparency_data:
                rgba = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
            return image.convert("RGB")
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders raise anything. Only this row is bad
        known: dict[Any, str] = {UnidentifiedImageError: f"no known image format{_what_else(data[:512].lower())}"}
        known |= {Image.DecompressionBombError: f"it has more than {max_pixels} pixels"}
        raise DataError(f"the image cannot be decoded: {known.get(type(error)) or error_text(error)}") from error


def _opened(data: bytes) -> Any:
    """The image, of which Pillow has read the header. Where our limit of pixels is higher than Pillow's, it counts."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS and max(Image.MAX_IMAGE_PIXELS, limit("pixels"))
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _what_else(data: bytes) -> str:
    """The likely kind of ``data``, in small letters, which is no supported image."""
    kinds = {
        b"git-lfs.github.com": "a pointer of Git LFS; run git lfs pull", b"<html": "a web page",
        b"<!doctype html": "a web page", b"<svg": "SVG", b"%pdf": "PDF", b"ftyphei": "HEIC", b"ftypmif1": "HEIC",
        b"jp  \r\n": "JPEG 2000", b"jxl \r\n": "JPEG XL", b"8bps": "a file of Photoshop",
    }  # fmt: skip
    return next((f": it is {name}" for mark, name in kinds.items() if mark in data), "")


def _eight_bits(values: np.ndarray, tags: Mapping[int, Any]) -> np.ndarray:
    """Gray values (H, W) of more than 8 bits as uint8, by the range that they take. ``tags``: those of a TIFF."""
    bits_per_sample, photometric, sample_format = tags.get(258), tags.get(262), tags.get(339, (1,))
    if bits_per_sample == (32,) and sample_format == (1,):
        values = values.view(np.uint32)  # Pillow reads them as signed
    if not np.isfinite(values).all():
        raise DataError("the image has pixels that are not finite")
    low, high = min(float(values.min()), 0.0), float(values.max())
    if low < 0:
        top = high - low
    elif values.dtype.kind == "f":
        top = next((top for top in (1.0, 255.0, 65535.0) if top / 16 <= high <= top), high or 1.0)
    else:  # 8, 10, 12, 14, 16 bits, or more
        bits = int(high).bit_length()
        top = 2.0 ** max(8, bits + (bits % 2 if bits < 16 else 0)) - 1
    scaled = values.astype(np.float32)
    scaled -= low
    scaled *= 255 / top
    grey = np.rint(scaled, out=scaled).clip(0, 255).astype(np.uint8)
    return 255 - grey if photometric == 0 else grey  # where zero is white


def small_jpeg(image: Any, size: int) -> np.ndarray:
    """A decoded image, shrunk to ``size`` pixels a side at most, as the bytes of a JPEG (n,) uint8 without metadata."""
    image.thumbnail((size, size))
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=85)
    return np.frombuffer(stream.getvalue(), np.uint8)


def image_header(content: bytes) -> tuple[str, int, int] | None:
    """Format, width and height of an encoded image. None where they cannot be read."""
    with suppress(Exception), warnings.catch_warnings(action="ignore"), _opened(content) as image:
        return str(image.format), image.width, image.height  # Pillow raises anything
    return None


def rows_by_file(counts: Sequence[int], rows: Sequence[int] | np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """The files that have any of ``rows`` (k,), by their ``counts``: number, first row, and the rows in it, rising."""
    starts = np.cumsum([0, *counts])
    wanted = np.unique(np.asarray(rows, np.int64))
    for number, (a, b) in enumerate(pairwise(np.searchsorted(wanted, starts).tolist())):
        if a < b:
            yield number, int(starts[number]), wanted[a:b] - starts[number]
