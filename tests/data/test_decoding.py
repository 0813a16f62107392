"""Decoding in processes: equal to decoding here, to the bit; what kills, hangs or fills one is set aside, alone."""

import io
import itertools
import multiprocessing
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cleanpairs.core.errors import DataError, OutputExistsError, ResourceError
from cleanpairs.data import Pairs, read_image
from cleanpairs.data.decoding import RGB, DecodedBatch, Decoder, Preparation, thumbnail, thumbnails
from cleanpairs.data.duplicates import SIGNATURE
from cleanpairs.data.formats.file_names import IMAGES
from cleanpairs.data.guard import data_inputs, refuse_inputs
from cleanpairs.data.images import image_header, vector_groups
from cleanpairs.data.inspection import inspect_pairs
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.report.plots import plot_pairs
from tests.data.decoders import CRASH, FILL, HANG, ONCE
from tests.helpers import assert_raises, encoded

DECODING = True  # see conftest.py
FAULTY = "tests.data.decoders:faulty"


def picture(width: int, height: int = 9, form: str = "PNG") -> bytes:
    """A picture with noise on it, encoded."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), form)


def decode(decoder: Decoder, images: Sequence[bytes | None], size: int = 4) -> list[DecodedBatch]:
    return list(decoder.batches((at, images[at : at + size]) for at in range(0, len(images), size)))


TRANSFORM = ImageTransform(20, None, None, (16, 16), Image.Resampling.BICUBIC, 1 / 255, (0.5,) * 3, (0.5,) * 3)
PIXELS = Preparation("cleanpairs.encoders.image_transform:pixels_of", asdict(TRANSFORM))


@pytest.mark.parametrize("preparation", [PIXELS, SIGNATURE], ids=["transform", "signature"])
def test_workers_make_the_same_arrays(preparation: Preparation) -> None:
    images: list[bytes | None] = [picture(w, form=("PNG", "JPEG", "WEBP")[w % 3]) for w in range(10, 50)]
    images[7], images[8], images[30] = None, b"no image", b""
    with Decoder(preparation, 0) as here, Decoder(preparation, 2) as there:
        expected, found = decode(here, images), decode(there, images)
    assert [b.start for b in found] == list(range(0, 40, 4)) and found[1].failures[7] == "there is no image"
    assert {row for b in found for row in b.failures} == {7, 8, 30}
    for one, other in zip(expected, found, strict=True):
        assert one.failures == other.failures and one.rows.tolist() == other.rows.tolist()
        assert len(one.arrays) == len(other.arrays) == len(one.rows)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert a.dtype == b.dtype == np.uint8 and np.array_equal(a, b)


def test_an_image_that_kills_its_worker_twice_is_set_aside_and_the_others_are_not(tmp_path: Path) -> None:
    """Not the one, either, whose worker died by chance."""
    with Decoder(Preparation(FAULTY, {"flag": str(tmp_path / "died")}), 2) as decoder:
        found = decode(decoder, [picture(w) for w in (10, 11, CRASH, 12, ONCE, 14, CRASH, 15)])
    failures = {row: why for b in found for row, why in b.failures.items()}
    assert sorted(failures) == [2, 6]
    assert "ended the decoding process (SIGSEGV), twice" in failures[2]
    assert [int(a[0]) for b in found for a in b.arrays] == [10, 11, 12, ONCE, 14, 15]


def test_an_image_that_takes_too_long_or_too_much_memory_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEANPAIRS_DECODE_SECONDS", "2")
    monkeypatch.setenv("CLEANPAIRS_DECODE_MEMORY", str(2**29))
    with Decoder(Preparation(FAULTY), 1) as decoder:
        (batch,) = decode(decoder, [picture(w) for w in (10, FILL, 11, HANG, 12)], 5)
    assert list(batch.failures) == [1, 3] and "Memory" in batch.failures[1]
    assert batch.failures[3] == "the image cannot be decoded: it took more than 2 seconds, twice"
    assert [int(a[0]) for a in batch.arrays] == [10, 11, 12]
    assert batch.arrays[0][1] == batch.arrays[1][1]  # of one process
    big = picture(900, 800)  # 2.2 MB each way: more than a pipe holds
    with Decoder(RGB, 1) as decoder:
        assert decode(decoder, []) == []
        (batch,) = decode(decoder, [big, picture(5), big])
    assert [a.shape for a in batch.arrays] == [(800, 900, 3), (9, 5, 3), (800, 900, 3)] and not batch.failures
    assert np.array_equal(batch.arrays[0], np.asarray(Image.open(io.BytesIO(big))))


def test_a_bomb_of_pixels_does_not_reach_the_memory_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = encoded(Image.new("RGB", (9000, 9000)))
    monkeypatch.setenv("CLEANPAIRS_DECODE_MEMORY", str(2**28))
    for most, message in ((64_000_000, "9000x9000 pixels, more than 64000000"), (10**8, "cannot be decoded")):
        monkeypatch.setenv("CLEANPAIRS_MAX_PIXELS", str(most))
        with Decoder(PIXELS, 1) as decoder:
            (batch,) = decode(decoder, [bomb, picture(10)])
        assert message in batch.failures[0] and batch.rows.tolist() == [1]


def test_a_worker_that_cannot_start_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Decoder(Preparation("no_such_module:f"), 1) as decoder:
        assert_raises(ResourceError, "no_such_module", decode, decoder, [picture(10)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with Decoder(PIXELS, 1) as decoder:
        assert_raises(ResourceError, "CLEANPAIRS_DECODE_WORKERS=0", decode, decoder, [picture(10)])


def test_leaving_early_ends_the_processes() -> None:
    def children() -> set[str]:
        tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        return {pid for task in tasks for pid in task.read_text().split()}

    before, decoder = children(), Decoder(Preparation(FAULTY), 2)
    batches = decoder.batches((at, [picture(10)] * 16 if at else [picture(10)]) for at in range(0, 160, 16))
    next(batches)
    assert children() - before
    decoder.__exit__()
    assert children() == before


def test_few_images_are_looked_at_under_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thumbnail, a plot and a look at one image: none decodes in the process of the command."""
    monkeypatch.setattr("cleanpairs.data.decoding.read_image", lambda *_, **__: pytest.fail("it was decoded here"))
    data = picture(40, 30)
    pairs = Pairs.from_arrays(["one", "two"], images=[data, b"no image"])
    small, none = thumbnails(pairs.images, np.arange(2), 16)
    assert small is not None and Image.open(io.BytesIO(small)).size == (16, 12) and none is None
    assert thumbnail(data, 16) == small and thumbnail(b"no image", 16) is None
    with multiprocessing.get_context("fork").Pool(1) as pool:  # a fork has no thread of its parent
        assert pool.apply_async(thumbnail, (data, 16)).get(120) == small
    assert inspect_pairs(pairs)["decoded"]["width"] == [40, 40, 40]
    assert len(plot_pairs(pairs, np.array([0.5, 0.5]), threshold=0.5)) == 2


# -- Every mode comes out right, and nothing bad comes out at all -----------------------------------------------------


def near(image: Any, colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    assert image.mode == "RGB"
    return bool((abs(np.asarray(image).astype(int) - colour) <= tolerance).all())


def test_formats_and_modes() -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 24, 3), np.uint8))
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"):
        image = read_image(encoded(Image.new("RGB", (9, 5), (200, 40, 60)), form))
        assert image.size == (9, 5) and near(image, (200, 40, 60))
        data = encoded(noise, form)
        for keep in (0, 1, 20, len(data) // 2, len(data) * 3 // 4) if form not in ("TIFF", "AVIF") else ():
            assert_raises(DataError, ".", read_image, data[:keep])
    green, sixteen = Image.new("RGB", (4, 4), (10, 200, 30)), Image.fromarray(np.full((4, 4), 30_000, np.uint16))
    white = (255, 255, 255)
    for image, form, colour, tolerance in (
        (Image.new("L", (4, 4), 77), "PNG", (77, 77, 77), 12), (Image.new("1", (4, 4), 1), "PNG", white, 12),
        (green.convert("CMYK"), "JPEG", (10, 200, 30), 12), (green.quantize(4), "PNG", (10, 200, 30), 12),
        (sixteen, "PNG", (117, 117, 117), 1), (sixteen, "TIFF", (117, 117, 117), 1),
        # transparent is on white
        (Image.new("RGBA", (4, 4), (255, 0, 0, 128)), "PNG", (255, 127, 127), 1),
        (Image.new("RGBA", (4, 4), (0,) * 4), "PNG", white, 0), (Image.new("LA", (4, 4), (0, 0)), "PNG", white, 0),
    ):  # fmt: skip
        assert near(read_image(encoded(image, form)), colour, tolerance)
    assert near(read_image(encoded(Image.new("P", (4, 4)), "PNG", transparency=0)), white, 0)


RAMP = np.tile(np.arange(256.0), (8, 1))


def test_grey_of_more_than_eight_bits_is_scaled_by_its_range() -> None:
    whole = ((1, 0), (16, 0), (257, 0), (2**23, 0), (16, 2040))
    for form, values in (
        *((form, (RAMP * k).astype(np.uint16)) for k in (1, 4, 16, 64, 257) for form in ("PNG", "TIFF")),
        *(("TIFF", (RAMP * k - low).astype(np.int32)) for k, low in whole),
        *(("TIFF", (RAMP * k).astype(np.float32)) for k in (1 / 255, 1, 257, 4000, 1e-6)),
        ("TIFF", (RAMP / 127.5 - 1).astype(np.float32)),
    ):
        np.testing.assert_allclose(np.asarray(read_image(encoded(Image.fromarray(values), form)))[..., 0], RAMP, atol=1)


def test_exif_rotation_and_a_broken_note_that_does_not_cost_the_image() -> None:
    image = Image.new("RGB", (8, 4), "black")
    image.paste("white", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright = np.asarray(read_image(encoded(image, "JPEG", quality=95, exif=exif)))
    assert upright.shape == (8, 4, 3) and upright[:3].min() > 200 and upright[5:].max() < 55
    notes = (b"garbage", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"")
    for form, note in itertools.product(("JPEG", "PNG", "WEBP"), notes):
        image = read_image(encoded(Image.new("RGB", (8, 4), (200, 40, 60)), form, exif=b"Exif\0\0" + note))
        assert image.size == (8, 4) and near(image, (200, 40, 60))


def test_bombs_and_what_is_no_image_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def png(width: int, height: int) -> bytes:
        """With a header that says so."""
        head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        whole = encoded(Image.new("RGB", (8, 8)))
        return whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:]

    scans = encoded(Image.new("RGB", (90, 90)), "JPEG", progressive=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # of Pillow, where ours is higher
    assert [read_image(x).size for x in (scans, png(8, 8))] == [image_header(scans)[1:], (8, 8)] == [(90, 90), (8, 8)]
    last = scans.rfind(b"\xff\xda")
    for data, what in (
        *((png(*s), "64000000" if s[0] else ".") for s in ([9_000] * 2, [60_000] * 2, [2**31 - 1] * 2, [0, 5])),
        (scans[:last] + scans[last:-2] * 2000 + b"\xff\xd9", "2009 scans"),
        (b"<html><body>404</body></html>", "no known image format: it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no known image format: .*git lfs pull"),
    ):
        assert_raises(DataError, what, read_image, data)


def test_no_output_replaces_an_image_that_a_table_may_name(tmp_path: Path) -> None:
    for ending in IMAGES:
        (image := tmp_path / f"a{ending}").write_bytes(b"")
        with pytest.raises(OutputExistsError, match="lies in the input"):
            refuse_inputs([image], data_inputs(None, {"image_root": tmp_path}))
        refuse_inputs([tmp_path / f"new{ending}"], data_inputs(None, {"image_root": tmp_path}))


def test_equal_vectors_are_one_group_and_others_are_not() -> None:
    array = np.zeros((40, 9, 1280), np.float16)  # 46 kB each as float32
    array[:, 4] = np.random.default_rng(0).normal(size=(40, 1280))
    array[30:] = array[:10]
    array[29] = array[28]
    array[29, 4, 640] += 1
    groups = vector_groups(array)
    first = np.arange(40) % 30  # of those that are equal
    np.testing.assert_array_equal(groups[:, None] == groups, first[:, None] == first)
    np.testing.assert_array_equal(groups, vector_groups(array.astype(np.float32)))
    assert vector_groups(array[:0]).shape == (0,)


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
