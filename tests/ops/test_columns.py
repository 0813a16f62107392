"""Slices of nested fixed-size lists, and beside lists of nulls, of which pyarrow takes wrong values; mapped arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs.core.errors import OutputError
from cleanpairs.ops.columns import as_schema, filtered, plain_batch, taken
from cleanpairs.ops.mapped import mapped_array, release
from tests.helpers import calls_of

PACKAGE = Path(__file__).resolve().parents[2] / "cleanpairs"


def nested(n: int, regions: int = 3, dim: int = 2) -> pa.Array:
    x = pa.array(np.arange(1, n * regions * dim + 1, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(x, dim), regions)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["lists", "struct", "list"])
def test_rows_are_taken_out_of_slices_of_nested_lists(kind: str, inside: bool) -> None:
    whole = nested(60)
    array = whole.slice(7, 50) if inside else whole  # an offset within, which the outermost array does not show
    if kind == "struct":
        array = pa.StructArray.from_arrays([array], ["x"])
    elif kind == "list":
        array = pa.ListArray.from_arrays(np.arange(0, len(array) + 1, 2), array)
    array = array.slice(3, 20)
    wanted, rows = array.to_pylist(), np.array([17, 0, 3, 3])
    some = [wanted[i] for i in rows]
    mask = np.isin(np.arange(20), rows)
    of_mask = [value for value, there in zip(wanted, mask, strict=True) if there]
    chunks = pa.chunked_array([array.slice(0, 9), array.slice(9)])
    for data in (array, chunks):
        assert taken(data, rows).to_pylist() == some and filtered(data, mask).to_pylist() == of_mask
    for data in (pa.record_batch([array], names=["a"]), pa.table({"a": chunks})):
        assert taken(data, rows)["a"].to_pylist() == some and filtered(data, mask)["a"].to_pylist() == of_mask
    assert taken(array, pa.array([2, None])).to_pylist() == [wanted[2], None]


@pytest.mark.parametrize("folder", ["data", "export", "repair", "verification"])
def test_rows_of_tables_are_taken_in_one_place(folder: str) -> None:
    """`take` and `filter` of pyarrow give other rows' values for slices of nested lists."""
    files = sorted((PACKAGE / folder).rglob("*.py"))
    for file in (f for f in files if f.name != "lance_dataset.py"):  # Lance's method takes rows of its own files
        wrong = [node.lineno for name, node in calls_of(file) if name.endswith((".take", ".filter"))]
        assert not wrong, f"{file.name}, lines {wrong}: use cleanpairs.ops.columns.taken or filtered"


INNER = pa.struct([("a", pa.binary_view()), ("b", pa.list_(pa.null()))])
PLAIN = pa.struct([("a", pa.binary()), ("b", pa.list_(pa.null()))])


def cell(i: int) -> Any:
    return None if i % 5 == 0 else {"a": b"%d" % i, "b": None if i % 4 == 0 else [None] * (i % 3)}


def test_slices_of_lists_of_nulls_get_another_type() -> None:
    words = pa.array([f"w{i % 3}" for i in range(60)])
    cells = pa.array([cell(i) for i in range(60)], PLAIN)
    table = pa.table({"x": pa.StructArray.from_arrays([words.dictionary_encode(), cells], ["w", "c"])}).slice(30, 20)
    wanted = pa.schema([("x", pa.struct([("w", pa.string()), ("c", PLAIN)]))])
    found = as_schema(table, wanted)
    found.validate(full=True)
    assert found.schema == wanted and found.to_pylist() == table.to_pylist()


def test_slices_of_views_beside_lists_of_nulls_become_plain() -> None:
    cells = [cell(i) for i in range(60)]
    batch = pa.record_batch([pa.array(cells, INNER)], names=["x"])
    for first, n in ((0, 60), (30, 20)):
        found = plain_batch(batch.slice(first, n))
        found.validate(full=True)
        assert found.schema.field("x").type == PLAIN and found["x"].to_pylist() == cells[first : first + n]


# -- arrays in mapped files -------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of this process that are mapped from files."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssFile")).split()[1])


def test_mapped_arrays_keep_what_is_written_and_take_no_memory(tmp_path: Path) -> None:
    array = mapped_array((1 << 22,), np.float64, tmp_path)  # 32 MiB
    before = resident()
    array[:] = 3.0
    touched = resident()
    release(array[17:])
    assert touched - before > 30 * 2**20 and resident() - before < 8 * 2**20
    assert (array == 3.0).all() and not list(tmp_path.iterdir())  # no name: nothing is left by a kill


def test_values_of_a_copy_on_write_map_are_not_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[:] = 1
    release(array)
    assert (array == 1).all()


def test_full_disk_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"4\.0 GiB .* No space left on device.*CLEANPAIRS_CACHE"):
        mapped_array((1 << 30,), np.float32, tmp_path)
