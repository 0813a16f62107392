"""Limits: what the environment may say, and that each one acts."""

import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from cleanpairs import image_matrix, load_pairs
from cleanpairs.cli import cli
from cleanpairs.cli.terminal import periodic_progress
from cleanpairs.core import ConfigError, DataError, limit, one_thread, reading
from cleanpairs.core.errors import ResourceError
from cleanpairs.core.limits import LIMITS, parse_bytes
from cleanpairs.data import read_image
from cleanpairs.data.decoding import Decoder
from cleanpairs.data.duplicates import SIGNATURE
from tests.conftest import Command, assert_refused
from tests.helpers import assert_raises, picture


def test_sizes() -> None:
    sizes = {"1": 1, "4GB": 4 * 10**9, "1.5g": 1_500_000_000, "512MiB": 2**29, "2 KiB": 2048, "3tb": 3 * 10**12}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("", "0", "-1", "much", "4 GB of it", "1e9", "0.1"):
        assert_raises(ConfigError, "like 4GB", parse_bytes, text)


def test_the_docs_name_every_limit_and_a_variable_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    docs = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    for name, entry in LIMITS.items():
        assert f"`{entry.variable}`" in docs and entry.what in docs, name
        monkeypatch.delenv(entry.variable, raising=False)
        assert limit(name) == entry.default
        monkeypatch.setenv(entry.variable, "")
        assert limit(name) == entry.default
        for text in ("nonsense", "-1", "nan"):
            monkeypatch.setenv(entry.variable, text)
            assert_raises(ConfigError, entry.variable, limit, name)
            if name in ("pixels", "image_bytes"):  # which the processes that decode read
                assert_raises(ConfigError, entry.variable, Decoder, SIGNATURE, 1)
        monkeypatch.setenv(entry.variable, "1")
        assert limit(name) == 1


@pytest.mark.parametrize("workers", ["0", "1"])
def test_limits_set_rows_aside_in_every_process(workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [picture(0, size=(4, 4)), picture(0, size=(40, 40)), picture(0, size=(5, 5))]
    pq.write_table(pa.table({"image": images, "caption": ["one", "two", "x" * 90]}), tmp_path / "d.parquet")
    monkeypatch.setenv("CLEANPAIRS_MAX_PIXELS", "100")
    monkeypatch.setenv("CLEANPAIRS_MAX_CAPTION_BYTES", "80")
    monkeypatch.setenv("CLEANPAIRS_DECODE_WORKERS", workers)
    pairs = load_pairs(tmp_path / "d.parquet")
    assert pairs.reasons == {2: "the caption is longer than 80 bytes"}
    assert image_matrix(pairs, image_size=32).failures == {1: "the image has 40x40 pixels, more than 100"}
    (tmp_path / "a.png").write_bytes(images[1])
    pq.write_table(pa.table({"image": ["a.png"], "caption": ["one"]}), tmp_path / "d.parquet")
    monkeypatch.setenv("CLEANPAIRS_MAX_IMAGE_BYTES", "20")
    assert load_pairs(tmp_path / "d.parquet").images.read([0]) == [None]
    assert_raises(DataError, f"has {len(images[1])} bytes, more than 20", read_image, images[1])


def test_the_memory_of_a_process_is_capped() -> None:
    code = (
        "import resource; import numpy as np; from cleanpairs.core.limits import cap_memory\n"
        "for cap in ('1GiB', '4GiB'):\n"
        "    cap_memory(cap)\n"
        "    assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 2**30, 'it is not raised again'\n"
        "np.ones(2**28, np.uint8)\n"
        "try: np.ones(2**30, np.uint8)\n"
        "except MemoryError: print('held')\n"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "held\n"


def test_the_command_line_caps_memory_and_refuses_a_cap_that_is_none(in_process: Command, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLEANPAIRS_MEMORY", "")  # which the option sets
    command = [sys.executable, "-m", "cleanpairs", "--memory-cap", "2GiB", "recipes"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    for size in ("12MB", "none"):
        assert_refused(in_process("--memory-cap", size, "methods"), 2, "--memory-cap")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to")]
)
def test_a_lack_of_memory_is_code_6(error: Exception, in_process: Command, monkeypatch: Any) -> None:
    monkeypatch.setattr(cli, "main", Mock(side_effect=error))
    for cap, remedy in (("3GB", "--memory-cap (CLEANPAIRS_MEMORY), which is 3GB"), ("", "give the machine more")):
        monkeypatch.setenv("CLEANPAIRS_MEMORY", cap)
        told = f"({str(error) or 'it was refused'})"
        assert_refused(in_process("methods"), 6, "Error [limit]", remedy, told)


@pytest.mark.parametrize(("error", "told", "words"), [
    (pa.lib.ArrowMemoryError("realloc of size 2097152 failed"), MemoryError, "realloc"),
    (pa.ArrowInvalid("not what it says"), DataError, "x.parquet"),
    (pa.ArrowException("Failed to launch worker thread: Resource temporarily unavailable"), ResourceError, "ulimit"),
])  # fmt: skip
def test_what_lacks_is_no_fault_of_the_data(error: Exception, told: type[Exception], words: str) -> None:
    with pytest.raises(told, match=words), reading("x.parquet", "read", pa.ArrowException):
        raise error


def test_no_thread_is_started_where_memory_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python waits for ever for a thread that finds no memory. Decoding does without one, and makes the same arrays."""
    images = [picture(i) if i != 7 else b"no image" for i in range(40)]

    def decoded(workers: int) -> list[Any]:
        with Decoder(SIGNATURE, workers) as decoder:
            made = decoder.batches([(0, images[:25]), (25, images[25:])])
            return [(b.rows.tolist(), np.stack(b.arrays).tolist(), b.failures) for b in made]

    free = decoded(0)
    assert list(free[0][2]) == [7]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**33, resource.RLIM_INFINITY))
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    with periodic_progress("fit"):
        assert decoded(2) == free


def test_two_threads_that_multiply_by_one_thread_leave_the_number_as_it_was() -> None:
    with threadpool_limits(2, "blas"):
        (first := one_thread()).__enter__()
        with one_thread():
            first.__exit__(None, None, None)
        assert {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"} == {2}
