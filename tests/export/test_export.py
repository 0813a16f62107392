"""Export: every pair in the ledger once, lists of captions, donors' images, and nothing half-written."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs import Pairs, diff_export, export_pairs, load_pairs
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputExistsError
from cleanpairs.export.writing import ExportWork
from cleanpairs.repair.plan import RepairPlan, wrong_in_output
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, picture, plan_of, vector_column, write_pictures, write_table

from .conftest import columns, restored

VECTORS = np.arange(48, dtype=np.float32).reshape(12, 4)


def write_flat(path: Path, n: int, **more: Any) -> Path:
    return write_table(path, columns(n, **more), row_group_size=5)


def write_lists(path: Path, sizes: list[int], spelled: bool = False) -> Path:
    captions = [[f"text {i}.{j}" for j in range(size)] for i, size in enumerate(sizes)]
    lists = pa.array(captions, pa.list_(pa.string()))
    table = pa.table(columns(len(sizes), caption=list(map(json.dumps, captions)) if spelled else lists))
    return write_table(path, table.drop_columns("site").rename_columns({"caption": "captions"}))


@pytest.fixture
def flat(tmp_path: Path) -> Pairs:
    return load_pairs(write_flat(tmp_path / "in.parquet", 12, image_features=vector_column(VECTORS)))


@pytest.fixture
def mixed(flat: Pairs) -> RepairPlan:
    actions = ["keep", "rematch_text", "rematch_image", "drop", *["keep"] * 7, "rematch_image"]
    return plan_of(flat, actions, [None, 3, 11, None, *[None] * 7, 2])


def test_every_kind_of_decision(flat: Pairs, mixed: RepairPlan, tmp_path: Path) -> None:
    before = (tmp_path / "in.parquet").read_bytes()
    out, dropped, ledger = (tmp_path / f"{name}.parquet" for name in ("out", "dropped", "ledger"))
    summary = export_pairs(flat, mixed, out, dropped=dropped, ledger=ledger)
    assert (summary.pairs, summary.kept, summary.rematched_text, summary.rematched_image) == (12, 8, 1, 2)
    assert (summary.dropped, summary.quarantined, summary.rows) == (1, 0, 11)
    assert str(out) in str(summary)

    table = pq.read_table(out, page_checksum_verification=True)
    added = ["correspondence", "action", "original_caption", "source_key", "repair_score"]
    assert table.column_names == ["key", "image", "caption", "site", "image_features", *added]
    assert table.schema.field("correspondence").type == table.schema.field("repair_score").type == pa.float32()
    rows = table.to_pylist()
    assert [r["key"] for r in rows] == [f"k{i}" for i in range(12) if i != 3]
    assert rows[1] == {
        "key": "k1", "image": picture(1), "caption": "text 3", "site": 1, "image_features": [4, 5, 6, 7],
        "correspondence": 0.5, "action": "rematch_text", "original_caption": "text 1", "source_key": "k3",
        "repair_score": 0.75,
    }  # fmt: skip
    assert [r["image_features"] for r in rows] == VECTORS[[0, 1, 11, *range(4, 11), 2]].tolist()
    assert table.schema.field("image_features").type == pa.list_(pa.float32(), 4)
    assert rows[2]["image"] == picture(11) and rows[10]["image"] == picture(2)  # bytes, not pixels
    assert rows[2]["caption"] == "text 2" and rows[2]["source_key"] == "k11" and rows[2]["original_caption"] is None
    assert rows[0]["action"] == "keep" and rows[0]["source_key"] is None and rows[0]["repair_score"] is None

    gone = pq.read_table(dropped).to_pylist()
    assert [(r["pair_id"], r["key"], r["caption"], r["action"], r["reason"], r["image"]) for r in gone] == [
        (3, "k3", "text 3", "drop", "because drop", picture(3))
    ]
    lines = pq.read_table(ledger).to_pylist()
    assert [line["pair_id"] for line in lines] == list(range(12))
    assert [line["out_row"] for line in lines] == [0, 1, 2, None, *range(3, 11)]
    assert lines[1]["new_caption"] == "text 3" and lines[1]["source_pair_id"] == 3
    assert lines[2]["new_caption"] is None and lines[2]["source_key"] == "k11"
    assert (tmp_path / "in.parquet").read_bytes() == before


@pytest.mark.parametrize("spelled", [False, True])
def test_lists_stay_one_row(tmp_path: Path, spelled: bool) -> None:
    pairs = load_pairs(write_lists(tmp_path / "in.parquet", [3, 1, 2], spelled))
    actions = ["keep", "rematch_text", "drop", "drop", "rematch_image", "keep"]
    plan = plan_of(pairs, actions, [None, 3, None, None, 0, None])
    out, dropped, ledger = (tmp_path / f"{name}.parquet" for name in ("out", "dropped", "ledger"))
    summary = export_pairs(pairs, plan, out, dropped=dropped, ledger=ledger)
    rows = pq.read_table(out).to_pylist()
    assert [r["captions"] for r in rows] == [["text 0.0", "text 1.0"], ["text 2.1"]]
    assert rows[0]["action"] == ["keep", "rematch_text"] and rows[0]["original_caption"] == [None, "text 0.1"]
    assert rows[0]["source_key"] == [None, "k1"] and rows[0]["correspondence"] == [0.5, 0.5]
    assert [r["image"] for r in rows] == [picture(0), picture(2)]
    assert (summary.rows, summary.kept, summary.rematched_text, summary.rematched_image) == (2, 2, 1, 0)
    assert summary.dropped == 3
    gone = pq.read_table(dropped).to_pylist()
    assert [(r["pair_id"], r["captions"]) for r in gone] == [(2, "text 0.2"), (3, "text 1.0"), (4, "text 2.0")]
    assert "explode" in gone[2]["reason"]
    lines = pq.read_table(ledger).to_pylist()
    assert [(x["row"], x["position"], x["out_row"]) for x in lines] == [
        (0, 0, 0), (0, 1, 0), (0, 2, None), (1, 0, None), (2, 0, None), (2, 1, 1)
    ]  # fmt: skip
    assert lines[4]["action"] == "drop" and lines[4]["source_pair_id"] is None

    summary = export_pairs(pairs, plan, tmp_path / "exploded.parquet", explode=True)
    assert summary.rematched_image == 1 and summary.rows == 4
    exploded = pq.read_table(tmp_path / "exploded.parquet")
    assert exploded["captions"].to_pylist() == ["text 0.0", "text 1.0", "text 2.0", "text 2.1"]
    assert exploded["image"].to_pylist() == [picture(0), picture(0), picture(0), picture(2)]


@pytest.mark.filterwarnings("error")
def test_the_truth_follows_the_repair(tmp_path: Path) -> None:
    # captions of rows 0 and 1 were swapped; row 0 gets its own back, row 2 somebody else's image
    # nobody knows of row 4, nor of its caption beside the image of row 5
    wrong, keys = [True, True, False, False, None, False], ["k1", "k0", "k2", "k3", None, "k5"]
    pairs = load_pairs(write_flat(tmp_path / "in.parquet", 6, true_mismatch=wrong, true_key=keys))
    actions = ["rematch_text", "keep", "rematch_image", "keep", "keep", "rematch_text"]
    plan = plan_of(pairs, actions, [1, None, 3, None, None, 4])
    export_pairs(pairs, plan, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["true_mismatch"].to_pylist() == [False, True, True, False, None, None]
    assert table["true_key"].to_pylist() == ["k0", "k0", "k2", "k3", "", ""]
    again = load_pairs(tmp_path / "out.parquet").true_mismatch_mask()
    np.testing.assert_array_equal(again, plan.apply(pairs).true_mismatch_mask())
    plan = plan_of(pairs, ["drop"] * 4 + ["keep", "drop"], [None] * 6)
    assert np.isnan(wrong_in_output(pairs, plan.table)).all()


@pytest.mark.parametrize("key_column", [True, False])
def test_without_keys_the_truth_of_a_repair_is_unknown(tmp_path: Path, key_column: bool) -> None:
    keys = {"true_key": ["k1", "k0", "k2"]} if key_column else {}
    pairs = load_pairs(write_flat(tmp_path / "in.parquet", 3, true_mismatch=[True, True, False], **keys))
    plan = plan_of(pairs, ["rematch_text", "keep", "keep"], [1, None, None])
    export_pairs(pairs, plan, tmp_path / "out.parquet")
    wrong = [False if key_column else None, True, False]
    assert pq.read_table(tmp_path / "out.parquet")["true_mismatch"].to_pylist() == wrong
    assert plan.apply(pairs).true_mismatch_mask().tolist() == wrong
    assert wrong_in_output(pairs, plan.table) == ((0.5, pytest.approx(1 / 3)) if key_column else None)
    assert restored(tmp_path / "out.parquet").equals(pq.read_table(tmp_path / "in.parquet"))


@pytest.mark.parametrize("lists", [False, True])
def test_a_caption_that_was_written_for_its_image(tmp_path: Path, lists: bool) -> None:
    captions: list[Any] = ["one", "two", "three"]
    truth: dict[str, list[Any]] = {"true_mismatch": [False, True, False], "true_key": ["k0", "k2", "k2"]}
    if lists:
        captions, truth = [[c] for c in captions], {name: [[v] for v in column] for name, column in truth.items()}
    table = pa.table({"key": ["k0", "k1", "k2"], "image": [picture(i) for i in range(3)], "caption": captions} | truth)
    pairs = load_pairs(write_table(tmp_path / "in.parquet", table))
    plan = plan_of(pairs, ["keep", "recaption", "keep"], repair_score=[None, 0.75, None])
    summary = export_pairs(pairs, plan, tmp_path / "out.parquet", explode=lists)
    assert (summary.kept, summary.recaptioned, summary.rows) == (2, 1, 3) and "1 with a caption written" in str(summary)
    row = pq.read_table(tmp_path / "out.parquet").to_pylist()[1]
    assert (row["caption"], row["original_caption"], row["source_key"]) == ("new 1", "two", None)
    assert row["image"] == picture(1) and row["repair_score"] == 0.75 and row["action"] == "recaption"
    assert row["true_mismatch"] is False and row["true_key"] == ""
    line = pq.read_table(tmp_path / "out.parquet.ledger.parquet").to_pylist()[1]
    assert (line["original_caption"], line["new_caption"], line["out_row"]) == ("two", "new 1", 1)
    (change,) = diff_export(tmp_path / "out.parquet").changes
    assert (change.before, change.after, change.action, change.source_key) == ("two", "new 1", "recaption", None)
    assert restored(tmp_path / "out.parquet").equals(table)


@pytest.mark.parametrize("explode", [False, True])
def test_the_truth_of_lists_runs_along_the_captions(tmp_path: Path, explode: bool) -> None:
    captions = [["a", "b"], ["c", "d"]]
    truth = {"true_mismatch": [[False, True], [True, False]], "true_key": [["k0", "k1"], ["k0", "k1"]]}
    table = pa.table({"key": ["k0", "k1"], "image": [picture(0), picture(1)], "captions": captions, **truth})
    pairs = load_pairs(write_table(tmp_path / "in.parquet", table))
    plan = plan_of(pairs, ["drop", "rematch_text", "keep", "drop"], [None, 2, None, None])
    out, dropped = tmp_path / "out.parquet", tmp_path / "dropped.parquet"
    export_pairs(pairs, plan, out, dropped=dropped, explode=explode)
    again = load_pairs(out)
    assert again.captions == ["c", "c"] and again.true_key == ["k0", "k0"]
    np.testing.assert_array_equal(again.true_mismatch_mask(), [False, True])
    np.testing.assert_array_equal(load_pairs(dropped).true_mismatch_mask(), [False, False])


def test_columns_of_the_input_give_way_to_added_ones_and_pairs_in_memory_cannot_be_exported(tmp_path: Path) -> None:
    out, dropped = tmp_path / "out.parquet", tmp_path / "dropped.parquet"
    pairs = Pairs.from_arrays(["a", "b"], features=np.eye(2))
    assert_raises(DataError, "memory", export_pairs, pairs, plan_of(pairs), out)
    assert list(tmp_path.iterdir()) == []
    pairs = load_pairs(write_flat(tmp_path / "in.parquet", 3, action=["a", "b", "c"], action_input=[1, 2, 3]))
    summary = export_pairs(pairs, plan_of(pairs), out, dropped=dropped)
    assert summary.renamed == {"action": "action_input_2"} and "action_input_2" in str(summary)
    told = pq.read_table(out).select(["action_input_2", "action_input", "action"]).to_pydict()
    assert list(told.values()) == [["a", "b", "c"], [1, 2, 3], ["keep"] * 3]
    assert pq.read_table(dropped).num_rows == 0


def test_what_exists_collides_or_has_changed_is_refused(flat: Pairs, mixed: RepairPlan, tmp_path: Path) -> None:
    out, data = tmp_path / "out.parquet", tmp_path / "in.parquet"
    other = load_pairs(write_flat(tmp_path / "other.parquet", 12, site=[7] * 12))
    for others in other, pq.read_table(data):
        words = r"other data.* A file, and its rows in memory"
        assert_raises(DataError, words, export_pairs, others, mixed, out)
    words = r"no setting 'overwrit'; did you mean 'overwrite'\? \(known: about, "
    assert_raises(ConfigError, words, export_pairs, flat, mixed, out, overwrit=True)
    assert_raises(ConfigError, "own path", export_pairs, flat, mixed, out, ledger=out)
    assert not out.exists()
    out.write_bytes(b"precious")
    assert_raises(OutputExistsError, "overwrite", export_pairs, flat, mixed, out)
    assert out.read_bytes() == b"precious"
    export_pairs(flat, mixed, out, overwrite=True)
    assert pq.read_metadata(out).num_rows == 11
    before = data.read_bytes()
    assert_raises(OutputExistsError, "input", export_pairs, flat, mixed, data, overwrite=True)
    assert data.read_bytes() == before
    write_flat(data, 12, site=[7] * 12)
    assert_raises(DataError, "changed", export_pairs, flat, mixed, tmp_path / "new.parquet")
    assert not (tmp_path / "new.parquet").exists()


def test_nothing_is_published_when_rows_are_lost(flat: Pairs, mixed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out, ledger, whole = tmp_path / "out.parquet", tmp_path / "ledger.parquet", ExportWork._batches
    out.write_bytes(b"precious")

    def short(*told: Any) -> Any:
        return (batch.slice(0, max(len(batch) - 1, 0)) for batch in whole(*told))  # a reader that loses rows

    monkeypatch.setattr(ExportWork, "_batches", short)
    with pytest.raises(CleanpairsError):
        export_pairs(flat, mixed, out, ledger=ledger, overwrite=True)
    assert out.read_bytes() == b"precious" and not ledger.exists()
    assert not list(tmp_path.glob("out.parquet.manifest*"))


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_ledger_adds_up_on_random_plans(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=7).filter(lambda s: sum(s) > 1))
    pairs = load_pairs(write_lists(folder / "in.parquet", sizes))
    n, kinds = len(pairs), st.sampled_from(["keep", "drop", "rematch_text", "rematch_image"])
    donors = [(i + data.draw(st.integers(1, n - 1))) % n for i in range(n)]
    plan = plan_of(pairs, data.draw(st.lists(kinds, min_size=n, max_size=n)), donors)
    explode = data.draw(st.booleans())
    out, dropped, ledger = (folder / f"{name}.parquet" for name in ("out", "dropped", "ledger"))
    summary = export_pairs(pairs, plan, out, dropped=dropped, ledger=ledger, explode=explode)
    rows, gone, lines = (pq.read_table(path).to_pylist() for path in (out, dropped, ledger))

    assert verify_path(out).ok
    assert [line["pair_id"] for line in lines] == list(range(n))
    assert [line["key"] for line in lines] == pairs.keys and len(rows) == summary.rows
    assert sum(line["out_row"] is None for line in lines) == len(gone) == summary.dropped + summary.quarantined
    assert summary.kept + summary.rematched_text + summary.rematched_image + len(gone) == n
    in_rows: dict[int, list[str]] = {}
    for line in lines:
        assert (line["out_row"] is not None) == (line["action"] in ("keep", "rematch_text", "rematch_image"))
        assert (line["new_caption"] is not None) == (line["action"] == "rematch_text")
        if line["out_row"] is not None:
            in_rows.setdefault(line["out_row"], []).append(line["new_caption"] or line["original_caption"])
            assert rows[line["out_row"]]["key"] == line["key"]
    assert [[row["captions"]] if explode else row["captions"] for row in rows] == [in_rows[i] for i in range(len(rows))]
    assert not explode or [line["action"] for line in lines] == plan.table["action"].to_pylist()
    assert explode or summary.rematched_image == 0


@pytest.mark.parametrize("kind", ["columns", "texts"])
def test_what_was_read_through_a_copy_is_still_the_input(tmp_path: Path, kind: str) -> None:
    """Joined columns and .txt beside images are read from a copy in the cache directory."""
    names = [f"{i}.png" for i in range(3)]
    folder, out, options = write_pictures(tmp_path / "in", names), tmp_path / "out.parquet", {}
    for i in range(3):
        (folder / f"{i}.txt").write_text(f"caption {i}")
    data, changed = folder, folder / "2.txt"
    if kind == "columns":
        table = {"image": names, "title": list("abc"), "description": list("def")}
        data = changed = write_table(tmp_path / "v.parquet", table)
        options = {"text_column": "title,description"}
    pairs, before = load_pairs(data, image_root=folder, **options), changed.read_bytes()
    export = partial(export_pairs, pairs, plan_of(pairs))
    assert_raises(OutputExistsError, "is the input", export, changed, format="parquet", overwrite=True)
    assert changed.read_bytes() == before
    changed.write_bytes(before + b" ")
    assert_raises(DataError, r"the input .* has changed since it was read", export, out)
    changed.write_bytes(before)
    assert export(out).kept == 3
