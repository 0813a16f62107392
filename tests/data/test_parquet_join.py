"""Parquet files put one after another: Arrow reads the whole as it reads the parts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.data import ParquetSink
from cleanpairs.data.parquet_join import Segment, join_parquet
from cleanpairs.errors import DataError, OutputError


def table(n: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "text": [None if i % 7 == 3 else f"a caption {rng.integers(9)}" for i in range(n)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * n).astype(np.float32)), 3),
            "list": [[f"w{j}" for j in range(rng.integers(3))] for _ in range(n)],
            "flag": pa.array([bool(i % 2) for i in range(n)], pa.bool_()),
        },
        schema=pa.schema(
            [("text", pa.string()), ("vector", pa.list_(pa.float32(), 3)), ("list", pa.list_(pa.string())),
             ("flag", pa.bool_())],
            {b"note": b"kept"},
        ),
    )  # fmt: skip


def segment(path: Path, data: pa.Table, **settings: Any) -> Segment:
    pq.write_table(data, path, write_page_checksum=True, **settings)
    return Segment(path, 0, path.stat().st_size)


@pytest.mark.parametrize("sizes", [[0], [1], [2, 0, 1], [0, 0], [50, 3, 40], [1] * 40])
@pytest.mark.parametrize("indexed", [False, True])
def test_the_whole_is_the_parts(tmp_path: Path, sizes: list[int], indexed: bool) -> None:
    tables = [table(n, i) for i, n in enumerate(sizes)]
    parts = [
        segment(tmp_path / f"{i}.parquet", t, row_group_size=16, compression="zstd", write_page_index=False)
        for i, t in enumerate(tables)
    ]
    if indexed:  # within another file
        whole = b"before" + b"".join(p.path.read_bytes() for p in parts)
        (tmp_path / "all").write_bytes(whole)
        starts = np.cumsum([6, *(p.size for p in parts)])
        parts = [Segment(tmp_path / "all", int(s), p.size) for s, p in zip(starts, parts, strict=False)]
    joined = join_parquet(parts, tmp_path / "out.parquet")
    assert joined.rows == sum(sizes)
    assert joined.sha256 == hashlib.sha256((tmp_path / "out.parquet").read_bytes()).hexdigest()
    found = pq.read_table(tmp_path / "out.parquet", page_checksum_verification=True)
    found.validate(full=True)
    assert found.equals(pa.concat_tables(tables)) and found.schema.metadata == {b"note": b"kept"}
    meta = pq.read_metadata(tmp_path / "out.parquet")
    assert meta.num_row_groups == sum(-(-n // 16) or 1 for n in sizes) and meta.num_rows == sum(sizes)
    rows = found.filter(found["text"].is_valid())  # statistics are still those of the row groups
    assert pq.read_table(tmp_path / "out.parquet", filters=[("text", ">=", "")]).equals(rows)


def test_page_indexes_move_too(tmp_path: Path) -> None:
    tables = [table(40, i) for i in range(3)]
    parts = [
        segment(tmp_path / f"{i}.parquet", t, row_group_size=16, write_page_index=True) for i, t in enumerate(tables)
    ]
    join_parquet(parts, tmp_path / "out.parquet")
    column = pq.read_metadata(tmp_path / "out.parquet").row_group(4).column(0)
    assert column.has_offset_index and column.has_column_index
    assert pq.read_table(tmp_path / "out.parquet").equals(pa.concat_tables(tables))


def test_what_a_sink_writes_in_parts_is_what_it_writes_at_once(tmp_path: Path) -> None:
    parts = []
    with ParquetSink(tmp_path / "whole.parquet", table(0, 0).schema) as whole:
        for i in range(4):
            with ParquetSink(tmp_path / f"{i}.parquet", whole.schema) as part:
                part.write(table(30, i))
            whole.write(table(30, i))
            whole.flush()
            parts.append(Segment(tmp_path / f"{i}.parquet", 0, (tmp_path / f"{i}.parquet").stat().st_size))
    join_parquet(parts, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    one = segment(tmp_path / "1.parquet", table(3, 0))
    other = segment(tmp_path / "2.parquet", table(3, 0).drop_columns(["flag"]))
    with pytest.raises(DataError, match="another schema"):
        join_parquet([one, other], tmp_path / "out.parquet")
    (tmp_path / "text").write_text("no Parquet, but long enough")
    with pytest.raises(DataError, match="no Parquet"):
        join_parquet([Segment(tmp_path / "text", 0, 27)], tmp_path / "out.parquet")
    with pytest.raises(DataError, match="cannot be read"):
        join_parquet([Segment(tmp_path / "gone", 0, 27)], tmp_path / "out.parquet")
    for cut in (0, 3, 9):
        with pytest.raises(DataError):
            join_parquet([Segment(one.path, 0, one.size - 1 - cut)], tmp_path / "out.parquet")
    with pytest.raises(OutputError):
        join_parquet([one], tmp_path / "no folder" / "out.parquet")
