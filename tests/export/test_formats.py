"""Which format a path asks for, outputs that would be in each other's way, and every format's promises."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import export_pairs, load_pairs, restore_export
from cleanpairs.core.errors import ConfigError, OutputExistsError
from cleanpairs.export.formats import FORMATS, choose_format
from tests.helpers import assert_raises

from .conftest import named


def test_the_suffix_or_the_name() -> None:
    for out, name, chosen, where in (
        ("out.parquet", None, "parquet", "out.parquet"),
        ("out.pq", None, "parquet", "out.pq"),
        ("out.npy", None, "uids", "out.npy"),
        ("out.csv", None, "csv", "out.csv"),
        ("out.lance", None, "lance", "out.lance"),
        ("shards/{00000..00009}.tar", None, "webdataset", "shards"),
        ("shards/{}.tar", "webdataset", "webdataset", "shards"),
        ("shards/*.tar", None, "webdataset", "shards"),
        ("laion.v2", "datasets", "datasets", "laion.v2"),
    ):
        assert choose_format(out, name) == (chosen, Path(where))


def test_what_is_not_clear() -> None:
    for out, name, message in (
        ("out", None, r"out does not say.*--format \(parquet, webdataset, datasets, csv, lance, uids\)"),
        ("out.txt", None, "does not say"),
        ("out.parquet", "datasets", "named as parquet, but the format is datasets"),
        ("out.tar", None, "one tar"),
        ("out", "web-dataset", "did you mean 'webdataset'"),
        (".", "webdataset", "that you are in"),
        ("{00000..}.tar", "webdataset", "that you are in"),
    ):
        assert_raises(ConfigError, message, choose_format, out, name)


@pytest.mark.parametrize(
    ("name", "size"),
    [("webdataset", 0), ("webdataset", 10**20), *((name, 10) for name in FORMATS if name != "webdataset")],
)
def test_a_shard_size_is_for_shards(make_pairs: Any, make_plan: Any, tmp_path: Path, name: str, size: int) -> None:
    pairs = make_pairs(2)
    said = f"found {size}" if name == "webdataset" else f"the format is {name}"
    with pytest.raises(ConfigError, match=said):
        export_pairs(pairs, make_plan(pairs), tmp_path / "out", format=name, shard_size=size)


def test_outputs_in_each_others_way(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(2)
    plan = make_plan(pairs)
    with pytest.raises(ConfigError, match=r"ledger would be .*written as a whole"):
        export_pairs(pairs, plan, tmp_path / "ds", format="datasets", ledger=tmp_path / "ds" / "ledger.parquet")
    with pytest.raises(ConfigError, match=r"README\.md: leave --card out"):
        export_pairs(pairs, plan, tmp_path / "ds", format="datasets", card=tmp_path / "card.md")
    with pytest.raises(ConfigError, match="would both be"):
        export_pairs(pairs, plan, tmp_path / "out.parquet", card=tmp_path / "out.parquet")
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("cache", "data")] == []


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("name", list(FORMATS))
def test_few_rows(name: str, n: int, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(n, struct=True)
    out = tmp_path / named("out", name)
    assert export_pairs(pairs, make_plan(pairs), out, format=name).rows == n == FORMATS.load(name).count(out)
    if name not in ("uids", "csv"):  # of a CSV the images lie elsewhere
        assert load_pairs(out).captions == pairs.captions


@pytest.mark.parametrize("name", ["webdataset", "datasets", "lance"])
def test_a_directory_of_somebody_else(name: str, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(2)
    plan = make_plan(pairs)
    out = tmp_path / "photos"
    out.mkdir()
    (out / "00000.tar").write_bytes(b"theirs")
    with pytest.raises(OutputExistsError, match=r"no photos\.manifest\.json next to it"):
        export_pairs(pairs, plan, out, format=name, overwrite=True)
    (out / "holiday.jpg").write_bytes(b"theirs")
    with pytest.raises(OutputExistsError, match=r"'holiday\.jpg', which is no part of what would be written"):
        export_pairs(pairs, plan, out, format=name, overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == ["00000.tar", "holiday.jpg"]
    for file in out.iterdir():
        file.unlink()
    export_pairs(pairs, plan, out, format=name, overwrite=True)  # an empty one is nobody's
    export_pairs(pairs, plan, out, format=name, overwrite=True)
    (out / "notes.txt").write_text("mine")
    assert_raises(OutputExistsError, r"'notes\.txt'", export_pairs, pairs, plan, out, format=name, overwrite=True)
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
    restore_export(tmp_path / "datasets", tmp_path / "back.parquet")
    assert load_pairs(tmp_path / "back.parquet").captions == again.captions
    assert "cleanpairs restore" in (tmp_path / "datasets" / "README.md").read_text()


FULL = """
import resource, sys
from cleanpairs.data import load_pairs
from cleanpairs.core.errors import OutputError
from cleanpairs.export import export_pairs
from cleanpairs.repair.plan import RepairPlan

pairs, plan = load_pairs(sys.argv[1]), RepairPlan.load(sys.argv[2])
for limit in (300, 2000, 6000):  # bytes that a file may have: real errors of real writes
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for spec in sys.argv[3:]:
        kind, out = spec.split("=")
        try:
            export_pairs(pairs, plan, out, format=kind, overwrite=True)
        except OutputError as error:
            assert "File too large" in str(error) or "Errno 27" in str(error), error
            print(kind)
"""


@pytest.mark.slow
def test_a_write_that_fails_leaves_every_old_output(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(60, struct=True)
    plan = make_plan(pairs)
    plan.save(tmp_path / "plan.parquet")
    outs = {name: tmp_path / named(f"out-{name}", name) for name in FORMATS}
    for name, out in outs.items():
        export_pairs(pairs, plan, out, format=name)

    def held() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in tmp_path.rglob("out*") if p.is_file()} | {
            p: p.read_bytes() for out in outs.values() for p in out.rglob("*") if p.is_file()
        }

    before = held()
    specs = [f"{name}={out}" for name, out in outs.items()]
    argv = [sys.executable, "-c", FULL, pairs.source.paths[0], str(tmp_path / "plan.parquet"), *specs]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.split()) == Counter(dict.fromkeys(FORMATS, 3))
    assert held() == before
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".cleanpairs-")] == []


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "csv"])
def test_extension_types_are_written_as_stored(name: str, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    stored = pa.array([f'{{"a": {k}}}' for k in range(6)])
    column = pa.ExtensionArray.from_storage(pa.json_(pa.utf8()), stored)
    pairs = make_pairs(6, odd=column, nested=pa.ListArray.from_arrays(range(7), column))
    actions = ["keep", "rematch_text", "drop", "keep", "drop", "rematch_image"]
    out, dropped = tmp_path / named("out", name), tmp_path / "d.parquet"
    export_pairs(pairs, make_plan(pairs, actions), out, format=name, dropped=dropped)
    for path in (dropped, *([out] if name == "parquet" else [])):
        table = pq.read_table(path)
        rows = [int(key[1:]) for key in table["key"].to_pylist()]
        assert table["odd"].type == stored.type and table["odd"].to_pylist() == stored.take(rows).to_pylist()
        assert table["nested"].to_pylist() == [[value] for value in stored.take(rows).to_pylist()]
