"""``cleanpairs report``: from a run directory to a page."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanpairs.commands.run import Run, write_scores
from cleanpairs.data import load_pairs
from cleanpairs.data.atomic import write_whole
from cleanpairs.estimators.persistence import FORMAT
from cleanpairs.repair.settings import RepairSettings
from tests.conftest import Command, assert_refused
from tests.helpers import csv_rows, picture, plan_of, vector_column, write_csv_rows, write_table

N = 120


def run_of(folder: Path, columns: dict[str, Any], y: np.ndarray, threshold: float, **result: Any) -> Run:
    """A run directory as fit leaves it, less the model, of pairs of these columns. No score: it is quarantined."""
    data = write_table(folder / "data.parquet", {"key": [f"k{i}" for i in range(len(y))], **columns})
    pairs = load_pairs(data)
    run = Run.create(folder / "run", latest=False)
    given = {"data": str(data), "options": {}, "fingerprint": pairs.source.fingerprint, "rows": len(y), "pairs": len(y)}
    run.write_info({"method": "crcl", "seed": 3, "input": given, "result": {"threshold": threshold, **result}})
    reasons = dict.fromkeys(np.flatnonzero(np.isnan(y)).tolist(), "for the test")
    write_scores(run.path / "scores.parquet", pairs.keys, y.astype(np.float32), threshold, reasons)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with a plan: 120 pairs, 40 below the threshold of 0.3."""
    columns: dict[str, Any] = {"image": [picture(i) for i in range(N)], "caption": [f"caption {i}" for i in range(N)]}
    columns["category"] = [f"kind {i % 3}" for i in range(N)]
    columns["similarity"] = (np.arange(N) * 37 % N / N).astype(np.float32)
    y = np.concatenate([np.linspace(0.01, 0.29, 40), np.linspace(0.31, 0.99, N - 40)])
    run = run_of(tmp_path, columns, y, 0.3, noise_rate=0.31)
    recipe = "method: {name: crcl, threshold: auto}\nbackbone: {name: mlp}\ntrain: {epochs: 5}\n"
    write_whole(run.path / "recipe.yaml", recipe)
    run.write_metrics([{"stage": 1, "loss": 2.0 - e} for e in range(2)])
    settings = {**RepairSettings().noted(), "data": str(tmp_path / "data.parquet")}
    plan = plan_of(run.load_input(), ["drop" if v < 0.3 else "keep" for v in y], threshold=0.3, settings=settings)
    plan.save(run.path / "plan.parquet")
    return run


def test_a_page_about_a_run(command: Command, run: Run) -> None:
    code, out, err = command("report", run.path, "--slice-by", "category", "--out", "r.html", "--pairs", 5)
    assert (code, out) == (0, "written: r.html\n"), err
    page = Path("r.html").read_text(encoding="utf-8")
    assert "About 31.0\u00a0% of the pairs fit no better than random ones" in page and "kind 2" in page
    assert page.count('<article class="card') == 20 + 2 * (5 // 2)  # four galleries, and pairs where scores disagree
    assert command("report", run.path, "--out", "r.html").code == 5  # not overwritten unasked
    assert_refused(command("report", run.path, "--out", "s.html", "--slice-by", "categ"), 2, "did you mean 'category'?")
    assert not Path("s.html").exists()


def test_a_page_about_many_pairs_plans_nothing(command: Command, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "plan.parquet").unlink()  # and the run has no model
    monkeypatch.setattr(RepairSettings, "streamed_from", N)
    code, out, err = command("report", run.path, "--out", "r.html")
    assert (code, f"`cleanpairs rematch {run.path} --out {run.path / 'plan.parquet'}` plans" in out) == (0, True), err
    page = Path("r.html").read_text(encoding="utf-8")
    assert f"cleanpairs rematch {os.path.relpath(run.path)} --out " in page and page.count("flagged") > 1
    assert_refused(command("neighbours", run.path), 2, "PAIR is missing")


@pytest.mark.parametrize("displaced", ["<odd>", ["<odd>"], [{"pair_id": 3, "why": "Rows 3 to 9."}, 7]])
def test_what_is_edited_about_displaced_rows_does_no_harm(command: Command, run: Run, displaced: Any) -> None:
    result = {"threshold": 0.3 if len(displaced) == 2 else 0.4, "displaced": displaced, "standing_out": "<odd>"}
    run.write_info({**run.info, "result": result})
    assert command("report", run.path, "--out", "r.html")[0] == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<odd>" not in page and "pair_id" not in page and ("Rows 3 to 9." in page) == (len(displaced) == 2)
    shown = "" if len(displaced) == 2 else "--plan ", "" if len(displaced) == 2 else "/plan.parquet"
    assert f"export {os.path.relpath(run.path).join(shown)} --out out.parquet<" in page and str(run.path) not in page


@pytest.mark.parametrize("content", ["{", '{"a": {"a": 1}}', "[1]"])
def test_damaged_files_of_the_audit_are_named(command: Command, run: Run, content: str) -> None:
    (run.path / "audit").mkdir()
    (run.path / "audit" / "result.json").write_text(content, encoding="utf-8")
    assert_refused(command("report", run.path), 3, "result.json cannot be read")


@pytest.mark.parametrize(("rows", "by"), [(np.arange(N - 1), 1), (np.arange(N)[::-1], 1), (np.arange(N), 9)])
def test_scores_of_other_pairs_are_refused(command: Command, run: Run, rows: Any, by: int) -> None:
    table = pq.read_table(run.path / "scores.parquet").take(rows)
    table = table.set_column(2, table.schema.field(2), [table[2].to_numpy() * np.float32(by)])
    pq.write_table(table, run.path / "scores.parquet")
    assert_refused(command("report", run.path), 3, f"has not the {N} pairs of the run in order, with scores in")


# -- ``cleanpairs audit``: draw, label, judge; and what to expect without labels --------------------------------------


M = 400


@pytest.fixture
def made(tmp_path: Path) -> Run:
    """A run of 400 pairs, the first 160 mismatched, pair 399 quarantined."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(M) < 160, rng.beta(0.5, 9, M), rng.beta(5, 2, M))
    y[-1] = np.nan
    features = vector_column(rng.normal(size=(M, 4)).astype(np.float32))
    return run_of(tmp_path, {"caption": ["word"] * M, "features": features}, y, 0.2)


def test_draw_label_judge(command: Command, made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "80 pairs drawn" in command("audit", made.path, "--n", 80).out
    labels, judged = made.path / "audit" / "labels.csv", made.path / "audit" / "result.json"
    assert_refused(command("audit", made.path, "--labels", labels), 3, "labelled yet")
    assert not judged.exists()
    assert command("audit", made.path, "--out", "my forms", "--n", 30).code == 0
    monkeypatch.setattr("cleanpairs.cli.review._serve", lambda *_: None)  # nobody labels
    page = ("audit", made.path, "--out", "my forms", "--page")
    assert all("--page --out 'my forms' resumes" in command(*page, *n).out for n in ((), ("--n", 30)))
    assert_refused(command(*page, "--n", 31), 5, "my forms exists")
    for given, n in ((Path("my forms/labels.csv"), 30), (labels, 80)):
        write_csv_rows(given, [row | {"matched": "ny"[int(row["pair_id"]) >= 160]} for row in csv_rows(given)])
        code, out, _ = command("audit", made.path, "--labels", given)
        result = json.loads(judged.read_text(encoding="utf-8"))
        assert code == 0 and "0.2*" in out and result["labelled"] == n
    assert_refused(command("audit", made.path, "--n", 12, "--overwrite"), 5, "80 labels given by hand")
    recall, found = result["at_threshold"]["recall"], (made.scores().correspondence[:160] < 0.2).mean()
    assert recall["low"] <= found <= recall["high"]
    assert result["noise_rate"]["low"] < 160 / 399 < result["noise_rate"]["high"]
    assert json.loads(command("audit", made.path, "--labels", labels, "--json").out)["auroc"] == result["auroc"]


def test_thresholds_without_labels(command: Command, made: Run) -> None:
    assert_refused(command("audit", made.path, "--thresholds"), 7, "precision", f"review {made.path} --calibrate")
    (made.path / "model").mkdir()
    config = {"format": FORMAT, "calibration": {"theta": [-4, 4, 1], "draws": [[-4, 4, 1], [-3.8, 4.1, 0.9]]}}
    (made.path / "model" / "config.json").write_text(json.dumps(config))
    code, out, _ = command("audit", made.path, "--thresholds")
    assert code == 0 and "expected noise rate" in out and "0.2*" in out and f"audit {made.path} --n 100" in out
    found = {"noise_rate": 0.25, "noise_rate_interval": [0.125, 0.5]}
    made.write_info(made.info | {"result": (made.info.get("result") or {}) | found})
    assert "expected noise rate   0.250 [0.125, 0.500]" in command("audit", made.path, "--thresholds")[1]
    code, out, _ = command("audit", made.path, "--thresholds", "--json", "--threshold", 0.33)
    assert code == 0 and 0.33 in [t["threshold"] for t in json.loads(out)["at_thresholds"]]
    assert not (made.path / "audit").exists()
    (made.path / "model" / "config.json").write_text(json.dumps({"format": FORMAT, "calibration": {"theta": "none"}}))
    assert_refused(command("audit", made.path, "--thresholds"), 3, "calibration")


def test_usage_of_audit(command: Command, made: Run) -> None:
    for other, words in (("--thresholds", "exclude each other"), ("--page", "--page is for drawing")):
        assert_refused(command("audit", made.path, "--labels", "x.csv", other), 2, words)
    assert_refused(command("audit", made.path, "--no-browser"), 2, "give --page, too")
