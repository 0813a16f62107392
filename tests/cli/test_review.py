"""``cleanpairs review``: decisions of a run become a plan that is exported and labels that are audited."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cleanpairs.commands.run import Run
from cleanpairs.review.log import DecisionLog

from .conftest import Command
from .test_explain import N, made, run

__all__ = ["made", "run"]  # fixtures
TRUST = "--trust-stored-paths"


def opened(run: Path) -> DecisionLog:
    return DecisionLog(run / "review" / "decisions.jsonl", Run.open(run).info["input"]["fingerprint"], N)


def test_decisions_become_a_plan_and_labels(command: Command, run: Path) -> None:
    (run / "review").mkdir()
    log = opened(run)
    for i in range(16):
        log.decide([i], "keep" if i % 4 == 0 else "drop", asked=True, drawn=True)
    log.decide([30], "recaption", caption="by hand")
    code, out, err = command("review", run, "--write", "--json", TRUST)
    assert code == 0, err
    written = json.loads(out)
    assert written["decided"] == 17 and written["progress"]["flagged"] == [0, 16]
    code, _, err = command("export", "--plan", written["plan"], "--repaired", "out.parquet", "--json", TRUST)
    assert code == 0, err
    log.decide([31], "keep", asked=True, drawn=True)
    code, out, err = command("review", run, "--write", "--json", TRUST)  # reviewing goes on
    assert code == 0 and json.loads(out)["decided"] == 18, err
    code, out, err = command("audit", run, "--labels", written["labels"], "--json", TRUST)
    assert code == 0 and json.loads(out)["at_threshold"]["precision"]["value"] == pytest.approx(0.75), err
    assert command("fit", "out.parquet", "--out", run, "--overwrite")[0] == 5  # labels by hand; and the decisions:
    labels = Path(written["labels"])
    labels.write_text(labels.read_text(encoding="utf-8-sig") + '50,1,,,"k050","0.5 to 1",1,0.9\n')
    for _ in range(2):
        code, _, err = command("review", run, "--write", TRUST)  # pair 50 was not asked about: it is a label by hand
        assert code == 5 and "labels given by hand" in err
        log.decide([50, 51], "keep")  # nor is it when it was decided beside others
    labels.unlink()
    code, _, err = command("fit", "out.parquet", "--out", run, "--overwrite")
    assert code == 5 and "decisions.jsonl" in err and opened(run).decided() == log.decided()


def test_a_log_of_other_data_is_refused(command: Command, run: Path) -> None:
    (run / "review").mkdir()
    DecisionLog(run / "review" / "decisions.jsonl", "other", N).close()
    code, _, err = command("review", run, "--write", TRUST)
    assert code == 3 and "about other data" in err
    assert command("review", run, "--goal", 2, TRUST)[0] == 2


@pytest.mark.slow
def test_it_serves_until_ctrl_c_and_writes_then(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cleanpairs", "review", str(run), "--no-browser", TRUST]
    # A shell's job in the background ignores Ctrl-C, and so would its children.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=dict(os.environ), preexec_fn=heard
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[1]

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address + path, data), timeout=900) as answer:
            return json.loads(answer.read())

    first = ask("list")["rows"][0]["pair"]
    assert ask(f"pair/{first}")["similar_images"]
    assert ask("decide", {"pair": first, "action": "drop", "sort": "asked"})["decided"] == 1
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0 and out.startswith("1 pairs decided -> ") and "export --plan" in out
    assert (run / "review" / "plan.parquet").exists() and set(opened(run).decided()) == {first}
