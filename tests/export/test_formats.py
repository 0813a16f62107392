"""Which format a path asks for, outputs in each other's way, every format's promises, and values of every kind."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import export_pairs, load_pairs, restore_export
from cleanpairs.core.errors import ConfigError, DataError, OutputError, OutputExistsError
from cleanpairs.export.datasets_format import DatasetsOutput
from cleanpairs.export.formats import FORMATS, choose_format
from cleanpairs.export.layout import donor_columns
from cleanpairs.export.writing import CardFacts, ExportWork
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, plan_of, write_pictures, write_table

from .conftest import named, restored


def test_the_suffix_or_the_name() -> None:
    for out, name, chosen, where in (
        ("out.parquet", None, "parquet", "out.parquet"), ("out.pq", None, "parquet", "out.pq"),
        ("out.npy", None, "uids", "out.npy"), ("laion.v2", "datasets", "datasets", "laion.v2"),
        ("out.lance", None, "lance", "out.lance"), ("shards/{00000..00009}.tar", None, "webdataset", "shards"),
    ):  # fmt: skip
        assert choose_format(out, name) == (chosen, Path(where))
    for out, name, message in (
        ("out", None, r"out does not say.*--format \(parquet, webdataset, datasets, csv, lance, uids\)"),
        ("out.txt", None, "does not say"), ("out.parquet", "datasets", "named as parquet, but the format is datasets"),
        ("out.tar", None, "one tar"), (".", "webdataset", "that you are in"),
    ):  # fmt: skip
        assert_raises(ConfigError, message, choose_format, out, name)


def test_outputs_and_settings_that_do_not_go_together(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs, inside = make_pairs(2), tmp_path / "ds" / "ledger.parquet"
    for out, told, words in (
        *(("out", {"format": "webdataset", "shard_size": n}, f"found {n}") for n in (0, 10**20)),
        *(("out", {"format": f, "shard_size": 10}, f"the format is {f}") for f in FORMATS if f != "webdataset"),
        ("ds", {"format": "datasets", "ledger": inside}, r"ledger would be .*written as a whole"),
        ("ds", {"format": "datasets", "card": tmp_path / "card.md"}, r"README\.md: leave --card out"),
        ("out.parquet", {"card": tmp_path / "out.parquet"}, "would both be"),
        ("out.npy", {"all_captions": True}, "a list of uids has none"),
        ("out.parquet", {"about": CardFacts(license="mit")}, "give --card FILE, too"),
    ):
        assert_raises(ConfigError, words, export_pairs, pairs, make_plan(pairs), tmp_path / out, **told)
    assert {p.name for p in tmp_path.iterdir()} <= {"cache", "data"}


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("name", list(FORMATS))
def test_few_rows(name: str, n: int, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs, out = make_pairs(n, struct=True), tmp_path / named("out", name)
    assert export_pairs(pairs, make_plan(pairs), out, format=name).rows == n == FORMATS.load(name).count(out)
    if name not in ("uids", "csv"):  # of a CSV the images lie elsewhere
        assert load_pairs(out).captions == pairs.captions


@pytest.mark.parametrize("name", ["webdataset", "datasets", "lance"])
def test_a_directory_of_somebody_else(name: str, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs, out = make_pairs(2), tmp_path / "photos"
    export = partial(export_pairs, pairs, make_plan(pairs), out, format=name, overwrite=True)
    out.mkdir()
    (out / "00000.tar").write_bytes(b"theirs")
    assert_raises(OutputExistsError, r"no photos\.manifest\.json next to it", export)
    (out / "holiday.jpg").write_bytes(b"theirs")
    assert_raises(OutputExistsError, r"'holiday\.jpg', which is no part of what would be written", export)
    for file in ("00000.tar", "holiday.jpg"):  # both are there still
        (out / file).unlink()
    export()  # an empty one is nobody's
    export()
    (out / "notes.txt").write_text("mine")
    assert_raises(OutputExistsError, r"'notes\.txt'", export)
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("name", ["webdataset", "datasets", "lance"])
def test_what_is_read_exports_again(name: str, make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    pairs = make_pairs(7, struct=True)
    export_pairs(pairs, make_plan(pairs, mixed), tmp_path / "once", format=name)
    export_pairs(pairs, make_plan(pairs, mixed), tmp_path / "once.parquet")
    whole, again = load_pairs(tmp_path / "once.parquet"), load_pairs(tmp_path / "once")
    assert again.captions == whole.captions and again.keys == whole.keys
    assert again.images.read(range(6)) == whole.images.read(range(6))
    for kind in ("webdataset", "datasets"):
        summary = export_pairs(again, make_plan(again, ["keep"] * 5 + ["drop"]), tmp_path / kind, format=kind)
        assert (summary.rows, summary.dropped) == (5, 1)
        assert load_pairs(tmp_path / kind).captions == whole.captions[:5]
    assert load_pairs(restore_export(tmp_path / "datasets", tmp_path / "b.parquet").path).captions == again.captions
    assert "cleanpairs restore" in (tmp_path / "datasets" / "README.md").read_text()


def test_a_full_folder_for_temporary_files_is_named(tmp_path: Path) -> None:
    source = load_pairs(
        write_table(tmp_path / "in.parquet", {"image": [b"x" * 1000] * 100, "caption": ["c"] * 100})
    ).source
    (tmp_path / "0.arrow").symlink_to("/dev/full")
    rows = {"images": np.arange(100), "texts": np.arange(0)}
    assert_raises(OutputError, "temporary folder .*No space left.*TMPDIR", donor_columns, source, tmp_path, **rows)


def parts(names: str, kind: pa.DataType) -> pa.Array:
    """Six structs whose parts have the ``names``, of one letter or two."""
    return pa.StructArray.from_arrays([pa.array(range(6), kind)] * len(names.split()), names.split())


ODD: dict[str, tuple[str, Any]] = {  # name of a column -> formats that refuse it, its values
    "twice inside": ("datasets", pa.ListArray.from_arrays(range(7), parts("x x", pa.int64()))),
    "nul\0name": ("datasets", pa.array(range(6))),
    "map": ("datasets", pa.array([[("a", 1)]] * 6, pa.map_(pa.string(), pa.int32()))),
    "not utf-8": ("datasets", pa.Array.from_buffers(pa.string(), 6, pa.array([b"\xff"] * 6).buffers())),
    "zone inside": ("", parts("at", pa.timestamp("us", "Mars/Olympus"))),
    "year 300,000": ("", pa.array([10**16] * 6, pa.timestamp("ms"))),
    "": ("", pa.array(range(6))),
    "image.bytes": ("lance", pa.array([f"mine {i}" for i in range(6)])),
    "json inside": ("", pa.ListArray.from_arrays(range(7), pa.array(["[]"] * 6).cast(pa.json_()))),
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
    export_pairs(pairs, plan, out, format=format, dropped=tmp_path / "gone.parquet")
    assert verify_path(out).ok
    written = [tmp_path / "gone.parquet", *([out] if format == "parquet" else [])]  # extension types as they are stored
    assert not any("extension<" in str(pq.read_schema(path)) for path in written)
    if format == "lance":
        return
    assert restored(out).equals(pq.read_table(pairs.source.paths[0]), check_metadata=True)


def test_columns_are_told_from_the_parts_of_a_struct_of_that_name(tmp_path: Path, make_plan: Any) -> None:
    names, out = {"text_column": "a.b", "key_column": "a.c"}, tmp_path / "out.parquet"
    table = {c: [f"{c} {i}" for i in range(6)] for c in names.values()}
    table |= {"image": [b"\xff\xd8\xff%d" % i for i in range(6)], "a": [{"b": f"no {i}", "c": "no"} for i in range(6)]}
    pairs = load_pairs(write_table(tmp_path / "in.parquet", table), **names)
    assert (pairs.captions, pairs.keys) == (table["a.b"], table["a.c"])
    export_pairs(pairs, make_plan(pairs, ["rematch_text", "rematch_image", *["keep"] * 4]), out)
    assert pq.read_table(out, columns=["image"])["image"].to_pylist()[1] == table["image"][2]
    assert verify_path(out).ok


def test_categories_of_image_paths_are_lent_like_paths(tmp_path: Path, make_plan: Any) -> None:
    names = [f"{i}.png" for i in range(6)]
    paths = pa.chunked_array([pa.array(half).dictionary_encode() for half in (names[:3], names[3:])])
    table = pa.table({"image": paths, "caption": [f"text {i}" for i in range(6)]})
    for below in ("a", "b"):  # each folder names images of its own
        write_table(write_pictures(tmp_path / "in" / below, names) / "in.parquet", table)
    for root in (None, tmp_path / "in"):
        several = load_pairs(tmp_path / "in", image_root=root)
        assert_raises(ConfigError, "in several folders", export_pairs, several, plan_of(several), tmp_path / "o.pq")
    data = write_table(write_pictures(tmp_path, names) / "in.parquet", table, row_group_size=3)
    pairs = load_pairs(data, reader="parquet")
    plan = plan_of(pairs, ["rematch_image", "keep", "rematch_image", *["keep"] * 3], [4, None, 1, None, None, None])
    out = pq.read_table(export_pairs(pairs, plan, tmp_path / "out" / "out.parquet").files["out"])
    assert out["image"].to_pylist() == [f"{i}.png" for i in (4, 1, 1, 3, 4, 5)]
    assert out.schema.field("image").type == paths.type


# -- A directory that ``datasets.load_from_disk`` opens, with images as images; and back to the input ----------------


def test_several_files_and_damaged_ones_are_not_restored(
    make_pairs: Any, make_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatasetsOutput, "shard_bytes", 600)
    monkeypatch.setattr(ExportWork, "batch_rows", 2)
    pairs, out, back = make_pairs(9), tmp_path / "ds", tmp_path / "back.parquet"
    export_pairs(pairs, make_plan(pairs), out, format="datasets")
    names = [entry["filename"] for entry in json.loads((out / "state.json").read_text())["_data_files"]]
    assert len(names) > 1 and names == sorted(p.name for p in out.glob("*.arrow"))
    found = datasets.load_from_disk(str(out))
    assert found["key"][:] == [f"k{i}" for i in range(9)] and found[8]["image"].size == (8, 6)
    manifest = json.loads((tmp_path / "ds.manifest.json").read_text())["files"]
    assert sum(manifest[f"ds/{name}"]["rows"] for name in names) == 9

    raw, count = bytearray((out / names[1]).read_bytes()), FORMATS.load("datasets").count
    raw[len(raw) // 2] ^= 1
    (out / names[1]).write_bytes(raw)
    assert_raises(DataError, f"{names[1]}.*SHA-256", restore_export, out, back)
    assert not back.exists()
    (out / names[1]).write_bytes(raw[: len(raw) // 3])
    assert_raises(DataError, names[1], count, out)
    (out / "state.json").write_text("{}")
    assert_raises(DataError, "read for its data files", count, out)


FEATURES: dict[str, tuple[Any, list[Any]]] = {
    "deep": (datasets.Array5D((None, 1, 1, 1, 1), "int8"), [[[[[[i]]]]] * i for i in range(6)]),
    "inside": ({"x": datasets.Array3D((1, 1, 1), "uint8")}, [{"x": [[[1]]]}] * 6),
    "json": (datasets.Json(), [{"a": i} for i in range(6)]),
    "label": (datasets.ClassLabel(names=["x", "y"]), [0, 1, None, 0, 1, 0]),
}


@pytest.mark.parametrize(("name", "strict"), [*((n, False) for n in FEATURES), ("inside", True), ("label", True)])
def test_features_are_kept(make_plan: Any, tmp_path: Path, name: str, strict: bool) -> None:
    """Those of Parquet, too, whose columns may not be null."""
    feature, values = FEATURES[name]
    features = {"image": datasets.Image(), "caption": datasets.Value("string"), name: feature}
    images = [{"bytes": b"\xff\xd8\xff" + bytes([i]), "path": None} for i in range(6)]
    made = {"image": images, "caption": [f"text {i}" for i in range(6)], name: values}
    before = datasets.Dataset.from_dict(made, features=datasets.Features(features))
    data, out = tmp_path / "in", tmp_path / "out"
    before.save_to_disk(str(data))
    if strict:
        before.to_parquet(data := tmp_path / "in.parquet")
        table = pq.read_table(data)
        strictly = pa.schema([f.with_nullable(f.name == "label") for f in table.schema], table.schema.metadata)
        pq.write_table(table.cast(strictly), data)
    pairs, held = load_pairs(data), before.with_format("arrow")[:][name].to_pylist()
    plan = make_plan(pairs, ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"])
    export_pairs(pairs, plan, out, format="datasets")
    found = datasets.load_from_disk(str(out))
    assert {column: found.features[column] for column in features} == features
    assert found.with_format("arrow")[:][name].to_pylist() == [held[i] for i in (0, 1, 2, 4, 5)]
    (out / "README.md").write_text("edited: the card is not the data")
    assert restored(out)[name].to_pylist() == held
