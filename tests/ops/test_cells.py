"""Plain types are right for slices of lists of the type null, which pyarrow gets wrong."""

from typing import Any

import pyarrow as pa

from cleanpairs.ops.columns import as_schema, plain_batch

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
    batch = pa.RecordBatch.from_arrays([pa.array(cells, INNER)], ["x"])
    for first, n in ((0, 60), (30, 20), (45, 15)):
        found = plain_batch(batch.slice(first, n))
        found.validate(full=True)
        assert found.schema.field("x").type == PLAIN and found["x"].to_pylist() == cells[first : first + n]
