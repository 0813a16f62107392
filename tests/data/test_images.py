"""Decoding: every mode comes out right, and nothing bad comes out at all."""

import itertools
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cleanpairs.core.errors import DataError, OutputExistsError
from cleanpairs.data import read_image
from cleanpairs.data.formats.file_names import IMAGES
from cleanpairs.data.guard import data_inputs, refuse_inputs
from cleanpairs.data.images import image_header, vector_groups
from tests.helpers import assert_raises, encoded


def near(image: Any, colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    assert image.mode == "RGB"
    return bool((abs(np.asarray(image).astype(int) - colour) <= tolerance).all())


def test_formats_and_modes() -> None:
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"):
        image = read_image(encoded(Image.new("RGB", (9, 5), (200, 40, 60)), form))
        assert image.size == (9, 5) and near(image, (200, 40, 60))
    green, sixteen = Image.new("RGB", (4, 4), (10, 200, 30)), Image.fromarray(np.full((4, 4), 30_000, np.uint16))
    for image, form, colour in (
        (Image.new("L", (4, 4), 77), "PNG", (77, 77, 77)),
        (Image.new("1", (4, 4), 1), "PNG", (255, 255, 255)),
        (green.convert("CMYK"), "JPEG", (10, 200, 30)),
        (green.quantize(4), "PNG", (10, 200, 30)),
        (sixteen, "PNG", (117, 117, 117)),
        (sixteen, "TIFF", (117, 117, 117)),
    ):
        assert near(read_image(encoded(image, form)), colour, 1 if image is sixteen else 12)


RAMP = np.tile(np.arange(256.0), (8, 1))


def test_grey_of_more_than_eight_bits_is_scaled_by_its_range() -> None:
    for form, values in (
        *((form, (RAMP * k).astype(np.uint16)) for k in (1, 4, 16, 64, 257) for form in ("PNG", "TIFF")),
        *(
            ("TIFF", (RAMP * k - low).astype(np.int32))
            for k, low in ((1, 0), (16, 0), (257, 0), (2**23, 0), (16, 2040))
        ),
        *(("TIFF", (RAMP * k).astype(np.float32)) for k in (1 / 255, 1, 257, 4000, 1e-6)),
        ("TIFF", (RAMP / 127.5 - 1).astype(np.float32)),
    ):
        np.testing.assert_allclose(np.asarray(read_image(encoded(Image.fromarray(values), form)))[..., 0], RAMP, atol=1)


def tiff(values: np.ndarray, photometric: int = 1, sample_format: int = 1) -> bytes:
    """One strip of grey, or of three colours, in either byte order."""
    order, bits = ">" if values.dtype.byteorder == ">" else "<", values.dtype.itemsize * 8
    colours = values.ndim == 3
    tags = {256: values.shape[1], 257: len(values), 258: 900 if colours else bits, 259: 1, 262: photometric, 273: 1000}
    tags |= {277: 3 if colours else 1, 278: len(values), 279: values.nbytes, 339: sample_format}
    head = (b"MM" if order == ">" else b"II") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    for tag, value in sorted(tags.items()):
        head += struct.pack(f"{order}HHII", tag, 4, 3 if value == 900 else 1, value)
    return (head.ljust(900, b"\0") + struct.pack(f"{order}III", *[bits] * 3)).ljust(1000, b"\0") + values.tobytes()


@pytest.mark.parametrize("order", ["<", ">"])
def test_tiffs_of_other_programs(order: str) -> None:
    deep = (RAMP * 16).astype(f"{order}u2")
    np.testing.assert_allclose(np.asarray(read_image(tiff(deep)))[..., 0], RAMP, atol=1)
    if order == "<":  # white is zero; Pillow reads neither this nor whole numbers of 32 bits in the other order
        np.testing.assert_allclose(np.asarray(read_image(tiff(deep, photometric=0)))[..., 0], 255 - RAMP, atol=1)
        whole = (RAMP * (2**32 // 256)).astype("<u4")
        np.testing.assert_allclose(np.asarray(read_image(tiff(whole)))[..., 0], RAMP, atol=1)
    colours = np.stack([deep, deep, deep], axis=2)
    assert_raises(DataError, "lower 12 at most", read_image, tiff(colours, photometric=2))
    np.testing.assert_allclose(np.asarray(read_image(tiff(colours * 16, photometric=2)))[..., 1], RAMP, atol=1)
    with pytest.raises(DataError, match="not finite"):
        read_image(tiff(np.where(RAMP == 3, np.nan, RAMP).astype(f"{order}f4"), sample_format=3))


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = encoded(Image.new("RGB", (90, 90)), "JPEG", progressive=True)
    assert read_image(data).size == (90, 90)
    last = data.rfind(b"\xff\xda")
    assert_raises(DataError, "2009 scans", read_image, data[:last] + data[last:-2] * 2000 + b"\xff\xd9")


def test_transparent_is_on_white() -> None:
    assert near(read_image(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "PNG")), (255, 255, 255), 0)
    assert near(read_image(encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 128)), "PNG")), (255, 127, 127), 1)
    assert near(read_image(encoded(Image.new("LA", (4, 4), (0, 0)), "PNG")), (255, 255, 255), 0)
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([9, 9, 9] * 256)
    assert near(read_image(encoded(palette, "PNG", transparency=0)), (255, 255, 255), 0)


def test_exif_rotation() -> None:
    image = Image.new("RGB", (8, 4), "black")
    image.paste("white", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright = np.asarray(read_image(encoded(image, "JPEG", quality=95, exif=exif)))
    assert upright.shape == (8, 4, 3) and upright[:3].min() > 200 and upright[5:].max() < 55


def test_a_broken_exif_note_does_not_cost_the_image() -> None:
    notes = (b"garbage", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"")
    for form, exif in itertools.product(("JPEG", "PNG", "WEBP"), notes):
        image = read_image(encoded(Image.new("RGB", (8, 4), (200, 40, 60)), form, exif=b"Exif\0\0" + exif))
        assert image.size == (8, 4) and near(image, (200, 40, 60))


def test_every_truncation_is_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8)
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        data = encoded(Image.fromarray(noise), form)
        for keep in (0, 1, 20, len(data) // 2, len(data) * 3 // 4):
            with pytest.raises(DataError):
                read_image(data[:keep])


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def test_bombs_and_what_is_no_image_are_refused() -> None:
    for data, what in (
        *((png_header(*size), ".") for size in ((9_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (0, 5))),
        (b"<html><body>404</body></html>", "no known image format: it is a web page"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no known image format$"),
        (b"%PDF-1.4", "no known image format: it is PDF"),
        (b"<svg/>", "no known image format: it is SVG"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no known image format: .*git lfs pull"),
        (encoded(Image.new("RGB", (4, 4)), "JPEG2000"), "no known image format: it is JPEG 2000"),
    ):
        assert_raises(DataError, what, read_image, data)


def test_no_output_replaces_an_image_that_a_table_may_name(tmp_path: Path) -> None:
    for ending in IMAGES:
        (image := tmp_path / f"a{ending}").write_bytes(b"")
        with pytest.raises(OutputExistsError, match="lies in the input"):
            refuse_inputs([image], data_inputs(None, {"image_root": tmp_path}))
        refuse_inputs([tmp_path / f"new{ending}"], data_inputs(None, {"image_root": tmp_path}))


def test_equal_vectors_are_one_group_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    array = np.zeros((40, 9, 1280), np.float16)  # 46 kB each as float32
    array[:, 4] = rng.normal(size=(40, 1280))
    array[30:] = array[:10]
    array[29] = array[28]
    array[29, 4, 640] += 1
    groups = vector_groups(array)
    same = groups[:, None] == groups
    want = np.eye(40, dtype=bool)
    want[np.arange(10), np.arange(30, 40)] = want[np.arange(30, 40), np.arange(10)] = True
    np.testing.assert_array_equal(same, want)
    np.testing.assert_array_equal(groups, vector_groups(array.astype(np.float32)))
    assert vector_groups(array[:0]).shape == (0,)


def test_the_size_of_a_large_image_is_read_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings(action="error"):
        assert image_header(encoded(Image.new("L", (4, 4)), "PNG")) == ("PNG", 4, 4)
