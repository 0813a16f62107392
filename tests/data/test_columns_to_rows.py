"""Rows converted a column at a time are the rows converted one by one; vectors of captions beside those of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs import load_pairs
from cleanpairs.data import table_reader
from cleanpairs.data.rows import RowBatch, Rows, convert, vectors_of
from cleanpairs.data.text import caption_fault

CAPTION = st.none() | st.text(max_size=6) | st.text(" \t\n\x00\x1f\u3000aé", max_size=4) | st.just("x" * 50)
KEYS = st.sampled_from(["strings", "numbers", "none"])


def converted(captions: list[Any], keys: list[Any] | None, first: int, lists: bool) -> RowBatch:
    columns = {"text": "t", "features": "v"} | ({} if keys is None else {"key": "k"})
    arrays: dict[str, Any] = {
        "t": pa.array(captions, pa.list_(pa.string()) if lists else pa.string()),
        "v": pa.array([[1.0, np.nan if i == 2 else 2.0] for i in range(len(captions))], pa.list_(pa.float32(), 2)),
    }
    if keys is not None:
        arrays["k"] = pa.array(keys, pa.int64() if keys and isinstance(keys[0], int) else pa.string())
    batch = pa.RecordBatch.from_pydict(arrays)
    shapes = {"features": (1, 2, np.dtype(np.float32))}
    return convert(Rows("x", batch, {1: "odd"}), columns, shapes, image_root=None, first_row=first)


@pytest.mark.parametrize("lists", [False, True])
@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=KEYS, first=st.integers(0, 3))
def test_a_batch_is_its_rows_one_by_one(data: st.DataObject, lists: bool, kind: str, first: int) -> None:
    rows = st.none() | st.lists(CAPTION, max_size=3) if lists else CAPTION
    captions = data.draw(st.lists(rows, min_size=2, max_size=8))
    n = len(captions)
    keys: list[Any] | None = {"strings": [None, *map(str, range(1, n))], "numbers": list(range(n)), "none": None}[kind]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLEANPAIRS_MAX_CAPTION_BYTES", "40")
        found = converted(captions, keys, first, lists)
        texts = [(i, k, t) for i, row in enumerate(captions) for k, t in enumerate((row or [None]) if lists else [row])]
        faults = {p: "odd" if i == 1 else "its vector is not finite" if i == 2 else caption_fault(t)
                  for p, (i, _, t) in enumerate(texts)}  # fmt: skip
    assert found.captions.to_pylist() == [t or "" for _, _, t in texts]
    assert list(zip(found.row, found.position, strict=True)) == [(i, k) for i, k, _ in texts]
    own = {i: str(first + i) if keys is None or keys[i] is None else str(keys[i]) for i in range(n)}
    assert found.keys.to_pylist() == [own[i] for i, _, _ in texts]
    assert found.faults == {p: why for p, why in faults.items() if why}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_vectors_that_are_not_finite_become_zero_in_every_precision(kind: Any) -> None:
    values = np.arange(12, dtype=kind).reshape(4, 3)
    values[1, 2], values[3, 0] = np.inf, np.nan
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)
    made = np.dtype(np.float16 if kind is np.float16 else np.float32)
    for array in (column, column.slice(1), column.slice(0, 0)):
        found, faults = vectors_of(array, (1, 3, made))
        want = np.where(np.isfinite(values).all(1)[:, None], values, 0)[4 - len(array) if len(array) < 4 else 0 :]
        np.testing.assert_array_equal(found[:, 0], want[: len(array)].astype(made))
        assert found.dtype == made and len(faults) == (2 if len(array) else 0)
    before = column.to_pylist()
    vectors_of(column, (1, 3, made))
    np.testing.assert_equal(column.to_pylist(), before)  # the column itself is not written


@pytest.mark.parametrize("large", [False, True])
def test_vectors_of_captions_are_read_with_their_faults(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_reader, "IN_MEMORY", 0 if large else 1 << 20)
    zeros = [0.0] * 1000  # of all five more than a page, below which there is no file
    texts = [[1.0, 2.0, *zeros], None, [3.0], [np.inf, 1.0, *zeros], [4.0, 5.0, *zeros]]
    table = pa.table(
        {
            "caption": ["a", "b", "c", "d", "e"],
            "image_features": pa.array(np.eye(5, dtype=np.float32).tolist(), pa.list_(pa.float32(), 5)),
            "text_features": pa.array(texts, pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    pairs = load_pairs(tmp_path / "data.parquet")
    assert pairs.source.columns["text_features"] == "text_features"
    assert isinstance(pairs.text_vectors, np.memmap) == large and pairs.text_vectors is not None
    np.testing.assert_array_equal(pairs.text_vectors[:, :2], [[1, 2], [0, 0], [0, 0], [0, 0], [4, 5]])
    missing, short = "there is no text vector", "its text vector has 1 values, not 1002"
    assert pairs.reasons == {1: missing, 2: short, 3: "its text vector is not finite"}
    lists = table.set_column(0, "caption", pa.array([["a", "b"]] * 5))
    pq.write_table(lists, tmp_path / "lists.parquet")
    several = load_pairs(tmp_path / "lists.parquet")  # one vector a row is not one a caption
    assert several.text_vectors is None and not several.reasons and len(several) == 10
