"""Reading Parquet: columns, every form of image and vector, quarantine, faults that name their file."""

import json
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError, OutputError
from cleanpairs.data import ParquetSink, fingerprint_of, iter_tables, load_pairs, parquet_io, table_reader, writing
from cleanpairs.data.parquet_io import iter_batches
from tests.helpers import assert_not_loaded, assert_raises, vector_column, write_pictures
from tests.helpers import picture as png
from tests.helpers import write_table as write


def vectors(rows: list[Any]) -> dict[str, Any]:
    return {"caption": [f"text {i}" for i in range(len(rows))], "image_features": rows}


def test_a_row_of_bytes_and_text(tmp_path: Path) -> None:
    n, keys = 7, ["k0", None, *(f"k{i}" for i in range(2, 7))]
    columns = {"ID": keys, "JPG": [png(i % 5) for i in range(n)], "TEXT": ["text"] * n}
    pairs = load_pairs(write(tmp_path / "in.parquet", columns, row_group_size=3))
    assert len(pairs) == n and repr(pairs) == "Pairs(7 pairs of 7 images (bytes))"
    assert pairs.source.columns == {"text": "TEXT", "image": "JPG", "key": "ID"}
    assert pairs.keys == ["k0", "row 1", *keys[2:]] and pairs.reasons == {}
    np.testing.assert_array_equal([pairs.pair_id, pairs.image_index], [np.arange(n)] * 2)
    same = pairs.image_group[:, None] == pairs.image_group
    np.testing.assert_array_equal(same, np.arange(n)[:, None] % 5 == np.arange(n) % 5)
    assert fingerprint_of(pairs.source) == pairs.source.fingerprint


@pytest.mark.parametrize(("kind", "fixed"), [(pa.float16(), True), (pa.float32(), False), (pa.float64(), True)])
@pytest.mark.parametrize("regions", [1, 3])
def test_vectors_of_every_type(tmp_path: Path, kind: pa.DataType, fixed: bool, regions: int) -> None:
    want = np.random.default_rng(0).normal(size=(5, regions, 4)).astype(kind.to_pandas_dtype())
    inner = pa.list_(kind, 4) if fixed else pa.list_(kind)
    outer = inner if regions == 1 else pa.list_(inner, regions) if fixed else pa.list_(inner)
    rows = [list(r[0]) if regions == 1 else [list(v) for v in r] for r in want]
    pairs = load_pairs(path := write(tmp_path / "in.parquet", vectors(pa.array(rows, outer))))
    got: Any = pairs.images.array()
    assert pairs.images.kind == "features" and got.shape == (5, regions, 4) and pairs.reasons == {}
    assert got.dtype == (np.float16 if kind == pa.float16() else np.float32)
    assert len(load_pairs(path, limit=2).images) == 2
    np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_bad_vectors_are_quarantined_and_zero(tmp_path: Path) -> None:
    rows = [[1.0], [1.0, 2.0], [np.nan, 2.0], None, [np.inf, 0.0], [3.0, None], [1e300, 1.0], [4.0, 5.0], []]
    path = write(tmp_path / "in.parquet", vectors(pa.array([*rows, *[None] * 700], pa.list_(pa.float64()))))
    pairs = load_pairs(path)
    assert set(pairs.reasons) == {0, 2, 3, 4, 5, 6, 8, *range(9, 709)}
    assert "length 1, not 2" in pairs.reasons[0] and "finite" in pairs.reasons[2] and "no vector" in pairs.reasons[3]
    np.testing.assert_array_equal(pairs.images.array()[[1, 7], 0], [[1, 2], [4, 5]])
    assert not pairs.images.array()[sorted(pairs.reasons)].any()
    for nulls, rest in ((700, [[1.0, 2.0]]), (3, [])):
        cells = pa.array([*[None] * nulls, *rest], pa.list_(pa.float32()))
        assert len(load_pairs(write(path, vectors(cells))).reasons) == nulls
    nested = [[[1.0, 2.0], None], None, [[1.0, 2.0], [3.0, 4.0]]]
    for size, odd in ((2, [[5.0, 6.0], [7.0, None]]), (-1, [[5.0, 6.0], [7.0]])):
        flat = pa.array([[1.0, 2.0], None, [3.0, 4.0], [5.0, None]], pa.list_(pa.float32(), size))
        regions = pa.array([*nested, odd], pa.list_(pa.list_(pa.float32(), size), size))
        for column, bad, third in ((flat, [1, 3], [3, 4]), (regions, [0, 1, 3], [1, 2, 3, 4])):
            pairs = load_pairs(write(path, vectors(column)))
            assert sorted(pairs.reasons) == bad and not pairs.images.array()[bad].any()
            np.testing.assert_array_equal(pairs.images.array()[2].ravel(), third)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_table_in_memory_is_not_changed_by_what_its_vectors_lack(kind: Any) -> None:
    values = np.arange(12, dtype=kind).reshape(4, 3)
    values[1, 2], values[3, 0] = np.inf, np.nan
    table = pa.table(vectors(pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)))
    before = table.to_pylist()
    for part in (table, table.slice(1)):
        pairs = load_pairs(part)
        want = np.where(np.isfinite(values).all(1)[:, None], values, 0)[-len(part) :]
        np.testing.assert_array_equal(pairs.images.array()[:, 0], want)
        assert len(pairs.reasons) == 2
    np.testing.assert_equal(table.to_pylist(), before)


def test_large_vectors_are_mapped_from_the_cache(tmp_path: Path, own_cache: Path, monkeypatch: Any) -> None:
    want = np.random.default_rng(1).normal(size=(1300, 2, 3)).astype(np.float16)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(want.reshape(-1)), 3)
    plain = load_pairs(path := write(tmp_path / "in.parquet", vectors(pa.FixedSizeListArray.from_arrays(flat, 2))))
    monkeypatch.setattr(table_reader, "IN_MEMORY", 100)
    mapped = load_pairs(path)
    assert isinstance(mapped.images.array(), np.memmap)
    for pairs in (plain, mapped, load_pairs(path)):
        np.testing.assert_array_equal(pairs.images.array(), want)
    np.testing.assert_array_equal(mapped.image_group, plain.image_group)
    assert list(own_cache.rglob("*")) == [own_cache / "vectors"]  # the file has no name: it goes with the array


def test_a_wrong_column_name_lists_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"image": [png(0)], "headline": ["a"], "site": [1]})
    for options, words in (
        ({"text_column": "hedline"}, r"no column 'hedline'; did you mean 'headline'\?.*image.*headline.*site"),
        ({"text_column": "site"}, "'site'"),
    ):
        assert_not_loaded(words, path, **options)
    assert load_pairs(path, text_column="headline").captions == ["a"]
    assert_not_loaded("--column image=", write(tmp_path / "text.parquet", {"caption": ["a"]}))


@pytest.mark.parametrize(("a", "b", "whole"), [
    (pa.array([0.5]), pa.array([0.25], pa.float32()), [0.5, 0.25]),
    (pa.nulls(1), pa.array(["x"]), [None, "x"]),
    (pa.array([[1.0]], pa.list_(pa.float16())), pa.array([[2.0]], pa.list_(pa.float32())), [[1.0], [2.0]]),
    (pa.array([{"x": 1}]), pa.array([{"x": 1, "y": "z"}]), [{"x": 1, "y": None}, {"x": 1, "y": "z"}]),
    (pa.array([1.5]), pa.array([2**60 + 1]), r"1152921504606846977"),
    (pa.array([b"x"]), pa.array([1]), r"column 'note'.*(binary|int64).*\.parquet.*(binary|int64).*\.parquet"),
])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_a_column_takes_the_wider_type(a: pa.Array, b: pa.Array, whole: Any, turned: bool, tmp_path: Path) -> None:
    """Also where the columns come in another order. No value is changed for it: then the files are refused."""
    for k, (value, text) in enumerate(zip((b, a) if turned else (a, b), ("one", "two"), strict=True)):
        columns = {"image": [png(k)], "caption": [text], "note": value}
        names = ["caption", "note", "image"] if k else list(columns)
        write(tmp_path / f"{k}.parquet", {name: columns[name] for name in names})
    if isinstance(whole, str):
        return assert_raises(DataError, whole, lambda: list(iter_tables(load_pairs(tmp_path).source)))
    found = pa.Table.from_batches(iter_tables(load_pairs(tmp_path).source))
    assert found["note"].to_pylist() == (whole[::-1] if turned else whole)
    assert found["caption"].to_pylist() == ["one", "two"] and found.column_names == ["image", "caption", "note"]
    write(tmp_path / "2.parquet", {"caption": ["three"], "image": [png(1)]})
    assert_not_loaded(r"'note'.*missing.*2\.parquet", tmp_path)


def test_parquet_in_folders_below(tmp_path: Path) -> None:
    """Partitions of Spark, and a clone of a dataset of the hub, of which a split is read."""
    names = ["lang=en/part=0/0", "lang=en/part=1/0", "lang=de/.tmp/0", "lang=de/part=1/._0", "lang=de/part=0/0"]
    for k, name in enumerate(names):
        (tmp_path / "hive" / name).parent.mkdir(parents=True)
        write(tmp_path / "hive" / f"{name}.parquet", {"image": [png(k)], "caption": [str(k)]})
    assert load_pairs(tmp_path / "hive").captions == load_pairs(f"{tmp_path}/hive/**/*.parquet").captions == [*"401"]
    for own in (["0.png"], ["1.png", "0.png"]):  # another image of the same name in each folder
        write(write_pictures(tmp_path / own[0] / "images", own) / "../0.parquet", {"image": ["0.png"], "text": ["a"]})
    missing = "the image file '0.png' is missing"
    assert load_pairs(f"{tmp_path}/*.png/*.parquet").reasons == {0: missing, 1: missing}
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for k, name in enumerate(["train-00000-of-00002", "train-00001-of-00002-0123456789abcdef", "test-00000-of-00001"]):
        write(tmp_path / "hub" / "data" / f"{name}.parquet", {"image": [png(k)], "caption": [str(k)]})
    pairs = load_pairs(tmp_path / "hub")
    assert pairs.captions == ["0", "1"] and pairs.source.options == {"split": "train"}
    write(tmp_path / "hub" / "data" / "other.parquet", {"image": [png(3)], "caption": ["3"]})
    assert_not_loaded(r"other\.parquet is in no split", tmp_path / "hub")
    assert load_pairs(tmp_path / "hub", split="test").captions == ["2"]
    assert load_pairs(str(tmp_path / "hub" / "data" / "train-*.parquet")).captions == ["0", "1"]
    assert_not_loaded("has no splits", tmp_path / "hive", split="train")
    (tmp_path / "hub" / "data" / f"{name}.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    assert_not_loaded("pointer of Git LFS: run git lfs pull", tmp_path / "hub", split="test")


def test_what_is_no_input(tmp_path: Path) -> None:
    for data in (tmp_path / "none.parquet", tmp_path, str(tmp_path / "*.parquet"), f"{tmp_path}/{5000 * 'x'}"):
        assert_not_loaded(str(tmp_path), data)
    assert_not_loaded("not of int", [1, 2])


def test_batches_of_large_rows_are_small(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"caption": ["t"] * 40, "image": [bytes([i]) * 2**21 for i in range(40)]})
    sizes = [batch.nbytes for _, batch in iter_batches([str(path)], None, 512)]
    assert len(sizes) > 2 and max(sizes) <= 40 * 2**20


def test_truth_columns_are_read_and_not_used(tmp_path: Path) -> None:
    images, path = [png(i) for i in range(3)], tmp_path / "in.parquet"
    flat = {"image": images, "caption": list("abc"), "true_mismatch": [True, False, None], "true_key": ["1", "1", None]}
    pairs = load_pairs(write(path, flat))
    assert pairs.true_mismatch_mask().tolist() == [True, False, None] and pairs.true_key == ["1", "1", ""]
    some = pairs.select([0, 1]).true_mismatch_mask()
    assert some.tolist() == [True, False] and not np.ma.isMaskedArray(some)
    assert pairs.select([2]).true_mismatch is None and pairs.select([2]).true_key is None
    assert load_pairs(write(path, flat | {"true_mismatch": [None] * 3})).true_mismatch is None
    lists = {"image": images, "captions": [["a", "b"], ["c"], []], "true_mismatch": [[False, True], [True], []]}
    pairs = load_pairs(write(path, lists | {"true_key": [["x", "y"], ["z"], []]}))
    assert pairs.true_mismatch_mask().tolist() == [False, True, True, None] and pairs.true_key == ["x", "y", "z", ""]
    assert_not_loaded(r"'true_mismatch' .*in\.parquet is string", write(path, flat | {"true_mismatch": ["False"] * 3}))


def test_similarities_that_the_data_brings_are_recognised(tmp_path: Path) -> None:
    """One a row, or one a caption."""
    columns = {"image": [png(0), png(1), png(2)], "captions": [["a", "b"], ["c", "d"], None]}
    columns |= {"similarity_of_shops": [1.0, 1.0, 1.0], "clip_model": ["b32"] * 3}
    of_rows, of_captions = pa.array([0.25, None, 1]), pa.array([[0.5, 1e300], [0.125, None], None])
    both = (of_rows, [0.25, 0.25, np.nan, np.nan, 1]), (of_captions, [0.5, np.inf, 0.125, np.nan, np.nan])
    for name in ("SIMILARITY", "clip_similarity_vitb32", "clip_l14_similarity_score", "cosine_similarity"):
        for given, wanted in both:
            pairs = load_pairs(write(tmp_path / "in.parquet", columns | {name: given}))
            assert pairs.source.columns[f"score:{name}"] == name and list(pairs.precomputed_scores) == [name]
            np.testing.assert_array_equal(pairs.precomputed_scores[name], np.array(wanted, np.float32))
            assert pairs.precomputed_scores[name].dtype == np.float32


# -- Parquet that strangers write: odd column names and types, odd paths, odd frames, files that changed --------------


def test_which_columns_are_taken(tmp_path: Path) -> None:
    image, path = [png(0)], tmp_path / "in.parquet"
    for columns, caption in (
        ({"CAPTION": ["shout"], "caption": ["say"], "image": image}, "say"),  # the exact name
        ({"Caption": [1], "CAPTION": ["shout"], "image": image}, "shout"),  # the fitting type
        ({"caption": ["a"], "image": ["https://a.org/1.png"], "photo": image}, "a"),  # a name before the picture itself
        # cells as an export has them where the names were keys
        ({"caption": ["a"], "image_id": [{"bytes": image[0], "path": "1.png"}]}, "a"),
    ):
        pairs = load_pairs(write(path, columns))
        assert pairs.captions == [caption] and pairs.images.read([0]) == image
    columns = {"caption": ["a"], "alt": ["b"], "image": image, "thumb": [png(1)], "key": ["k"], "sha": ["s"]}
    usual = load_pairs(write(path, columns | {"image_features": [[1.0, 2.0]]}))
    assert usual.images.kind == "features" and usual.images.read([0]) == image  # vectors train, and pictures show
    pairs = load_pairs(path, image_column="thumb", text_column="alt", key_column="sha")
    assert pairs.captions == ["b"] and pairs.keys == ["s"] and pairs.images.read([0]) == [png(1)]
    assert pairs.images.kind == "bytes"
    arrays = [pa.array(["a"]), pa.array(["b"]), pa.array(image)]
    write(path, pa.Table.from_arrays(arrays, ["caption", "caption", "image"]))
    assert_not_loaded(r"in\.parquet has the column 'caption' more than once: rename one of them", path)
    assert_not_loaded("caption", pd.DataFrame([["a", "b", image[0]]], columns=["caption", "caption", "image"]))


def test_paths_that_are_not_utf8(tmp_path: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff.png", b"good.png"]).buffers())  # nobody checked it
    (tmp_path / "good.png").write_bytes(png(1))
    flat = load_pairs(write(tmp_path / "flat.parquet", {"caption": ["a", "b"], "image_path": raw}))
    assert set(flat.reasons) == {0} and "missing" in flat.reasons[0] and flat.images.read([0, 1]) == [None, png(1)]
    flat.reasons[0].encode()  # can be printed and written


def test_images_are_read_across_row_groups_files_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n, at = 1300, 0
    for name, size in (("a", 700), ("b", 0), ("c", 1), ("d", 599)):  # an empty list has the type null
        rows = range(at, at + size)
        columns = {"caption": [str(i) for i in rows], "image": [png(i) for i in rows]}
        write(tmp_path / f"{name}.parquet", columns, row_group_size=300)
        at += size
    pairs = load_pairs(tmp_path)
    assert pairs.captions == [str(i) for i in range(n)]
    indices = [*np.random.default_rng(0).integers(0, n, 60).tolist(), 0, 255, 256, 299, 300, 699, 700, 701, n - 1]
    assert pairs.images.read(indices) == [png(i) for i in indices]
    assert [x for _, chunk in pairs.images.iter_encoded(7) for x in chunk] == [png(i) for i in range(n)]
    monkeypatch.setattr(parquet_io, "open_parquet", opened := Mock(wraps=parquet_io.open_parquet))
    found = list(pairs.images.at(some := np.unique(indices)).iter_encoded(7))
    assert opened.call_count == 3 and [first for first, _ in found] == list(range(0, len(some), 7))
    assert [x for _, chunk in found for x in chunk] == [png(i) for i in some]
    for limit in (0, 1, 299, 300, 700, 701, 9999):
        some = load_pairs(tmp_path, limit=limit)
        assert len(some) == len(some.images) == some.source.n_rows == min(limit, n)
    assert load_pairs(str(tmp_path / "[cd].parquet")).captions == pairs.captions[700:]
    for limit in (1.5, -1, True):
        words = rf"limit of load_pairs must be a whole number >= 0 .* found {limit}"
        assert_raises(ConfigError, words, load_pairs, tmp_path, limit=limit)


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path, other = tmp_path / "in.parquet", tmp_path / "copy.parquet"
    write(path, {"caption": ["a", "b"], "image": [png(0), png(1)], "alt": ["x", "y"]})
    other.write_bytes(path.read_bytes())
    pairs = load_pairs(path)
    first = pairs.source
    assert load_pairs(other).source.fingerprint == first.fingerprint == fingerprint_of(first)
    assert len({load_pairs(path, **o).source.fingerprint for o in ({}, {"limit": 1}, {"text_column": "alt"})}) == 3
    write(path, {"caption": ["a", "c"], "image": [png(0), png(1)], "alt": ["x", "y"]})
    assert fingerprint_of(first) != first.fingerprint
    path.write_bytes(path.read_bytes()[:-30])  # what breaks after it was read is named
    for use in (lambda: pairs.images.read([0]), lambda: list(pairs.images.iter_encoded(8))):
        assert_raises(DataError, r"in\.parquet", use)
    path.unlink()
    assert_raises(DataError, r"in\.parquet", fingerprint_of, first)


def test_every_flipped_bit_in_a_page_is_found_and_named(tmp_path: Path) -> None:
    path, rng = tmp_path / "flipped.parquet", np.random.default_rng(0)
    table = pa.table({"caption": [f"caption {i}" for i in range(300)], "image": [rng.bytes(200) for _ in range(300)]})
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)
    raw = path.read_bytes()
    for at in range(200, len(raw) - 2000, 6007):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        assert_not_loaded(r"flipped\.parquet", path)


def test_other_objects() -> None:
    for vectors in (np.arange(24.0).reshape(3, 2, 4), np.arange(12.0).reshape(3, 1, 4)):
        cells = [v[0] if len(v) == 1 else v for v in vectors]
        pairs = load_pairs(pd.DataFrame({"caption": list("abc"), "image_features": cells}))
        np.testing.assert_array_equal(pairs.images.array(), vectors)
    schema = pa.schema([("caption", pa.string()), ("image_features", pa.list_(pa.float32(), 3))])
    assert load_pairs(schema.empty_table()).images.array().shape == (0, 1, 3)
    batch = pa.RecordBatch.from_pydict({"caption": ["a"], "image": [png(0)]})
    for data in (batch, load_pairs(batch)):
        assert load_pairs(data).captions == ["a"]


def test_types_of_text_and_bytes(tmp_path: Path) -> None:
    fixed = pa.dictionary(pa.int8(), pa.string()), pa.binary(len(png(1)))
    for text, image in ((pa.large_string(), pa.large_binary()), fixed):
        columns = {"caption": pa.array(["a", "b"], text), "image": pa.array([png(1), png(2)], image)}
        pairs = load_pairs(write(tmp_path / "in.parquet", columns))
        assert pairs.captions == ["a", "b"] and pairs.reasons == {} and pairs.images.read([1, 0]) == [png(2), png(1)]
    image = pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())])
    columns = {
        "captions": pa.array([["a", "b"], ["c"], None], pa.list_(pa.string_view())),
        "image": pa.array([{"bytes": png(i), "path": None} for i in range(3)], image),
        "key": pa.array(list("xyz"), pa.string_view()), "tags": pa.array([["t"], [], None], pa.list_view(pa.string())),
    }  # fmt: skip
    pairs = load_pairs(write(tmp_path / "in.parquet", columns))
    assert pairs.captions == ["a", "b", "c", ""] and pairs.keys == list("xxyz") and pairs.images.read([1]) == [png(1)]
    batches = list(iter_tables(pairs.source, 2))
    assert "view" not in str(batches[0].schema) and [len(b) for b in batches] == [2, 1]
    taken = pa.Table.from_batches(batches).take(pa.array([2, 0])).to_pydict()
    assert taken["captions"] == [None, ["a", "b"]] and taken["tags"] == [None, ["t"]]
    assert taken["image"][1] == {"bytes": png(0), "path": None}


def test_a_directory_with_an_earlier_export(tmp_path: Path) -> None:
    """Its ledger and its dropped pairs are no input. A manifest of somebody else leaves nothing out."""
    roles = {"out.parquet": "out", "out.parquet.ledger.parquet": "ledger", "gone.parquet": "dropped"}
    for name, role in roles.items():
        pair, other = {"caption": ["a"], "image": [png(0)]}, {"pair_id": [0, 1], "action": ["keep", "drop"]}
        write(tmp_path / name, pair if role == "out" else other)
    files = {name: {"role": role, "rows": 1} for name, role in roles.items()}
    manifest = tmp_path / "out.parquet.manifest.json"
    manifest.write_text(json.dumps({"files": files}))
    assert load_pairs(tmp_path).captions == ["a"]
    for text in ("{", "[]", '{"files": 3}', '{"files": {"a": 1}}'):
        manifest.write_text(text)
        assert_not_loaded("the files differ in column", tmp_path)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_dictionaries_inside_of_lists_are_read_over_the_ends_of_row_groups(tmp_path: Path, rows: int) -> None:
    values = pa.array([f"w{i % 4}" for i in range(24)]).dictionary_encode()
    lists = pa.ListArray.from_arrays(pa.array(range(0, 25, 2), pa.int32()), values)
    fixed = pa.FixedSizeListArray.from_arrays(values, 2)
    table = pa.table({"a": lists, "b": fixed, "c": pa.StructArray.from_arrays([lists], ["x"]), "n": range(12)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows)
    for columns in (None, ["b"], ["c", "n"]):
        batches = [batch for _, batch in iter_batches([str(tmp_path / "t.parquet")], columns, 7)]
        assert pa.Table.from_batches(batches).to_pylist() == table.select(columns or table.column_names).to_pylist()


def test_a_row_group_without_the_rows_that_its_footer_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some damaged files are: pyarrow gives no batch and says nothing."""
    write(tmp_path / "t.parquet", {"caption": ["a"], "image": [png(0)]})
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *args, **options: iter([]))
    rows = iter_batches([str(tmp_path / "t.parquet")], None, 7)
    assert_raises(DataError, "row group 0 has no rows, and 1 by the footer", list, rows)


# -- Written Parquet: checksums, bounded row groups, the image feature, no partial file that passes for whole ---------


FLAT = pa.schema([("a", pa.int64()), ("text", pa.string())], metadata={"note": "kept"})


def rows(first: int, n: int) -> pa.RecordBatch:
    numbers = range(first, first + n)
    return pa.RecordBatch.from_pydict({"a": numbers, "text": [f"row {i}" for i in numbers]}, schema=FLAT)


def test_rows_come_back_and_are_counted_and_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.parquet"
    for most, wanted in ((None, [105]), (40, [40, 40, 25])):
        if most is not None:
            monkeypatch.setattr(writing.ParquetSink, "group_rows", most)
        with ParquetSink(path, FLAT) as sink:
            for first in range(0, 100, 10):
                sink.write(rows(first, 10))
            sink.write(pa.Table.from_batches([rows(100, 5)]))
        table, meta = pq.read_table(path, page_checksum_verification=True), pq.read_metadata(path)
        assert sink.rows == 105 and table["a"].to_pylist() == list(range(105))
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == wanted
        assert meta.row_group(0).column(0).compression == "ZSTD"
    assert pq.read_schema(path).metadata[b"note"] == b"kept"


def test_row_groups_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.ParquetSink, "group_bytes", 1000)
    path = tmp_path / "out.parquet"
    for step in (500, 20):  # all at once, as a frame comes, and in parts
        with ParquetSink(path, FLAT) as sink:
            for first in range(0, 500, step):
                sink.write(rows(first, step))
        file = pq.ParquetFile(path)
        sizes = [file.read_row_group(i).nbytes for i in range(file.num_row_groups)]
        assert max(sizes) <= 1100 and file.num_row_groups <= 25
        assert file.read()["a"].to_pylist() == list(range(500))
    with ParquetSink(path, pa.schema([("blob", pa.binary())])) as sink:
        sink.write(pa.table({"blob": [bytes(5000)] * 3}))  # a row is never cut
    assert pq.read_metadata(path).num_row_groups == 3


def test_what_cannot_be_written_is_an_error_and_the_first_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"nowhere.*cannot be written"):
        ParquetSink(tmp_path / "nowhere" / "out.parquet", FLAT)
    scores, before = pa.table({"score": np.random.default_rng(0).random(500_000)}), getrlimit(RLIMIT_FSIZE)
    try:
        setrlimit(RLIMIT_FSIZE, (200_000, before[1]))  # a real error of a real write
        with pytest.raises(OutputError, match="cannot be written"), ParquetSink(tmp_path / "a", scores.schema) as sink:
            sink.write(scores)
        setrlimit(RLIMIT_FSIZE, (8, before[1]))
        with pytest.raises(DataError, match="the real reason"), ParquetSink(tmp_path / "b", scores.schema):
            raise DataError("the real reason")
    finally:
        setrlimit(RLIMIT_FSIZE, before)


@pytest.mark.parametrize("path_type", [pa.string(), pa.null()])
def test_images_and_other_features_open_in_datasets(tmp_path: Path, path_type: pa.DataType) -> None:
    noted = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "gone": datasets.Value("string")})
    info = {b"huggingface": writing.json.dumps({"info": {"features": noted.to_dict()}}).encode()}
    image = pa.struct([("bytes", pa.binary()), ("path", path_type)])
    schema = pa.schema([("image", image), ("caption", pa.string()), ("label", pa.int64())], metadata=info)
    row = {"image": {"bytes": png(1, size=(5, 4)), "path": None}, "caption": "a", "label": 1}
    path = tmp_path / "out.parquet"
    with ParquetSink(path, schema) as sink:
        sink.write(pa.RecordBatch.from_pylist([row], schema=schema))
    loaded = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["image"].size == (5, 4) and loaded.features["label"].names == ["no", "yes"]


# -- Rows converted a column at a time are the rows converted one by one; vectors of captions beside thos --


@pytest.mark.parametrize("large", [False, True])
def test_vectors_of_captions_keep_their_faults(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "IN_MEMORY", 0 if large else 1 << 20)
    zeros = [0.0] * 1000  # of all five more than a page, below which there is no file
    texts = [[1.0, 2.0, *zeros], None, [3.0], [np.inf, 1.0, *zeros], [4.0, 5.0, *zeros]]
    columns = {"caption": list("abcde"), "image_features": vector_column(np.eye(5, dtype=np.float32))}
    table = pa.table(columns | {"text_features": pa.array(texts, pa.list_(pa.float32()))})
    pairs = load_pairs(write(tmp_path / "data.parquet", table))
    assert (type(pairs.text_vectors) is np.memmap) == large and pairs.source.columns["text_features"] == "text_features"
    np.testing.assert_array_equal(pairs.text_vectors[:, :2], [[1, 2], [0, 0], [0, 0], [0, 0], [4, 5]])
    missing, short = "there is no text vector", "its text vector has the length 1, not 1002"
    assert pairs.reasons == {1: missing, 2: short, 3: "its text vector is not finite"}
    odd = pa.concat_tables([table] * 3).set_column(0, "caption", pa.array([*"abcdefghijklmn", '["it", "looks so"]']))
    assert load_pairs(write(tmp_path / "odd.parquet", odd)).text_vectors is not None
    # one vector a row is not one a caption
    several = load_pairs(write(tmp_path / "lists.parquet", table.set_column(0, "caption", pa.array([["a", "b"]] * 5))))
    assert several.text_vectors is None and not several.reasons and len(several) == 10
