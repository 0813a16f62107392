"""Odd tables and JSON of captions: the right rows come out, or a refusal says what to do. No row is lost."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleanpairs.core.errors import DataError
from cleanpairs.data import Pairs, iter_tables, load_pairs
from cleanpairs.data.formats.folder import CaptionJsonReader
from tests.helpers import assert_not_loaded, assert_raises, picture, write_pictures, write_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images 0.png to 5.png, in which each test writes its own file."""
    return write_pictures(tmp_path_factory.mktemp("odd"), [f"{i}.png" for i in range(6)])


def usable(pairs: Pairs) -> list[str]:
    return [caption for i, caption in enumerate(pairs.captions) if i not in pairs.reasons]


def table(*captions: str, delimiter: str = ",") -> bytes:
    """One row for each caption, as it is, of 0.png, 1.png and so on."""
    lines = [f"image{delimiter}caption", *(f"{i % 6}.png{delimiter}{caption}" for i, caption in enumerate(captions))]
    return ("\n".join(lines) + "\n").encode()


def lines(*captions: Any, name: str = "caption") -> bytes:
    """JSON Lines with one object for each caption."""
    rows = ({"image": f"{i % 6}.png", name: caption} for i, caption in enumerate(captions))
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def coco(images: list[Any], annotations: list[Any]) -> bytes:
    named = [{"id": key, "file_name": f"{i}.png"} for i, key in enumerate(images)]
    told = [{"image_id": key, "caption": caption} for key, caption in annotations]
    return json.dumps({"images": named, "annotations": told}).encode()


@pytest.mark.parametrize(("name", "content", "captions", "reasons"), [
    # quotes are characters of a TSV, unless its fields are quoted as a whole
    ("a.tsv", table('"a', 'b 24"', '"c" d', 'e "f"', delimiter="\t"), ['"a', 'b 24"', '"c" d', 'e "f"'], []),
    ("a.tsv", table('"hello"', "b", delimiter="\t"), ["hello", "b"], []),
    ("a.tsv", table('"a ""b"" c"', "d", '"x\ty"', '"two\nlines"', delimiter="\t"), ['a "b" c', "d", "x\ty",
     "two\nlines"], []),
    ("a.csv", table("a, b", "c", delimiter=";"), ["a, b", "c"], []), ("a.csv", b"sep=;\nimg;raw\n0.png;a\n", ["a"], []),
    ("a.csv", table('"two\nlines, three"', 'a 12" pipe', '"red" shoe'), ["two\nlines, three", 'a 12" pipe'],
     ["line 5 cannot"]),
    # delimiters, line ends, marks, encodings
    ("a.csv", b"image_name| comment_number| comment\n0.png| 0| a , b\n1.png| 4   c\n", ["a , b"],
     ["2 fields, the header 3"]),
    ("a.csv", b"image,caption\n0.png,a,\n1.png,b,,\n2.png,c,d\n", ["a", "b"], ["3 fields, the header 2"]),
    ("a.tsv", table("é", delimiter="\t").decode().encode("utf-16"), ["é"], []),
    ("a.csv.gz", gzip.compress(table("a", "b"), mtime=0), ["a", "b"], []),
    ("a.csv", b"image,caption\n\n0.png,a\n\n,\n1.png\n", ["a"], ["there is no image", "1 fields, the header 2"]),
    # Flickr's annotations
    ("a.token", b'0.png#0\ta "b\n0.png#1\tc", d\n1.png#0\te\n', ['a "b', 'c", d', "e"], []),
    # what is a caption
    ("a.csv", table("nan", "None", "N/A", "<NA>", f"{' ' * 60_000}a <__dj__image>"), ["a"], ["stands for none"] * 4),
    ("a.csv", table("\"['a', \"\"b's\"\"]\"", "\"['c' 'd']\"", "plain", "[]"), ["a", "b's", "c", "d", "plain"],
     ["no caption"]),
    ("a.jsonl", lines("a", ["b", None, 3], float("nan"), True, {"en": "x"}, [], "", {"raw": "c"}), ["a", "b", "c"],
     ["no caption", "is 3, not text", "no caption", "is true", r"an object \('en'\)", "no caption", "is empty"]),
    ("a.jsonl", lines([{"raw": "a", "sentid": 1}, {"tokens": ["b", "c"]}], name="sentences"), ["a", "b c"], []),
    # which image
    ("a.csv", b"image,image_path,caption\nhttps://a/0.png,0.png,a\nhttps://a/1.png,1.png,b\n", ["a", "b"], []),
    ("a.csv", b"image,caption\n/mnt/x/0.png,a\nC:\\y\\1.png,b\nfile:///mnt/x/2%2Epng,c\n", ["a", "b", "c"], []),
    ("a.csv", b"image,caption\n/mnt/x/0.png,a\n/mnt/y/0.png,b\n1.png,c\n", ["c"],
     ["end in the name of one file"] * 2),
    ("a.csv", b"image_id,caption,n\n0,a,x\n1,b,\n2,c, d,\n", ["a", "b"], ["4 fields, the header 3"]),
    ("a.jsonl", b'{"images": ["0.png", "1.png"], "text": "a"}\n{"images": ["2.png"], "text": "b"}\n'
     b'{"images": [], "text": "c"}\n', ["b"], ["holds 2 images", "there is no image"]),
    # JSON that is no list of objects
    ("a.json", lines("a", "b"), ["a", "b"], []), ("a.csv.zst", pa.compress(table("a"), "zstd", True), ["a"], []),
    ("a.json", b'{"image": {"0": "0.png", "1": "1.png"}, "caption": {"0": "a", "1": "b"}}', ["a", "b"], []),
    ("a.json", b'{"0.png": "a", "1.png": ["b", "c"], "2.png": null}', ["a", "b", "c"], ["there is no caption"]),
    # COCO and Karpathy
    ("a.json", coco([1, 2], [("1", "a"), (2.0, ["b", "c"])]), ["a", "b", "c"], []),
    ("a.json", coco(["0001", "2" * 5000], [(1, "a"), (9, "b"), (None, "c")]), ["a"], ["no caption",
     "image with the id 9", "the id None"]),
    ("a.json", b'{"images": [{"id": 1, "file_name": "0.png"}, {"id": 1, "file_name": "0.png"}], "annotations":'
     b' [{"image_id": 1, "caption": "a"}]}', ["a"], ["is listed twice"]),
    ("a.json", b'{"images": [{"filename": "0.png", "sentences": [{"tokens": ["a", "b"]}, "c", {"raw": 1}]}]}',
     ["a b", "c"], ["an object"]),
])  # fmt: skip
def test_the_right_rows_come_out(name: str, content: bytes, captions: list[str], reasons: Any, folder: Path) -> None:
    (folder / name).write_bytes(content)
    pairs = load_pairs(folder / name)
    assert usable(pairs) == captions
    assert all(re.search(words, why) for words, why in zip(reasons, pairs.reasons.values(), strict=True)), pairs.reasons
    assert sum(map(len, iter_tables(pairs.source))) == pairs.source.n_rows == len(pairs.images)
    assert all(pairs.images.read([row for i, row in enumerate(pairs.image_index.tolist()) if i not in pairs.reasons]))


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.csv", table('"a', "b", 'c"', "d"), r"line 2: a quote opens here and is closed in line 4"),
    ("a.csv", table("a", '"b', "c"), "line 3: a quoted field is not closed"),
    ("a.csv", "image,caption\n0.png,a\n".encode("utf-16-le"), r"it may be utf.16"),
    ("a.csv.gz", gzip.compress(table("a", "b"), mtime=0)[:-4], "a.csv.gz cannot be read"),
    ("a.json", coco([1, 1], [(1, "a")]), "several images with the id 1"),
    ("a.json", b'{"images": [{"id": 1}], "annotations": [{"image_id": 1}]}', "annotation 0: it has no caption"),
    ("a.json", b"{", "cannot be read as JSON"), ("a.json", coco([1], [(2, "a")]), "no image with the id 2"),
    ("a.csv", b"", "no rows"), ("a.jsonl", b" \n\n", "no rows$"), ("a.json", b"", "no rows"), ("a.json", b"[]", "no r"),
    ("a.csv", b"image,caption\n0.png," + b"x" * 2**25 + b"\n", r"line 2: .*longer than"),
    ("a.csv", b"image,caption\nhttps://a:b@c.d/1.png?e,a\n", r"first: 'https://c\.d/1\.png'\); they are URLs"),
    ("a.csv", b"image,caption\nnowhere.png,a\n", "none of the first 1 images .*'nowhere.png'.*--image-root"),
    ("a.csv", b"image,caption,true_mismatch\n0.png,a,maybe\n", "true_mismatch cannot be read as true or.*: .*may"),
    ("a.jsonl", b"{\n", "line 1 is no JSON"), ("a.jsonl", b"[1]\n", "line 1 is no JSON object"),
    ("a.jsonl", b"\x80{}\n", "line 1 is not UTF-8"), ("a.csv", b"image,image\n", "'image' more than once .*: rename"),
    ("a.jsonl", b'{"image": "0.png", "caption": "' + b"x" * 2**25 + b'"}\n', "line 1: it is longer than"),
])  # fmt: skip
def test_a_refusal_says_where_and_what(name: str, content: bytes, words: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    assert_not_loaded(words, folder / name)


@pytest.mark.parametrize(("content", "options", "keys"), [
    (b"file_name,caption\n0.png,a\n0.png,b\n1.png,c\n,d\n", {}, ["0.png#0", "0.png#1", "1.png", "3"]),
    (b"file_name,caption,id\n0.png,a,x\n1.png,b,y\n", {}, ["x", "y"]),
    (b"file_name,caption,id\n0.png,a,x\n1.png,b,y\n", {"key_column": "file_name"}, ["0.png", "1.png"]),
    (b'file_name,caption\n0.png,"[""a"", ""b""]"\n1.png,c\n', {"limit": 1}, ["0.png", "0.png"]),
])  # fmt: skip
def test_a_row_is_called_by_its_file(content: bytes, options: dict[str, Any], keys: list[str], folder: Path) -> None:
    (folder / "a.csv").write_bytes(content)
    assert load_pairs(folder / "a.csv", **options).keys == keys


def test_the_images_may_lie_in_another_folder(tmp_path: Path) -> None:
    write_pictures(tmp_path / "flickr30k-images", ["0.png"])
    write_pictures(tmp_path / "b", ["0.png", "1.png"])
    (tmp_path / "a.csv").write_bytes(table("a", "b"))
    assert load_pairs(tmp_path / "a.csv").source.image_root == str(tmp_path / "b")
    (tmp_path / "flickr30k-images" / "1.png").write_bytes(picture(1))
    assert_not_loaded(r"as many are in .*b as in .*flickr30k-images", tmp_path / "a.csv")
    write_pictures(tmp_path / "my images" / "x", ["2.png"])
    (write_pictures(tmp_path / "my images" / "c" / "d", []) / "e.csv").write_bytes(b"image,caption\nx/2.png,a\n")
    assert_not_loaded(f"--image-root '{tmp_path}/my images'$", tmp_path / "my images" / "c" / "d" / "e.csv")


@pytest.mark.parametrize("name", ["cut.csv", "cut.jsonl"])
def test_a_file_that_is_cut_once_it_is_read_is_named(name: str, folder: Path) -> None:
    content = (table if name.endswith("csv") else lines)("a", "b", "c")
    (folder / name).write_bytes(content)
    images = load_pairs(folder / name).images
    assert images.read([2]) == [picture(2)]
    (folder / name).write_bytes(content[: content.index(b"2.png")].rpartition(b"\n")[0])
    for call, argument in ((images.read, [2]), (list, images.iter_encoded(2))):
        assert_raises(DataError, rf"{name} has changed: it holds 2 rows, and held 3", call, argument)


def test_numbers_of_json(folder: Path) -> None:
    """Large ones keep their digits. Similarities may be text."""
    for most, kind in ((2**63 - 1, "int64"), (2**64 - 1, "uint64"), (2**64, "string")):
        rows = [{"image": "0.png", "caption": "a", "uid": uid, "none": None} for uid in (1, None, most)]
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        table = next(iter_tables(load_pairs(folder / "a.jsonl").source))
        assert [str(table[name].type) for name in ("uid", "none")] == [kind, "string"]
        assert [uid and int(uid) for uid in table["uid"].to_pylist()] == [1, None, most]
    scored = [("a", "0.25"), (["b", "c"], [0.5, "0.75"]), ("d", "high"), ("e", None)]
    rows = [{"image": "0.png", "caption": c, "similarity": s} for c, s in scored]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load_pairs(folder / "a.jsonl").precomputed_scores["similarity"]
    np.testing.assert_array_equal(found, np.array([0.25, 0.5, 0.75, np.nan, np.nan], np.float32))


def test_splits_of_a_table(folder: Path) -> None:
    file = folder / "a.csv"
    file.write_bytes(content := b"img,text,split\n0.png,a,train\n1.png,b,val\n2.png,c,train\n3.png,d,\n9.png,e,train\n")
    assert load_pairs(file).captions == ["a", "c", "e"] and list(load_pairs(file).reasons) == [2]
    assert load_pairs(file, split="train+val").captions == ["a", "b", "c", "e"]
    assert_not_loaded(r"no split 'dev' \(splits: train, val\)", file, split="dev")
    file.write_bytes(content.replace(b"train", b"test"))
    assert len(load_pairs(file)) == 5


BYTES = [picture(i) for i in range(2)]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize(("columns", "captions", "words"), [
    ({"image": [[b] for b in BYTES], "caption": ["a", "b"]}, ["a", "b"], ""),
    ({"images": pa.array([[{"bytes": b}] for b in BYTES], pa.list_(IMAGE)), "texts": [["a", "b"], ["c"]]}, ["a",
     "b", "c"], ""),
    ({"image": [BYTES, BYTES[:1]], "caption": ["a", '["b", "c"]']}, ["b", "c"], ""),
    ({"image": BYTES, "caption": [1, 2]}, [], "'caption' is int64, not text, or a list of text"),
    ({"caption": ["a"], "img_emb": [[1, 2]]}, [], "no column of .*: 'img_emb' is list<.*int64>, not a list of floats"),
    ({"image": BYTES, "caption": pa.nulls(2, pa.string()), "text": ["a", "b"]}, [],
     r"no row .* other columns hold texts \(text\)"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["parquet", "table"])
def test_columns(columns: Any, captions: list[str], words: str, kind: str, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    data: Any = write_table(folder / "a.parquet", columns) if kind == "parquet" else pa.table(columns)
    if words:
        return assert_not_loaded(words, data)
    pairs = load_pairs(data)
    assert usable(pairs) == captions
    assert all(pairs.images.read([k for i, k in enumerate(pairs.image_index) if i not in pairs.reasons]))


def test_keys_that_pandas_made_floats() -> None:
    data = {"image": [*BYTES, *BYTES], "caption": list("abcd"), "key": [123_456_789_012.0, 7.0, None, 0.5]}
    for keys in (pd.DataFrame(data), pa.table(data | {"key": [*data["key"][:2], np.nan, 0.5]})):
        assert load_pairs(keys).keys == ["123456789012", "7", "row 2", "0.5"]


def test_two_paths_that_mean_one_file(tmp_path: Path) -> None:
    """The path that is there stays. One that only ends in its name is a guess. Each table has a folder of its own."""
    write_pictures(tmp_path / "one", ["0.png", "1.png", "2.png"])
    write_pictures(tmp_path / "other", ["0.png"])
    paths = ["/mnt/x/0.png", "0.png", "/mnt/x/1.png", "/mnt/x/1.png", "/mnt/y/2.png"]
    images = pa.array([{"bytes": None, "path": path} for path in paths], IMAGE)
    table = pa.table({"image": images, "caption": [None, *"bcde"]})
    pairs = load_pairs(write_table(tmp_path / "one" / "a.parquet", table))
    assert pairs.reasons == {0: "'/mnt/x/0.png' and '0.png' end in the name of one file"}
    pq.write_table(table.slice(1), tmp_path / "one" / "a.parquet")
    pq.write_table(pa.table({"image": images[:1], "caption": ["a"]}), tmp_path / "other" / "a.parquet")
    assert not load_pairs(f"{tmp_path}/*/a.parquet").reasons


@pytest.mark.parametrize("kind", [pd.DataFrame, dict])
def test_captions_of_objects_in_memory(kind: Any) -> None:
    def made(captions: list[Any]) -> Any:
        return kind({"image": BYTES[:1] * len(captions), "caption": captions})

    pairs = load_pairs(made(["a", None, float("nan"), ["b", "c"], [], ("d",)]))
    assert usable(pairs) == ["a", "b", "c", "d"] and len(pairs) == 7
    assert_not_loaded(r"row 1, column 'caption': the caption is 5, not text", made(["a", 5, "b"]))
    for one in (pd.Series(["a"]), pa.array(["a"])):
        assert_not_loaded("is one column, and pairs take two", one)


QUOTED = st.lists(st.text("ab \",;\\'", max_size=6), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(captions=QUOTED, ending=st.sampled_from(["csv", "tsv", "token"]))
@example(captions=[',"', '"'], ending="csv")
def test_no_quote_swallows_a_row(captions: list[str], ending: str, folder: Path) -> None:
    delimiter = "," if ending == "csv" else "\t"
    head = [] if ending == "token" else [f"image{delimiter}caption"]
    rows = [f"{i}.png{'#0' if ending == 'token' else ''}{delimiter}{caption}" for i, caption in enumerate(captions)]
    (folder / f"c.{ending}").write_text("\n".join([*head, *rows]) + "\n")
    try:
        pairs = load_pairs(folder / f"c.{ending}")
    except DataError as error:
        message = str(error)
    else:
        message = "line 0"
        assert pairs.source.n_rows == len(captions)
        assert ending == "csv" or all('"' in a or a == b for a, b in zip(captions, pairs.captions, strict=True))
    assert re.search(r"line \d+", message) and (ending == "csv" or message == "line 0")


# -- COCO's captions and Karpathy's splits ----------------------------------------------------------------------------


def test_coco(tmp_path: Path) -> None:
    """Its own layout: ``annotations/captions_val2017.json`` beside ``val2017/``."""
    names = [f"{i:012d}.jpg" for i in range(3)]
    write_pictures(tmp_path / "val2017", names)
    images = [{"license": 4, "file_name": name, "id": 100 + i, "height": 8} for i, name in enumerate(names)]
    places = [(i, k) for k in range(2) for i in (2, 1, 0)]
    told = [{"image_id": 100 + i, "id": 10 * i + k, "caption": f"caption {k} of {i}"} for i, k in places]
    (tmp_path / "annotations").mkdir()
    path = tmp_path / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps({"info": {"year": 2017}, "licenses": [], "images": images, "annotations": told}))
    pairs = load_pairs(path)
    assert pairs.source.kind == "coco" and pairs.source.image_root == str(tmp_path / "val2017") and pairs.reasons == {}
    assert pairs.captions == [f"caption {k} of {i}" for i in range(3) for k in range(2)]
    assert pairs.row.tolist() == [0, 0, 1, 1, 2, 2] and pairs.keys[::2] == ["100", "101", "102"]
    assert pairs.images.read([2, 0]) == [picture(2), picture(0)]
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table["image"][1].as_py() == {"bytes": picture(1), "path": "000000000001.jpg"}
    assert table["captions"][1].as_py() == ["caption 0 of 1", "caption 1 of 1"]
    assert len(load_pairs(path, limit=1)) == 2
    assert_not_loaded("no splits", path, split="train")


@pytest.mark.parametrize("flickr", [False, True])
def test_karpathy(tmp_path: Path, flickr: bool) -> None:
    images, path = list[dict[str, Any]](), tmp_path / "dataset.json"
    for i, split in enumerate(["train", "restval", "test", "train", "val"]):
        sentences = [{"tokens": ["a"], "raw": f"caption {k} of {i}", "imgid": i, "sentid": 5 * i + k} for k in range(2)]
        images.append({"imgid": i, "sentences": sentences, "split": split, "filename": f"{i}.jpg"})
        images[i] |= {} if flickr else {"filepath": "val2014", "cocoid": 1000 + i}
    write_pictures(tmp_path / ("" if flickr else "val2014"), [f"{i}.jpg" for i in range(5)])
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    pairs = load_pairs(path)
    assert pairs.captions == [f"caption {k} of {i}" for i in (0, 3) for k in range(2)]
    assert pairs.keys == (["0", "0", "3", "3"] if flickr else ["1000", "1000", "1003", "1003"])
    assert pairs.images.read([0, 1]) == [picture(0), picture(3)] and pairs.reasons == {}
    assert CaptionJsonReader().listing(pairs.source) is CaptionJsonReader().listing(pairs.source)  # is taken once
    splits = [load_pairs(path, split=s) for s in ("val", "test", "train+restval", "train")]
    assert [p.row.max() + 1 for p in splits] == [1, 1, 3, 2] and len({p.source.fingerprint for p in splits}) == 4
    assert_not_loaded(r"no split 'dev' \(splits: train, restval, test, val\)", path, split="dev")
