"""What a disk has done to a file of the cache changes nothing, whatever the file is."""

from __future__ import annotations

import shutil
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


def columns(folder: Path) -> dict[str, Any]:
    return {"data": {"image_features": np.eye(N, dtype="f4").tolist(), "caption": [f"word{i}" for i in range(N)]}}


def vectors(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    np.save(folder / "x.npy", np.eye(N, dtype="f4"))
    (folder / "captions.txt").write_text("\n".join(f"word{i}" for i in range(N)))
    return {"data": folder / "x.npy", "captions": folder / "captions.txt"}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("made", [folder_of_images, table, columns, vectors])
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
