"""Displaced rows are repaired by the rule: exactly, without a guess, and so that it can be undone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from cleanpairs import Auto, ClipScore, InfoNCE, Pairs, RepairPlan, load_pairs, restore_export
from cleanpairs.commands.export import export_run
from cleanpairs.commands.rematch import chosen_threshold, rematch_run
from cleanpairs.commands.run import Run
from cleanpairs.correspondence.displacement import DisplacedBlock, Displacement, _viterbi
from cleanpairs.estimators.frozen import displaced_in_vectors
from cleanpairs.estimators.spaces import displaced_between_spaces
from cleanpairs.repair.displaced import as_columns, from_columns, moves_and_misplaced
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.verification import verify_path
from tests.helpers import fit_beside, unit, vector_column, write_table


def write(path: Path, n: int = 400, first: int = 100, last: int = 300, by: int = 2, spread: float = 0.7) -> np.ndarray:
    """Vectors of both sides; captions of rows ``first`` to ``last - 1`` stand ``by`` rows on. Their owners."""
    rng, owner = np.random.default_rng(0), np.arange(n)
    owner[first:last] = np.roll(owner[first:last], by)
    images = rng.normal(size=(n, 16)).astype(np.float32)
    texts = (images + spread * rng.normal(size=(n, 16)).astype(np.float32))[owner]
    sides = {"image_features": vector_column(images), "text_features": vector_column(texts)}
    write_table(path, {"key": [f"k{i}" for i in range(n)], "caption": [f"text {i}" for i in owner], **sides})
    return owner


def own(plan: RepairPlan) -> np.ndarray:
    """(N,) bool: the pair ends with its own caption."""
    return np.array([caption == f"text {i}" for i, caption in enumerate(plan.table["caption"].to_pylist())])


def test_every_displaced_row_gets_its_own_caption_and_an_orphan_none(tmp_path: Path) -> None:
    owner = write(data := tmp_path / "data.parquet")
    plan = (model := ClipScore(text_encoder="features", device="cpu").fit(data)).rematch(data)
    right, inside = own(plan), np.arange(100, 298)
    assert right[inside].mean() > 0.97 and right[np.r_[0:100, 300:400]].mean() > 0.97
    assert set(plan.table["action"].to_pylist()[298:300]) <= {"keep", "drop"}  # their captions stand elsewhere
    left = plan.table.filter(pc.not_equal(plan.table["action"], "drop"))["caption"]
    assert len(left.unique()) == len(left) > 390  # row 299 seems to be in place, and gives its caption away
    moved = plan.table.filter(pc.starts_with(plan.table["reason"], "displaced"))
    told = ("displaced: its caption stood 2 rows down", "rematch_text", 1)
    assert {(r["reason"], r["action"], r["donor_use"]) for r in moved.to_pylist()} == {told}
    assert min(moved["confidence"].to_pylist()) > 0.5
    assert (owner[np.array(moved["donor_pair_id"])] == np.array(moved["pair_id"])).mean() > 0.97
    few = model.rematch(data, min_confidence=0.99).table.filter(pc.starts_with(pc.field("reason"), "displaced"))
    assert 0 < len(few) < len(moved) and min(few["confidence"].to_pylist()) >= 0.99
    for off in ({"displaced": False}, {"repairs": "none"}, {"targets": "image"}):
        assert not model.rematch(data, **off).summary().displaced

    pairs = load_pairs(data)  # the share of these rows is the least noise rate of a model that knows all pairs by heart
    model.correspondence_ = np.ones(400, np.float32)
    model.noise_rate_, model.noise_rate_interval_, model.noise_rate_bound_ = 0.01, (0.0, 0.02), 0.3
    model._set_displaced(pairs.row, pairs.pair_image_group, pairs.text_group, model.displaced_rows(pairs))
    assert len(model._moves_) > 190
    assert abs(model.noise_rate_ - 0.5) < 0.01 and model.noise_rate_bound_ == model.noise_rate_
    assert 0.45 < model.noise_rate_interval_[0] < model.noise_rate_ == model.noise_rate_interval_[1]

    model.fit(both := pairs.select(np.repeat(np.arange(400), 2)))  # two captions in each row
    model._moves_ = from_columns(as_columns(model._moves_, 800))  # as a run keeps them
    assert told[0] in model.rematch(both).table["reason"].to_pylist()


@pytest.mark.parametrize("streamed_from", [0, 1_000])
def test_the_ledger_names_the_rule_and_the_export_is_verified_and_undone(tmp_path: Path, streamed_from: int) -> None:
    out, message = tmp_path / "clean.parquet", "the caption of each image stands 2 rows down"
    write(data := tmp_path / "data.parquet")
    found = fit_beside(data, "text_encoder=features", method="clip-score", device="cpu")
    assert any(message in block["why"] for block in found["displaced"])
    y = (run := Run(tmp_path / "run")).scores().correspondence
    assert (y[100:298] == 0).mean() > 0.97 and y[np.r_[0:95, 305:400]].min() > 0
    assert found["flagged"] == (y < found["threshold"]).sum()
    assert run.model().noise_rate_ == found["noise_rate"] >= (y == 0).mean()
    for name in ("plan.parquet", "plan.csv"):
        rematch_run(run, tmp_path / name, RepairSettings(), streamed_from=streamed_from)
    issues = csv.read_csv(run.path / "issues.csv").to_pylist()
    (block,) = (row for row in issues if row["issue"] == "displaced rows" and 95 <= row["pair_id"] <= 105)
    assert block["why"].startswith(f"Rows {block['pair_id']} to ")  # both count from 0
    plan, summary = RepairPlan.load(tmp_path / "plan.parquet"), RepairPlan.load(tmp_path / "plan.parquet").summary()
    assert 190 < summary.displaced == summary.rematched_text and own(plan)[100:298].mean() > 0.97
    assert f"{summary.displaced} of displaced rows" in str(summary)
    assert plan.table["reason"].equals(RepairPlan.load(tmp_path / "plan.csv").table["reason"])
    assert any(f"{message}." in line for line in displaced_in_vectors(load_pairs(data)))
    assert not displaced_in_vectors(Pairs.from_arrays(["a"] * 30, features=np.eye(30, dtype=np.float32)))
    export_run(run, out, RepairSettings(), streamed_from=streamed_from)
    reasons = pq.read_table(f"{out}.ledger.parquet")["reason"].to_pylist()
    assert sum((r or "").startswith("displaced: ") for r in reasons) > 190
    assert not verify_path(out).problems and not verify_path(run.path).problems
    restore_export(out, tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").equals(pq.read_table(data))


def test_pairs_in_place_are_judged_by_their_own_share_of_mismatched_ones(tmp_path: Path) -> None:
    owner = write(tmp_path / "data.parquet", n=600, first=100, last=500, by=1, spread=1.2)
    result = fit_beside(tmp_path / "data.parquet", device="cpu", seed=0)
    run, wrong = Run.open(tmp_path / "run"), owner != np.arange(600)
    y, calibration = run.scores().correspondence, run.calibration()
    kept = y >= result["threshold"]
    assert calibration is not None and abs((~kept).sum() - wrong.sum()) <= 2
    share = calibration.shares(y[kept], [int(kept.sum())])[0]
    assert share.low <= wrong[kept].mean() <= share.high < 0.1
    model, pairs = Auto(device="cpu", random_state=0), run.load_input()  # in Python, too
    assert np.array_equal(model.fit(pairs).rematch(pairs).table["correspondence"], y)
    model.threshold_ = 0.0  # as where no other pair is worse than another
    assert "keep" not in np.array(model.rematch(pairs, repairs="none").table["action"])[y == 0]
    cut = model.threshold_for(max_wrong=0.05)
    kept = np.array(model.rematch(pairs, threshold=cut.threshold, repairs="none").table["action"]) == "keep"
    assert 100 < kept.sum() <= cut.kept and wrong[kept].mean() <= 0.05
    threshold, message = chosen_threshold(None, None, 0.8, run)
    assert f"kept            {model.rematch(pairs, threshold=threshold).summary().kept} of 600 pairs" in message
    stays = int(run.scores().moves["pair"][0])
    assert model.explain(pairs, [stays])[0].displaced == str(model.displaced_.blocks[0])
    plan = model.calibrate({i: not wrong[i] for i in range(0, 600, 15)} | {stays: True}).rematch(pairs).to_pandas()
    assert plan.pair_id[wrong & (plan.action == "keep")].tolist() == [stays] and stays not in set(plan.donor_pair_id)
    assert np.array_equal(plan.correspondence, model.correspondence_)


@pytest.mark.parametrize("settings", [
    {"backbone": "mlp", "dim": 64, "epochs": 30, "lr": 6e-3, "batch_size": 32, "dropout": 0.0},
    {"backbone": "sgr", "dim": 32, "dim_sim": 8, "epochs": 2, "batch_size": 64},
], ids=["every pair is known by heart", "words are compared with regions"])  # fmt: skip
def test_displaced_rows_are_found_whatever_the_model_learned(settings: dict[str, Any]) -> None:
    rng, words = np.random.default_rng(0), np.array([f"word{k}" for k in range(60)])
    chosen, owner = np.argsort(rng.random((300, 60)))[:, :3], np.arange(300)
    features = rng.normal(size=(60, 16))[chosen].sum(axis=1) + 2 * rng.normal(size=(300, 16))
    owner[100:130] = np.roll(owner[100:130], 1)
    pairs = Pairs.from_arrays([" ".join(words[chosen[i]]) for i in owner], features=features.astype(np.float32))
    model = InfoNCE(text_encoder="words", require_dependence=False, random_state=0, device="cpu", **settings).fit(pairs)
    (block,) = model.displaced_rows(pairs).blocks
    assert block.distance == 1 and abs(block.first - 100) <= 2 and abs(block.last - 129) <= 2
    inside = np.arange(block.first, block.last + 1)
    for off in ({}, {"repairs": "none"}):  # the captions at their places belong to other rows
        plan = model.rematch(pairs, threshold=0.0001, **off).table
        assert set(plan["action"].take(inside).to_pylist()) <= {"rematch_text", "rematch_image", "drop"}
        assert plan["action"].to_pylist().count("keep") >= 260


@pytest.mark.parametrize("seed", [0, 1])
def test_most_rows_may_be_displaced(seed: int) -> None:
    """Captions 100 and 200 are missing. What was found at first tells how both sides belong together."""
    rng = np.random.default_rng(seed)
    z, maps = rng.normal(size=(600, 12)), rng.normal(size=(2, 12, 20))
    images, texts = (unit(z @ side + 1.5 * rng.normal(size=(600, 20))).astype(np.float32) for side in maps)
    each = np.full(600, 0.7), np.ones(600, bool), np.arange(600)
    found = displaced_between_spaces(images, texts[np.r_[0:100, 101:200, 201:600, 0, 1]], *each)
    blocks = np.array([(block.first, block.last, block.distance) for block in found.blocks])
    assert np.all(abs(blocks - [(101, 200, -1), (201, 599, -2)]) <= [3, 3, 0])
    images, texts = (unit(rng.normal(size=(600, 256))).astype(np.float32) for _ in range(2))
    back = np.arange(600) % 300  # each image comes back, with a caption that tells nothing of it
    assert not displaced_between_spaces(images[back], texts, *each[:2], back).blocks
    pairs = Pairs.from_arrays(features=images, text_vectors=np.roll(images, 1, axis=0) + texts)
    model = InfoNCE(epochs=5, lr=6e-3, batch_size=32, require_dependence=False, random_state=seed).fit(pairs)
    assert model.displaced_rows(pairs).blocks == (DisplacedBlock(0, 599, 1),)  # which its networks know by heart


def test_captions_of_a_row_move_together_and_each_once() -> None:
    """Two captions in each row; row 3 has one; row 5 is quarantined; row 6 is far surer of the caption of row 8."""
    rows = np.repeat(np.arange(9), [2, 2, 2, 1, 2, 2, 2, 2, 2])
    captions = [f"{i}{j}" for i in range(9) for j in "ab"][:17]
    pairs = Pairs.from_arrays(captions, features=np.eye(9, dtype=np.float32), image_index=rows)
    groups, texts = pairs.pair_image_group, pairs.text_group
    probability = np.array([0.9, 0.9, 0.9, 0.4, 0.9, 0.9, 0.95, 0.6, 0])
    found = Displacement(np.array([1, 1, 1, 1, 1, 1, 2, 1, 0]), probability, ())
    at = {int(p) for p in np.flatnonzero(rows == 5)}
    (moves, lost), (left, away) = (  # row 8 is in place, and gives its caption to the surer row 6
        moves_and_misplaced(rows, groups, texts, found, at, np.full(len(rows), sure)) for sure in (0.94, 0.96)
    )
    assert {(int(rows[m["pair"]]), int(rows[m["donor"]])) for m in moves} == {(0, 1), (1, 2), (2, 3), (6, 8)}
    assert [int((rows[moves["pair"]] == r).sum()) for r in (0, 2)] == [2, 1]
    assert len(set(moves["donor"].tolist())) == len(moves)
    assert set(rows[away].tolist()) == set(range(8)) and not away[rows == 8].any()
    assert lost[rows == 8].any() and 8 not in rows[left["donor"]]
    assert np.array_equal(lost[rows != 8], away[rows != 8])
    same = np.where(rows == 1, texts[np.flatnonzero(rows == 2)[0]], texts)
    _, away = moves_and_misplaced(rows, groups, same, found, at, np.ones(len(rows)))
    assert not away[np.flatnonzero(rows == 1)[0]]


@pytest.mark.parametrize("streamed_from", [50_000, 300])
def test_a_caption_at_another_row_of_its_image_is_matched(tmp_path: Path, streamed_from: int) -> None:
    """Five rows an image, and all captions a row further down: one of five pairs has another image's caption."""
    rng, n = np.random.default_rng(0), 300
    shown = np.repeat(rng.normal(size=(n // 5, 16)), 5, axis=0).astype(np.float32)
    texts = np.roll(shown + 0.7 * rng.normal(size=(n, 16)), 1, axis=0).astype(np.float32)
    sides = {"image_features": vector_column(shown), "text_features": vector_column(texts)}
    data = write_table(tmp_path / "data.parquet", {"caption": [f"text {(i - 1) % n}" for i in range(n)], **sides})
    result = fit_beside(data, streamed_from=streamed_from, seed=0)
    assert result["displaced"] and 50 < result["flagged"] < 80
    assert result["noise_rate_interval"][0] < 0.2 < result["noise_rate"] + 0.01 < 0.3
    rematch_run(Run.open(tmp_path / "run"), tmp_path / "plan.parquet", RepairSettings(), streamed_from=streamed_from)
    plan = RepairPlan.load(tmp_path / "plan.parquet")
    assert own(plan).mean() > 0.9 and not plan.summary().dropped > 10


def test_displaced_rows_are_flagged_where_a_few_pairs_have_no_other_evidence(tmp_path: Path) -> None:
    """Of 40 rows, whose captions all stand a row down, no pair is known to be worse than another but by the rule."""
    write(tmp_path / "data.parquet", n=40, first=0, last=40, by=1)
    result = fit_beside(tmp_path / "data.parquet", seed=0)
    assert len(result["displaced"]) == 1 and result["flagged"] == 40 and 0 < result["threshold"] <= 0.5
    assert not rematch_run(Run.open(tmp_path / "run"), tmp_path / "plan.parquet", RepairSettings())[1].kept


def test_rows_in_chunks_go_through_the_states_as_one_by_one() -> None:
    x = np.random.default_rng(0).normal(0, 3, (997, 4)) + np.repeat(np.eye(4)[[0, 2, 0, 1, 3, 0, 1]], 150, axis=0)[:997]
    states = _viterbi(3 * x)
    assert len(np.unique(states)) == 4 and (states == _viterbi(3 * x, most=0)).all()
