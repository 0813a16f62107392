"""The fault suite, cut short: a few faults at each of the commands, some hundred damaged files, all bad inputs.

`make faults` is the whole of it. It runs in a process of its own, which forks: pytest's has threads by now.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report() -> str:
    argv = [sys.executable, str(TOOLS / "faults"), "--quick"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("command", ["fit", "export"])
def test_a_command_survives_its_faults_and_is_resumed_identically(report: str, command: str) -> None:
    if skipped := [line for line in report.splitlines() if line.startswith("Skipped: strace")]:
        pytest.skip(skipped[0])
    row = next(line for line in report.splitlines() if line.startswith(f"| {command} |"))
    shares = [(int(a), int(b)) for a, b in re.findall(r"(\d+) of (\d+)", row)]
    assert len(shares) >= 5 and all(good == tried > 0 for good, tried in shares)
    assert command != "fit" or re.search(r"[1-9]\d* of \d+", row.rsplit("|", 2)[1])


def test_damaged_files_neither_crash_nor_hang(report: str) -> None:
    for kind in "Parquet,Parquet without checksums,scores.parquet,plan.parquet,Arrow,safetensors,npy,JPEG".split(","):
        row = next(line for line in report.splitlines() if line.startswith(f"| {kind} |"))
        tried, _, _, crashed, hung, other = (int(cell.replace(",", "")) for cell in row.split("|")[2:-1])
        assert tried >= 150 and (crashed, hung, other) == (0, 0, 0), kind


TRIALS = (
    "bad inputs", "exports whose rows", "random tables with vectors", "single bits flipped",
    "commands over a memory", "FIFOs, devices", "streams closed", "control characters", "commands beside",
    "paths, URLs and names", "commands ended at work", "files that nobody named", "runs whose replacement",
    "fits of one output",
)  # fmt: skip


def test_nothing_is_wrong_lost_run_or_opened(report: str) -> None:
    for name in TRIALS:
        rows = [line.split("|") for line in report.splitlines() if line.startswith(f"| {name}")]
        assert rows and all(int(row[-3].replace(",", "")) > 0 and int(row[-2]) == 0 for row in rows), name
