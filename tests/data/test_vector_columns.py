"""Columns of vectors are written plainly, by whatever lists hold them, and read as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.data import ParquetSink
from cleanpairs.data.parquet_io import iter_batches

KINDS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
LISTS: dict[str, Callable[[pa.DataType, int], pa.DataType]] = {
    "fixed": lambda kind, size: pa.list_(pa.field("element", kind), size),
    "list": lambda kind, size: pa.list_(pa.field("element", kind)),
    "large": lambda kind, size: pa.large_list(pa.field("element", kind)),
    "fixed, no null": lambda kind, size: pa.list_(pa.field("element", kind, nullable=False), size),
}
VECTOR = pa.list_(pa.float32(), 2)
STRUCT = pa.struct([("name", pa.string()), ("vector", pa.list_(pa.float16(), 3)), ("other", pa.list_(pa.float64()))])


def _table(rows: int, size: int, kind: str, lists: str) -> pa.Table:
    vectors = list(np.random.default_rng(0).normal(size=(rows, size)).astype(kind))
    names = pa.array([f"row {i}" if i % 7 else None for i in range(rows)], pa.string())
    table = pa.table({"name": names, "vector": pa.array(vectors, LISTS[lists](KINDS[kind], size))})
    return table.replace_schema_metadata({b"note": b"kept"})


def _write(path: Path, table: pa.Table, step: int = 50) -> Path:
    with ParquetSink(path, table.schema) as sink:
        for start in range(0, len(table), step):
            sink.write(table.slice(start, step))
    return path


def _read(path: Path, columns: list[str] | None = None, rows: int = 100, first: int = 0) -> pa.Table:
    return pa.Table.from_batches([batch for _, batch in iter_batches([str(path)], columns, rows, None, first)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lists", LISTS)
def test_vectors_are_read_as_they_were_written(kind: str, lists: str, tmp_path: Path) -> None:
    table = _table(777, 500, kind, lists)
    path = _write(tmp_path / "rows.parquet", table)
    assert pq.read_schema(path).equals(table.schema, check_metadata=True)
    assert _read(path).equals(table) and _read(path, ["vector"], 1).equals(table.select(["vector"]))
    assert _read(path, rows=99, first=301).equals(table.slice(301))
    chunk = pq.read_metadata(path).row_group(0).column(1)
    assert chunk.compression == "ZSTD" and not chunk.has_dictionary_page


@pytest.mark.parametrize("odd", [[None], [[]], [[1.0, None]], [[1.0, 2.0, 3.0]], [None, [], [None]]])
@pytest.mark.parametrize("lists", [pa.list_(pa.float32()), pa.large_list(pa.float32())])
def test_lists_of_other_lengths_and_nulls_too(odd: list[Any], lists: pa.DataType, tmp_path: Path) -> None:
    values = [[float(i), float(-i)] for i in range(400)]
    values[150:150] = odd
    table = pa.table({"vector": pa.array(values, lists), "row": range(len(values))})
    assert _read(_write(tmp_path / "rows.parquet", table), rows=33).equals(table)


@pytest.mark.parametrize("cells", [[], [[1, 2]] * 4, [None] * 4, [None, [1, 2]], [[1, None], None, [None, 2]]])
def test_nothing_but_vectors_and_nothing_but_nulls(cells: list[Any], tmp_path: Path) -> None:
    table = pa.table({"vector": pa.array(cells, VECTOR)})
    path = _write(tmp_path / "rows.parquet", table)
    assert pq.read_table(path).equals(table)
    assert sum(len(batch) for _, batch in iter_batches([str(path)], None, 10)) == len(cells)


def _cell(i: int) -> dict[str, Any] | None:
    if i % 5 == 0:
        return None
    return {
        "name": None if i % 3 == 0 else str(i),
        "vector": None if i % 4 == 0 else [i, i + 0.5, -i],
        "other": None if i % 6 == 0 else [float(i)],
    }


@pytest.mark.parametrize("rows", [0, 1, 2, 6, 500])
def test_vectors_within_a_struct_and_nulls_at_each_level(rows: int, tmp_path: Path) -> None:
    table = pa.table({"row": pa.array([_cell(i) for i in range(rows)], STRUCT), "number": pa.array(range(rows))})
    path = _write(tmp_path / "rows.parquet", table, 37)
    found = pq.ParquetFile(path, page_checksum_verification=True).read()
    found.validate(full=True)
    assert found.equals(table)
