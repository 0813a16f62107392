"""Slices of nested fixed-size lists, of which pyarrow takes wrong values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import load_pairs
from cleanpairs.export import export_pairs, restore_export
from cleanpairs.ops.columns import unsliced
from cleanpairs.plan import PLAN_SCHEMA, RepairPlan


def nested(n: int, regions: int = 3, dim: int = 2, dtype: str = "float32") -> pa.Array:
    x = np.arange(1, n * regions * dim + 1).astype(dtype)
    return pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(x), dim), regions)


@pytest.mark.parametrize("start", [0, 1, 4])
def test_values_of_a_slice(start: int) -> None:
    whole = nested(6)
    part = unsliced(whole.slice(start, 2))
    want = whole.to_pylist()[start : start + 2]
    assert part.to_pylist() == want and part.offset == 0
    assert part.take(pa.array([1, 0])).to_pylist() == want[::-1]
    assert part.filter(pa.array([False, True])).to_pylist() == want[1:]


def test_a_sliced_table_in_memory_is_read_as_it_stands() -> None:
    table = pa.table({"caption": [f"t{i}" for i in range(20)], "image_features": nested(20)})
    part = table.slice(7, 9)
    array = load_pairs(part).images.array()
    assert array is not None
    np.testing.assert_array_equal(array, np.array(part["image_features"].to_pylist(), np.float32))


def test_dropped_regions_come_back(tmp_path: Path) -> None:
    """More rows than are written at a time, so that the ledger is read in slices."""
    n = 400
    table = pa.table({
        "key": [f"k{i}" for i in range(n)], "caption": [f"t{i}" for i in range(n)],
        "image_features": nested(n, dtype="float16"),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    pairs = load_pairs(tmp_path / "in.parquet")
    gone = np.random.default_rng(0).random(n) < 0.4
    rows = [
        {
            "pair_id": i, "key": pairs.keys[i], "action": "drop" if gone[i] else "keep", "correspondence": 0.5,
            "caption": None if gone[i] else pairs.captions[i], "original_caption": pairs.captions[i], "reason": "x",
        }
        for i in range(n)
    ]  # fmt: skip
    plan = RepairPlan(pa.Table.from_pylist(rows, PLAN_SCHEMA), 0.1, 0.5, pairs.source.fingerprint)
    export_pairs(pairs, plan, tmp_path / "out.parquet")
    restore_export(tmp_path / "out.parquet", tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").equals(pq.read_table(tmp_path / "in.parquet"))
