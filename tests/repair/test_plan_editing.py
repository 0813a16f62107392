"""A plan as a person leaves it: CSV there and back, and what follows from an edited action or donor."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import Pairs, export_pairs, load_pairs
from cleanpairs.core.errors import DataError, OutputExistsError
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan
from tests.helpers import assert_raises
from tests.helpers import plan_of as by_hand

TEXTS = ["a dog", "=SUM(1)", "'quoted", 'two\r\nlines, "and";\tcommas\n', "", "naïve 日本語", "-5", "plain"]


def plan_of(edit: dict[int, dict[str, Any]] | None = None) -> RepairPlan:
    """Eight pairs: 0 and 1 have swapped captions, 2 has a new image of 3, 4 is dropped, 5 quarantined, 6, 7 kept."""
    pairs = Pairs.from_arrays(TEXTS, features=np.eye(8, dtype=np.float32), keys=[f"k{i}" for i in range(8)])
    pairs = replace(pairs, reasons={})  # the empty caption is a caption here
    actions = ["rematch_text", "rematch_text", "rematch_image", "keep", "drop", "quarantine", "keep", "keep"]
    rest, reasons = [None] * 5, ["mismatched caption", "mismatched caption", None, None, "no candidate", "broken image"]
    told = {
        "repair_score": [0.8, 0.8, 0.6, *rest], "margin": [0.1, 0.1, None, *rest],
        "confidence": [0.7, 0.7, None, *rest], "reason": [*reasons, None, None],
        "correspondence": [0.9] * 5 + [None] + [0.9] * 2,
    }  # fmt: skip
    rows = by_hand(pairs, actions, [1, 0, 3, *rest], **told).table.to_pylist()
    rows[0]["captions"] = [{"text": t, "source": "rematched", "weight": 0.25} for t in ('=a "b"', TEXTS[3], "x")]
    for i, changes in (edit or {}).items():
        rows[i] |= changes
    return RepairPlan(pa.Table.from_pylist(rows, PLAN_SCHEMA), 0.1, 0.5, "f" * 8, {"data": "x.parquet"})


def edited(tmp_path: Path, *changes: tuple[str, str]) -> RepairPlan:
    """The plan after a person replaced text in its CSV."""
    path = tmp_path / "plan.csv"
    plan_of().save(path, overwrite=True)
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, (old, text)
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    return RepairPlan.load(path)


def test_the_reason_of_before_goes_with_the_action_of_before(tmp_path: Path) -> None:
    reason = '"no candidate scores higher than the present partner"'
    plan = edited(tmp_path, ('4,"k4","drop"', '4,"k4","keep"'), ('0,"k0","rematch_text"', '0,"k0","drop"'),
                  ('6,"k6","keep"', '6,"k6","drop"'), ('"no candidate"', reason))  # fmt: skip
    assert plan.table["caption"][4].as_py() == TEXTS[4]
    reasons = plan.table["reason"].to_pylist()
    assert [reasons[i] for i in (0, 1, 4, 5, 6)] == ["by hand", "mismatched caption", None, "broken image", "by hand"]
    assert plan.summary().reasons == {"by hand": 2}
    assert repr(plan) == "RepairPlan(8 pairs, 2 drop, 1 rematch_text, 1 rematch_image, 3 keep, 1 quarantine)"


def test_a_repair_may_be_taken_back_or_dropped(tmp_path: Path) -> None:
    image = ("rematch_image", TEXTS[0], 1, "k1", None, 2)  # its score was that of the other's caption
    for action, caption, *left in (("keep", TEXTS[0]), ("drop", None), ("recaption", TEXTS[1]), image):
        row = edited(tmp_path, ('0,"k0","rematch_text"', f'0,"k0","{action}"')).table.to_pylist()[0]
        names = ("caption", "donor_pair_id", "donor_key", "captions", "donor_use")
        assert [row[name] for name in names] == [caption, *(left or [None] * 4)]
        assert row["repair_score"] is row["confidence"] is None or action == "recaption"


OWN = {"action": "recaption", "caption": "what I see"}  # in place of a donor's
WRITTEN = {"action": "recaption", "caption": "two boats", "reason": "captioned by tiny-vl", "repair_score": 0.75}


@pytest.mark.parametrize(("row", "changes", "left"), [
    (0, OWN, OWN | dict.fromkeys(("repair_score", "margin", "confidence"))),
    (7, WRITTEN, WRITTEN),
    (7, WRITTEN | {"action": "keep"}, {"caption": "plain", "reason": None, "repair_score": None}),
    (7, WRITTEN | {"action": "drop"}, {"caption": None, "reason": "by hand", "repair_score": None}),
])  # fmt: skip
def test_what_was_told_of_a_caption_goes_with_it(tmp_path: Path, row: int, changes: Any, left: Any) -> None:
    plan_of({row: changes}).save(tmp_path / "plan.parquet")
    plan = RepairPlan.load(tmp_path / "plan.parquet")
    assert plan.table.to_pylist()[row].items() >= left.items()
    assert row or "70 % of 1 repair expected to be right, 2 undetermined" in str(plan.summary())


def test_another_donor_brings_its_caption_and_loses_the_scores(tmp_path: Path) -> None:
    path = tmp_path / "plan.parquet"
    for edited, uses, key in (({0: 7}, [1, 1, 1], "k7"), ({0: 7, 1: 7}, [2, 2, 1], "k7"), ({0: 7}, [1, 1, 1], "k1")):
        # Captions of one image have one key.
        plan_of({i: {"donor_pair_id": j} for i, j in edited.items()} | {7: {"key": key}}).save(path, overwrite=True)
        rows = RepairPlan.load(path).table.to_pylist()
        assert rows[0]["caption"] == "plain" and rows[0]["donor_key"] == key
        assert [rows[0][k] for k in ("repair_score", "margin", "confidence", "captions")] == [None] * 4
        assert [row["donor_use"] for row in rows[:3]] == uses
        assert rows[1]["repair_score"] == (None if 1 in edited else pytest.approx(0.8))


def test_a_blank_caption_and_one_of_somebodys_own_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "plan.parquet"
    for caption in (None, " \n"):
        edit = {7: {"action": "recaption", "caption": caption}}
        assert_raises(DataError, r"pair 7 .* is recaption but has no caption", plan_of, edit)
    for row, action in ((7, "keep"), (0, "rematch_text")):
        plan_of({row: {"caption": "what I see"}}).save(path, overwrite=True)
        assert_raises(DataError, f"pair {row} .*what I see.*{action}", RepairPlan.load, path)


@pytest.mark.parametrize(("change", "message"), [
    (('7,"k7","keep"', '7,"k7","rematch_text"'), "pair 7 .* is rematch_text but it names no donor_pair_id"),
    (('0,"k0","rematch_text",0.9,1', '0,"k0","rematch_text",0.9,cat'), "cannot be read as a plan in CSV"),
    (('""weight"": 0.25', '""weight"": -1'), "pair 0 .* has captions without a text, or a weight of at least 0"),
    (('[{""text"": ', '[{""text"": 7, ""t"": '), "cannot be read as a plan in CSV"),
    (("pair_id", "id"), "needs the columns"),
])  # fmt: skip
def test_edits_that_make_no_plan(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert_raises(DataError, message, edited, tmp_path, change)


def test_pandas_may_have_written_it(tmp_path: Path) -> None:
    """It makes 1.0 of 1 where other cells of the column are empty, and loses the leading zeros of keys."""
    plan, path = plan_of(), tmp_path / "plan.csv"
    plan.save(path)
    pd.read_csv(path).to_csv(path, index=False)
    text = path.read_text(encoding="utf-8")
    assert ",1.0," in text and RepairPlan.load(path).table.equals(plan.table)
    path.write_text(text.replace(",1.0,k1", ",1.5,k1"), encoding="utf-8")
    assert_raises(DataError, "cannot be read as a plan", RepairPlan.load, path)

    keys = [f"{i:03}" for i in range(8)]
    data = replace(Pairs.from_arrays(captions=TEXTS, image_vectors=np.eye(8, dtype=np.float32)), keys=keys)
    table = plan_of({i: {"key": key} for i, key in enumerate(keys)}).table
    donors = pa.array(keys).take(table["donor_pair_id"].combine_chunks())
    plan = RepairPlan(with_columns(table, {"donor_key": donors}), 0.1, 0.5)
    plan.save(path, overwrite=True)
    pd.read_csv(path).to_csv(path, index=False)
    assert "007" not in path.read_text(encoding="utf-8")
    assert RepairPlan.load(path).check_for(data).table.equals(plan.table)  # scores as well
    with pytest.raises(DataError, match="pair 7 has key '7' in the plan and '17' in the data"):
        RepairPlan.load(path).check_for(replace(data, keys=[*keys[:7], "17"]))


def test_a_spreadsheet_gets_no_formula_may_sort_rows_and_those_left_out_are_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    plan_of().save(path)
    text = path.read_bytes()
    assert text.startswith(b"\xef\xbb\xbf") and b"'=SUM(1)" in text and b"''quoted" in text
    assert not any(cell in text for cell in (b'"=SUM', b'"-5"', b",=SUM", b",-5"))
    rows = pd.read_csv(path, dtype={"key": str})
    rows.sort_values("correspondence", ascending=False).to_csv(path, index=False)
    assert RepairPlan.load(path).table["key"].to_pylist() == [f"k{i}" for i in range(8)]
    rows.drop(index=3).to_csv(path, index=False)
    assert_raises(DataError, r"no row of pair 3: .* action 'drop'", RepairPlan.load, path)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_what_a_plan_notes_is_in_its_csv(tmp_path: Path, n: int) -> None:
    settings = {"data": 'a "b",c.parquet', "columns": {"text": "é\nü"}, "searches": [{"index": "flat"}]}
    plan = RepairPlan(plan_of().table.slice(0, 0 if n == 0 else None), 0.25, 0.5, "f" * 64, settings)
    path = tmp_path / "plan.csv"
    plan.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.csv"]
    for _ in range(n):  # as it is edited in pandas
        pd.read_csv(path, dtype=str).iloc[::-1].to_csv(path, index=False)
    if n:  # as a Swiss or a German spreadsheet saves it
        rows = pd.read_csv(path, dtype={name: str for name in ("key", "donor_key", "original_caption", "caption")})
        rows.to_csv(path, sep=";", decimal=".,"[n - 1], index=False)
    found = RepairPlan.load(path)
    assert (found.threshold, found.min_repair_score, found.fingerprint) == (0.25, 0.5, "f" * 64)
    assert found.note == plan.note and found.table.equals(plan.table)
    assert_raises(OutputExistsError, "overwrite", plan.save, path)
    plan.save(path, overwrite=True)
    rows = pd.read_csv(path)
    rows.drop(columns=rows.columns[-1]).to_csv(path, index=False)
    assert_raises(DataError, r"plan\.csv is no repair plan: it lacks what is noted", RepairPlan.load, path)


@pytest.mark.parametrize("lists", [False, True])
def test_captions_that_a_program_has_rewritten_are_those_of_the_data(tmp_path: Path, lists: bool) -> None:
    texts = ["007", "two\r\nlines", "1-2", "plain", "other"]
    captions = [[text] for text in texts] if lists else texts
    features = pa.array([[float(i), 1.0] for i in range(5)], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"image_features": features, "caption": captions}), tmp_path / "in.parquet")
    pairs = load_pairs(tmp_path / "in.parquet")
    actions, donors = ["keep", "keep", "keep", "rematch_text", "rematch_text"], [None, None, None, 0, 2]
    by_hand(pairs, actions, donors).save(tmp_path / "plan.csv")
    text = (tmp_path / "plan.csv").read_bytes()
    for old, new in ((b'"007"', b'"7"'), (b"\r\nlines", b"\nlines"), (b'"1-2"', b"Feb-01")):  # as Excel does
        assert text.count(old) >= 2
        text = text.replace(old, new)
    (tmp_path / "plan.csv").write_bytes(text)
    plan = RepairPlan.load(tmp_path / "plan.csv")
    wanted = [*texts[:3], "007", "1-2"]
    assert plan.apply(pairs).captions == wanted
    export_pairs(pairs, plan, tmp_path / "out" / "out.parquet")
    out, ledger = (pq.read_table(tmp_path / "out" / f"out.parquet{end}") for end in ("", ".ledger.parquet"))
    assert out["caption"].to_pylist() == ([[text] for text in wanted] if lists else wanted)
    assert ledger["original_caption"].to_pylist() == texts
    assert ledger["new_caption"].to_pylist() == [None, None, None, "007", "1-2"]
