"""Vectors read and written page by page are what Arrow reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.data import ParquetSink, parquet_io, vector_pages
from cleanpairs.data.parquet_io import iter_batches, open_parquet
from cleanpairs.data.vector_pages import plain_columns
from cleanpairs.errors import DataError

KINDS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
LISTS: dict[str, Callable[[pa.DataType, int], pa.DataType]] = {
    "fixed": lambda kind, size: pa.list_(pa.field("element", kind), size),
    "list": lambda kind, size: pa.list_(pa.field("element", kind)),
    "large": lambda kind, size: pa.large_list(pa.field("element", kind)),
    "fixed, no null": lambda kind, size: pa.list_(pa.field("element", kind, nullable=False), size),
}


def _values(rows: int, size: int, kind: str = "float32", seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(rows, size)).astype(kind))


def _table(rows: int, size: int, kind: str, lists: str, nullable: bool = True) -> pa.Table:
    column = pa.array(_values(rows, size, kind), LISTS[lists](KINDS[kind], size))
    names = pa.array([f"row {i}" if i % 7 else None for i in range(rows)], pa.string())
    fields = [pa.field("name", pa.string()), pa.field("vector", column.type, nullable=nullable)]
    return pa.Table.from_arrays([names, column], schema=pa.schema(fields, {b"note": b"kept"}))


def _read(path: Path, columns: list[str] | None = None, rows: int = 100, first: int = 0) -> pa.Table:
    return pa.Table.from_batches([batch for _, batch in iter_batches([str(path)], columns, rows, None, first)])


def _by_arrow(path: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> pa.Table:
    with monkeypatch.context() as patch:
        patch.setattr(parquet_io, "plain_columns", lambda *_: {})
        return _read(path, **how)


def _plain(path: Path) -> set[str]:
    with open_parquet(str(path)) as file:
        return set(plain_columns(file, file.schema_arrow.names))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("nullable", [True, False])
def test_vectors_are_those_that_arrow_reads(
    kind: str, lists: str, nullable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(
        _table(1000, 12, kind, lists, nullable), path, row_group_size=300, use_dictionary=False, compression="none",
        data_page_size=1000, write_batch_size=7,
    )  # fmt: skip
    assert _plain(path) == {"vector"}
    for how in ({}, {"columns": ["vector"]}, {"rows": 1}, {"rows": 999, "first": 301}, {"columns": ["name"]}):
        found, wanted = _read(path, **how), _by_arrow(path, monkeypatch, **how)
        found.validate(full=True)
        assert found.schema.equals(wanted.schema, check_metadata=True)
        assert found.equals(wanted)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 700])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_of_any_size_page_and_compression(size: int, version: str, compression: str, tmp_path: Path) -> None:
    table, path = _table(300, size, "float16", "list"), tmp_path / "rows.parquet"
    pq.write_table(
        table, path, row_group_size=128, use_dictionary=["name"], compression=compression, data_page_version=version,
        data_page_size=700, write_page_checksum=True,
    )  # fmt: skip
    assert _plain(path) == {"vector"}
    assert _read(path).equals(table)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_of_few_rows(rows: int, tmp_path: Path) -> None:
    table, path = _table(rows, 4, "float32", "fixed"), tmp_path / "rows.parquet"
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)
    assert pq.read_table(path).equals(table)
    assert sum(len(batch) for _, batch in iter_batches([str(path)], None, 10)) == rows


@pytest.mark.parametrize("odd", [[None], [[]], [[1.0, None]], [[1.0, 2.0, 3.0]]])
def test_what_is_no_vector_is_left_to_arrow_for_its_row_group(
    odd: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [[float(i), float(-i)] for i in range(400)]
    lists[150:150] = odd
    path = tmp_path / "rows.parquet"
    table = pa.table({"vector": pa.array(lists, pa.list_(pa.float32())), "row": range(401)})
    pq.write_table(table, path, row_group_size=100, use_dictionary=False, compression="none", data_page_size=100)
    opened: list[int] = []
    real = vector_pages._ByArrow.__init__

    def counted(self: Any, file: Any, name: str, group: int, first: int) -> None:
        opened.append(group)
        real(self, file, name, group, first)

    monkeypatch.setattr(vector_pages._ByArrow, "__init__", counted)
    assert _read(path, rows=33).equals(table)
    assert opened == [1]


def test_a_null_in_the_middle_of_a_row_group_costs_no_row(tmp_path: Path) -> None:
    """As many numbers as rows times the length: only the levels tell."""
    lists: list[Any] = [[float(i), float(-i)] for i in range(400)]
    lists[150], lists[151] = None, [1.0, 2.0, 3.0]
    path = tmp_path / "rows.parquet"
    table = pa.table({"vector": pa.array(lists, pa.list_(pa.float32()))})
    pq.write_table(table, path, row_group_size=200, use_dictionary=False, compression="none", data_page_size=100)
    assert _plain(path) == {"vector"}
    assert _read(path, rows=33).equals(table)


def test_what_has_a_dictionary_or_clashing_names_is_left_to_arrow(tmp_path: Path) -> None:
    table = _table(100, 4, "float32", "fixed")
    pq.write_table(table, tmp_path / "a.parquet", compression="none")
    assert _plain(tmp_path / "a.parquet") == set()
    dotted = table.rename_columns(["name", "vector.list"])
    pq.write_table(dotted, tmp_path / "b.parquet", compression="none", use_dictionary=False)
    assert _plain(tmp_path / "b.parquet") == set()
    assert _read(tmp_path / "b.parquet").equals(dotted)


@pytest.mark.parametrize("at", range(0, 4000, 97))
def test_damage_is_seen_or_does_no_harm(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped byte anywhere in the pages: what Arrow says of the file is what is said."""
    table, path = _table(200, 8, "float32", "fixed"), tmp_path / "rows.parquet"
    with ParquetSink(path, table.schema) as sink:
        sink.write(table)
    data = bytearray(path.read_bytes())
    data[4 + at] ^= 0x55
    path.write_bytes(data)
    said = []
    for read in (_read, lambda path: _by_arrow(path, monkeypatch)):
        try:
            said.append(read(path))
        except DataError as error:
            said.append(str(error).split(":")[0])
    assert said[0].equals(said[1]) if isinstance(said[0], pa.Table) else said[0] == said[1], said


STRUCT = pa.struct([("name", pa.string()), ("vector", pa.list_(pa.float16(), 3)), ("other", pa.list_(pa.float64()))])


def _nested(rows: int) -> pa.Table:
    def cell(i: int) -> dict[str, Any] | None:
        if i % 5 == 0:
            return None
        return {
            "name": None if i % 3 == 0 else str(i),
            "vector": None if i % 4 == 0 else [i, i + 0.5, -i],
            "other": None if i % 6 == 0 else [float(i)],
        }

    return pa.table({"row": pa.array([cell(i) for i in range(rows)], STRUCT), "number": pa.array(range(rows))})


@pytest.mark.parametrize("rows", [0, 1, 2, 6, 500])
def test_vectors_within_a_struct_and_nulls_at_each_level_are_written(rows: int, tmp_path: Path) -> None:
    table, path = _nested(rows), tmp_path / "rows.parquet"
    with ParquetSink(path, table.schema) as sink:
        for start in range(0, rows, 37):
            sink.write(table.slice(start, 37))
    assert pq.read_table(path).equals(table)
    assert pq.ParquetFile(path, page_checksum_verification=True).read().equals(table)
    pq.read_table(path).validate(full=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lists", LISTS)
def test_vectors_are_written_as_arrow_reads_them(kind: str, lists: str, tmp_path: Path) -> None:
    table, path = _table(777, 500, kind, lists), tmp_path / "rows.parquet"
    with ParquetSink(path, table.schema) as sink:
        for start in range(0, 777, 50):
            sink.write(table.slice(start, 50))
            if start == 400:
                sink.flush()
    assert pq.read_table(path).equals(table)
    assert pq.read_schema(path).equals(table.schema, check_metadata=True)
    assert _read(path).equals(table)
    chunk = pq.read_metadata(path).row_group(0).column(1)
    assert chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page
    assert pq.read_metadata(path).num_row_groups == 2


@pytest.mark.parametrize("odd", [[[]], [[1.0, None]], [[1.0, 2.0, 3.0]], [None, [], [None]]])
def test_lists_that_are_no_vectors_are_written_by_arrow(odd: list[Any], tmp_path: Path) -> None:
    lists = [[1.0, 2.0]] * 5 + odd + [[3.0, 4.0]] * 5
    table = pa.table({"vector": pa.array(lists, pa.list_(pa.float32())), "row": range(len(lists))})
    with ParquetSink(tmp_path / "rows.parquet", table.schema) as sink:
        sink.write(table)
    assert pq.read_table(tmp_path / "rows.parquet").equals(table)


def test_nothing_but_vectors_and_nothing_but_nulls(tmp_path: Path) -> None:
    vector = pa.list_(pa.float32(), 3)
    for lists in ([[1, 2, 3]] * 4, [None] * 4, [None, [1, 2, 3]]):
        table = pa.table({"vector": pa.array(lists, vector)})
        with ParquetSink(tmp_path / "rows.parquet", table.schema) as sink:
            sink.write(table)
        assert pq.read_table(tmp_path / "rows.parquet").equals(table)
        assert _read(tmp_path / "rows.parquet").equals(table)


def test_a_page_is_about_a_mebibyte(tmp_path: Path) -> None:
    table = _table(5000, 512, "float32", "fixed")
    with ParquetSink(tmp_path / "rows.parquet", table.schema) as sink:
        for start in range(0, 5000, 100):
            sink.write(table.slice(start, 100))
    found = _read(tmp_path / "rows.parquet", rows=4096)
    assert found.equals(table)
    levels = vector_pages._all_there.cache_info()
    assert levels.maxsize == 64
