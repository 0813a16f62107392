"""A directory that ``datasets.load_from_disk`` opens, with images as images; and back to the input."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import load_pairs
from cleanpairs.export import datasets_format, export_pairs, restore_export, writing
from cleanpairs.export.formats import FORMATS
from tests.helpers import assert_raises

from .conftest import restored


def test_several_files_and_damaged_ones_are_not_restored(
    make_pairs: Any, make_plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets_format.DatasetsOutput, "shard_bytes", 600)
    monkeypatch.setattr(writing.ExportWork, "batch_rows", 2)
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
    "squares": (datasets.List(datasets.Array2D((1, 1), "int64")), [[[[i]]] * (i % 3) for i in range(6)]),
    "inside": ({"x": datasets.Array3D((1, 1, 1), "uint8")}, [{"x": [[[1]]]}] * 6),
    "json": (datasets.Json(), [{"a": i} for i in range(6)]),
    "label": (datasets.ClassLabel(names=["x", "y"]), [0, 1, None, 0, 1, 0]),
    "sound": (datasets.Audio(decode=False), [{"bytes": b"RIFF", "path": None}] * 6),
}


@pytest.mark.parametrize(("name", "strict"), [*((n, False) for n in FEATURES), ("inside", True), ("label", True)])
def test_features_are_kept(make_plan: Any, tmp_path: Path, name: str, strict: bool) -> None:
    """Those of Parquet, too, whose columns may not be null."""
    feature, values = FEATURES[name]
    features = {"image": datasets.Image(), "caption": datasets.Value("string"), name: feature}
    images = [{"bytes": b"\xff\xd8\xff" + bytes([i]), "path": None} for i in range(6)]
    made = {"image": images, "caption": [f"text {i}" for i in range(6)], name: values}
    parts = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}  # sound is not encoded here
    stored = features | ({name: parts} if name == "sound" else {})
    before = datasets.Dataset.from_dict(made, features=datasets.Features(stored)).cast(datasets.Features(features))
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
