"""``cleanpairs audit``: draw, label, judge; and what to expect without labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.commands.run import Run, write_scores
from cleanpairs.data import load_pairs
from cleanpairs.estimators.persistence import FORMAT

from .conftest import Command

N = 400


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory as fit leaves it, less the model: 400 pairs, the first 160 mismatched, pair 399 quarantined."""
    rng = np.random.default_rng(0)
    wrong = np.arange(N) < 160
    y = np.where(wrong, rng.beta(0.5, 9, N), rng.beta(5, 2, N)).astype(np.float32)
    y[-1] = np.nan
    features = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=4 * N).astype(np.float32)), 4)
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"key": [f"k{i}" for i in range(N)], "caption": ["word"] * N, "features": features}), data)
    pairs = load_pairs(data)
    run = Run.create(tmp_path / "run", latest=False)
    given = {"data": str(data), "options": {}, "fingerprint": pairs.source.fingerprint}
    run.write_info({"method": "crcl", "input": given, "result": {"threshold": 0.2}})
    write_scores(run.path / "scores.parquet", pairs.keys, y, 0.2, {N - 1: "for the test"})
    return run


def fill(path: Path, wrong: Callable[[int], bool] = lambda i: i < 160) -> None:
    with open(path, encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows({**row, "matched": "n" if wrong(int(row["pair_id"])) else "y"} for row in table)


def test_draw_label_judge(command: Command, run: Run) -> None:
    code, out, _ = command("audit", run.path, "--n", 80)
    assert code == 0 and "80 pairs drawn" in out and len(out.splitlines()) == 4
    labels = run.path / "audit" / "labels.csv"
    assert out.splitlines()[3].endswith(f"cleanpairs audit {run.path} --labels {labels}")
    code, _, err = command("audit", run.path, "--labels", labels)
    assert code == 3 and "labelled yet" in err
    assert not (run.path / "audit" / "result.json").exists()
    out = command("audit", run.path, "--out", "my forms", "--n", 30)[1]
    assert out.splitlines()[3].endswith("--labels 'my forms/labels.csv'")
    for given, n in ((Path("my forms/labels.csv"), 30), (labels, 80)):
        fill(given)
        code, out, _ = command("audit", run.path, "--labels", given)
        result = json.loads((run.path / "audit" / "result.json").read_text(encoding="utf-8"))
        assert code == 0 and "0.2*" in out and result["labelled"] == n
    truth, y = np.arange(N - 1) < 160, run.scores().correspondence[:-1]
    recall = result["at_threshold"]["recall"]
    assert recall["low"] <= (truth & (y < 0.2)).sum() / 160 <= recall["high"]
    assert result["noise_rate"]["low"] < 160 / 399 < result["noise_rate"]["high"]
    code, out, _ = command("audit", run.path, "--labels", labels, "--json")
    assert code == 0 and json.loads(out)["auroc"] == result["auroc"]


def test_a_draw_never_replaces_labels(command: Command, run: Run) -> None:
    labels = run.path / "audit" / "labels.csv"
    assert command("audit", run.path, "--n", 10)[0] == 0
    fill(labels)
    before = labels.read_bytes()
    for more, words in ((["--n", 10], "--overwrite"), (["--n", 12, "--overwrite"], "10 labels given by hand")):
        code, _, err = command("audit", run.path, *more)
        assert code == 5 and words in err and labels.read_bytes() == before
    labels.parent.rename("labelled")
    assert command("audit", run.path, "--n", 10)[0] == 0
    code, out, _ = command("audit", run.path, "--n", 12, "--overwrite", "--json")
    assert code == 0 and json.loads(out)["pairs"] == 12


def test_thresholds_without_labels(command: Command, run: Run) -> None:
    code, _, err = command("audit", run.path, "--thresholds")
    assert code == 7 and "nothing can be expected" in err and "asks about forty" in err
    (run.path / "model").mkdir()
    theta = [-4.0, 4.0, 1.0]
    config = {"format": FORMAT, "calibration": {"theta": theta, "draws": [theta, [-3.8, 4.1, 0.9]]}}
    (run.path / "model" / "config.json").write_text(json.dumps(config))
    code, out, _ = command("audit", run.path, "--thresholds")
    assert code == 0 and "expected noise rate" in out and "0.2*" in out
    code, out, _ = command("audit", run.path, "--thresholds", "--json", "--threshold", 0.33)
    assert code == 0 and 0.33 in [t["threshold"] for t in json.loads(out)["at_thresholds"]]
    assert not (run.path / "audit").exists()
    (run.path / "model" / "config.json").write_text(json.dumps({"format": FORMAT, "calibration": {"theta": "none"}}))
    code, _, err = command("audit", run.path, "--thresholds")
    assert code == 3 and "calibration" in err


def test_labels_of_another_run(command: Command, run: Run) -> None:
    assert command("audit", run.path, "--n", 10)[0] == 0
    fill(run.path / "audit" / "labels.csv")
    y = run.scores().correspondence
    write_scores(run.path / "scores.parquet", [f"x{i}" for i in range(N)], y, 0.2, {N - 1: "x"}, overwrite=True)
    code, _, err = command("audit", run.path, "--labels", run.path / "audit" / "labels.csv")
    assert code == 3 and "line 2, column key" in err and "another run" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--labels", "x.csv", "--thresholds"], "exclude each other"),
        (["--labels", "x.csv", "--n", "3"], "--n is for drawing"),
        (["--thresholds", "--out", "x"], "--out is for drawing"),
        (["--labels", "x.csv", "--page"], "--page is for drawing"),
        (["--threshold", "2"], "0<=x<=1"),
        (["--n", "0"], "x>=1"),
    ],
)
def test_usage(command: Command, run: Run, argv: list[str], words: str) -> None:
    code, _, err = command("audit", run.path, *argv)
    assert code == 2 and words in err
