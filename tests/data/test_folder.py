"""Image files named by a CSV, a TSV, JSON Lines or a JSON list, as other tools leave them."""

import csv
import functools
import io
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from tests.helpers import assert_not_loaded, picture, write_pictures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the images 0.png to 5.png."""
    return write_pictures(tmp_path / "data", [f"{i}.png" for i in range(6)])


def table_of(pairs: Any) -> pa.Table:
    return pa.Table.from_batches(iter_tables(pairs.source, 2))


def test_a_csv_of_pandas(folder: Path) -> None:
    captions = ["plain", 'a "quoted" one', "with, comma", "two\nlines", "日本語", "é"]
    names = [f"{i}.png" for i in range(6)]
    pd.DataFrame({"filepath": names, "title": captions, "similarity": np.arange(6) / 10}).to_csv(folder / "pairs.csv")
    for data in (folder, folder / "pairs.csv"):
        pairs = load_pairs(data)
        assert pairs.source.kind == "folder" and pairs.reasons == {}
        assert pairs.captions == captions
        np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.arange(6, dtype=np.float32) / 10)
    assert pairs.images.read([5, 0]) == [picture(5), picture(0)]
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == [picture(i) for i in range(6)]
    table = table_of(pairs)
    assert table.column_names == ["unnamed", "filepath", "title", "similarity"]
    assert table["filepath"].to_pylist() == [{"bytes": picture(i), "path": name} for i, name in enumerate(names)]
    assert load_pairs(folder, limit=2).captions == captions[:2]


def test_flickr8k(folder: Path) -> None:
    root = folder.parent
    folder.rename(root / "Images")
    text = "".join(f'{i}.png,"a caption of {i}, number {k} ."\n' for i in range(2) for k in range(2))
    (root / "captions.txt").write_text("image,caption\n" + text)
    pairs = load_pairs(root)
    assert pairs.reasons == {} and pairs.captions[1] == "a caption of 0, number 1 ."
    assert pairs.source.image_root == str(root / "Images")
    assert pairs.image_group[0] == pairs.image_group[1] != pairs.image_group[2]


def test_the_image_folder_of_datasets(folder: Path) -> None:
    lines = [{"file_name": f"{i}.png", "text": f"caption {i}"} for i in range(6)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "other.csv").write_text("of no use\n")
    pairs = load_pairs(folder)
    cache = str(folder.parent / "c")
    theirs = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
    assert pairs.captions == theirs["text"][:] == [f"caption {i}" for i in range(6)]
    for found, image in zip(pairs.images.read(range(6)), theirs["image"], strict=True):
        assert found is not None
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found))), np.asarray(image))


def test_json_lines_keep_their_types(folder: Path) -> None:
    lines = [
        {"image": "0.png", "captions": ["a", "b"], "clip_score": 0.5, "n": 1, "mixed": 1},
        {"image": "1.png", "captions": [], "clip_score": None, "n": 2, "mixed": "x", "new": {"deep": [1]}},
        {"image": "2.png", "captions": ["c\ud800"], "clip_score": 1, "mixed": [1, 2]},
    ]
    (folder / "in.jsonl").write_text("\ufeff" + "".join(json.dumps(line) + "\n\n" for line in lines), encoding="utf-8")
    pairs = load_pairs(folder)
    assert pairs.source.explicit_lists and pairs.row.tolist() == [0, 0, 1, 2]
    assert pairs.captions == ["a", "b", "", "c?"] and list(pairs.reasons) == [2]
    np.testing.assert_array_equal(pairs.precomputed_scores["clip_score"], np.array([0.5, 0.5, np.nan, 1], np.float32))
    table = table_of(pairs)
    assert table["n"].to_pylist() == [1, 2, None] and table["mixed"].to_pylist() == ["1", "x", "[1, 2]"]
    assert table["new"].to_pylist() == [None, {"deep": [1]}, None]


def test_lines_that_cannot_be_used_are_set_aside_with_their_number(folder: Path) -> None:
    lines = {
        b"0.png,fine": None, b"1.png": "line 3 has 1 fields, the header 2", b"2.png,a,b": "line 4 has 3 fields, the ",
        b"3.png,caf\xe9": "line 5 is not UTF-8; the file may be ", b'4.png,"a" b': "line 6 cannot be read",
        b"9.png,gone": "missing", b"../secret.png,out": "leaves the image root", b",none": "there is no image",
        b"/etc/passwd,out": "leaves the image root", b"https://example.org/a.png,far": "URL", b"5.png,last": None,
        f"{folder.parent}/secret.png,out".encode(): f"image root {folder}; --image-root {folder.parent} takes",
    }  # fmt: skip
    (folder.parent / "secret.png").write_bytes(picture(9))
    (folder / "in.csv").write_bytes(b"\r\n".join([b"image,caption", *lines, b""]))
    pairs = load_pairs(folder)
    for i, why in enumerate(lines.values()):
        assert pairs.reasons.get(i) is None if why is None else why in pairs.reasons[i], i
    assert pairs.images.read(range(5, 11)) == [None] * 5 + [picture(5)] and len(pairs) == 12
    assert table_of(pairs)["image"][6].as_py()["bytes"] is None


@pytest.mark.parametrize("names", [("a.csv", "b.csv"), ("metadata.csv", "metadata.jsonl")])
def test_the_truth_in_a_csv_and_a_folder_with_several_files(folder: Path, names: tuple[str, str]) -> None:
    rows = "image,caption,true_mismatch,true_key\n0.png,a,True,1\n1.png,b,False,0\n2.png,c,,2\n"
    for name in names:
        (folder / name).write_text(rows)
    assert_not_loaded(f"{', '.join(names)}.*give one of them", folder)
    pairs = load_pairs(folder / names[0])
    assert pairs.true_mismatch is not None and pairs.true_mismatch.tolist() == [True, False, None]


def test_vectors_in_json_lines_and_numbers_that_do_not_go_together(folder: Path) -> None:
    lines = [{"features": [i, i + 0.5], "caption": "c", "n": n} for i, n in enumerate((0.5, 2**60 + 1, None))]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pairs = load_pairs(folder)
    array = pairs.images.array()
    assert array is not None and array[:, 0, 1].tolist() == [0.5, 1.5, 2.5]
    assert table_of(pairs)["n"].to_pylist() == ["0.5", str(2**60 + 1), None]


CAPTIONS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=8)


@settings(max_examples=60, deadline=None)
@given(captions=CAPTIONS, ending=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_what_python_writes_is_read_back(captions: list[str], ending: str, tmp_path_factory: Any) -> None:
    assume(not any(c.lstrip()[:1] in ("[", "{") for c in captions))  # which can spell a list of captions, or an object
    folder = tmp_path_factory.mktemp("round")
    (folder / "0.png").write_bytes(picture(0))
    with open(folder / f"in.{ending}", "w", newline="", encoding="utf-8") as file:
        if ending == "jsonl":
            file.writelines(json.dumps({"image": "0.png", "caption": c}) + "\n" for c in captions)
        else:
            rows = csv.writer(file, delimiter="," if ending == "csv" else "\t")
            rows.writerows([["image", "caption"], *(["0.png", c] for c in captions)])
    if captions or ending != "jsonl":
        assert load_pairs(folder).captions == captions


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=60), ending=st.sampled_from(["csv", "tsv", "jsonl", "json"]))
@example(content=b",\x80,", ending="csv")  # too many fields, and one that is not UTF-8
def test_whatever_bytes_are_read_or_refused(content: bytes, ending: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "0.png").write_bytes(picture(0))
    begin = {"json": b'[{"image":"0.png","caption":"a"},', "jsonl": b'{"image":"0.png","caption":"a"}\n'}
    begin |= {"csv": b"image,caption\n0.png,a\n", "tsv": b"image\tcaption\n0.png\ta\n"}
    path = folder / f"in.{ending}"
    path.write_bytes(begin[ending] + content)
    said = f"in.{ending}"
    try:
        pairs = load_pairs(path)
        assert pairs.captions[0] == "a" and sum(map(len, iter_tables(pairs.source))) == pairs.source.n_rows
    except DataError as error:
        said = str(error)
    assert f"in.{ending}" in said


# -- Folders of images with their captions in files of the same name, and what is wrong with some ---------------------


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
        ({"a.jpg": JPG}, "there is no caption file next to 'a.jpg'"),
        ({"a.txt": "read me"}, "there is no image next to 'a.txt'"),
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
    folder = write(tmp_path, {"a.jpg": JPG, "b.jpg": JPG, "c.jpg": JPG, **{f"{name}.txt": name for name in "cde"}})
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
        assert_not_loaded("does not lie in the image root", tmp_path / "data", image_root=tmp_path / "real")


@pytest.mark.parametrize("table", ["pairs.csv", "pairs.parquet", ""])
@pytest.mark.parametrize("images", [".", "images"])
def test_a_folder_is_the_same_data_wherever_it_lies(table: str, images: str, tmp_path: Path) -> None:
    """Its images may lie in another folder within."""
    prints, names = [], ["0.png", "1.png"]
    for place in ("here", "there"):
        folder = write_pictures(tmp_path / place / images, names)
        for name in names if not table else ():
            (folder / name).with_suffix(".txt").write_text(f"caption of {name}")
        rows = pd.DataFrame({"image": names, "caption": ["one", "two"]})
        if table == "pairs.csv":
            rows.to_csv(tmp_path / place / table)
        if table == "pairs.parquet":
            rows.to_parquet(tmp_path / place / table)
        root = {"image_root": folder} if table else {}
        prints.append(load_pairs(tmp_path / place / table, **root).source.fingerprint)
    assert prints[0] == prints[1]


def test_the_splits_of_an_image_folder(tmp_path: Path) -> None:
    for split, n in (("train", 3), ("test", 2)):
        rows = "".join(f"{i}.jpg,caption {i}\n" for i in range(n))
        write(tmp_path / split, {f"{i}.jpg": jpeg(i) for i in range(n)} | {"metadata.csv": f"file_name,text\n{rows}"})
    assert len(load_pairs(tmp_path)) == 3 and len(load_pairs(tmp_path, split="test")) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64()])
def test_the_files_of_img2dataset(kind: pa.DataType, tmp_path: Path) -> None:
    """One shard's Parquet file tells of all downloads. The images lie in the folder of its name."""
    for shard in range(2):
        keys = [f"{shard:05d}{i:04d}" for i in range(4)]
        for i in (0, 2):
            files = {"jpg": jpeg(i), "txt": "x", "json": json.dumps({"caption": "not looked at"})}
            write(tmp_path / f"{shard:05d}", {f"{keys[i]}.{ending}": content for ending, content in files.items()})
        table = {"key": pa.array([*keys[:3], None if shard else keys[3]]).cast(kind)}
        table |= {"caption": [f"caption {shard}{i}" for i in range(4)]}
        table |= {"url": [f"https://x.example/{key}.jpg" for key in keys], "similarity": [0.1, 0.2, 0.3, 0.4]}
        table |= {"status": ["success", "failed_to_download", "success", "success"]}
        table |= {"error_message": pa.array([None, "HTTP Error 404", None, None], pa.string())}
        pq.write_table(pa.table(table), tmp_path / f"{shard:05d}.parquet")
    write(tmp_path, {"00000_stats.json": "{}", "00001/000010009.jpg": JPG, "00001/x.jpg": JPG})
    pairs = load_pairs(tmp_path)
    assert pairs.source.kind == "images" and len(pairs) == 10
    assert [k.zfill(9)[-1] for k in pairs.keys[:9]] == [*"012301279"]
    lost = f"00000 has no image of the key '{'000000003' if kind == pa.string() else 3}'"
    assert pairs.reasons[1] == "the download failed: HTTP Error 404" and pairs.reasons[3] == lost
    assert pairs.reasons[7] == "00001 has no image of a null key"
    assert "00001.parquet has no row of the key '000010009'" in pairs.reasons[8]
    assert "00001.parquet has no row of the key 'x'" in pairs.reasons[9] and sorted(pairs.reasons) == [1, 3, 5, 7, 8, 9]
    assert pairs.captions[:4] == [f"caption 0{i}" for i in range(4)] and pairs.images.read([6, 0]) == [jpeg(2), JPG]
    assert pairs.precomputed_scores["similarity"][4:6].tolist() == pytest.approx([0.1, 0.2])
    assert load_pairs(tmp_path / "00000.parquet").keys == pairs.keys[:4]
