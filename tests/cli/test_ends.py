"""Files that are no files, streams that end, names that a terminal obeys: `tools/faults/ends.py` tries them all."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cleanpairs.cli
import cleanpairs.cli.listing
from cleanpairs.cli.terminal import safe
from tests.conftest import Command, assert_refused, code_of
from tests.helpers import calls_of, research, vector_column

EVIL = "a\x1b]0;owned\x07\x1b[31mred\x9b2J\u202egnp\u2066\r\nError"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(autouse=True)
def failsafe() -> Iterator[None]:
    """A command that waits for ever ends as one that was interrupted."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def table() -> pa.Table:
    vectors = vector_column(np.eye(8, dtype=np.float32))
    return pa.table({"key": list("abcdefgh"), "image_features": vectors, "caption": [f"text {k}" for k in range(8)]})


@pytest.mark.parametrize("name", ["f.parquet", "f.csv", "f.json", "00000.tar", "many/a.parquet",
                                  "precomp/train_ims.npy", "precomp/train_caps.txt", "hub/state.json"])  # fmt: skip
def test_data_that_is_no_file(command: Command, name: str) -> None:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    if name.startswith("precomp"):
        research(path.parent, np.ones((2, 3, 4), np.float32), "ab")
        path.unlink()
    os.mkfifo(path)
    assert_refused(command("inspect", path if path.parent == Path() else path.parent), 3, "Error [data]")


def test_a_manifest_of_somebody_else_is_passed_over(command: Command) -> None:
    pq.write_table(table(), "a.parquet")
    os.mkfifo("b.manifest.json")
    Path("c.manifest.json").write_text("[" * 100_000)
    assert command("inspect", ".").code == 0


def test_the_end_of_a_file_is_no_interrupt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanpairs.cli.listing.inspect, "callback", Mock(side_effect=EOFError("no data left in file")))
    assert_refused(command("inspect", "."), 1, "EOFError: no data left in file")


def test_an_output_of_the_manifest_that_never_ends(command: Command) -> None:
    Path("zero").symlink_to("/dev/zero")
    files = {"zero": {"role": "out", "sha256": "0" * 64, "bytes": 0, "rows": 1}, EVIL: {"role": "ledger", "rows": 1}}
    Path("zero.manifest.json").write_text(json.dumps({"files": files, "counts": {EVIL: 1}, "format": EVIL}))
    for name in ("verify", "diff"):
        code, out, err = command(name, "zero")
        assert code == 3 and not OBEYED.search(out + err)


@pytest.mark.parametrize(
    "argv",
    [
        ("verify", EVIL), ("methods", EVIL), (EVIL,), ("inspect", f"--{EVIL}"), ("--debug", "inspect", EVIL),
        ("inspect", "n.parquet", "--column", "text=key"), ("inspect", "n.parquet", "--column", f"text={EVIL}"),
    ],
)  # fmt: skip
def test_nothing_printed_is_obeyed(tmp_path: Path, argv: tuple[str, ...], monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    evil = pa.array([f"{EVIL}{k}" for k in range(8)])
    pq.write_table(table().drop_columns(["caption"]).append_column(EVIL, evil), tmp_path / "n.parquet")
    code_of(*argv)
    out, err = capfd.readouterr()
    assert out + err and not OBEYED.search(out + err + cleanpairs.cli.warnings.formatwarning(EVIL, UserWarning, "", 0))
    assert argv[0] == "--debug" or err.count("\n") <= 2  # a line break in a name makes no line of its own


def test_commands_print_by_the_one_function() -> None:
    for module in sorted(Path(cleanpairs.cli.__file__).parent.glob("*.py")):
        called = {name for name, _ in calls_of(module)}
        wanted = {"click.echo", "click.style"} if module.name == "terminal.py" else set()
        assert called & {"print", "click.echo", "click.secho", "click.style", "sys.stdout.write"} == wanted, module.name


def test_safe_keeps_what_people_write() -> None:
    text = "Ein Bär — 一只熊, дождь, ثلج 🐻"
    assert safe(text) == text and safe("a\nb\tc", keep="\n") == "a\nb\\tc" and safe("\ud800") == "\\ud800"


def test_an_argument_that_is_no_utf8(command: Command) -> None:
    assert_refused(command("inspect", os.fsdecode(b"caf\xe9.parquet")), 2, "caf\\udce9.parquet is not UTF-8")


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">/dev/full", "2>/dev/full", "| :", "2>&1 | :"])
def test_standard_streams_that_are_closed_or_full_or_that_nobody_reads(tmp_path: Path, closed: str) -> None:
    """The code is that of the command, and a full standard output is one of its outputs."""
    script = f"set -o pipefail; {sys.executable} -m cleanpairs recipes {closed}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == (4 if closed == ">/dev/full" else 0)


def test_a_run_that_is_not_as_fit_writes_it(command: Command) -> None:
    Path("run").mkdir()
    for given, word in (({"status": 1}, "status"), ({"input": {"data": {}}}, "input.data"), (["x"], "cannot be read")):
        Path("run/run.json").write_text(json.dumps(given))
        assert_refused(command("report", "run", "--out", "r.html"), 3, "run.json", word)
        assert command("verify", "run").code == 3
