"""``cleanpairs score`` in partitions: killed half-way it goes on; engines by name; what cannot be is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import InfoNCE
from cleanpairs.cli import main
from cleanpairs.commands import score as streaming_module

KILLED = """
import os, signal, sys
from cleanpairs.commands import score as streaming
from cleanpairs.cli import main
streaming.ScoreWork.partition_rows = 20
inner = streaming.ScoreWork.__call__
def score(self, partition, path):
    print(partition.number, flush=True)
    if partition.number == 2 and "--dies" in os.environ["HOW"]:
        path.write_text("half of")
        os.kill(os.getpid(), signal.SIGKILL)
    return inner(self, partition, path)
streaming.ScoreWork.__call__ = score
main()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with data.parquet, of 90 rows, and a run."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=90 * 6).astype(np.float32)), 6)
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (90, 3))]
    pq.write_table(pa.table({"caption": captions, "image_features": flat}), "data.parquet", row_group_size=10)
    known = InfoNCE().get_params()
    settings = {"dim": 8, "dim_word": 4, "epochs": 1, "batch_size": 8, "device": "cpu", "require_dependence": False}
    model = InfoNCE(**{k: v for k, v in settings.items() if k in known}).fit("data.parquet")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"status": "complete"}')
    model.save_pretrained(tmp_path / "run" / "model")
    return tmp_path


def run(*argv: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cleanpairs", *argv])
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = [sys.executable, "-c", KILLED, "score", "run", "data.parquet", "--out", "scores.parquet"]
    monkeypatch.setenv("HOW", "--dies")
    killed = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.split() == ["0", "1", "2"]
    assert not (here / "scores.parquet").exists()
    monkeypatch.setenv("HOW", "")
    again = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert again.stdout.split()[:3] == ["2", "3", "4"] and "90 pairs scored" in again.stdout
    assert not list(here.glob(".cleanpairs-*")) and not (here / "scores.parquet.parts").exists()
    monkeypatch.setattr(streaming_module.ScoreWork, "partition_rows", 20)
    assert run("score", "run", "data.parquet", "--out", "want.parquet") == 0
    assert (here / "scores.parquet").read_bytes() == (here / "want.parquet").read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--engine", "spark"], 2, "unknown engine 'spark' (known: local, ray)"),
        (["--workers", "0"], 2, "x>=1"),
        (["--engine", "local=auto"], 2, "use 'ray'"),
    ],
)
def test_engines_that_cannot_be(
    here: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, says: str
) -> None:
    assert run("score", "run", "data.parquet", "--out", "scores.parquet", *options) == code
    assert says in capsys.readouterr().err
    assert not (here / "scores.parquet").exists()


@pytest.mark.parametrize(("words", "code"), [("w0 w1 w2", 0), ("w0 w1 two new", 0), ("一条 狗 跑", 7)])
def test_captions_of_other_words_are_warned_of_or_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: str, code: int
) -> None:
    table = pq.read_table("data.parquet")
    pq.write_table(table.set_column(0, "caption", [[words] * 90]), "other.parquet")
    assert run("score", "run", "other.parquet", "--out", "scores.parquet") == code
    said = capsys.readouterr().err
    assert ("warning: the model does not know 50% of the words" in said) == (words == "w0 w1 two new")
    if code:
        assert "100% of the words of other.parquet are unknown" in said and not Path("scores.parquet").exists()
        assert run("score", "run", "other.parquet", "--out", "scores.parquet", "--set", "max_unknown=1") == 0


def test_a_run_without_a_model_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "run" / "model").rename(here / "elsewhere")
    assert run("score", "run", "data.parquet", "--out", "scores.parquet") == 3
    assert "the run did not finish" in capsys.readouterr().err


def test_a_threshold_that_does_not_hold_for_other_pairs_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flagged, told in ((0, True), (90, False)):
        result = {"pairs": 90, "flagged": flagged}
        (here / "run" / "run.json").write_text(json.dumps({"status": "complete", "result": result}))
        config = json.loads((here / "run" / "model" / "config.json").read_text())
        config["state"]["threshold_"] = 1.0  # of a model that knows its own pairs by heart
        (here / "run" / "model" / "config.json").write_text(json.dumps(config))
        assert run("score", "run", "data.parquet", "--out", "scores.parquet", "--overwrite") == 0
        err = capsys.readouterr().err
        assert ("100% of these pairs are below the threshold, and 0% of those" in err) == told and told == bool(err)
