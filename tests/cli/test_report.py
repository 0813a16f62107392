"""``cleanpairs report``: from a run directory to a page."""

from __future__ import annotations

import json
import os
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.audit import AuditSample, draw_sample, update_labels, write_labels
from cleanpairs.commands.run import Run, write_scores
from cleanpairs.data import load_pairs
from cleanpairs.data.atomic import write_whole
from tests.helpers import picture, plan_of

from .conftest import Command

N = 120


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory as fit and rematch leave it, less the model: 120 pairs, 40 below the threshold of 0.3."""
    data = tmp_path / "data.parquet"
    columns = {
        "key": [f"k{i}" for i in range(N)],
        "image": [picture(i) for i in range(N)],
        "caption": [f"caption {i}" for i in range(N)],
        "category": [f"kind {i % 3}" for i in range(N)],
        "similarity": (np.arange(N) * 37 % N / N).astype(np.float32),
    }
    pq.write_table(pa.table(columns), data)
    pairs = load_pairs(data)
    y = np.concatenate([np.linspace(0.01, 0.29, 40), np.linspace(0.31, 0.99, N - 40)]).astype(np.float32)
    run = Run.create(tmp_path / "run", latest=False)
    given = {"data": str(data), "options": {}, "fingerprint": pairs.source.fingerprint, "rows": N, "pairs": N}
    run.write_info({"method": "crcl", "seed": 3, "input": given, "result": {"threshold": 0.3, "noise_rate": 0.31}})
    write_whole(
        run.path / "recipe.yaml", "method: {name: crcl, threshold: auto}\nbackbone: {name: mlp}\ntrain: {epochs: 5}\n"
    )
    run.write_metrics([{"stage": 1, "loss": 2.0 - e} for e in range(2)])
    write_scores(run.path / "scores.parquet", pairs.keys, y, 0.3, {})
    plan = plan_of(pairs, ["drop" if v < 0.3 else "keep" for v in y], threshold=0.3, settings={"strategy": "ot"})
    plan.save(run.path / "plan.parquet")
    return run


def test_a_page_about_a_run(command: Command, run: Run, tmp_path: Path) -> None:
    code, out, err = command("report", run.path, "--slice-by", "category", "--out", "r.html", "--pairs", 5)
    assert (code, out) == (0, "written: r.html\n"), err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>crcl on data.parquet</h1>" in page
    assert "About 31.0% of the pairs fit no better than random ones" in page and "chosen from the scores" in page
    assert "By category" in page and "kind 2" in page
    assert "strategy ot; a repair needs a score of at least 0.5" in page
    assert page.count('<article class="card') == 20 + 2 * (5 // 2)  # four galleries, and pairs where scores disagree
    assert "<h3>similarity</h3>" in page
    assert command("report", run.path, "--out", "r.html")[0] == 5  # not overwritten unasked
    code, _, err = command("report", run.path, "--out", "s.html", "--slice-by", "categry")
    assert code == 2 and "did you mean 'category'?" in err and not (tmp_path / "s.html").exists()


def test_what_labels_say_is_shown(command: Command, run: Run, tmp_path: Path) -> None:
    y = run.scores().correspondence
    labels = write_labels(run.path / "audit", draw_sample(y, 20, threshold=0.3), run.load_input())
    update_labels(labels, AuditSample.of(np.arange(20), np.array([0, 0.3, 1]), y, np.ones(20)), run.load_input())
    assert command("audit", run.path, "--labels", labels)[0] == 0
    assert command("report", run.path) == (0, "written: report.html\n", "")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What the labels say" in page and "20 of 20 drawn pairs were labelled" in page and "0.3 (this run)" in page


def test_similar_pairs_stand_beside_the_interval(command: Command, run: Run) -> None:
    info = run.info
    result = {**info["result"], "noise_rate_interval": [0.25, 0.37], "noise_rate_bound": 0.71}
    run.write_info({**info, "result": result})
    assert command("report", run.path, "--out", "r.html")[0] == 0
    assert "25.0% to 71.0% of the pairs are mismatched" in unescape(Path("r.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("displaced", ["<odd>", ["<odd>"], [{"pair_id": 3, "why": "Rows 4 to 9."}, 7]])
def test_what_is_edited_about_displaced_rows_does_no_harm(command: Command, run: Run, displaced: Any) -> None:
    run.write_info({**run.info, "result": {**run.info["result"], "displaced": displaced, "standing_out": "<odd>"}})
    assert command("report", run.path, "--out", "r.html")[0] == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "<odd>" not in page and ("Rows 4 to 9." in page) == (len(displaced) == 2)
    assert f"cleanpairs export {os.path.relpath(run.path)} " in page and str(run.path) not in page


AUDIT = "drawn labelled mismatched noise_rate auroc ap"
CUT = {"threshold": None, "flagged": None, "precision": None, "recall": None}
NO_NUMBERS = json.dumps(dict.fromkeys(AUDIT.split()) | {"at_threshold": CUT, "ladder": []})


@pytest.mark.parametrize("content", ["{", '{"a": {"a": 1}}', NO_NUMBERS, '{"at_threshold": 1, "ladder": []}', "[1]"])
def test_damaged_files_of_the_audit_are_named(command: Command, run: Run, content: str) -> None:
    (run.path / "audit").mkdir()
    (run.path / "audit" / "result.json").write_text(content, encoding="utf-8")
    code, _, err = command("report", run.path)
    assert code == 3 and "result.json cannot be read" in err


@pytest.mark.parametrize("name", ["", "*.parquet"])
def test_the_page_names_a_folder_of_files_by_the_folder(run: Run, command: Command, name: str) -> None:
    data = run.path.parent / "photos"
    data.mkdir()
    (run.path.parent / "data.parquet").rename(data / "00000.parquet")
    info = run.info
    run.write_info(info | {"input": info["input"] | {"data": str(data / name)}})
    code, _, err = command("report", run.path, "--out", "page.html", "--trust-stored-paths")
    assert code == 0, err
    assert "crcl on photos" in Path("page.html").read_text()
