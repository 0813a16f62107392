"""What a disk has done to a file of the cache changes nothing, whatever the file is."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs import load_pairs
from cleanpairs.data import source
from cleanpairs.data.duplicates import group_near_duplicates
from cleanpairs.data.source import digest_of

N = 12
HARMS = {
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 16]) + data[len(data) // 2 + 1 :],
    "cut": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
}


def folder_of_images(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    for i in range(N):
        Image.new("RGB", (8, 8), (20 * i, 9, 99)).save(folder / f"{i}.png")
        (folder / f"{i}.txt").write_text(f"word{i} and more")
    return {"data": folder}


def table(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    columns = {"title": [f"word{i}" for i in range(N)], "alt": ["more"] * N}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(N * 4, dtype="f4")), 4)
    pq.write_table(pa.table({**columns, "image_features": vectors}), folder / "data.parquet")
    return {"data": folder / "data.parquet", "text_column": "title,alt"}


def vectors(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    np.save(folder / "x.npy", np.eye(N, dtype="f4"))
    (folder / "captions.txt").write_text("\n".join(f"word{i}" for i in range(N)))
    return {"data": folder / "x.npy", "captions": folder / "captions.txt"}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("made", [folder_of_images, table, vectors])
def test_a_damaged_file_of_the_cache_changes_nothing(
    made: Callable[[Path], dict[str, Any]], harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, whole = tmp_path / "cache", tmp_path / "whole"
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(cache))
    monkeypatch.setattr(source, "LARGE", 1)  # what is known of a large file is kept, too
    monkeypatch.setattr(source, "SETTLED", -10.0)
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


def _old(path: Path, seconds: float = 10.0) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def _sha(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(source, "LARGE", 1)
    monkeypatch.setattr(source, "SETTLED", -10.0)  # what was made just now may be remembered, but for those that say so
    path = tmp_path / "rows"
    path.write_bytes(b"abc" * 1000)
    return path


def test_it_is_read_once_while_it_is_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = _sha(file)
    assert digest_of(file) == wanted
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert digest_of(file) == digest_of(os.path.relpath(file)) == wanted


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
    assert digest_of(file) == _sha(file)


def test_small_and_recent_files_are_not_remembered(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LARGE", 64 * 2**20), ("SETTLED", 2.0)):
        with monkeypatch.context() as patch:
            patch.setattr(source, name, value)
            assert digest_of(file) == _sha(file)
            _old(file)  # the time of its change is not to be set
            assert digest_of(file) == _sha(file)
    assert not (tmp_path / "cache").exists()


def test_without_a_place_for_notes_it_is_hashed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert digest_of(file) == _sha(file)
    with pytest.raises(FileNotFoundError):
        digest_of(tmp_path / "gone")
