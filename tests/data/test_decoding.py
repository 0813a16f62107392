"""Decoding in processes: equal to decoding here, to the bit; what kills, hangs or fills one is set aside, alone."""

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cleanpairs.core.errors import ResourceError
from cleanpairs.data import Pairs, decoding
from cleanpairs.data.decoding import RGB, DecodedBatch, Decoder, Preparation, thumbnail, thumbnails, workers_for
from cleanpairs.data.duplicates import SIGNATURE
from cleanpairs.data.inspection import inspect_pairs
from cleanpairs.encoders.image_transform import ImageTransform
from cleanpairs.report.plots import plot_pairs
from tests.data.decoders import CRASH, FILL, HANG, ONCE
from tests.helpers import encoded

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
    images = [picture(w, form=("PNG", "JPEG", "WEBP")[w % 3]) for w in range(10, 50)]
    images[7], images[8], images[30] = None, b"no image", b""  # type: ignore[call-overload]
    with Decoder(preparation, 0) as here, Decoder(preparation, 2) as there:
        expected, found = decode(here, images), decode(there, images)
    assert [b.start for b in found] == list(range(0, 40, 4))
    assert [b.failures for b in found] == [b.failures for b in expected]
    assert {row for b in found for row in b.failures} == {7, 8, 30}
    assert found[1].failures[7] == "there is no image"
    for one, other in zip(expected, found, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert len(one.arrays) == len(other.arrays) == len(one.rows)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert a.dtype == b.dtype == np.uint8
            assert np.array_equal(a, b)


def test_few_pictures_and_a_whole_one_of_more_than_a_pipe_holds() -> None:
    big = picture(900, 800)  # 2.2 MB each way
    with Decoder(RGB, 1) as decoder:
        assert decode(decoder, []) == []
        (batch,) = decode(decoder, [big, picture(5), big])
    assert [a.shape for a in batch.arrays] == [(800, 900, 3), (9, 5, 3), (800, 900, 3)] and not batch.failures
    assert np.array_equal(batch.arrays[0], np.asarray(Image.open(io.BytesIO(big))))


def test_an_image_that_kills_its_worker_twice_is_set_aside_and_the_others_are_not(tmp_path: Path) -> None:
    """Not the one, either, whose worker died by chance."""
    images = [picture(w) for w in (10, 11, CRASH, 12, ONCE, 14, CRASH, 15)]
    with Decoder(Preparation(FAULTY, {"flag": str(tmp_path / "died")}), 2) as decoder:
        found = decode(decoder, images)
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


def test_a_bomb_of_pixels_does_not_reach_the_memory_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = encoded(Image.new("RGB", (9000, 9000)))
    monkeypatch.setenv("CLEANPAIRS_DECODE_MEMORY", str(2**28))
    with Decoder(PIXELS, 1) as decoder:
        (batch,) = decode(decoder, [bomb, picture(10)])
        assert "9000x9000 pixels, more than 64000000" in batch.failures[0]
        monkeypatch.setenv("CLEANPAIRS_MAX_PIXELS", "100000000")
    with Decoder(PIXELS, 1) as decoder:
        (batch,) = decode(decoder, [bomb, picture(10)])
    assert "cannot be decoded" in batch.failures[0]
    assert batch.rows.tolist() == [1]


def test_a_worker_that_cannot_start_is_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Decoder(Preparation("no_such_module:f"), 1) as decoder, pytest.raises(ResourceError, match="no_such_module"):
        decode(decoder, [picture(10)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with Decoder(PIXELS, 1) as decoder, pytest.raises(ResourceError, match="CLEANPAIRS_DECODE_WORKERS=0"):
        decode(decoder, [picture(10)])


def test_a_worker_that_is_killed_while_it_starts_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start = decoding._Worker.start
    workers: list[decoding._Worker] = []

    def killed_at_first(worker: decoding._Worker) -> None:
        workers.append(worker)
        if len(workers) == 1:
            worker.kill()
        start(worker)

    monkeypatch.setattr(decoding._Worker, "start", killed_at_first)
    with Decoder(PIXELS, 1) as decoder:
        (batch,) = decode(decoder, [picture(10)])
    assert not batch.failures
    assert len(workers) == 2


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


def test_how_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEANPAIRS_DECODE_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert [workers_for(n) for n in (0, 1, 512, 513, 10**6)] == [0, 1, 1, 2, 6]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert workers_for(10**6) == 8
    monkeypatch.setenv("CLEANPAIRS_DECODE_WORKERS", "3")
    assert workers_for(2) == 3
    monkeypatch.delenv("CLEANPAIRS_DECODE_WORKERS")
    monkeypatch.setattr(sys, "executable", None)
    assert workers_for(10**6) == 0


def test_few_images_are_looked_at_under_the_same_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thumbnail, a plot and a look at one image: none decodes in the process of the command."""
    decoded = "cleanpairs.data.decoding.read_image"
    monkeypatch.setattr(decoded, lambda *_, **__: pytest.fail("it was decoded here"))
    data = picture(40, 30)
    pairs = Pairs.from_arrays(["one", "two"], images=[data, b"no image"])
    small, none = thumbnails(pairs.images, np.arange(2), 16)
    assert small is not None and Image.open(io.BytesIO(small)).size == (16, 12) and none is None
    assert thumbnail(data, 16) == small and thumbnail(b"no image", 16) is None
    assert inspect_pairs(pairs)["decoded"]["width"] == [40, 40, 40]
    assert len(plot_pairs(pairs, np.array([0.5, 0.5]), threshold=0.5)) == 2
