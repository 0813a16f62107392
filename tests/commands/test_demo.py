"""The demonstration, what a stranger runs first: all of it, on half of the pictures in a third of the epochs."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanpairs import Auto, clipart_path, load_pairs
from cleanpairs.commands import demo
from cleanpairs.commands.demo import run_demo
from cleanpairs.core.errors import OutputExistsError
from tests.helpers import assert_raises

pytestmark = pytest.mark.slow
SENTENCES = True  # see conftest.py


def test_a_demo_whose_run_holds_somebody_s_work_is_left_as_it_is(tmp_path: Path) -> None:
    files = {"noisy.parquet": "as it was", "result.json": "{}", "run/run.json": "{}", "run/notes.txt": "mine"}
    (tmp_path / "run").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert_raises(OutputExistsError, r"notes\.txt", run_demo, tmp_path)
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_the_demo_finds_cleans_and_leaves_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"label_epochs": 3, "epochs": 4}.items():
        monkeypatch.setitem(Auto.__init__.__kwdefaults__, name, number)
    monkeypatch.setattr(demo._retrieval, "__defaults__", (1,))
    monkeypatch.setattr(demo, "clipart_path", lambda split: tmp_path / f"{split}.parquet")
    for split, rows in {"train": 1000, "val": 100, "test": 100}.items():
        pq.write_table(pq.read_table(clipart_path(split)).slice(0, rows), tmp_path / f"{split}.parquet")
    printed: list[str] = []
    result = run_demo(tmp_path / "demo", say=printed.append)
    assert result["auroc"] > 0.85 and result["f1"] > 0.68
    before = result["corrupted"] / result["pairs"]
    assert result["wrong_out"] <= result["wrong_kept"] + 0.02 < before / 2, "never dirtier by repairs"
    ledger = pq.read_table(tmp_path / "demo" / "ledger.parquet")
    assert ledger["pair_id"].to_pylist() == list(range(result["pairs"]))
    cleaned = load_pairs(tmp_path / "demo" / "cleaned.parquet")
    assert len(cleaned) == sum(a not in ("drop", "quarantine") for a in ledger["action"].to_pylist())
    kept = np.array(pq.read_table(tmp_path / "demo" / "cleaned.parquet")["action"].to_pylist()) == "keep"
    assert cleaned.true_mismatch[kept].mean() < before / 2, "what is kept is cleaner than what came in"
    assert json.loads((tmp_path / "demo" / "result.json").read_text())["auroc"] == result["auroc"]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and page.count("<script") == 1
    assert any("rSum" in line for line in printed) and any("report.html" in line for line in printed)
