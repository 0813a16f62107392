"""An export of a plan in a file, in one process and by partitions, is that of the plan in memory, row for row."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.commands.export import export_plan
from cleanpairs.core.errors import DataError, OutputExistsError
from cleanpairs.data import load_pairs, open_source
from cleanpairs.engine import Engine
from cleanpairs.export import export_pairs, writing
from cleanpairs.export.decisions import PlanFile
from cleanpairs.export.writing import Export, ExportSettings
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan
from cleanpairs.repair.plan import write_plan as write_plan_file
from tests.helpers import InParts, assert_raises, picture, plan_of, vector_column, write_table

from .conftest import restored

ROLES = ("out", "ledger", "dropped")
DIM = 4


def write_input(path: Path, n: int, **more: Any) -> Path:
    rng = np.random.default_rng(n)
    image, text = (vector_column(rng.normal(size=(n, DIM)).astype(kind)) for kind in (np.float32, np.float16))
    columns = {
        "key": pa.array([f"k{i}" if i % 5 else None for i in range(n)], pa.string()),
        "caption": pa.array([None if i == 6 else f"text {i}" for i in range(n)], pa.string()),
        "image_features": image, "text_features": text, "similarity": pa.array(rng.random(n)),
        "clip_score": pa.array(range(n), pa.int64()),
    }  # fmt: skip
    return write_table(path, columns | more, row_group_size=7)


def write_plan(path: Path, data: Path, seed: int = 0, edit: Callable[..., None] = lambda lines: None) -> Path:
    """Every kind of decision, at random."""
    pairs, rng = load_pairs(data), np.random.default_rng(seed)
    n, usable = len(pairs), np.setdiff1d(np.arange(len(pairs)), list(pairs.reasons))
    kinds = ["keep", "rematch_text", "rematch_image", "recaption", "drop"] if n > 2 else ["keep", "drop"]
    actions = ["quarantine" if i in pairs.reasons else str(rng.choice(kinds)) for i in range(n)]
    donors = [int(rng.choice(usable[usable != i])) if a.startswith("rematch") else None for i, a in enumerate(actions)]
    plan = plan_of(pairs, actions, donors, settings={"data": str(data), "columns": {}})
    lines: dict[str, list[Any]] = plan.table.to_pydict()
    edit(lines)
    table = pa.table(lines, PLAN_SCHEMA)
    write_plan_file(path, replace(plan, table=PLAN_SCHEMA.empty_table()), [table.slice(i, 9) for i in range(0, n, 9)])
    return path


def files(folder: Path, name: str) -> dict[str, Path]:
    return {"out": folder / f"{name}.parquet"} | {r: folder / f"{name}-{r}.parquet" for r in ("ledger", "dropped")}


def in_memory(plan: Path, folder: Path) -> dict[str, pa.Table]:
    loaded, at = RepairPlan.load(plan), files(folder, "memory")
    export_pairs(load_pairs(loaded.settings["data"]), loaded, **at)
    return {role: pq.read_table(path) for role, path in at.items()}


def streamed(plan: Path, to: Path, engine: Engine | None = None, name: str = "stream", **more: Any) -> dict[str, Path]:
    opened = PlanFile.open(plan)
    source, at = open_source(opened.head.settings["data"]), files(to, name)
    settings = ExportSettings(**{role: path for role, path in at.items() if role != "out"}, **more)
    export = Export(source, at["out"], settings)
    assert export.streams
    assert export.run(lambda _: opened, engine).rows == len(pq.read_table(at["out"]))
    return at


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.ExportWork, "partition_rows", 14)


@pytest.mark.parametrize("n", [0, 1, 2, 61])
def test_the_stream_writes_what_is_written_in_memory(tmp_path: Path, n: int) -> None:
    data = write_input(tmp_path / "in.parquet", n, site=pa.array(range(n), pa.int64()))
    plan = write_plan(tmp_path / "plan.parquet", data, seed=n)
    wanted, at = in_memory(plan, tmp_path), streamed(plan, tmp_path)
    for role in ROLES:
        found = pq.read_table(at[role])
        found.validate(full=True)
        assert found.schema.equals(wanted[role].schema, check_metadata=True)
        assert found.equals(wanted[role]), role
    a, b = (json.loads((tmp_path / f"{name}.parquet.manifest.json").read_text()) for name in ("memory", "stream"))
    assert (a["counts"], a["fingerprint"]) == (b["counts"], b["fingerprint"])
    if n:
        assert restored(at["out"], ledger=at["ledger"]).equals(pq.read_table(data))


@pytest.mark.parametrize("n", [0, 1, 61])
def test_parts_put_together_are_the_same_files_and_a_stopped_job_goes_on(tmp_path: Path, n: int) -> None:
    kind = pa.list_(pa.field("element", pa.int32(), nullable=False), 2)  # which pickle makes list<item>[2]
    data = write_input(tmp_path / "in.parquet", n, box=pa.array([[i, 2] for i in range(n)], kind))
    plan = write_plan(tmp_path / "plan.parquet", data)
    whole, engine = streamed(plan, tmp_path), InParts()
    if n > 14:
        assert_raises(DataError, "stopped", streamed, plan, tmp_path, InParts(stops=1), "parts")
        assert not (tmp_path / "parts.parquet").exists()
        left = sorted(p.name for p in (tmp_path / "parts.parquet.parts").iterdir())
        assert left == [".job-lock", "manifest", "part-000002", "part-000003", "part-000004"]
    parts = streamed(plan, tmp_path, engine, "parts")
    assert engine.done == {0: 0, 1: 1, 61: 2}[n]  # of 61 pairs in five
    for role in ROLES:
        assert parts[role].read_bytes() == whole[role].read_bytes(), role
        pq.read_table(parts[role], page_checksum_verification=True).validate(full=True)
    assert not (tmp_path / "parts.parquet.parts").exists()


def test_a_plan_in_memory_is_divided_too(tmp_path: Path) -> None:
    data = write_input(tmp_path / "in.parquet", 61, true_mismatch=[False] * 61, true_key=[f"k{i}" for i in range(61)])
    plan = write_plan(tmp_path / "plan.parquet", data)
    wanted, at = in_memory(plan, tmp_path), files(tmp_path, "parts")
    assert_raises(DataError, "stopped", export_plan, plan, **at, engine=InParts(stops=2))
    engine = InParts()
    export_plan(plan, **at, engine=engine)
    assert engine.done == 3
    assert all(pq.read_table(at[role]).equals(wanted[role]) for role in ROLES)
    assert_raises(DataError, "stopped", export_plan, plan, **at, engine=InParts(stops=2), overwrite=True)
    other = write_plan(tmp_path / "other.parquet", data, seed=1)
    export_plan(other, **at, engine=InParts(), overwrite=True)  # of the parts of before nothing is mixed in
    (tmp_path / "other").mkdir()
    assert pq.read_table(at["ledger"]).equals(in_memory(other, tmp_path / "other")["ledger"])


def test_lists_of_captions_and_other_formats_are_divided_too(tmp_path: Path) -> None:
    captions = [[f"text {i}.{j}" for j in range(1 + i % 3)] for i in range(40)]
    images = [{"bytes": picture(i), "path": None} for i in range(40)]
    pq.write_table(pa.table({"caption": captions, "image": images}), tmp_path / "in.parquet", row_group_size=7)
    plan = write_plan(tmp_path / "plan.parquet", tmp_path / "in.parquet")
    tars = {"format": "webdataset", "explode": True}
    for name, more in (("one.parquet", {}), ("exploded.parquet", {"explode": True}), ("tars", tars)):
        outs = []
        for engine in (None, InParts()):
            outs.append(tmp_path / ("parts" if engine else "whole") / name)
            outs[-1].parent.mkdir(exist_ok=True)
            export_plan(plan, outs[-1], engine=engine, **more)
        found = [sorted(p for p in out.parent.rglob("*") if out.name in str(p)) for out in outs]
        assert len(found[0]) > 2 and [p.name for p in found[0]] == [p.name for p in found[1]]
        for a, b in zip(*found, strict=True):
            if a.suffix == ".parquet":
                assert pq.read_table(a).equals(pq.read_table(b)), a
            elif a.suffix == ".tar":
                assert a.read_bytes() == b.read_bytes(), a


def test_parts_of_another_format_are_not_gone_on_from(tmp_path: Path) -> None:
    """Those of a list of uids have no vectors."""
    uids, captions = pa.array([f"{i:032x}" for i in range(61)]), pa.array([f"text {i}" for i in range(61)])
    pairs = load_pairs(write_input(tmp_path / "in.parquet", 61, uid=uids, caption=captions))
    for format, stops, error, words in (
        ("uids", 1, DataError, "stopped"), ("parquet", -1, OutputExistsError, "parts of another job"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            export_pairs(pairs, plan_of(pairs), tmp_path / "out", format=format, engine=InParts(stops))


@pytest.mark.parametrize(("column", "value", "says"), [
    ("action", "burn", "has the action 'burn', and there are only keep"),
    ("donor_pair_id", 99, "donor_pair_id 99 is no other pair, of 0 to 60: rows may"),
    ("donor_pair_id", "own", "no other pair$"),
    ("donor_pair_id", 6, "which is quarantined"),
    ("caption", "mine", "captions follow from action"),
    ("key", "stranger", "has key 'stranger' in the plan"),
    ("pair_id", 7, "in order of pair_id"),
])  # fmt: skip
def test_plans_that_cannot_be_carried_out(tmp_path: Path, column: str, value: Any, says: str) -> None:
    def edit(lines: dict[str, list[Any]]) -> None:
        i = lines["action"].index("rematch_text")
        lines[column][i] = i if value == "own" else value
        if column == "donor_pair_id":
            lines["donor_key"][i] = "another"

    plan = write_plan(tmp_path / "plan.parquet", write_input(tmp_path / "in.parquet", 61), edit=edit)
    if column not in ("caption", "key") and value != 6:  # what follows from actions and donors is followed if edited
        assert_raises(DataError, says, streamed, plan, tmp_path)
    with pytest.raises(DataError, match=says):
        export_plan(write_table(plan, pq.read_table(plan)), tmp_path / "out.parquet")  # as another program writes it
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.parquet", "plan.parquet"]


def test_an_input_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_input(tmp_path / "in.parquet", 61)
    plan = write_plan(tmp_path / "plan.parquet", data)
    damaged = bytearray(data.read_bytes())
    damaged[100] ^= 1

    def change(*args: Any) -> dict[str, int]:
        data.write_bytes(damaged)
        return counted(*args)

    counted = writing.count_actions
    monkeypatch.setattr(writing, "count_actions", change)
    assert_raises(DataError, "has changed", export_plan, plan, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
