"""Folders of images with their captions in files of the same name, and what is wrong with some."""

from __future__ import annotations

import functools
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from tests.helpers import picture


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


jpeg = functools.partial(picture, form="JPEG")
JPG = jpeg(0)
NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("files", "pairs"),
    [
        ({"a.jpg": JPG, "a.txt": " one\n", "b.JPG": JPG, "b.TXT": "two"}, {"a": "one", "b": "two"}),
        ({"x/a.jpg": JPG, "x/a.caption": "one", "y/z/a.avif": JPG, "y/z/a.text": "2"}, {"x/a": "one", "y/z/a": "2"}),
        ({"a.jpg": JPG, "a.png": JPG, "a.txt": "one"}, {"a.jpg": "one", "a.png": "one"}),
        ({"a.jpg": JPG, "a.txt": "", "a.json": '{"caption": "one"}'}, {"a": "one"}),
        ({"a.jpg": JPG, "a.json": '{"text": "one", "uid": "x"}', "c.json": "[]"}, {"a": "one"}),
        ({"a.jpg": JPG, "a.json": '{"caption": null, "text": ["one"]}'}, {"a": "one"}),
        ({"a.jpg": JPG, "a.txt": "one".encode("utf-16")}, {"a": "one"}),
        ({f"{NFC}.jpg": JPG, f"{NFD}.txt": "one"}, {NFC: "one"}),
        ({"a.jpg": JPG, "a.png": JPG, "a.jpg.txt": "one", "a.png.txt": "two"}, {"a.jpg": "one", "a.png": "two"}),
        ({"a.jpg": JPG, "a.txt": "one", ".b.jpg": JPG, "__MACOSX/._a.jpg": b"", ".git/c.jpg": JPG}, {"a": "one"}),
        ({"a.b.jpg": JPG, "a.b.txt": "one", "a.jpg": JPG, "a.txt": "two"}, {"a": "two", "a.b": "one"}),
    ],
)
def test_what_lies_in_a_folder(files: Any, pairs: dict[str, str], tmp_path: Path) -> None:
    found = load_pairs(write(tmp_path / "data", files))
    assert found.source.kind == "images" and not found.reasons
    assert dict(zip(found.keys, found.captions, strict=True)) == pairs


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.jpg": JPG}, "there is no caption file beside 'a.jpg'"),
        ({"a.txt": "read me"}, "there is no image beside 'a.txt'"),
        ({"a.jpg": JPG, "a.txt": " \n"}, "the caption is empty"),
        ({"a.jpg": JPG, "a.json": '{"width": 8}'}, "there is no caption$"),
        ({"a.jpg": JPG, "a.json": '{"caption": {"en": "x"}}'}, "the caption is an object"),
        ({"a.jpg": JPG, "a.json": "{"}, "a.json cannot be read as JSON"),
        ({"a.jpg": b"", "a.txt": "one"}, "the image has zero bytes"),
        ({"a.jpg": JPG, "a.txt": "x" * 300_000}, "the caption is longer"),
        ({"a.jpg": JPG, "a.txt": "größer".encode("cp1252")}, "a.txt is not UTF-8.*--set encoding=cp1252"),
    ],
)
def test_what_is_set_aside(files: Any, reason: str, tmp_path: Path) -> None:
    found = load_pairs(write(tmp_path / "data", {"b.jpg": JPG, "b.txt": "two", **files}))
    assert found.keys == ["a", "b"] and list(found.reasons) == [0] and re.search(reason, found.reasons[0])
    assert sum(map(len, iter_tables(found.source))) == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A pipe, a link to nothing, and a name that is not UTF-8 cost a row each."""
    texts = {f"{name}.txt": name for name in "cde"}
    folder = write(tmp_path, {"a.jpg": JPG, "b.jpg": JPG, "c.jpg": JPG, **texts})
    os.mkfifo(folder / "a.txt")
    (folder / "b.txt").symlink_to("gone.txt")
    (folder / "e.jpg").symlink_to("gone.jpg")
    (folder / os.fsdecode(b"d\xff.jpg")).write_bytes(JPG)
    (folder / "d.txt").rename(folder / os.fsdecode(b"d\xff.txt"))
    reasons = load_pairs(folder).reasons
    words = {0: "a FIFO", 1: "No such file", 3: r"the name of its file is not UTF-8: 'd\?.jpg'", 4: "is missing"}
    assert list(reasons) == list(words) and all(re.search(words[i], why) for i, why in reasons.items())


@pytest.mark.parametrize("table", [False, True])
def test_images_that_are_links(table: bool, tmp_path: Path) -> None:
    """One that leaves the folder is not followed, unless the image root holds both. Paths stay relative to a table."""
    write(tmp_path, {"real/b.jpg": jpeg(1), "data/a.jpg": JPG})
    told = (
        {"a.csv": "image,caption\na.jpg,one\nb.jpg,two\nc.jpg,three\n"} if table else {"a.txt": "one", "b.txt": "two"}
    )
    write(tmp_path / "data", told)
    (tmp_path / "data" / "b.jpg").symlink_to("../real/b.jpg")
    (tmp_path / "data" / "c.jpg").symlink_to("gone.jpg")
    (tmp_path / "data" / "loop").symlink_to(".")
    pairs = load_pairs(tmp_path / "data")
    assert list(pairs.reasons) == [1, 2] and f"it is a link, and --image-root {tmp_path} takes in" in pairs.reasons[1]
    pairs = load_pairs(tmp_path / "data", image_root=tmp_path)
    assert list(pairs.reasons) == [2] and pairs.images.read([0, 1]) == [JPG, jpeg(1)]
    if not table:
        with pytest.raises(DataError, match="does not lie in the image root"):
            load_pairs(tmp_path / "data", image_root=tmp_path / "real")


def test_the_splits_of_an_image_folder(tmp_path: Path) -> None:
    for split, n in (("train", 3), ("test", 2)):
        rows = "".join(f"{i}.jpg,caption {i}\n" for i in range(n))
        write(tmp_path / split, {f"{i}.jpg": jpeg(i) for i in range(n)} | {"metadata.csv": f"file_name,text\n{rows}"})
    assert len(load_pairs(tmp_path)) == 3 and len(load_pairs(tmp_path, split="test")) == 2
    with pytest.raises(DataError, match=r"no split 'dev' \(splits: test, train\)"):
        load_pairs(tmp_path, split="dev")


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()])
def test_the_files_of_img2dataset(kind: pa.DataType, tmp_path: Path) -> None:
    """One shard's Parquet file tells of all downloads. The images lie in the folder of its name."""
    for shard in range(2):
        keys = [f"{shard:05d}{i:04d}" for i in range(4)]
        for i in (0, 2):
            files = {"jpg": jpeg(i), "txt": "x", "json": json.dumps({"caption": "not looked at"})}
            write(tmp_path / f"{shard:05d}", {f"{keys[i]}.{ending}": content for ending, content in files.items()})
        table = {"key": pa.array(keys).cast(kind), "caption": [f"caption {shard}{i}" for i in range(4)]}
        table |= {"url": [f"https://x.example/{key}.jpg" for key in keys], "similarity": [0.1, 0.2, 0.3, 0.4]}
        table |= {"status": ["success", "failed_to_download", "success", "success"]}
        table |= {"error_message": pa.array([None, "HTTP Error 404", None, None], pa.string())}
        pq.write_table(pa.table(table), tmp_path / f"{shard:05d}.parquet")
    write(tmp_path, {"00000_stats.json": "{}", "00001/000010009.jpg": JPG})
    pairs = load_pairs(tmp_path)
    assert pairs.source.kind == "images" and len(pairs) == 9 and [k.zfill(9)[-1] for k in pairs.keys] == [*"012301239"]
    lost = f"00000 has no image of the key '{pa.scalar('000000003').cast(kind)}'"
    assert pairs.reasons[1] == "the download failed: HTTP Error 404" and pairs.reasons[3] == lost
    assert "00001.parquet has no row of the key" in pairs.reasons[8] and sorted(pairs.reasons) == [1, 3, 5, 7, 8]
    assert pairs.captions[:4] == [f"caption 0{i}" for i in range(4)] and pairs.images.read([6, 0]) == [jpeg(2), JPG]
    assert pairs.precomputed_scores["similarity"][4:6].tolist() == pytest.approx([0.1, 0.2])
    assert load_pairs(tmp_path / "00000.parquet").keys == pairs.keys[:4]
