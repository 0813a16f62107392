"""What a session asks, what it takes for an answer, and what comes of it, through the real export."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import RepairPlan, evaluate_audit
from cleanpairs.commands.export import export_plan
from cleanpairs.core import ConfigError, percent
from cleanpairs.report.outcome import outcome_of
from cleanpairs.report.page import verdict
from cleanpairs.review.session import Session
from tests.helpers import assert_raises

from .conftest import QUARANTINED, REPAIRED, TOPICS, WRONG, Case, N


def test_the_queue(case: Case, tmp_path: Path) -> None:
    session, y = case.open(tmp_path), case.y
    flagged = session.queue().tolist()
    assert flagged[0] == REPAIRED and set(flagged) == set(np.flatnonzero(y < 0.5))
    assert (np.diff(y[flagged[1:]]) <= 0).all()  # from the threshold down
    assert (np.diff(y[session.queue("kept")]) >= 0).all() and len(session.queue("kept")) + len(flagged) == N - 1
    assert session.queue("repaired").tolist() == [REPAIRED]
    assert session.queue("repeated").tolist() == list(range(40, 46))
    assert session.queue("lowest")[0] == np.nanargmin(y) and session.queue("all").tolist() == list(range(N - 1))
    assert session.queue("all", "CLICK here").tolist() == list(range(40, 46))
    assert session.queue("all", "k007").tolist() == [7]
    session.first = [50, 7]  # they stand out: a decision comes before any other
    assert session.queue().tolist() == [50, 7, *(i for i in flagged if i != 7)]
    session.answer(40, "drop")
    assert session.queue("answered").tolist() == [40]
    assert_raises(KeyError, "nothing", session.queue, "nothing")


def test_a_question(case: Case, tmp_path: Path) -> None:
    session = case.open(tmp_path)
    found = session.question(REPAIRED)
    assert found["options"][0]["planned"] and found["options"][0]["action"] == "rematch_text"
    donors = [option["donor"] for option in found["options"]]
    assert 4 <= len(set(donors)) == len(donors) <= 6
    topic = next(words for words in TOPICS if case.pairs.captions[donors[0]].split()[0] in words)  # the image's own
    assert all(word in topic for d in donors for word in case.pairs.captions[d].split()[:3])
    assert len(found["similar_images"]) == 3 and found["why"] and found["answer"] is None
    assert "⟨U+202E⟩" in session.question(3)["caption"] and "\u202e" in session.question(3)["raw"]
    assert session.question(41)["alike"] == 6
    for odd in (-1, N, QUARANTINED):
        assert_raises(ConfigError, "no pair", session.question, odd)


def test_a_batch_leaves_answers_alone_and_is_taken_back_as_one(case: Case, tmp_path: Path) -> None:
    session = case.open(tmp_path)
    session.answer(41, "keep")
    made = session.answer_all(session.alike(40), "drop")
    assert made is not None and made.pairs == (40, 42, 43, 44, 45)
    assert session.answer_all(session.alike(40), "keep") is None
    assert session.undo(made.name) == made and session.undo(made.name) is None
    assert session.queue("answered").tolist() == [41]
    assert_raises(ConfigError, "kept or dropped", session.answer_all, np.array([1, 2]), "recaption")


def test_the_plan_is_carried_out(case: Case, tmp_path: Path) -> None:
    session, captions = case.open(tmp_path), case.pairs.captions
    kept = int(np.flatnonzero(case.y >= 0.5)[0])
    session.answer(kept, "drop")
    session.answer(2, "keep")  # the plan drops it
    session.answer(REPAIRED, "keep")  # the plan gives it another caption
    session.answer(7, "rematch_text", donor=50)
    session.answer(8, "recaption", caption="=typed  by\nhand")
    session.answer(9, "rematch_image", donor=51)
    session.answer(10, "unsure")
    written = case.open(tmp_path).write_plan(tmp_path / "plan.parquet")  # as after a stop
    plan = RepairPlan.load(written["plan"])
    assert written["decided"] == 7 and plan.table["reason"][7].as_py() == "decided in a review"
    assert plan.table["confidence"][REPAIRED].as_py() is None
    untouched = [i for i in range(N) if i not in (kept, 2, REPAIRED, 7, 8, 9)]
    same = [name for name in plan.table.column_names if name != "donor_use"]
    assert plan.table.select(same).take(untouched).equals(case.plan.table.select(same).take(untouched))
    export_plan(written["plan"], tmp_path / "out.parquet", trusted=True)
    out = {row["key"]: row["caption"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()}
    assert case.pairs.keys[kept] not in out and "k119" not in out
    assert [out[f"k00{i}"] for i in (2, 5, 7, 8, 9)] == [
        captions[2], captions[REPAIRED], captions[50], "=typed by hand", captions[9],
    ]  # fmt: skip


@pytest.mark.parametrize("donor", [0, 50])
def test_accepting_the_planned_repair_leaves_its_figures(case: Case, tmp_path: Path, donor: int) -> None:
    session, rows = case.open(tmp_path), case.plan.table.to_pylist()
    rows[5] |= {"donor_pair_id": donor, "donor_key": case.pairs.keys[donor], "caption": case.pairs.captions[donor]}
    rows[6] |= {"action": "recaption", "caption": "by a model", "repair_score": 0.9}
    session.plan = replace(case.plan, table=pa.Table.from_pylist(rows, case.plan.table.schema))
    session.answer(5, "rematch_text", donor=donor)
    session.answer(6, "recaption", caption="by a person")  # which nothing has judged
    row, typed = session.edited().table.slice(5, 2).to_pylist()
    assert row["confidence"] == pytest.approx(0.8) and row["repair_score"] == pytest.approx(0.9)
    assert row["caption"] == case.pairs.captions[donor] and typed["repair_score"] is None


def test_an_audit_hides_the_scores_and_its_answers_are_labels(case: Case, tmp_path: Path) -> None:
    session = case.open(tmp_path, blind=True)
    ids = session.queue().tolist()
    assert ids == case.sample().pair_id.tolist()
    assert session.question(ids[0]).keys() == {"pair", "key", "caption", "answer"}
    for i, action in zip(ids, ["keep", "drop", "unsure"], strict=False):
        session.answer(i, action)
    for refused in (ids[0], "recaption"), (next(i for i in range(N) if i not in ids), "keep"):
        assert_raises(ConfigError, "no answer|no pair", session.answer, *refused)
    labels = case.open(tmp_path, blind=True).labels()
    np.testing.assert_array_equal(labels.matched[:4], [1, 0, np.nan, np.nan])
    assert evaluate_audit(labels, case.y, threshold=0.5).labelled == 2
    review = case.open(tmp_path)
    assert review.log.decided()[ids[1]].drawn and review.edited().table["action"][ids[1]].as_py() == "drop"
    review.answer(ids[0], "drop")  # of a page that shows the score: no label
    assert case.open(tmp_path, blind=True).labels().matched[0] == 1


def test_a_calibration_asks_until_there_are_enough_answers(case: Case, tmp_path: Path) -> None:
    asked = list[int]()
    for wanted in (7, 12):
        session = Session(case.pairs, None, case.y, case.open(tmp_path).log, wanted=wanted)
        while new := [i for i in session.queue().tolist() if i not in asked]:
            assert len(new) <= 5 and session.queue().tolist() == [*asked, *new]
            assert session.question(new[0]).keys() == {"pair", "key", "caption", "answer"}
            for i in new:
                session.answer(i, "unsure" if i % 5 == 0 else "drop" if i < WRONG else "keep")
            asked += new
        assert len(set(asked)) == len(asked) == wanted and QUARANTINED not in asked
    assert session.log.labels() == {i: None if i % 5 == 0 else i >= WRONG for i in asked}
    for i in asked[:-4:-1]:
        session.undo(session.log.about(i)[-1].name)
        assert set(session.queue().tolist()) == set(asked)  # what is taken back is asked again


def test_labels_of_a_spreadsheet_are_taken_and_of_the_page_and_it_the_later_holds(case: Case, tmp_path: Path) -> None:
    page = case.open(tmp_path / "page", blind=True)
    assert page.sample is not None
    first, second, third = page.queue().tolist()[:3]
    page.answer(first, "keep")
    page.undo(page.answer(second, "keep").name)
    sample = replace(page.sample, matched=np.where(np.isin(page.sample.pair_id, [first, second, third]), 0.0, np.nan))
    for later, labels in (-60, {first: True, third: False}), (60, dict.fromkeys((first, second, third), False)):
        Session(case.pairs, None, case.y, page.log, sample=sample, saved=time.time() + later)
        assert page.log.labels() == labels
    sample = replace(page.sample, pair_id=np.array([REPAIRED, 50]), matched=np.array([0.0, np.nan]))
    session = Session(case.pairs, None, case.y, case.open(tmp_path, blind=True).log, sample=sample)
    assert session.log.decided()[REPAIRED].drawn and session.queue().tolist() == [REPAIRED, 50]
    assert case.open(tmp_path).edited().table["action"][REPAIRED].as_py() == "rematch_text"


def test_the_rate_is_the_reports_and_an_answered_pair_is_right(case: Case, tmp_path: Path) -> None:
    session = case.open(tmp_path)
    report = verdict(outcome_of(case.y, 0.5, case.plan, None), case.plan, case.pairs, {}, case.calibration)
    value, low, high = session.rate()["mismatched"]
    assert report is not None
    assert dict(report["shares"])["kept"] == f"{percent(value)} ({percent(low)} to {percent(high)})"
    unsure = session.answer(int(session.queue("kept")[0]), "unsure")
    assert session.rate()["mismatched"] == [value, low, high]  # nobody says that it is right
    session.undo(unsure.name)
    session.calibration = None
    assert session.rate()["mismatched"] is None
    session.answer_all(session.queue("kept"), "keep")
    assert session.rate() == {"kept": len(session.queue("kept")), "mismatched": [0, 0, 0], "counted": "are mismatched"}
