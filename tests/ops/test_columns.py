"""Slices of nested fixed-size lists, of which pyarrow takes wrong values."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs.ops.columns import filtered, taken
from tests.helpers import calls_of

PACKAGE = Path(__file__).resolve().parents[2] / "cleanpairs"


def nested(n: int, regions: int = 3, dim: int = 2, dtype: str = "float32") -> pa.Array:
    x = np.arange(1, n * regions * dim + 1).astype(dtype)
    return pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(x), dim), regions)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["lists", "struct", "list", "large list", "map"])
def test_rows_are_taken_out_of_slices_of_nested_lists(kind: str, inside: bool) -> None:
    whole = nested(60)
    array = whole.slice(7, 50) if inside else whole  # an offset within, which the outermost array does not show
    if kind == "struct":
        array = pa.StructArray.from_arrays([array], ["x"])
    elif kind == "list" or kind == "large list":
        made = pa.ListArray if kind == "list" else pa.LargeListArray
        array = made.from_arrays(np.arange(0, len(array) + 1, 2), array)
    elif kind == "map":
        keys = pa.array([str(i) for i in range(len(array))])
        array = pa.MapArray.from_arrays(np.arange(0, len(array) + 1, dtype=np.int32), keys, array)
    array = array.slice(3, 20)
    wanted, rows = array.to_pylist(), np.array([17, 0, 3, 3])
    some = [wanted[i] for i in rows]
    mask = np.isin(np.arange(20), rows)
    of_mask = [value for value, there in zip(wanted, mask, strict=True) if there]
    batch = pa.record_batch([array], names=["a"])
    table = pa.table({"a": pa.chunked_array([array.slice(0, 9), array.slice(9)])})
    for data in (array, table["a"]):
        assert taken(data, rows).to_pylist() == some and filtered(data, mask).to_pylist() == of_mask
    for data in (batch, table):
        assert [row["a"] for row in taken(data, rows).to_pylist()] == some
        assert [row["a"] for row in filtered(data, mask).to_pylist()] == of_mask
    assert taken(array, pa.array([2, None])).to_pylist() == [wanted[2], None]


@pytest.mark.parametrize("folder", ["data", "export", "repair", "verification"])
def test_rows_of_tables_are_taken_in_one_place(folder: str) -> None:
    """`take` and `filter` of pyarrow give other rows' values for slices of nested lists."""
    for file in sorted((PACKAGE / folder).rglob("*.py")):
        if file.name == "lance_dataset.py":  # Lance's method, which takes rows of its own files
            continue
        wrong = [node.lineno for name, node in calls_of(file) if name.endswith((".take", ".filter"))]
        assert not wrong, f"{file.name}, lines {wrong}: use cleanpairs.ops.columns.taken or filtered"
