"""``cleanpairs review`` and the page of ``cleanpairs audit``: decisions become a plan, and labels a result."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs.commands.run import Run
from cleanpairs.review.log import DecisionLog

from .conftest import Command
from .test_explain import TRUST, N, made, run

__all__ = ["made", "run"]  # fixtures


def opened(run: Path) -> DecisionLog:
    return DecisionLog(run / "review" / "decisions.jsonl", Run.open(run).info["input"]["fingerprint"], N)


def test_decisions_become_a_plan_and_stay_with_the_run(command: Command, run: Path) -> None:
    log = opened(run)
    for i in range(16):
        log.decide([i], "keep" if i % 4 == 0 else "drop", asked=True)
    log.decide([30], "recaption", caption="by hand")
    code, out, err = command("review", run, "--write", "--json", TRUST)
    assert code == 0, err
    written = json.loads(out)
    assert written["decided"] == 17
    code, _, err = command("export", "--plan", written["plan"], "--repaired", "out.parquet", "--json", TRUST)
    assert code == 0, err
    log.decide([31], "keep", asked=True)
    code, out, err = command("review", run, "--write", "--json", TRUST)  # reviewing goes on
    assert code == 0 and json.loads(out)["decided"] == 18, err
    code, _, err = command("fit", "out.parquet", "--out", run, "--overwrite")
    assert code == 5 and "decisions.jsonl" in err and opened(run).decided() == log.decided()


def test_a_log_of_other_data_is_refused(command: Command, run: Path) -> None:
    DecisionLog(run / "review" / "decisions.jsonl", "other", N).close()
    code, _, err = command("review", run, "--write", TRUST)
    assert code == 3 and "about other data" in err


def test_answers_of_a_csv_count_at_once_and_for_a_new_fit(command: Command, run: Path, tmp_path: Path) -> None:
    """Pairs 12 to 15 score lowest, and belong: people know better than the scores."""
    y = Run.open(run).fitted_scores().correspondence
    rows = [f"{i},{int(i >= 12)},k{i:03d}" for i in [*range(16), *range(20, 50)]]
    for n, code, text in ((10, 0, "10 answers so far: from 20 on they count"), (46, 0, "46, of which 12 say")):
        (tmp_path / "answers.csv").write_text("\n".join(["pair_id,matched,key", *rows[:n]]))
        found = command("review", run, "--calibrate", "--labels", "answers.csv", TRUST)
        assert found[0] == code and text in found[1], found
    opened = Run.open(run)
    answered = opened.answered()
    assert answered is not None and answered.noise_rate.low < 12 / N < answered.noise_rate.high
    assert (opened.fitted_scores().correspondence == y).all()
    below = opened.scores().correspondence < answered.threshold
    assert set(np.flatnonzero(below)) == set(range(12))
    assert opened.scores().table["is_mismatch"].to_pylist() == below.tolist()
    code, out, err = command("export", run, "--out", "out.parquet", "--repairs", "none", "--json", TRUST)
    assert code == 0 and json.loads(out)["kept"] == N - 12, err
    code, out, err = command("report", run, TRUST)
    assert code == 0 and f"{answered.noise_rate.value:.1%}" in Path("report.html").read_text(encoding="utf-8"), err
    model = opened.estimator(fitted=True).calibrate("answers.csv")
    np.testing.assert_array_equal(model.correspondence_, answered.correspondence)
    assert model.calibrate("answers.csv").threshold_ == answered.threshold == model.threshold_
    assert model.threshold_for(max_wrong=0.5).kept == N - 12  # what is known to be wrong is never kept
    data = Run.open(run).info["input"]["data"]
    fit = "--method infonce --epochs 1 --batch-size 16 --out other --json".split()
    code, out, err = command("fit", data, *fit)
    assert code == 0 and json.loads(out)["answers"] == 46, err
    (tmp_path / "answers.csv").write_text("pair_id,matched\n96,1")
    assert command("review", run, "--calibrate", "--labels", "answers.csv", TRUST)[0] == 3
    assert command("review", run, "--calibrate", "--write", TRUST)[0] == 2
    assert command("review", run, "--labels", "answers.csv", TRUST)[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["review", "audit"])
def test_it_serves_until_ctrl_c_and_ends_with_the_result(run: Path, tmp_path: Path, name: str) -> None:
    more = ["--page"] if name == "audit" else []
    command = [sys.executable, "-m", "cleanpairs", name, str(run), "--no-browser", TRUST, *more]
    # A shell's job in the background ignores Ctrl-C, and so would its children.
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=dict(os.environ), preexec_fn=default
    )
    address = process.stdout.readline().split()[1]

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address + path, data), timeout=900) as answer:
            return json.loads(answer.read())

    first, *_, last = ask("queue")["pairs"]
    assert ("similar_images" in ask(f"question/{first}")) == (name == "review")
    ask("decide", {"pair": first, "action": "drop"})
    assert ("plan.parquet" if name == "review" else f"1 of {N} drawn") in ask("write", {})["text"]
    ask("decide", {"pair": last, "action": "keep"})
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0 and set(opened(run).decided()) == {first, last}
    if name == "review":
        assert out.startswith("2 pairs decided -> ") and (run / "review" / "plan.parquet").exists()
    else:
        assert f"2 of {N} drawn" in out and (run / "audit" / "result.json").exists()
        with (run / "audit" / "labels.csv").open(encoding="utf-8-sig", newline="") as file:
            labels = {int(row["pair_id"]): row["matched"] for row in csv.DictReader(file) if row["matched"]}
        assert labels == {first: "0", last: "1"}
