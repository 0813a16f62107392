"""Every value of every output is that of the input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import OutputError
from cleanpairs.data import load_pairs
from cleanpairs.export import export_pairs, restore_export
from cleanpairs.export.layout import StoredRows
from cleanpairs.repair.plan import RepairPlan


def regions(n: int) -> pa.Array:
    """(n, 2, 3) float32, all different."""
    flat = pa.array(np.arange(6 * n, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2)


def test_regions_beside_a_dictionary_in_odd_row_groups(tmp_path: Path, make_plan: Callable[..., RepairPlan]) -> None:
    """A dictionary column makes the reader cut its batches where row groups end: they are slices of larger arrays."""
    n = 700
    columns = {
        "caption": [f"text {i}" for i in range(n)],
        "image_features": regions(n),
        "site": pa.array([f"s{i % 5}" for i in range(n)]).dictionary_encode(),
    }
    path, table = tmp_path / "in.parquet", pa.table(columns)
    pq.write_table(table, path, row_group_size=301)
    pairs = load_pairs(path)
    actions = np.random.default_rng(0).choice(["keep", "drop"], n, p=[0.7, 0.3])
    out, gone, back = (tmp_path / f"{name}.parquet" for name in ("out", "dropped", "back"))
    export_pairs(pairs, make_plan(pairs, actions.tolist()), out, dropped=gone)
    restore_export(out, back)
    whole = np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3)
    for file, rows in [(out, actions == "keep"), (gone, actions == "drop"), (back, actions != "")]:
        found = pq.read_table(file)
        assert found["image_features"].to_pylist() == whole[rows].tolist(), file.name
        assert found["site"].to_pylist() == [f"s{i % 5}" for i in np.flatnonzero(rows)]


def test_a_full_folder_for_temporary_files_is_named() -> None:
    batches = iter([pa.record_batch({"image": [b"x" * 1000] * 100})])
    with pytest.raises(OutputError, match=r"temporary file /dev/full .*No space left.*TMPDIR"):
        StoredRows.collect(Path("/dev/full"), batches, np.arange(100))
