"""Image files named by a CSV, a TSV, JSON Lines or a JSON list, as other tools leave them."""

import csv
import functools
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

from cleanpairs.core.errors import DataError
from cleanpairs.data import Pairs, fingerprint_of, iter_tables, load_pairs, read_image
from tests import helpers
from tests.helpers import assert_not_loaded, picture, write_pictures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the images 0.png to 5.png."""
    return write_pictures(tmp_path / "data", [f"{i}.png" for i in range(6)])


def test_a_csv_of_pandas(folder: Path) -> None:
    captions = ["plain", 'a "quoted" one', "with, comma", "two\nlines", "日本語", "é"]
    names = [f"{i}.png" for i in range(6)]
    pd.DataFrame({"filepath": names, "title": captions, "similarity": np.arange(6) / 10}).to_csv(folder / "pairs.csv")
    for data in (folder, folder / "pairs.csv"):
        pairs = load_pairs(data)
        assert pairs.source.kind == "folder" and pairs.reasons == {} and pairs.captions == captions
        np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.arange(6, dtype=np.float32) / 10)
    assert pairs.images.read([5, 0]) == [picture(5), picture(0)]
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == [picture(i) for i in range(6)]
    rows = [row for batch in iter_tables(pairs.source, 2) for row in batch.to_pylist()]
    assert list(rows[0]) == ["unnamed", "filepath", "title", "similarity"]
    assert [row["filepath"] for row in rows] == [{"bytes": picture(i), "path": name} for i, name in enumerate(names)]
    assert load_pairs(folder, limit=2).captions == captions[:2]
    (folder / "pairs.csv").unlink()
    folder.rename(folder.with_name("Images"))  # as Flickr8k
    text = "".join(f'{i}.png,"a caption of {i}, number {k} ."\n' for i in range(2) for k in range(2))
    (folder.parent / "captions.txt").write_text("image,caption\n" + text)
    pairs = load_pairs(folder.parent)
    assert pairs.reasons == {} and pairs.captions[1] == "a caption of 0, number 1 ."
    assert pairs.source.image_root == str(folder.with_name("Images"))
    assert pairs.image_group[0] == pairs.image_group[1] != pairs.image_group[2]


def test_the_image_folder_of_datasets(folder: Path) -> None:
    lines = [{"file_name": f"{i}.png", "text": f"caption {i}"} for i in range(6)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "other.csv").write_text("of no use\n")
    pairs, cache = load_pairs(folder), str(folder.parent / "c")
    theirs = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", cache_dir=cache)
    assert pairs.captions == theirs["text"][:] == [f"caption {i}" for i in range(6)]
    for found, image in zip(pairs.images.read(range(6)), theirs["image"], strict=True):
        np.testing.assert_array_equal(np.asarray(read_image(found or b"")), np.asarray(image))
    for split in ("train", "test"):
        write(folder.parent / "splits" / split, {"0.jpg": JPG, "metadata.csv": f"file_name,text\n0.jpg,of {split}\n"})
    assert load_pairs(folder.parent / "splits").captions == ["of train"]
    assert load_pairs(folder.parent / "splits", split="test").captions == ["of test"]


def test_json_lines_keep_their_types(folder: Path) -> None:
    def table(lines: list[Any], end: str = "\n") -> tuple[Pairs, pa.Table]:
        text = "\ufeff" + "".join(json.dumps(line) + end for line in lines)
        (folder / "in.jsonl").write_text(text, encoding="utf-8")
        pairs = load_pairs(folder)
        return pairs, pa.Table.from_batches(iter_tables(pairs.source, 2))

    pairs, rows = table([
        {"image": "0.png", "captions": ["a", "b"], "clip_score": 0.5, "n": 1, "mixed": 1},
        {"image": "1.png", "captions": [], "clip_score": None, "n": 2, "mixed": "x", "new": {"deep": [1]}},
        {"image": "2.png", "captions": ["c\ud800"], "clip_score": 1, "mixed": [1, 2]},
    ], "\n\n")  # fmt: skip
    assert pairs.source.explicit_lists and pairs.row.tolist() == [0, 0, 1, 2]
    assert pairs.captions == ["a", "b", "", "c?"] and list(pairs.reasons) == [2]
    np.testing.assert_array_equal(pairs.precomputed_scores["clip_score"], np.array([0.5, 0.5, np.nan, 1], np.float32))
    assert rows["n"].to_pylist() == [1, 2, None] and rows["mixed"].to_pylist() == ["1", "x", "[1, 2]"]
    assert rows["new"].to_pylist() == [None, {"deep": [1]}, None]
    numbers = enumerate((0.5, 2**60 + 1, None))  # that do not go together
    pairs, rows = table([{"features": [i, i + 0.5], "caption": "c", "n": n} for i, n in numbers])
    assert pairs.images.array()[:, 0, 1].tolist() == [0.5, 1.5, 2.5]
    assert rows["n"].to_pylist() == ["0.5", str(2**60 + 1), None]


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
    assert pa.Table.from_batches(iter_tables(pairs.source))["image"][6].as_py()["bytes"] is None


@pytest.mark.parametrize("names", [("a.csv", "b.csv"), ("metadata.csv", "metadata.jsonl")])
def test_the_truth_in_a_csv_and_a_folder_with_several_files(folder: Path, names: tuple[str, str]) -> None:
    for name in names:
        (folder / name).write_text("image,caption,true_mismatch\n0.png,a,True\n1.png,b,False\n2.png,c,\n0.png,d, e,1\n")
    assert_not_loaded(f"{', '.join(names)}.*give one of them", folder)
    assert load_pairs(folder / names[0]).true_mismatch_mask().tolist() == [True, False, None, None]


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
    message = f"in.{ending}"
    try:
        pairs = load_pairs(path)
        assert pairs.captions[0] == "a" and sum(map(len, iter_tables(pairs.source))) == pairs.source.n_rows
    except DataError as error:
        message = str(error)
    assert f"in.{ending}" in message


# -- Folders of images with their captions in files of the same name, and what is wrong with some ---------------------


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


jpeg = functools.partial(picture, form="JPEG")
JPG = jpeg(0)
NFC, NFD = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(("files", "pairs"), [
    ({"a.jpg": JPG, "a.txt": " one\n", "b.JPG": JPG, "b.TXT": "two"}, {"a": "one", "b": "two"}),
    ({"x/a.jpg": JPG, "x/a.caption": "one", "y/z/a.avif": JPG, "y/z/a.text": "2"}, {"x/a": "one", "y/z/a": "2"}),
    ({"a.jpg": JPG, "a.json": '{"caption": null, "text": ["one"]}'}, {"a": "one"}),
    ({"a.jpg": JPG, "a.txt": "one".encode("utf-16")}, {"a": "one"}),
    ({f"{NFC}.jpg": JPG, f"{NFD}.txt": "one"}, {NFC: "one"}),
    ({"a.jpg": JPG, "a.png": JPG, "a.jpg.txt": "one", "a.png.txt": "two"}, {"a.jpg": "one", "a.png": "two"}),
    ({"a.jpg": JPG, "a.txt": "one", ".b.jpg": JPG, "__MACOSX/._a.jpg": b"", ".git/c.jpg": JPG}, {"a": "one"}),
])  # fmt: skip
def test_what_lies_in_a_folder(files: Any, pairs: dict[str, str], tmp_path: Path) -> None:
    found = load_pairs(write(tmp_path / "data", files))
    assert found.source.kind == "images" and not found.reasons
    assert dict(zip(found.keys, found.captions, strict=True)) == pairs


@pytest.mark.parametrize(("files", "reason"), [
    ({"a.jpg": JPG}, "there is no caption file next to 'a.jpg'"),
    ({"a.txt": "read me"}, "there is no image next to 'a.txt'"),
    ({"a.jpg": JPG, "a.txt": " \n"}, "the caption is empty"),
    ({"a.jpg": JPG, "a.json": "{"}, "a.json cannot be read as JSON"),
    ({"a.jpg": b"", "a.txt": "one"}, "the image has zero bytes"),
    ({"a.jpg": JPG, "a.txt": "x" * 300_000}, "the caption is longer"),
    ({"a.jpg": JPG, "a.txt": "größer".encode("cp1252")}, "a.txt is not UTF-8.*--set encoding=cp1252"),
])  # fmt: skip
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
    root, csv = tmp_path / "my images", "image,caption\na.jpg,one\nb.jpg,two\nc.jpg,three\n"
    write(root, {"real/b.jpg": jpeg(1), "data/a.jpg": JPG})
    data = write(root / "data", {"a.csv": csv} if table else {"a.txt": "one", "b.txt": "two"})
    for name, to in (("b.jpg", "../real/b.jpg"), ("c.jpg", "gone.jpg"), ("loop", ".")):
        (data / name).symlink_to(to)
    pairs = load_pairs(data)
    assert list(pairs.reasons) == [1, 2] and f"it is a link, and --image-root '{root}' takes in" in pairs.reasons[1]
    pairs = load_pairs(data, image_root=root)
    assert list(pairs.reasons) == [2] and pairs.images.read([0, 1]) == [JPG, jpeg(1)]
    if not table:
        assert_not_loaded("does not lie in the image root", data, image_root=root / "real")


@pytest.mark.parametrize("table", ["pairs.csv", "pairs.parquet", ""])
@pytest.mark.parametrize("images", [".", "images"])
def test_a_folder_is_the_same_data_wherever_it_lies(table: str, images: str, tmp_path: Path) -> None:
    """Its images may lie in another folder within."""
    prints, names = set(), ["0.png", "1.png"]
    for place in (tmp_path / "here", tmp_path / "there"):
        folder, rows = write_pictures(place / images, names), pd.DataFrame({"image": names, "caption": ["one", "two"]})
        if table:
            (rows.to_csv if table == "pairs.csv" else rows.to_parquet)(place / table)
        else:
            write(folder, {"0.txt": "one", "1.txt": "two"})
        prints.add(load_pairs(place / table, **({"image_root": folder} if table else {})).source.fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64()])
def test_the_files_of_img2dataset(kind: pa.DataType, tmp_path: Path) -> None:
    """One shard's Parquet file tells of all downloads. The images lie in the folder of its name."""
    for shard in ("00000", "00001"):
        keys, status = [f"{shard}{i:04d}" for i in range(4)], ["success", "failed_to_download", "success", "success"]
        for i in (0, 2):
            write(tmp_path / shard, {f"{keys[i]}.jpg": jpeg(i), f"{keys[i]}.txt": "x", f"{keys[i]}.json": "{}"})
        table = {"key": pa.array([*keys[:3], None if shard == "00001" else keys[3]]).cast(kind), "status": status}
        table |= {"caption": [f"caption {shard} {i}" for i in range(4)], "similarity": [0.1, 0.2, 0.3, 0.4]}
        table |= {"url": keys, "error_message": pa.array([None, "HTTP Error 404", None, None], pa.string())}
        pq.write_table(pa.table(table), tmp_path / f"{shard}.parquet")
    write(tmp_path, {"00000_stats.json": "{}", "00001/000010009.jpg": JPG, "00001/x.jpg": JPG})
    pairs = load_pairs(tmp_path)
    assert pairs.source.kind == "images" and [k.zfill(9)[-1] for k in pairs.keys[:9]] == [*"012301279"]
    assert pairs.reasons == {
        **dict.fromkeys((1, 5), "the download failed: HTTP Error 404"),
        3: f"00000 has no image of the key '{'000000003' if kind == pa.string() else 3}'",
        7: "00001 has no image of a null key", 8: pairs.reasons[8], 9: pairs.reasons[9],
    }  # fmt: skip
    assert "00001.parquet has no row of the key '000010009'" in pairs.reasons[8] and len(pairs) == 10
    assert "00001.parquet has no row of the key 'x'" in pairs.reasons[9]
    assert pairs.captions[:4] == [f"caption 00000 {i}" for i in range(4)]
    assert pairs.images.read([6, 0]) == [jpeg(2), JPG]
    assert pairs.precomputed_scores["similarity"][4:6].tolist() == pytest.approx([0.1, 0.2])
    assert load_pairs(tmp_path / "00000.parquet").keys == pairs.keys[:4]


# -- The research layout: splits, captions per image, mapped vectors, files that do not fit ---------------------------


def research(folder: Path, images: np.ndarray, per_image: int = 1, split: str = "train") -> Path:
    captions = [f"{split} {i}.{k}" for i in range(len(images)) for k in range(per_image)]
    return helpers.research(folder, images, captions, split)


@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)])
@pytest.mark.parametrize(("per_image", "dtype"), [(1, "<f2"), (5, ">f4"), (5, "<f8")])
def test_splits(tmp_path: Path, shape: tuple[int, ...], per_image: int, dtype: str) -> None:
    images = np.random.default_rng(0).normal(size=shape).astype(dtype)
    folder = research(tmp_path / "data", images, per_image)
    research(folder, images[:2], per_image, "dev")
    pairs = load_pairs(folder)
    array: Any = pairs.images.array()
    assert len(pairs) == 6 * per_image and len(pairs.images) == 6 and pairs.source.kind == "precomp"
    assert pairs.image_index.tolist() == pairs.row.tolist() == np.repeat(np.arange(6), per_image).tolist()
    assert pairs.position.tolist() == list(range(per_image)) * 6
    assert pairs.captions[-1] == f"train 5.{per_image - 1}" and pairs.keys[-1] == "train-5"
    np.testing.assert_array_equal(array.reshape(shape), images)
    assert array.dtype.isnative and isinstance(array, np.memmap) == (dtype[0] == "<") == (not array.flags.writeable)
    assert load_pairs(folder, split="dev").captions[0] == "dev 0.0"
    table = pa.Table.from_batches(iter_tables(pairs.source, batch_rows=4))
    text = "caption" if per_image == 1 else "captions"
    assert table.schema.names == ["key", text, "image_features"] and table["key"].to_pylist() == pairs.keys[::per_image]
    np.testing.assert_array_equal(np.array(table["image_features"].to_pylist()).reshape(shape), images)
    again = load_pairs(table)  # as Parquet
    assert again.captions == pairs.captions and again.keys == pairs.keys
    assert fingerprint_of(pairs.source) == pairs.source.fingerprint
    np.save(folder / "train_ims.npy", np.asfortranarray(images))
    for limit in (0, 1, 5, 9):
        pairs = load_pairs(folder, limit=limit)
        assert len(pairs) == per_image * min(limit, 6)
        np.testing.assert_array_equal(pairs.images.array().reshape(-1, *shape[1:]), images[:limit])
        assert sum(len(b) for b in iter_tables(pairs.source, batch_rows=2)) == min(limit, 6)


def test_vectors_that_are_not_finite_and_captions_with_odd_lines(tmp_path: Path) -> None:
    images = np.ones((5, 2, 3), np.float16)
    images[1, 1, 2], images[4, 0, 0] = np.nan, np.inf
    pairs = load_pairs(research(tmp_path / "data", images, 2))
    assert set(pairs.reasons) == {2, 3, 8, 9} and "finite" in pairs.reasons[2]
    array = np.where(np.isin(np.arange(5), [1, 4])[:, None, None], 0, images)
    np.testing.assert_array_equal(pairs.images.array(), array)
    table = pa.Table.from_batches(iter_tables(pairs.source))  # the rows themselves stay as they are
    assert np.isnan(table["image_features"][1].as_py()[1][2])
    folder = research(tmp_path / "odd", np.ones((4, 3), np.float32))
    (folder / "train_caps.txt").write_bytes("\ufeffa\r\n\nc\u2028d\x0be\nlast without newline".encode())
    pairs = load_pairs(folder)
    assert pairs.captions == ["a", "", "c\u2028d\x0be", "last without newline"] and set(pairs.reasons) == {1}


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    folder = research(tmp_path / "data", np.ones((4, 3), np.float32))
    captions, images = folder / "train_caps.txt", folder / "train_ims.npy"
    assert_not_loaded("'caption'", folder, text_column="caption")
    counts, whole = r"train_caps\.txt has {} captions for 4 of", images.read_bytes()
    for text, words in (
        (b"a\n" * 6, counts.format(6)), (b"", counts.format(0)),
        (b"a\n\xff\xfe\nc\nd\n", r"train_caps\.txt cannot be read as UTF-8: .* in position 2"),
    ):  # fmt: skip
        captions.write_bytes(text)
        assert_not_loaded(words, folder)
    captions.write_bytes(b"a\n" * 4)
    for content in (whole[:-4], b""):
        images.write_bytes(content)
        assert_not_loaded(r"train_ims\.npy cannot be read", folder)
    for array in (np.ones(4), np.ones((4, 3, 2, 2)), np.ones((4, 0)), np.ones((4, 3), int)):
        np.save(images, array)
        assert_not_loaded("train_ims.npy must hold floats", folder)


def test_tokenised_captions_are_words(tmp_path: Path) -> None:
    """As NoW is published: captions as the numbers of their tokens, by three tokenisers."""
    folder = tmp_path / "now"
    for split in ("train", "dev"):
        research(folder, np.arange(6, dtype=np.float32).reshape(3, 2), split=split)
        (folder / f"{split}_caps.txt").unlink()
        (folder / f"{split}_ids.txt").write_text("11\n12\n13\n")
        for name, text in {"bert": "5,17\n9,\n\n", "bpe": "1,2\n3\n4\n", "jieba": "7\n8\n9\n"}.items():
            (folder / f"{split}_caps_{name}.txt").write_text(text, encoding="utf-8-sig")
    pairs = load_pairs(folder)
    assert pairs.captions == ["5 17", "9", ""] and pairs.reasons == {2: "the caption is empty"}
    assert load_pairs(folder, split="dev", text_column="jieba").captions == ["7", "8", "9"]
    table = pa.Table.from_batches(iter_tables(load_pairs(folder, text_column="bpe").source))
    assert table["caption"].to_pylist() == ["1 2", "3", "4"]
    assert_not_loaded("tokenised by bert, bpe, jieba: 'words' cannot be chosen", folder, text_column="words")
