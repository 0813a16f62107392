"""Parquet that strangers write: odd column names and types, odd paths, odd frames, files that changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import ParquetSink, fingerprint_of, iter_tables, load_pairs
from cleanpairs.data.parquet_io import iter_batches
from tests.helpers import picture as png


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def not_utf8(*raw: bytes) -> pa.Array:
    """A string column whose bytes nobody has checked, as other writers leave it."""
    return pa.Array.from_buffers(pa.string(), len(raw), pa.array(list(raw)).buffers())


def test_a_column_name_that_occurs_twice(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array([png(0)])]
    table = pa.Table.from_arrays(columns, ["caption", "caption", "image"])
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet has the column 'caption' more than once"):
        load_pairs(tmp_path / "twice.parquet")
    frame = pd.DataFrame([["a", "b", png(0)]], columns=["caption", "caption", "image"])
    with pytest.raises(DataError, match="caption"):
        load_pairs(frame)


def test_of_names_that_differ_in_case_the_exact_one_or_the_fitting_one_is_taken(tmp_path: Path) -> None:
    image = [png(0)]
    both = write(tmp_path / "both.parquet", {"CAPTION": ["shout"], "caption": ["say"], "image": image})
    assert load_pairs(both).captions == ["say"]
    other = write(tmp_path / "other.parquet", {"Caption": [1], "CAPTION": ["shout"], "image": image})
    assert load_pairs(other).captions == ["shout"]


def test_named_columns_go_before_the_usual_ones(tmp_path: Path) -> None:
    columns = {"caption": ["a"], "alt": ["b"], "image": [png(0)], "thumb": [png(1)], "key": ["k"], "sha": ["s"]}
    path = write(tmp_path / "in.parquet", columns)
    pairs = load_pairs(path, image_column="thumb", text_column="alt", key_column="sha")
    assert pairs.captions == ["b"] and pairs.keys == ["s"] and pairs.images.read([0]) == [png(1)]
    for option in ({"image_column": "thunb"}, {"key_column": "shaa"}):
        with pytest.raises(DataError, match=r"did you mean '(thumb|sha)'\?.*columns: caption \(string\)"):
            load_pairs(path, **option)


@pytest.mark.parametrize(
    ("text", "image"),
    [
        (pa.large_string(), pa.large_binary()),
        (pa.string_view(), pa.binary_view()),
        (pa.string(), pa.binary(len(png(1)))),
        (pa.dictionary(pa.int8(), pa.string()), pa.binary()),
    ],
)
def test_types_of_text_and_bytes(tmp_path: Path, text: pa.DataType, image: pa.DataType) -> None:
    columns = {"caption": pa.array(["a", "b"], text), "image": pa.array([png(1), png(2)], image)}
    pairs = load_pairs(write(tmp_path / "in.parquet", columns))
    assert pairs.captions == ["a", "b"] and pairs.reasons == {} and pairs.images.read([1, 0]) == [png(2), png(1)]


@pytest.mark.parametrize("dictionary", [False, True])
def test_paths_that_are_not_utf8(tmp_path: Path, dictionary: bool) -> None:
    raw = not_utf8(b"\xff.png", b"good.png")
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
    schema = pa.schema([("caption", pa.string()), ("image", pa.binary()), ("n", pa.int64())])
    n, at = 1300, 0
    for name, size in (("a", 700), ("b", 0), ("c", 1), ("d", 599)):
        rows = range(at, at + size)
        table = pa.table({"caption": [str(i) for i in rows], "image": [png(i) for i in rows], "n": list(rows)}, schema)
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=300)
        at += size
    pairs = load_pairs(tmp_path)
    assert pairs.captions == [str(i) for i in range(n)]
    indices = [*np.random.default_rng(0).integers(0, n, 60).tolist(), 0, 255, 256, 299, 300, 699, 700, 701, n - 1]
    assert pairs.images.read(indices) == [png(i) for i in indices]
    assert [x for _, chunk in pairs.images.iter_encoded(7) for x in chunk] == [png(i) for i in range(n)]
    for limit in (0, 1, 299, 300, 700, 701, 9999):
        some = load_pairs(tmp_path, limit=limit)
        assert len(some) == len(some.images) == some.source.n_rows == min(limit, n)


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path, other = tmp_path / "in.parquet", tmp_path / "copy.parquet"
    write(path, {"caption": ["a", "b"], "image": [png(0), png(1)], "alt": ["x", "y"]})
    other.write_bytes(path.read_bytes())
    pairs = load_pairs(path)
    first = pairs.source
    assert load_pairs(other).source.fingerprint == first.fingerprint == fingerprint_of(first)
    prints = {load_pairs(path, **o).source.fingerprint for o in ({}, {"limit": 1}, {"text_column": "alt"})}
    assert len(prints) == 3
    write(path, {"caption": ["a", "c"], "image": [png(0), png(1)], "alt": ["x", "y"]})
    assert fingerprint_of(first) != first.fingerprint
    path.write_bytes(path.read_bytes()[:-30])  # what breaks after it was read is named
    for use in (lambda: pairs.images.read([0]), lambda: list(pairs.images.iter_encoded(8))):
        with pytest.raises(DataError, match=r"in\.parquet"):
            use()
    path.unlink()
    with pytest.raises(DataError, match=r"in\.parquet"):
        fingerprint_of(first)


def test_hidden_files_of_a_directory_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "a.parquet", {"caption": ["a"], "image": [png(0)]})
    (folder / "._a.parquet").write_bytes(b"a resource fork")
    assert load_pairs(folder).captions == ["a"]
    (folder / "a.parquet").rename(folder / ".a.parquet")
    with pytest.raises(DataError, match="data"):
        load_pairs(folder)


def test_every_flipped_bit_in_a_page_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "flipped.parquet"
    rng = np.random.default_rng(0)
    table = pa.table({"caption": [f"caption {i}" for i in range(300)], "image": [rng.bytes(200) for _ in range(300)]})
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)
    raw = path.read_bytes()
    for at in range(200, len(raw) - 2000, 6007):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        with pytest.raises(DataError, match=r"flipped\.parquet"):
            load_pairs(path)
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
    with pytest.raises(DataError, match="no column of captions"):
        load_pairs(pd.DataFrame())
    batch = pa.RecordBatch.from_pydict({"caption": ["a"], "image": [png(0)]})

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.Table.from_batches([batch]).__arrow_c_stream__(requested_schema)

    for data in (batch, Frame()):
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
        "n": pa.array(range(3)),
    }
    try:
        path = write(tmp_path / "in.parquet", columns)
    except pa.ArrowException:  # this pyarrow writes no list_view
        columns["tags"] = pa.array([["t"], [], None], pa.list_(pa.string_view()))
        path = write(tmp_path / "in.parquet", columns)
    pairs = load_pairs(path)
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
        with pytest.raises(DataError, match="the files differ in column"):
            load_pairs(folder)


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
