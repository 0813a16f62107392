"""What a review decides: orders, batches, evidence, estimates; and what comes out of it, through the real export."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import expit

from cleanpairs.audit import evaluate_audit, read_labels
from cleanpairs.commands.export import export_plan
from cleanpairs.core.errors import ConfigError
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.review.session import EVERY, Matched, Review

from .conftest import TOPICS, Case, N


def answer(review: Review, case: Case, ids: Iterable[int]) -> None:
    """As somebody who knows."""
    for i in ids:
        review.decide([i], "drop" if case.wrong[i] else "keep", sort="asked")


def test_lists(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    known = np.flatnonzero(np.isfinite(case.y))
    asked = review.listing()
    assert sorted(asked.tolist()) == known.tolist()
    flagged = review.listing("flagged", "score")
    assert (np.diff(case.y[flagged]) >= 0).all() and set(flagged) == set(np.flatnonzero(case.y < 0.5))
    assert review.listing("repaired", "pair").tolist() == [5]
    assert set(review.listing("all", "caption")[:6]) == set(range(40, 46))  # the most repeated caption first
    assert review.listing("all", "pair", "CLICK here").tolist() == [40, 41, 42, 43, 44, 45]
    assert review.listing("all", "-score", "k007").tolist() == [7]
    review.decide([40], "drop")
    assert review.listing("decided").tolist() == [40] and 40 not in review.listing()
    for odd in ({"show": "nothing"}, {"sort": "nothing"}):
        with pytest.raises(KeyError):
            review.listing(**odd)


def test_what_is_asked_first_is_what_is_likeliest_to_be_done_wrong(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    first = review.listing()[:EVERY]
    error = np.where(case.y < 0.5, case.y, 1 - case.y)
    assert np.mean(error[first]) > 1.5 * np.nanmean(error)
    assert review.rest > 0 and review.wrong.value > 0.02
    answer(review, case, first)
    assert review.progress()["round"] == 1 and review.progress()["asked"] == EVERY


def test_the_page_of_a_pair(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    found = review.pair(5)
    assert found["options"][0]["planned"] and found["options"][0]["action"] == "rematch_text"
    donors = [option["donor"] for option in found["options"][1:]]
    assert 3 <= len(donors) <= 5 and len(set(donors)) == len(donors)
    words = set(case.pairs.captions[found["options"][0]["donor"]].split()[:3])  # of the image's own topic
    topic = next(set(t.split()) for t in TOPICS if words <= set(t.split()))
    assert all(set(case.pairs.captions[d].split()[:3]) <= topic for d in donors)
    assert len(found["similar_images"]) == 3 and found["why"]
    assert "⟨U+202E⟩" in review.pair(3)["caption"] and "\u202e" in review.pair(3)["raw"]
    assert review.pair(41)["alike"] == 6
    for odd in (-1, N, 119):
        with pytest.raises(ConfigError, match="no pair"):
            review.pair(odd)


def test_a_batch_leaves_alone_what_was_decided_and_is_taken_back_as_one(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    review.decide([41], "keep")
    made = review.decide_alike(review.alike(40), "drop", "page")
    assert made is not None and made.pairs == (40, 42, 43, 44, 45)
    assert review.rows(np.array([41, 42]))[1]["action"] == "drop" and review.log.decided()[41].action == "keep"
    assert review.decide_alike(review.alike(40), "keep") is None
    undone = review.undo("page")
    assert undone is not None and len(undone.pairs) == 5 and review.listing("decided").tolist() == [41]
    assert review.progress()["asked"] == 0  # a batch is no sample
    with pytest.raises(ConfigError, match="kept or dropped"):
        review.decide_alike([1, 2], "recaption")


@pytest.mark.parametrize(
    ("pairs", "action", "more"),
    [
        ([], "keep", {}), ([N], "keep", {}), ([-1], "keep", {}), ([119], "keep", {}), ([1], "quarantine", {}),
        ([1], "rematch_text", {}), ([1], "rematch_text", {"donor": 1}), ([1], "rematch_text", {"donor": 119}),
        ([1], "recaption", {}), ([1], "recaption", {"caption": " \n"}), ([1], "recaption", {"caption": "x" * 10_001}),
    ],
)  # fmt: skip
def test_what_cannot_be_decided(case: Case, tmp_path: Path, pairs: list[int], action: str, more: dict) -> None:
    review = case.open(tmp_path)
    before = (tmp_path / "decisions.jsonl").read_bytes()
    with pytest.raises(ConfigError):
        review.decide(pairs, action, **more)
    assert (tmp_path / "decisions.jsonl").read_bytes() == before


def test_the_plan_is_carried_out(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    kept = int(np.flatnonzero(case.y >= 0.5)[0])
    review.decide([kept], "drop")
    review.decide([2], "keep")  # the plan drops it
    review.decide([5], "keep")  # the plan gives it another caption
    review.decide([7], "rematch_text", donor=50)
    review.decide([8], "recaption", caption="=typed  by\nhand")
    review.decide([9], "rematch_image", donor=51)
    again = case.open(tmp_path)  # as after a stop
    written = again.write(tmp_path)
    assert written["decided"] == 6 and written["labels"] is None
    plan = RepairPlan.load(written["plan"])
    assert plan.table["reason"][7].as_py() == "decided in a review" and plan.table["confidence"][5].as_py() is None
    untouched = [i for i in range(N) if i not in (kept, 2, 5, 7, 8, 9)]
    same = [name for name in plan.table.column_names if name != "donor_use"]
    assert plan.table.select(same).take(untouched).equals(case.plan.table.select(same).take(untouched))
    export_plan(written["plan"], tmp_path / "out.parquet", trusted=True)
    out = {row["key"]: row for row in pq.read_table(tmp_path / "out.parquet").to_pylist()}
    captions = case.pairs.captions
    assert case.pairs.keys[kept] not in out and "k119" not in out
    assert [out[k]["caption"] for k in ("k002", "k005", "k007")] == [captions[2], captions[5], captions[50]]
    assert out["k008"]["caption"] == "=typed by hand"
    assert out["k009"]["caption"] == captions[9]


@pytest.mark.parametrize("donor", [0, 50])
def test_accepting_the_planned_repair_leaves_its_figures(case: Case, tmp_path: Path, donor: int) -> None:
    review = case.open(tmp_path)
    rows = case.plan.table.to_pylist()
    rows[5] |= {"donor_pair_id": donor, "donor_key": case.pairs.keys[donor], "caption": case.pairs.captions[donor]}
    review.plan = replace(case.plan, table=pa.Table.from_pylist(rows, case.plan.table.schema))
    review.decide([5], "rematch_text", donor=donor)
    row = review.edited().table.slice(5, 1).to_pylist()[0]
    assert row["confidence"] == pytest.approx(0.8) and row["repair_score"] == pytest.approx(0.9)
    assert row["caption"] == case.pairs.captions[donor]


def test_the_labels_are_an_audit(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    answer(review, case, review.listing()[:60])
    review.decide_alike(review.alike(40), "drop")  # no labels
    known = len(review.labels() or ())
    written = review.write(tmp_path)
    assert 55 <= known <= 60  # but those of the batch
    sample = read_labels(written["labels"], keys=case.pairs.keys, correspondence=case.y)
    assert len(sample) == known
    np.testing.assert_array_equal(sample.matched, ~case.wrong[sample.pair_id])
    result = evaluate_audit(sample, case.y, threshold=0.5)
    flagged = case.y < 0.5
    assert result.at_threshold.precision.low <= case.wrong[flagged].mean() <= result.at_threshold.precision.high


def test_shares_come_nearer_to_the_truth_and_end_there(case: Case, tmp_path: Path) -> None:
    review = case.open(tmp_path)
    flagged = review.listing("flagged", "pair")
    wide = review.precision
    answer(review, case, flagged)
    precision, review = case.wrong[flagged].mean(), case.open(tmp_path)
    assert wide.low < wide.value < wide.high and wide.low <= precision <= wide.high
    assert review.precision.value == review.precision.low == review.precision.high == pytest.approx(precision)
    answer(review, case, review.listing("undecided", "pair"))
    assert review.wrong.value == 0 and review.rest == 0 and len(review.listing()) == 0


def test_labels_move_probabilities_the_right_way() -> None:
    y = np.linspace(0.02, 0.98, 200)
    at = np.arange(60, 140, 2)
    none = np.empty(0, np.int64), np.empty(0, bool)
    for probability in (True, False):
        before = Matched(y, 0.5, probability, none).probability
        wrong = Matched(y, 0.5, probability, (at, np.zeros(len(at), bool))).probability
        right = Matched(y, 0.5, probability, (at, np.ones(len(at), bool))).probability
        assert (np.diff(before) >= 0).all() and before[100] == pytest.approx(0.5, abs=0.05)
        assert (wrong < before).all() and (right > before).all()
        sharp = Matched(y, 0.5, probability, (at, y[at] > 0.5))
        share, first = sharp.mismatched(np.arange(200)), Matched(y, 0.5, probability, none).mismatched(np.arange(200))
        assert share.high - share.low < first.high - first.low and share.low < 0.5 < share.high
    assert np.isnan(sharp.mismatched(np.empty(0, np.int64)).value)


def test_the_interval_allows_for_a_label_that_says_less_than_its_order_knows() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(50):
        x = rng.normal(1.5, 1.5, 2000)
        matched = rng.random(2000) < expit(np.where(x > 0, 1.5, 1) * x)  # where it is kept, surer than its label
        kept = np.flatnonzero(x > 0)
        at = kept[np.argsort(x[kept])[:150]]
        left = np.setdiff1d(kept, at)
        share = Matched(expit(x), 0.5, True, (at, matched[at])).mismatched(left)
        held += share.low <= (~matched[left]).mean() <= share.high
    assert held >= 45


def test_the_interval_of_the_flagged_allows_for_labels_that_are_too_careful() -> None:
    """As on photographs and titles: by their labels .90 of the flagged are mismatched, in truth .99."""
    rng, held, width = np.random.default_rng(0), 0, 0.0
    for _ in range(50):
        x = np.concatenate([rng.normal(-2.9, 1.3, 500), rng.normal(3, 1.5, 1100)])
        matched = rng.random(1600) < expit(np.where(x < 0, 2.5, 1.4) * x - 1)
        flagged, at = np.flatnonzero(x < 0), np.argsort(np.abs(x))[:100]
        done = np.intersect1d(flagged, at)
        share = Matched(expit(x), 0.5, True, (at, matched[at])).mismatched(
            np.setdiff1d(flagged, at), len(done), int((~matched[done]).sum())
        )
        held += share.low <= (~matched[flagged]).mean() <= share.high
        width += (share.high - share.low) / 50
    assert held >= 46 and width < 0.08
