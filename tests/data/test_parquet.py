"""Reading Parquet: columns, every form of image and vector, quarantine, faults that name their file."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import Pairs, ParquetSink, fingerprint_of, iter_tables, load_pairs, parquet_io, table_reader
from cleanpairs.data.parquet_io import iter_batches
from tests.helpers import assert_not_loaded, assert_raises
from tests.helpers import picture as png
from tests.helpers import write_table as write


def vectors(rows: list[Any]) -> dict[str, Any]:
    return {"caption": [f"text {i}" for i in range(len(rows))], "image_features": rows}


def array_of(pairs: Pairs) -> np.ndarray:
    array = pairs.images.array()
    assert array is not None
    return array


def test_a_row_of_bytes_and_text(tmp_path: Path) -> None:
    n = 7
    columns = {
        "ID": ["k0", None, *(f"k{i}" for i in range(2, n))],
        "JPG": [png(i % 5) for i in range(n)],
        "TEXT": ["text"] * n,
    }
    pairs = load_pairs(write(tmp_path / "in.parquet", columns, row_group_size=3))
    assert len(pairs) == n and repr(pairs) == "Pairs(7 pairs of 7 images (bytes))"
    assert pairs.source.columns == {"text": "TEXT", "image": "JPG", "key": "ID"}
    assert pairs.keys == ["k0", "row 1", *columns["ID"][2:]] and pairs.reasons == {}
    np.testing.assert_array_equal(pairs.pair_id, np.arange(n))
    np.testing.assert_array_equal(pairs.image_index, np.arange(n))
    same = pairs.image_group[:, None] == pairs.image_group
    np.testing.assert_array_equal(same, np.arange(n)[:, None] % 5 == np.arange(n) % 5)
    assert fingerprint_of(pairs.source) == pairs.source.fingerprint


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("regions", [1, 3])
def test_vectors_of_every_type(tmp_path: Path, kind: pa.DataType, fixed: bool, regions: int) -> None:
    want = np.random.default_rng(0).normal(size=(5, regions, 4)).astype(kind.to_pandas_dtype())
    inner = pa.list_(kind, 4) if fixed else pa.list_(kind)
    outer = inner if regions == 1 else pa.list_(inner, regions) if fixed else pa.list_(inner)
    rows = [list(r[0]) if regions == 1 else [list(v) for v in r] for r in want]
    path = write(tmp_path / "in.parquet", vectors(pa.array(rows, outer)))
    pairs = load_pairs(path)
    got = array_of(pairs)
    assert pairs.images.kind == "features" and got.shape == (5, regions, 4) and pairs.reasons == {}
    assert got.dtype == (np.float16 if kind == pa.float16() else np.float32)
    assert len(array_of(load_pairs(path, limit=2))) == 2
    np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_bad_vectors_are_quarantined_and_zero(tmp_path: Path) -> None:
    rows = [[1.0], [1.0, 2.0], [np.nan, 2.0], None, [np.inf, 0.0], [3.0, None], [1e300, 1.0], [4.0, 5.0], []]
    path = write(tmp_path / "in.parquet", vectors(pa.array([*rows, *[None] * 700], pa.list_(pa.float64()))))
    pairs = load_pairs(path)
    assert set(pairs.reasons) == {0, 2, 3, 4, 5, 6, 8, *range(9, 709)}
    assert "1 values, not 2" in pairs.reasons[0] and "finite" in pairs.reasons[2] and "no vector" in pairs.reasons[3]
    np.testing.assert_array_equal(array_of(pairs)[[1, 7], 0], [[1, 2], [4, 5]])
    assert not array_of(pairs)[sorted(pairs.reasons)].any()
    for nulls, rest in ((700, [[1.0, 2.0]]), (3, [])):
        cells = pa.array([*[None] * nulls, *rest], pa.list_(pa.float32()))
        assert len(load_pairs(write(path, vectors(cells))).reasons) == nulls


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_table_in_memory_is_not_changed_by_what_its_vectors_lack(kind: Any) -> None:
    values = np.arange(12, dtype=kind).reshape(4, 3)
    values[1, 2], values[3, 0] = np.inf, np.nan
    table = pa.table(vectors(pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)))
    before = table.to_pylist()
    for part in (table, table.slice(1)):
        pairs = load_pairs(part)
        want = np.where(np.isfinite(values).all(1)[:, None], values, 0)[-len(part) :]
        np.testing.assert_array_equal(array_of(pairs)[:, 0], want)
        assert len(pairs.reasons) == 2
    np.testing.assert_equal(table.to_pylist(), before)


def test_large_vectors_are_mapped_from_the_cache(tmp_path: Path, own_cache: Path, monkeypatch: Any) -> None:
    want = np.random.default_rng(1).normal(size=(1300, 2, 3)).astype(np.float16)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(want.reshape(-1)), 3)
    path = write(tmp_path / "in.parquet", vectors(pa.FixedSizeListArray.from_arrays(flat, 2)))
    plain = load_pairs(path)
    monkeypatch.setattr(table_reader, "IN_MEMORY", 100)
    mapped = load_pairs(path)
    assert isinstance(array_of(mapped), np.memmap)
    for pairs in (plain, mapped, load_pairs(path)):
        np.testing.assert_array_equal(array_of(pairs), want)
    np.testing.assert_array_equal(mapped.image_group, plain.image_group)
    assert list(own_cache.rglob("*")) == [own_cache / "vectors"]  # the file has no name: it goes with the array


def test_a_wrong_column_name_lists_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"image": [png(0)], "headline": ["a"], "site": [1]})
    with pytest.raises(DataError, match=r"no column 'hedline'; did you mean 'headline'\?.*image.*headline.*site"):
        load_pairs(path, text_column="hedline")
    assert_not_loaded(r"no column 'imag'; did you mean 'image'\?", path, image_column="imag")
    assert_not_loaded(r"no column 'SITE'; did you mean 'site'\?", path, key_column="SITE")
    assert_not_loaded(r"--column text=.*headline.*site", path)
    assert_not_loaded("'site'", path, text_column="site")
    assert load_pairs(path, text_column="headline").captions == ["a"]
    assert_not_loaded("--column image=", write(tmp_path / "text.parquet", {"caption": ["a"]}))


@pytest.mark.parametrize(
    ("a", "b", "whole"),
    [
        (pa.array([0.5]), pa.array([0.25], pa.float32()), [0.5, 0.25]),
        (pa.nulls(1), pa.array(["x"]), [None, "x"]),
        (pa.array([1], pa.int16()), pa.array([2**40]), [1, 2**40]),
        (pa.array([[1.0]], pa.list_(pa.float16())), pa.array([[2.0]], pa.list_(pa.float32())), [[1.0], [2.0]]),
        (pa.array([{"x": 1}]), pa.array([{"x": 1, "y": "z"}]), [{"x": 1, "y": None}, {"x": 1, "y": "z"}]),
        (pa.array(["x"]).dictionary_encode(), pa.array(["y"]), ["x", "y"]),
        (pa.array([1.5]), pa.array([2**60 + 1]), r"1152921504606846977"),
        (pa.array([b"x"]), pa.array([1]), r"column 'note'.*(binary|int64).*\.parquet.*(binary|int64).*\.parquet"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_column_takes_the_wider_type(a: pa.Array, b: pa.Array, whole: Any, turned: bool, tmp_path: Path) -> None:
    """Also where the columns come in another order. No value is changed for it: then the files are refused."""
    for k, (value, text) in enumerate(zip((b, a) if turned else (a, b), ("one", "two"), strict=True)):
        columns = {"image": [png(k)], "caption": [text], "note": value}
        names = ["caption", "note", "image"] if k else list(columns)
        write(tmp_path / f"{k}.parquet", {name: columns[name] for name in names})
    if isinstance(whole, str):
        with pytest.raises(DataError, match=whole):
            list(iter_tables(load_pairs(tmp_path).source))
        return
    found = pa.Table.from_batches(iter_tables(load_pairs(tmp_path).source))
    assert found["note"].to_pylist() == (whole[::-1] if turned else whole)
    assert found["caption"].to_pylist() == ["one", "two"] and found.column_names == ["image", "caption", "note"]
    write(tmp_path / "2.parquet", {"caption": ["three"], "image": [png(1)]})
    assert_not_loaded(r"'note'.*missing.*2\.parquet", tmp_path)


def test_parquet_in_folders_below(tmp_path: Path) -> None:
    """Partitions of Spark, and a clone of a dataset of the hub, of which a split is read."""
    for k, name in enumerate(
        ["lang=en/part=0/0", "lang=en/part=1/0", "lang=de/.tmp/0", "lang=de/part=1/._0", "lang=de/part=0/0"]
    ):
        (tmp_path / "hive" / name).parent.mkdir(parents=True)
        write(tmp_path / "hive" / f"{name}.parquet", {"image": [png(k)], "caption": [str(k)]})
    assert load_pairs(tmp_path / "hive").captions == ["4", "0", "1"]
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for k, name in enumerate(["train-00000-of-00002", "train-00001-of-00002-0123456789abcdef", "test-00000-of-00001"]):
        write(tmp_path / "hub" / "data" / f"{name}.parquet", {"image": [png(k)], "caption": [str(k)]})
    pairs = load_pairs(tmp_path / "hub")
    assert pairs.captions == ["0", "1"] and pairs.source.options == {"split": "train"}
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
    unknown = pairs.select([2])
    assert unknown.true_mismatch is None and unknown.true_key is None
    assert load_pairs(write(path, flat | {"true_mismatch": [None] * 3})).true_mismatch is None
    lists = {"image": images, "captions": [["a", "b"], ["c"], []], "true_mismatch": [[False, True], [True], []]}
    pairs = load_pairs(write(path, lists | {"true_key": [["x", "y"], ["z"], []]}))
    assert pairs.true_mismatch_mask().tolist() == [False, True, True, None] and pairs.true_key == ["x", "y", "z", ""]
    assert_not_loaded(r"'true_mismatch' .*in\.parquet is string", write(path, flat | {"true_mismatch": ["False"] * 3}))


SCORE_NAMES = [
    "similarity", "clip_similarity_vitb32", "clip_b32_similarity_score", "clip_l14_similarity_score", "clip_score",
    "SIMILARITY", "cosine_similarity",
]  # fmt: skip


def test_similarities_that_the_data_brings_are_recognised(tmp_path: Path) -> None:
    """One a row, or one a caption."""
    columns = {
        "image": [png(0), png(1), png(2)], "captions": [["a", "b"], ["c", "d"], None],
        "similarity_of_shops": [1.0, 1.0, 1.0], "clip_model": ["b32"] * 3,
    }  # fmt: skip
    of_rows, of_captions = pa.array([0.25, None, 1]), pa.array([[0.5, 1e300], [0.125, None], None])
    for name in SCORE_NAMES:
        for given, wanted in (
            (of_rows, [0.25, 0.25, np.nan, np.nan, 1]),
            (of_captions, [0.5, np.inf, 0.125, np.nan, np.nan]),
        ):
            pairs = load_pairs(write(tmp_path / "in.parquet", columns | {name: given}))
            assert pairs.source.columns[f"score:{name}"] == name and list(pairs.precomputed_scores) == [name]
            np.testing.assert_array_equal(pairs.precomputed_scores[name], np.array(wanted, np.float32))
            assert pairs.precomputed_scores[name].dtype == np.float32


# -- Parquet that strangers write: odd column names and types, odd paths, odd frames, files that changed --------------


def test_a_column_name_that_occurs_twice(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array([png(0)])]
    pq.write_table(pa.Table.from_arrays(columns, ["caption", "caption", "image"]), tmp_path / "twice.parquet")
    assert_not_loaded(r"twice\.parquet has the column 'caption' more than once", tmp_path / "twice.parquet")
    assert_not_loaded("caption", pd.DataFrame([["a", "b", png(0)]], columns=["caption", "caption", "image"]))


def test_of_names_that_differ_in_case_the_exact_one_or_the_fitting_one_is_taken(tmp_path: Path) -> None:
    image = [png(0)]
    both = write(tmp_path / "both.parquet", {"CAPTION": ["shout"], "caption": ["say"], "image": image})
    assert load_pairs(both).captions == ["say"]
    other = write(tmp_path / "other.parquet", {"Caption": [1], "CAPTION": ["shout"], "image": image})
    assert load_pairs(other).captions == ["shout"]
    path = write(tmp_path / "names.parquet", {"caption": ["a"], "image": ["https://a.org/1.png"], "photo": image})
    assert load_pairs(path).images.read([0]) == image  # a name before the picture itself
    cells = [{"bytes": image[0], "path": "1.png"}]  # as an export has them where the names were keys
    path = write(tmp_path / "cells.parquet", {"caption": ["a"], "image_id": cells})
    assert load_pairs(path).images.read([0]) == image


def test_named_columns_go_before_the_usual_ones(tmp_path: Path) -> None:
    columns = {"caption": ["a"], "alt": ["b"], "image": [png(0)], "thumb": [png(1)], "key": ["k"], "sha": ["s"]}
    path = write(tmp_path / "in.parquet", columns | {"image_features": [[1.0, 2.0]]})
    usual = load_pairs(path)
    assert usual.images.kind == "features" and usual.images.read([0]) == [png(0)]  # vectors train, and pictures show
    pairs = load_pairs(path, image_column="thumb", text_column="alt", key_column="sha")
    assert pairs.captions == ["b"] and pairs.keys == ["s"] and pairs.images.read([0]) == [png(1)]
    assert pairs.images.kind == "bytes"


@pytest.mark.parametrize(
    ("text", "image"),
    [(pa.large_string(), pa.large_binary()), (pa.dictionary(pa.int8(), pa.string()), pa.binary(len(png(1))))],
)
def test_types_of_text_and_bytes(tmp_path: Path, text: pa.DataType, image: pa.DataType) -> None:
    columns = {"caption": pa.array(["a", "b"], text), "image": pa.array([png(1), png(2)], image)}
    pairs = load_pairs(write(tmp_path / "in.parquet", columns))
    assert pairs.captions == ["a", "b"] and pairs.reasons == {} and pairs.images.read([1, 0]) == [png(2), png(1)]


@pytest.mark.parametrize("dictionary", [False, True])
def test_paths_that_are_not_utf8(tmp_path: Path, dictionary: bool) -> None:
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff.png", b"good.png"]).buffers())  # nobody checked it
    (tmp_path / "good.png").write_bytes(png(1))
    paths = raw.dictionary_encode() if dictionary else raw
    flat = load_pairs(write(tmp_path / "flat.parquet", {"caption": ["a", "b"], "image_path": paths}))
    assert set(flat.reasons) == {0} and "missing" in flat.reasons[0]
    assert flat.images.read([0, 1]) == [None, png(1)]
    flat.reasons[0].encode()  # can be printed and written
    cells = pa.StructArray.from_arrays([pa.array([png(0), None], pa.binary()), raw], ["bytes", "path"])
    nested = load_pairs(write(tmp_path / "nested.parquet", {"caption": ["a", "b"], "image": cells}))
    assert nested.reasons == {} and nested.images.read([0, 1]) == [png(0), png(1)]
    assert [x for _, chunk in nested.images.iter_encoded(1) for x in chunk] == [png(0), png(1)]


def test_images_are_read_across_row_groups_files_and_batches(tmp_path: Path) -> None:
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
    for limit in (0, 1, 299, 300, 700, 701, 9999):
        some = load_pairs(tmp_path, limit=limit)
        assert len(some) == len(some.images) == some.source.n_rows == min(limit, n)
    assert load_pairs(str(tmp_path / "[cd].parquet")).captions == pairs.captions[700:]
    for limit in (1.5, -1, True):
        with pytest.raises(ConfigError, match=rf"limit of load_pairs must be a whole number >= 0 .* found {limit}"):
            load_pairs(tmp_path, limit=limit)  # type: ignore[arg-type]


def test_many_files_are_not_looked_at_again_for_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 40
    for k in range(n):
        write(tmp_path / f"{k:02}.parquet", {"caption": [f'["text {k}", "other"]'], "image": [png(k)]})
    looked, real = Counter[str](), os.stat
    monkeypatch.setattr(os, "stat", lambda path, **how: (looked.update([str(path)]), real(path, **how))[1])
    pairs = load_pairs(tmp_path)
    assert pairs.images.read(range(n)) == [png(k) for k in range(n)] and len(pairs) == 2 * n
    assert looked.total() < 50 * n


def test_each_footer_of_thousands_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "0.parquet", {"caption": ["a"], "image": [png(0)]})
    paths = [str(tmp_path / f"{k}.parquet") for k in range(5000)]
    for path in paths[1:]:
        os.link(paths[0], path)
    opened, real = Counter[str](), parquet_io.open_parquet
    monkeypatch.setattr(parquet_io, "open_parquet", lambda path: (opened.update([path]), real(path))[1])
    assert parquet_io.count_rows(paths) == parquet_io.count_rows(paths) == [1] * 5000
    assert opened == Counter(paths)


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
    path = tmp_path / "flipped.parquet"
    rng = np.random.default_rng(0)
    table = pa.table({"caption": [f"caption {i}" for i in range(300)], "image": [rng.bytes(200) for _ in range(300)]})
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)
    raw = path.read_bytes()
    for at in range(200, len(raw) - 2000, 6007):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        assert_not_loaded(r"flipped\.parquet", path)
    path.write_bytes(raw)
    assert len(load_pairs(path)) == 300


def test_other_objects() -> None:
    want = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    for vectors in (want, want[:, :1]):
        cells = [v[0] if len(v) == 1 else v for v in vectors]
        pairs = load_pairs(pd.DataFrame({"caption": list("abc"), "image_features": cells}))
        np.testing.assert_array_equal(pairs.images.array(), vectors)
    schema = pa.schema([("caption", pa.string()), ("image_features", pa.list_(pa.float32(), 3))])
    array = load_pairs(schema.empty_table()).images.array()
    assert array is not None and array.shape == (0, 1, 3)
    batch = pa.RecordBatch.from_pydict({"caption": ["a"], "image": [png(0)]})

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.Table.from_batches([batch]).__arrow_c_stream__(requested_schema)

    for data in (batch, Frame(), load_pairs(batch)):
        assert load_pairs(data).captions == ["a"]


@pytest.mark.parametrize("size", [2, -1])
def test_nulls_among_vectors(tmp_path: Path, size: int) -> None:
    kind = pa.list_(pa.list_(pa.float32(), size), size)
    odd = [[5.0, 6.0], [7.0, None]] if size > 0 else [[5.0, 6.0], [7.0]]
    nested = [[[1.0, 2.0], None], None, [[1.0, 2.0], [3.0, 4.0]], odd]
    flat = [[1.0, 2.0], None, [3.0, 4.0], [5.0, None]]
    for column, bad in ((pa.array(flat, pa.list_(pa.float32(), size)), [1, 3]), (pa.array(nested, kind), [0, 1, 3])):
        pairs = load_pairs(write(tmp_path / "a.parquet", {"caption": list("abcd"), "image_features": column}))
        array = pairs.images.array()
        assert sorted(pairs.reasons) == bad and array is not None and not array[bad].any()
        np.testing.assert_array_equal(array[2].ravel(), [3, 4] if column[2].as_py() == [3, 4] else [1, 2, 3, 4])


def test_views_are_read_as_what_they_are_views_of(tmp_path: Path) -> None:
    image = pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())])
    columns = {
        "captions": pa.array([["a", "b"], ["c"], None], pa.list_(pa.string_view())),
        "image": pa.array([{"bytes": png(i), "path": None} for i in range(3)], image),
        "key": pa.array(list("xyz"), pa.string_view()),
        "tags": pa.array([["t"], [], None], pa.list_view(pa.string())),
    }
    pairs = load_pairs(write(tmp_path / "in.parquet", columns))
    assert pairs.captions == ["a", "b", "c", ""] and pairs.keys == list("xxyz")
    batches = list(iter_tables(pairs.source, 2))
    assert "view" not in str(batches[0].schema) and [len(b) for b in batches] == [2, 1]
    taken = pa.Table.from_batches(batches).take(pa.array([2, 0]))
    assert taken["captions"].to_pylist() == [None, ["a", "b"]] and taken["tags"].to_pylist() == [None, ["t"]]
    assert taken["image"][1].as_py() == {"bytes": png(0), "path": None}
    assert pairs.images.read([1]) == [png(1)]


@pytest.mark.parametrize("named", [True, False])
def test_a_directory_with_an_earlier_export(tmp_path: Path, named: bool) -> None:
    """Its ledger and its dropped pairs are Parquet too, and no input."""
    folder = tmp_path / "cleaned"
    folder.mkdir()
    write(folder / "out.parquet", {"caption": ["a"], "image": [png(0)]})
    other = {"pair_id": [0, 1], "action": ["keep", "drop"]}
    for name in ("out.parquet.ledger.parquet", "gone.parquet"):
        write(folder / name, other)
    roles = {"out.parquet": "out", "out.parquet.ledger.parquet": "ledger", "gone.parquet": "dropped"}
    files = {name: {"role": role, "rows": 1} for name, role in roles.items()}
    manifest = folder / "out.parquet.manifest.json"
    if named:
        manifest.write_text(json.dumps({"files": files}))
        assert load_pairs(folder).captions == ["a"]
        return
    for text in ("{", "[]", '{"files": 3}', '{"files": {"a": 1}}'):  # of somebody else: nothing is left out
        manifest.write_text(text)
        assert_not_loaded("the files differ in column", folder)


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
    with pytest.raises(DataError, match="row group 0 has no rows, and 1 by the footer"):
        list(iter_batches([str(tmp_path / "t.parquet")], None, 7))
