"""Every value of every output is that of the input."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import export_pairs, load_pairs
from cleanpairs.core.errors import ConfigError, DataError, OutputError
from cleanpairs.export.formats import FORMATS
from cleanpairs.export.layout import StoredRows
from cleanpairs.verification import verify_path
from tests.helpers import plan_of, write_pictures, write_table

from .conftest import restored


def test_a_full_folder_for_temporary_files_is_named() -> None:
    batches = iter([pa.record_batch({"image": [b"x" * 1000] * 100})])
    with pytest.raises(OutputError, match=r"temporary file /dev/full .*No space left.*TMPDIR"):
        StoredRows.collect(Path("/dev/full"), batches, np.arange(100))


def parts(names: str, kind: pa.DataType, nullable: bool = True) -> pa.Array:
    """Six structs whose parts have the ``names``, of one letter or two."""
    values = pa.array(range(6), kind)
    fields = [pa.field(name, kind, nullable) for name in names.split()]
    return pa.StructArray.from_arrays([values] * len(fields), fields=fields)


AWAY = pa.timestamp("us", "Mars/Olympus")
ODD: dict[str, tuple[str, Any]] = {  # name of a column -> formats that refuse it, its values
    "twice": ("datasets", parts("x x", pa.int64(), nullable=False)),
    "twice inside": ("datasets", pa.ListArray.from_arrays(range(7), parts("x x", pa.int64()))),
    "nul\0name": ("datasets", pa.array(range(6))),
    "nul inside": ("datasets", parts("a\0b", pa.int64())),
    "map": ("datasets", pa.array([[("a", 1)]] * 6, pa.map_(pa.string(), pa.int32()))),
    "not utf-8": ("datasets", pa.Array.from_buffers(pa.string(), 6, pa.array([b"\xff"] * 6).buffers())),
    "zone": ("", pa.array([0, None, 2, 3, 4, 5], AWAY)),
    "zone inside": ("", parts("at", AWAY)),
    "year 300,000": ("", pa.array([10**16] * 6, pa.timestamp("ms"))),
    "long ago": ("", pa.array([-(10**9)] * 6, pa.date32())),
    "long": ("", pa.array([10**18] * 6, pa.duration("s"))),
    "": ("", pa.array(range(6))),
    "image.bytes": ("lance", pa.array([f"mine {i}" for i in range(6)])),
    "key_input": ("", pa.array([f"mine {i}" for i in range(6)])),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("format", ["parquet", "datasets", "lance"])
def test_an_odd_column(make_pairs: Any, make_plan: Any, tmp_path: Path, format: str, name: str) -> None:
    """It comes back, or is refused by name."""
    refusing, column = ODD[name]
    pairs, out = make_pairs(6, struct=True, **{name: column}), tmp_path / "out"
    plan = make_plan(pairs, ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"])
    if format in refusing:
        with pytest.raises((ConfigError, DataError), match=re.escape(repr(name)) + ".*Parquet"):
            export_pairs(pairs, plan, out, format=format)
        return
    export_pairs(pairs, plan, out, format=format)
    assert verify_path(out).ok
    if format == "lance":
        return
    assert restored(out).equals(pq.read_table(pairs.source.paths[0]), check_metadata=True)


def test_columns_are_told_from_the_parts_of_a_struct_of_that_name(tmp_path: Path, make_plan: Any) -> None:
    names = {"text_column": "a.b", "key_column": "a.c"}
    table = {
        "image": [b"\xff\xd8\xff" + bytes([i]) for i in range(6)],
        **{c: [f"{c} {i}" for i in range(6)] for c in names.values()},
    }
    struct = [{"b": f"no {i}", "c": f"no {i}"} for i in range(6)]
    pairs = load_pairs(write_table(tmp_path / "in.parquet", {**table, "a": struct}), **names)
    assert (pairs.captions, pairs.keys) == (table["a.b"], table["a.c"])
    export_pairs(pairs, make_plan(pairs, ["rematch_text", "rematch_image", *["keep"] * 4]), tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet", columns=["image"])["image"].to_pylist()[1] == table["image"][2]
    assert verify_path(tmp_path / "out.parquet").ok


def test_categories_of_image_paths_are_lent_like_paths(tmp_path: Path, make_plan: Any) -> None:
    write_pictures(tmp_path, [f"{i}.png" for i in range(6)])
    halves = (pa.array([f"{i}.png" for i in some]) for some in ([0, 1, 2], [3, 4, 5]))
    paths = pa.chunked_array([half.dictionary_encode() for half in halves])
    table = pa.table({"image": paths, "caption": [f"text {i}" for i in range(6)]})
    pairs = load_pairs(write_table(tmp_path / "in.parquet", table, row_group_size=3), reader="parquet")
    plan = plan_of(pairs, ["rematch_image", "keep", "rematch_image", *["keep"] * 3], [4, None, 1, None, None, None])
    export_pairs(pairs, plan, tmp_path / "out" / "out.parquet")
    out = pq.read_table(tmp_path / "out" / "out.parquet")
    assert out["image"].to_pylist() == [f"{i}.png" for i in (4, 1, 1, 3, 4, 5)]
    assert out.schema.field("image").type == paths.type


def test_lance_takes_decimals_that_are_not_aligned(tmp_path: Path) -> None:
    """As those out of the parts that workers have written, which are mapped."""
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    moved = pa.array([0, 0, 7, 0], pa.int64()).buffers()[1].slice(8, 16)  # the second eight bytes are 7
    column = pa.Array.from_buffers(pa.decimal128(7, 0), 1, [None, pa.py_buffer(moved)])
    layout: Any = SimpleNamespace(out_schema=pa.schema([("price", column.type)]))
    with FORMATS.load("lance")(tmp_path / "out.lance", layout) as output:
        output.write(pa.table({"price": column}))
    assert lance.dataset(str(tmp_path / "out.lance")).to_table().equals(pa.table({"price": column}))
