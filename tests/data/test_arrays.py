"""Tensors on disk: what is written is read back, and a disk's fault is an OSError that names the file."""

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError

from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.core.progress import CurrentProgress
from cleanpairs.data import staged_file
from cleanpairs.data.arrays import read_npy, read_tensors, write_tensors
from cleanpairs.features import rows as rows_module
from cleanpairs.features.rows import Chunk, compute_rows, digest


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_every_flipped_bit_is_noticed(tmp_path: Path, make: Any) -> None:
    file, framework = tmp_path / "t.safetensors", "np" if make is np.asarray else "pt"
    write_tensors({"a": make([1.0, 2.0]), "b": make([True, False, True])}, file, {"note": "x"})
    assert read_tensors(file, framework)[1] == {"note": "x"}
    whole = file.read_bytes()
    for at in range(0, len(whole) * 8, 5):
        damaged = bytearray(whole)
        damaged[at // 8] ^= 1 << at % 8
        file.write_bytes(damaged)
        with pytest.raises((SafetensorError, ValueError, OSError)):
            read_tensors(file, framework)


def test_errors_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, said = {"a": np.ones(3)}, ""
    with pytest.raises(OSError, match="No such file") as caught:
        write_tensors(tensors, tmp_path / "no" / "t.safetensors")
    assert caught.value.errno == errno.ENOENT

    def fail(*_: Any, **__: Any) -> None:
        raise SafetensorError(said)

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    named = r"t\.safetensors cannot be written: No space"
    with pytest.raises(OutputError, match=named), staged_file(tmp_path / "t.safetensors") as staged:
        write_tensors(tensors, staged)
    said = "tensors share memory"
    with pytest.raises(SafetensorError):
        write_tensors(tensors, tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


# -- Arrays on disk: read as they are, or refused by name -------------------------------------------------------------


def test_a_damaged_header_is_an_error_of_the_data(tmp_path: Path) -> None:
    """Numpy reads it as Python's text is read: a bracket too few raises an error of the tokenizer's own."""
    stream, rng = io.BytesIO(), np.random.default_rng(0)
    np.save(stream, np.zeros((4, 2), np.float32))
    for _ in range(200):
        data = bytearray(stream.getvalue())
        data[int(rng.integers(0, 70))] = int(rng.choice(list(b"({['\"\\\n,0")))
        (tmp_path / "a.npy").write_bytes(data)
        with suppress(DataError):  # it may be a header still; any other error is the failure
            read_npy(tmp_path / "a.npy")


PICKLED = io.BytesIO()
np.save(PICKLED, np.array([{"a": 1}], dtype=object), allow_pickle=True)
ZIPPED = io.BytesIO()
np.savez(ZIPPED, np.arange(3))


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"<html>", b"PK\x03\x04", PICKLED.getvalue(), ZIPPED.getvalue()])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")


# -- Rows that are computed once: cached equals fresh, killed and gone on equals whole, and what is damag --


N, SHAPE = 23, (2, 3)


@pytest.fixture(autouse=True)
def synced_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module._State, "sync_seconds", -1.0)


def values(first: int, last: int) -> np.ndarray:
    return np.arange(first * 6, last * 6, dtype=np.float32).reshape(-1, *SHAPE) / 7


def source(asked: list[int], width: int = 5, die_at: int | None = None) -> Callable[[int], Iterator[Chunk]]:
    """Chunks of ``width`` rows; row 6 fails."""

    def chunks(first: int) -> Iterator[Chunk]:
        for start in range(first // width * width, N, width):
            if die_at is not None and start >= die_at:
                raise KeyboardInterrupt
            asked.append(start)
            end = min(start + width, N)
            yield start, values(start, end), {6: "it is broken"} if start <= 6 < end else {}

    return chunks


def test_cached_equals_fresh_and_is_computed_once(tmp_path: Path) -> None:
    asked: list[int] = []
    told: list[tuple[int, int]] = []
    fresh = compute_rows(N, SHAPE, np.float32, source([]))
    with CurrentProgress.reported_to(SimpleNamespace(advance=lambda *at: told.append(at[2:]), close=int)):
        first = compute_rows(N, SHAPE, np.float32, source(asked), folder=tmp_path / "c")
    again = compute_rows(N, SHAPE, np.float32, source(asked), folder=tmp_path / "c")
    assert asked == [0, 5, 10, 15, 20] and told == [(5, N), (10, N), (15, N), (20, N), (N, N)]
    for rows in (first, again):
        assert isinstance(rows[0], np.memmap) and not rows[0].flags.writeable
        np.testing.assert_array_equal(rows[0], fresh[0])
        assert rows[1] == fresh[1] == {6: "it is broken"}


@pytest.mark.parametrize("width", [5, 4, 7])
@pytest.mark.parametrize("die_at", [5, 15, 20])
def test_killed_and_gone_on_equals_whole(tmp_path: Path, die_at: int, width: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        compute_rows(N, SHAPE, np.float32, source([], die_at=die_at), folder=tmp_path)
    with (tmp_path / "rows.npy").open("ab") as file:  # what came behind the last sync may be anything
        file.write(b"\xff" * 10)
    asked: list[int] = []
    rows = compute_rows(N, SHAPE, np.float32, source(asked, width), folder=tmp_path)
    assert asked[0] == die_at // width * width
    np.testing.assert_array_equal(rows[0], values(0, N))
    assert rows[1] == {6: "it is broken"} and (tmp_path / "rows.npy").stat().st_size == 128 + N * 24


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "harm", "first"),
    [
        ("rows.npy", lambda data: flipped(data, 9), 0),  # in its head
        ("rows.npy", lambda data: flipped(data, 128 + 24 * 12), 10),
        ("rows.npy", lambda data: flipped(data, len(data) - 1), 20),
        ("rows.npy", lambda data: data[: 128 + 24 * 15] + bytes(8 * 24), 15),
        ("rows.npy", lambda data: b"", 0),
        ("rows.npy", None, 0),
        ("state", lambda data: data.replace(b'"6"', b'"7"'), 0),  # another row is said to have failed
        ("state", lambda data: data[:20], 0),
        ("state", None, 0),
    ],
)  # fmt: skip
def test_from_the_first_damaged_row_on_all_is_computed_again(
    tmp_path: Path, name: str, harm: Callable[[bytes], bytes] | None, first: int
) -> None:
    mapped = compute_rows(N, SHAPE, np.float32, source([]), folder=tmp_path)[0]
    if harm is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(harm((tmp_path / name).read_bytes()))
    asked: list[int] = []
    rows = compute_rows(N, SHAPE, np.float32, source(asked), folder=tmp_path)
    assert asked == list(range(first, N, 5))
    np.testing.assert_array_equal(rows[0], values(0, N))
    np.testing.assert_array_equal(mapped if name == "state" else rows[0], values(0, N))  # who has it open is not hurt
    assert rows[1] == {6: "it is broken"}
    compute_rows(N, SHAPE, np.float32, source(asked), folder=tmp_path)
    assert asked == list(range(first, N, 5))


def test_rows_of_another_shape_or_type_are_computed_again(tmp_path: Path) -> None:
    compute_rows(N, SHAPE, np.float32, source([]), folder=tmp_path)
    for dtype in (np.float64, np.float32):
        rows = compute_rows(N, SHAPE, dtype, source([]), folder=tmp_path)
        assert rows[0].dtype == dtype
        np.testing.assert_allclose(rows[0], values(0, N))
    assert compute_rows(0, SHAPE, np.float32, source([]), folder=tmp_path)[0].shape == (0, *SHAPE)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="CLEANPAIRS_CACHE"):
        compute_rows(N, SHAPE, np.float32, source([]), folder=tmp_path / "file" / "c")


def test_a_digest_tells_parts_apart() -> None:
    found: set[Any] = {digest("ab", "c"), digest("a", "bc"), digest("abc"), digest(), digest("")}
    assert len(found) == 5 and digest("a", b"b") == digest(b"a", "b")
