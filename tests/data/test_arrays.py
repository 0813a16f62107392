"""Tensors on disk: what is written is read back, and a disk's fault is an OSError that names the file."""

import errno
import hashlib
import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError

from cleanpairs import load_pairs
from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.data import source as source_module
from cleanpairs.data import staged_file
from cleanpairs.data.arrays import read_npy, read_tensors, write_tensors
from cleanpairs.data.duplicates import group_near_duplicates
from cleanpairs.data.source import digest_of
from cleanpairs.features import rows as rows_module
from cleanpairs.features.rows import Chunk, compute_rows, digest
from tests.helpers import assert_raises, vector_column, write_pictures, write_table


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
    tensors, target = {"a": np.ones(3)}, tmp_path / "t.safetensors"
    with pytest.raises(OSError, match="No such file") as caught:
        write_tensors(tensors, tmp_path / "no" / "t.safetensors")
    assert caught.value.errno == errno.ENOENT

    def saying(message: str) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise SafetensorError(message)

        monkeypatch.setattr(safetensors.numpy, "save_file", fail)

    saying("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(OutputError, match=r"t\.safetensors cannot be written: No space"), staged_file(target) as staged:
        write_tensors(tensors, staged)
    saying("tensors share memory")
    assert_raises(SafetensorError, "share", write_tensors, tensors, target)
    assert list(tmp_path.iterdir()) == []


# -- Arrays on disk: read as they are, or refused by name -------------------------------------------------------------


def test_other_files_and_damaged_headers_are_errors_of_the_data(tmp_path: Path) -> None:
    """Numpy reads a header as Python's text is read: a bracket too few raises an error of the tokenizer's own."""
    path, rng = tmp_path / "a.npy", np.random.default_rng(0)
    np.save(path, np.zeros((4, 2), np.float32))
    whole = path.read_bytes()
    for _ in range(200):
        data = bytearray(whole)
        data[int(rng.integers(0, 70))] = int(rng.choice(list(b"({['\"\\\n,0")))
        path.write_bytes(data)
        with suppress(DataError):  # it may be a header still; any other error is the failure
            read_npy(path)
    pickled, zipped = io.BytesIO(), io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(zipped, np.arange(3))
    for other in (b"", b"\x93NUMPY", b"<html>", b"PK\x03\x04", pickled.getvalue(), zipped.getvalue()):
        path.write_bytes(other)
        assert_raises(DataError, r"a\.npy", read_npy, path)


# -- Rows that are computed once: cached equals fresh, killed and gone on equals whole, and what is damag --


N, SHAPE = 23, (2, 3)


@pytest.fixture(autouse=True)
def noted_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module._State, "sync_seconds", -1.0)
    monkeypatch.setattr(source_module, "LARGE", 1)  # what is known of a large file is kept, too
    monkeypatch.setattr(source_module, "SETTLED", -10.0)  # what was made just now may be remembered


def values(first: int, last: int) -> np.ndarray:
    return np.arange(first * 6, last * 6, dtype=np.float32).reshape(-1, *SHAPE) / 7


def source(asked: list[int], width: int = 5, die_at: int | None = None, why: str = "it is broken") -> Any:
    """Chunks of ``width`` rows; row 6 fails."""

    def chunks(first: int) -> Iterator[Chunk]:
        for start in range(first // width * width, N, width):
            if die_at is not None and start >= die_at:
                raise KeyboardInterrupt
            asked.append(start)
            end = min(start + width, N)
            yield start, values(start, end), {6: why} if start <= 6 < end else {}

    return chunks


@pytest.mark.parametrize(("why", "once_more"), [("it is broken", []), ("it ended (SIGKILL), twice", [5, 10, 15, 20])])
def test_cached_equals_fresh_and_is_computed_once(tmp_path: Path, why: str, once_more: list[int]) -> None:
    """Where the system may have had too little memory, once more."""
    asked: list[int] = []
    fresh = compute_rows(N, SHAPE, np.float32, source([], why=why))
    found = [compute_rows(N, SHAPE, np.float32, source(asked, why=why), folder=tmp_path / "c") for _ in range(3)]
    assert asked == [0, 5, 10, 15, 20, *once_more]
    for rows in found:
        assert isinstance(rows[0], np.memmap) and not rows[0].flags.writeable
        np.testing.assert_array_equal(rows[0], fresh[0])
        assert rows[1] == fresh[1] == {6: why}


@pytest.mark.parametrize(("die_at", "width"), [(5, 5), (15, 4), (20, 7)])
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


@pytest.mark.parametrize(("name", "harm", "first"), [
    ("rows.npy", lambda data: flipped(data, 9), 0),  # in its head
    ("rows.npy", lambda data: flipped(data, 128 + 24 * 12), 10),
    ("rows.npy", lambda data: data[: 128 + 24 * 15] + bytes(8 * 24), 15),
    ("state", lambda data: data.replace(b'"6"', b'"7"'), 0),  # another row is said to have failed
    ("state", None, 0),
])  # fmt: skip
def test_rows_from_the_first_damaged_one_are_computed_again(tmp_path: Path, name: str, harm: Any, first: int) -> None:
    mapped = compute_rows(N, SHAPE, np.float32, source([]), folder=tmp_path)[0]
    path, asked = tmp_path / name, list[int]()
    path.write_bytes(harm(path.read_bytes())) if harm else path.unlink()
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
    below = tmp_path / "file" / "c"
    assert_raises(OutputError, "CLEANPAIRS_CACHE", compute_rows, N, SHAPE, np.float32, source([]), folder=below)
    assert_raises(OutputError, "CLEANPAIRS_CACHE", source_module.write_cached, below / "d", b"")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest(), digest("")}) == 5  # parts are told apart


# -- What a disk has done to a file of the cache changes nothing, whatever the file is --------------------------------


FILES = 12
HARMS = {"flipped": lambda data: flipped(data, len(data) // 2), "cut": lambda data: data[: len(data) // 2]}


def folder_of_images(folder: Path) -> dict[str, Any]:
    write_pictures(folder, [f"{i}.png" for i in range(FILES)])
    for i in range(FILES):
        (folder / f"{i}.txt").write_text(f"word{i} and more")
    return {"data": folder}


def table_and_vectors(folder: Path) -> dict[str, Any]:
    columns = {"title": [f"word{i}" for i in range(FILES)], "alt": ["more"] * FILES}
    columns |= {"image_features": vector_column(np.arange(FILES * 4, dtype="f4").reshape(FILES, 4))}
    return {"data": write_table(folder / "data.parquet", columns), "text_column": "title,alt"}


def vectors_and_captions(folder: Path) -> dict[str, Any]:
    np.save(folder / "x.npy", np.eye(FILES, dtype="f4"))
    (folder / "captions.txt").write_text("\n".join(f"word{i}" for i in range(FILES)))
    return {"data": folder / "x.npy", "captions": folder / "captions.txt"}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("made", [folder_of_images, table_and_vectors, vectors_and_captions])
def test_a_damaged_file_of_the_cache_changes_nothing(made: Any, harm: str, tmp_path: Path) -> None:
    cache, whole = tmp_path / "cache", tmp_path / "whole"
    (tmp_path / "in").mkdir()
    given = made(tmp_path / "in")

    def read() -> tuple[list[str], str, list[int]]:
        pairs = load_pairs(**given)
        return pairs.captions, pairs.source.fingerprint, group_near_duplicates(pairs).image_group.tolist()

    wanted = read()
    shutil.copytree(cache, whole)
    files = [path.relative_to(cache) for path in sorted(cache.rglob("*")) if path.is_file()]
    assert files
    for file in files:
        (cache / file).write_bytes(HARMS[harm]((cache / file).read_bytes()))
        assert read() == wanted, file
        shutil.rmtree(cache)
        shutil.copytree(whole, cache)


# -- A digest that is remembered is that of the file as it is ---------------------------------------------------------


@pytest.mark.parametrize("change", ["in place", "replaced", "longer"])
@pytest.mark.parametrize("put_back", [False, True])
def test_a_change_is_seen(change: str, put_back: bool, file: Path, tmp_path: Path) -> None:
    digest_of(file)
    before = file.stat()
    time.sleep(0.02)
    if change == "in place":
        with file.open("r+b") as f:
            f.write(b"x")
    else:
        (tmp_path / "other").write_bytes(b"xyz" * (1000 + (change == "longer")))
        (tmp_path / "other").rename(file)
    if put_back:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(file) == hashlib.sha256(file.read_bytes()).digest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.write_bytes(b"abc" * 1000)
    return path


def test_a_digest_of_a_small_or_recent_file_is_not_remembered(file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Nor any where there is no place for notes."""
    wanted = hashlib.sha256(file.read_bytes()).digest()
    for name, value in (("LARGE", 64 * 2**20), ("SETTLED", 2.0)):
        with monkeypatch.context() as patch:
            patch.setattr(source_module, name, value)
            assert digest_of(file) == wanted
            os.utime(file, (time.time() - 10, time.time() - 10))  # the time of its change is not to be set
            assert digest_of(file) == wanted
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").write_text("a file")
    assert digest_of(file) == wanted
    assert_raises(FileNotFoundError, "gone", digest_of, tmp_path / "gone")
