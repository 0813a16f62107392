"""Reading Parquet: columns, every form of image and vector, quarantine, faults that name their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import Pairs, fingerprint_of, iter_tables, load_pairs, table_reader
from cleanpairs.data.parquet_io import iter_batches
from tests.helpers import picture as png


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def vectors(rows: list[Any]) -> dict[str, Any]:
    return {"caption": [f"text {i}" for i in range(len(rows))], "image_features": rows}


def array_of(pairs: Pairs) -> np.ndarray:
    array = pairs.images.array()
    assert array is not None
    return array


def test_a_row_of_bytes_and_text(tmp_path: Path) -> None:
    n = 7
    columns = {"ID": [f"k{i}" for i in range(n)], "JPG": [png(i % 5) for i in range(n)], "TEXT": ["text"] * n}
    pairs = load_pairs(write(tmp_path / "in.parquet", columns, row_group_size=3))
    assert len(pairs) == n and repr(pairs) == "Pairs(7 pairs of 7 images (bytes))"
    assert pairs.source.columns == {"text": "TEXT", "image": "JPG", "key": "ID"}
    assert pairs.keys == [f"k{i}" for i in range(n)] and pairs.reasons == {}
    np.testing.assert_array_equal(pairs.pair_id, np.arange(n))
    np.testing.assert_array_equal(pairs.image_index, np.arange(n))
    same = pairs.image_group[:, None] == pairs.image_group
    np.testing.assert_array_equal(same, np.arange(n)[:, None] % 5 == np.arange(n) % 5)
    assert fingerprint_of(pairs.source) == pairs.source.fingerprint


def test_lists_of_captions_are_pairs_of_one_image(tmp_path: Path) -> None:
    captions = [["a", "b"], [], None, ["A ", None, "c"]]
    path = write(tmp_path / "in.parquet", {"image": [png(i) for i in range(4)], "captions": captions})
    pairs = load_pairs(path)
    assert pairs.source.explicit_lists and pairs.source.n_rows == 4
    assert pairs.row.tolist() == [0, 0, 1, 2, 3, 3, 3] and pairs.position.tolist() == [0, 1, 0, 0, 0, 1, 2]
    assert pairs.image_index.tolist() == pairs.row.tolist() and pairs.keys == ["0", "0", "1", "2", "3", "3", "3"]
    assert set(pairs.reasons) == {2, 3, 5}
    assert pairs.text_group[0] == pairs.text_group[4] != pairs.text_group[1]


@pytest.mark.parametrize("lists", [False, True])
def test_unusable_captions_are_quarantined_with_their_reason(tmp_path: Path, lists: bool) -> None:
    raw = pa.array([b"fine", None, b" \t", b"a\0b", b"\xff\xfe broken", b"x" * 80_000])
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    column = pa.ListArray.from_arrays(list(range(len(raw) + 1)), text) if lists else text
    path = write(tmp_path / "in.parquet", {"image": [png(i) for i in range(len(raw))], "caption": column})
    pairs = load_pairs(path)
    assert pairs.captions[0] == "fine" and "broken" in pairs.captions[4]
    for why, words in zip(pairs.reasons.values(), ("no caption", "empty", "NUL", "UTF-8", "longer"), strict=True):
        assert words in why


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


def test_vectors_train_and_pictures_show(tmp_path: Path) -> None:
    columns = {"caption": ["a", "b"], "image": [png(0), png(1)], "image_features": [[1.0, 2.0], [3.0, 4.0]]}
    path = write(tmp_path / "in.parquet", columns)
    pairs = load_pairs(path)
    assert pairs.images.kind == "features" and pairs.images.read([1]) == [png(1)]
    assert load_pairs(path, image_column="image").images.kind == "bytes"


def test_images_as_struct_of_bytes_and_path(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(png(2))
    cells = [{"bytes": png(1), "path": "x.png"}, {"bytes": None, "path": "b.png"}, {"bytes": None, "path": None}, None]
    pairs = load_pairs(write(tmp_path / "in.parquet", {"image": cells, "text": list("abcd")}))
    assert pairs.images.read([0, 1, 2, 3]) == [png(1), png(2), None, None] and set(pairs.reasons) == {2, 3}


def test_a_wrong_column_name_lists_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"image": [png(0)], "headline": ["a"], "site": [1]})
    with pytest.raises(DataError, match=r"no column 'hedline'; did you mean 'headline'\?.*image.*headline.*site"):
        load_pairs(path, text_column="hedline")
    with pytest.raises(DataError, match=r"--column text=.*headline.*site"):
        load_pairs(path)
    with pytest.raises(DataError, match="'site'"):
        load_pairs(path, text_column="site")
    assert load_pairs(path, text_column="headline").captions == ["a"]
    with pytest.raises(DataError, match="--column image="):
        load_pairs(write(tmp_path / "text.parquet", {"caption": ["a"]}))


def test_several_files_are_one_input_in_order(tmp_path: Path) -> None:
    for k in range(3):  # an empty list has the type null
        columns = {"caption": [f"{k}.{i}" for i in range(k)], "image": [png(i) for i in range(k)]}
        write(tmp_path / f"part-{k}.parquet", columns)
    pairs = load_pairs(tmp_path)
    assert pairs.captions == ["1.0", "2.0", "2.1"] and pairs.images.read([2, 0]) == [png(1), png(0)]
    assert load_pairs(str(tmp_path / "part-[12].parquet")).captions == pairs.captions
    for limit in (1.5, -1):
        with pytest.raises(ConfigError, match=rf"limit is a number of rows, 0 or more; found {limit}"):
            load_pairs(tmp_path, limit=limit)  # type: ignore[arg-type]
    assert load_pairs(tmp_path, limit=2).captions == ["1.0", "2.0"]


@pytest.mark.parametrize(
    ("a", "b", "whole"),
    [
        (pa.array([0.5]), pa.array([0.25], pa.float32()), [0.5, 0.25]),
        (pa.nulls(1), pa.array(["x"]), [None, "x"]),
        (pa.array([1], pa.int16()), pa.array([2**40]), [1, 2**40]),
        (pa.array(["x"]), pa.array(["y"], pa.large_string()), ["x", "y"]),
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


def test_parquet_in_folders_below(tmp_path: Path) -> None:
    """Partitions of Spark, and a clone of a dataset of the hub, of which a split is read."""
    for k, name in enumerate(["lang=en/part=0/0", "lang=en/part=1/0", "lang=de/.tmp/0", ".git/0", "lang=de/part=0/0"]):
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
    with pytest.raises(DataError, match=r"no split 'dev' \(splits: test, train\)"):
        load_pairs(tmp_path / "hub", split="dev")
    with pytest.raises(DataError, match="has no splits"):
        load_pairs(tmp_path / "hive", split="train")
    (tmp_path / "hub" / "data" / f"{name}.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(DataError, match="pointer of Git LFS: run git lfs pull"):
        load_pairs(tmp_path / "hub", split="test")


def test_a_column_that_one_file_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"caption": ["a"], "image": [png(0)], "width": [1]})
    write(tmp_path / "b.parquet", {"caption": ["b"], "image": [png(1)]})
    with pytest.raises(DataError, match=r"'width'.*missing.*b\.parquet"):
        load_pairs(tmp_path)


@pytest.mark.parametrize("fault", [lambda data: data[:-100], lambda _: b"", lambda _: b"<html>" * 99])
def test_a_corrupt_file_is_named(tmp_path: Path, fault: Any) -> None:
    path = write(tmp_path / "broken.parquet", {"caption": ["a"] * 500, "image": [png(i) for i in range(500)]})
    path.write_bytes(fault(path.read_bytes()))
    with pytest.raises(DataError, match=r"broken\.parquet"):
        load_pairs(path)


def test_what_is_no_input(tmp_path: Path) -> None:
    for data in (tmp_path / "none.parquet", tmp_path, str(tmp_path / "*.parquet"), f"{tmp_path}/{5000 * 'x'}"):
        with pytest.raises(DataError, match=str(tmp_path)):
            load_pairs(data)
    with pytest.raises(DataError, match="not of int"):
        load_pairs([1, 2])


def test_iter_tables_gives_every_column_back(tmp_path: Path) -> None:
    columns = {"caption": [f"t{i}" for i in range(50)], "image": [png(i) for i in range(50)]}
    columns |= {"extra": [{"a": i} for i in range(50)], "more": [[i] for i in range(50)]}
    path = write(tmp_path / "in.parquet", columns, row_group_size=7)
    pairs = load_pairs(path)
    batches = list(iter_tables(pairs.source, batch_rows=8))
    assert max(len(b) for b in batches) <= 8
    assert pa.Table.from_batches(batches).equals(pq.read_table(path))
    assert pa.Table.from_batches(iter_tables(load_pairs(path, limit=11).source)).num_rows == 11
    assert next(iter_tables(pairs.source, columns=["more"])).schema.names == ["more"]
    with pytest.raises(DataError, match="memory"):
        next(iter_tables(pairs.select([0]).source))


def test_batches_of_large_rows_are_small(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", {"caption": ["t"] * 40, "image": [bytes([i]) * 2**21 for i in range(40)]})
    sizes = [batch.nbytes for _, batch in iter_batches([str(path)], None, 512)]
    assert len(sizes) > 2 and max(sizes) <= 40 * 2**20


def test_truth_columns_are_read_and_not_used(tmp_path: Path) -> None:
    images, path = [png(i) for i in range(3)], tmp_path / "in.parquet"
    flat = {"image": images, "caption": list("abc"), "true_mismatch": [True, False, None], "true_key": ["1", "1", None]}
    pairs = load_pairs(write(path, flat))
    assert pairs.true_mismatch_mask().tolist() == [True, False, False] and pairs.true_key == ["1", "1", ""]
    lists = {"image": images, "captions": [["a", "b"], ["c"], []], "true_mismatch": [[False, True], [True], []]}
    pairs = load_pairs(write(path, lists | {"true_key": [["x", "y"], ["z"], []]}))
    assert pairs.true_mismatch_mask().tolist() == [False, True, True, False] and pairs.true_key == ["x", "y", "z", ""]
    with pytest.raises(DataError, match=r"'true_mismatch' .*in\.parquet is string"):
        load_pairs(write(path, flat | {"true_mismatch": ["False"] * 3}))


def test_tables_and_frames_are_inputs(tmp_path: Path) -> None:
    table = pa.table({"caption": ["a", "b"], "image": [png(0), png(1)]})
    from_table, from_frame = load_pairs(table), load_pairs(table.to_pandas())
    assert from_table.captions == from_frame.captions == ["a", "b"]
    assert from_table.source.fingerprint == load_pairs(table).source.fingerprint
    category = table.to_pandas().astype({"caption": "category"})
    assert load_pairs(category).captions == ["a", "b"]
    assert load_pairs(from_table) is from_table
    mixed = table.to_pandas().assign(odd=[1, "x"])
    with pytest.raises(DataError, match="DataFrame"):
        load_pairs(mixed)


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
