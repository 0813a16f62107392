"""Two processes train what one trains: losses, labels, weights; and go on with what the other number has begun."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanpairs.core import distributed
from tests.conftest import Command
from tests.helpers import write_corpus
from tests.trainer import distributed_worker

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
CASES = ["crcl", "crcl-sgr", "crcl-mlp-4", "repair", "l2rm", "auto", "infonce"]


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def start(out: Path, cases: list[str], world: int) -> None:
    """Run the worker in this process, or in ``world`` of them, whose tracebacks fail the test."""
    out.mkdir(exist_ok=True)
    if world == 1:
        distributed_worker.main(out, cases)
        return
    env = {**ENV, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world)}
    how = {"cwd": Path(__file__).resolve().parents[2], "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "tests.trainer.distributed_worker", str(out), *cases]
    running = [subprocess.Popen(command, env={**env, "RANK": str(r)}, **how) for r in range(world)]
    try:
        output = [p.communicate(timeout=900)[1] for p in running]
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0] * world, "\n".join(output)


# Biases whose gradient is nothing but rounding, since a softmax comes behind them.
UNDETERMINED = ("attention.weigh.bias", "graph.2.bias", "score.bias")


def compare(one: Path, two: Path, case: str) -> None:
    """Losses, values, labels and weights."""
    a, b = np.load(one), np.load(two)  # how sums are rounded is the processor's affair, and Adam makes more of it
    assert sorted(a.files) == sorted(b.files) and len(a["loss"]) >= 3
    ranks = case.startswith("repair")  # those of similarities that are nearly alike may change places
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-3 if ranks else 1e-5)
    np.testing.assert_allclose(a["values"], b["values"], atol=5e-3 if ranks else 1e-5)
    assert np.array_equal(a["flagged"], b["flagged"])
    for name in a.files:
        if name.startswith("weight.") and (not name.endswith(UNDETERMINED) or ("-" not in case)):
            np.testing.assert_allclose(a[name], b[name], atol=2e-4 if "sgr" in case else 3e-5, err_msg=name)
    if case in ("crcl", "repair", "l2rm"):
        assert 0.1 < a["flagged"][-1] < 0.95  # labels were made, and used


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two processes and one; what the ones have begun the others end: l2rm 2 -> 1, crcl-mlp-4 1 -> 2."""
    base = tmp_path_factory.mktemp("trained")
    start(base / "one", [*CASES, "crcl-mlp-4:stop", "crcl:diverge"], 1)
    start(base / "two", [*CASES, "crcl-mlp-4:resume", "l2rm:stop", "crcl:diverge"], 2)
    start(base / "one", ["l2rm:resume"], 1)
    return base / "one", base / "two"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_what_one_trains(case: str, trained: tuple[Path, Path]) -> None:
    compare(trained[0] / f"{case}.npz", trained[1] / f"{case}.npz", case)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "ended_by"), [("crcl-mlp-4", 1), ("l2rm", 0)], ids=["one to two", "two to one"])
def test_a_training_goes_on_in_more_processes(case: str, ended_by: int, trained: tuple[Path, Path]) -> None:
    compare(trained[0] / f"{case}.npz", trained[ended_by] / f"{case}-resume.npz", case)


@pytest.mark.slow
def test_two_processes_go_back_after_a_divergence_as_one_does(trained: tuple[Path, Path]) -> None:
    one, two = (path / "crcl-diverge.npz" for path in trained)
    compare(one, two, "crcl")
    assert np.load(one)["fallbacks"].tolist() == np.load(two)["fallbacks"].tolist() == [0, 0, 1]


def test_a_launcher_says_who_is_who(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert distributed.rank_by_environment() == 3
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert distributed.rank_by_environment() is None
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORLD_SIZE", "4")  # of another launcher, which says nothing of where the first one is
    assert distributed.rank_by_environment() is None
    with distributed.process_group():
        assert (distributed.world_size(), distributed.rank()) == (1, 0)


@pytest.mark.slow
def test_torchrun_fits_and_the_first_process_reports(tmp_path: Path, command: Command) -> None:
    """The command line under its launcher; one process goes on with its run, which is complete, and finds the same."""
    write_corpus(tmp_path / "pairs.parquet", 80)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    fit = "-m cleanpairs fit pairs.parquet --method crcl --backbone mlp --epochs 2 --out run --json".split()
    more = ["--set", "method.refine_epochs=[1]", "--batch-size", "16", "--set", "micro_batch=4"]
    ran = subprocess.run([*launch, *fit, *more], cwd=tmp_path, env=ENV, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)  # once, and nothing else
    assert found["pairs"] == 80 and found["epochs"] == 3
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["status"] == "complete" and info["processes"] == 2
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert pq.read_table(tmp_path / "run" / "scores.parquet").num_rows == 80
    assert json.loads(command("fit", "--resume", "--out", "run", "--json").out)["histogram"] == found["histogram"]
