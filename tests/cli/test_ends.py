"""Files that are no files, streams that end, names that a terminal obeys: `tools/faults/ends.py` tries them all."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cleanpairs.cli
import cleanpairs.cli.listing
from cleanpairs.cli.terminal import guard_std_streams, safe
from cleanpairs.core.errors import OutputError
from cleanpairs.data.source import _temporary_folder
from tests.conftest import Command, assert_refused, code_of
from tests.helpers import calls_of, picture, research, write_table

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


def table(**more: Any) -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.eye(8, dtype=np.float32).ravel()), 8)
    return pa.table({"key": list("abcdefgh"), "image_features": vectors, "caption": [f"text {k}" for k in range(8)]}
                    | more)  # fmt: skip


@pytest.mark.parametrize("name", ["f.parquet", "f.csv", "f.json", "00000.tar", "many/a.parquet",
                                  "precomp/train_ims.npy", "precomp/train_caps.txt", "hub/state.json"])  # fmt: skip
def test_data_that_is_no_file(command: Command, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name.startswith("precomp"):
        research(path.parent, np.ones((2, 3, 4), np.float32), "ab")
        path.unlink()
    os.mkfifo(path)
    assert_refused(command("inspect", name if path.parent == tmp_path else path.parent.name), 3, "Error [data]")


def test_a_manifest_of_somebody_else_is_passed_over(command: Command, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "b.manifest.json")
    (tmp_path / "c.manifest.json").write_text("[" * 100_000)
    assert command("inspect", ".")[0] == 0


def test_the_end_of_a_file_is_no_interrupt(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_its_end(**options: Any) -> None:
        raise EOFError("no data left in file")

    monkeypatch.setattr(cleanpairs.cli.listing.inspect, "callback", at_its_end)
    assert_refused(command("inspect", "."), 1, "EOFError: no data left in file")


def test_an_output_of_the_manifest_that_never_ends(command: Command, tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    files = {"zero": {"role": "out", "sha256": "0" * 64, "bytes": 0, "rows": 1}, EVIL: {"role": "ledger", "rows": 1}}
    (tmp_path / "zero.manifest.json").write_text(json.dumps({"files": files, "counts": {EVIL: 1}, "format": EVIL}))
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
    assert out + err and not OBEYED.search(out + err)
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


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_standard_streams_that_are_closed_or_full(tmp_path: Path, closed: str) -> None:
    """The code is that of the command, and a full standard output is one of its outputs."""
    code = f"import sys; sys.argv = ['cleanpairs', 'recipes']; from {cleanpairs.cli.__name__} import main; main()"
    done = subprocess.run(["sh", "-c", f'{sys.executable} -c "{code}" {closed}'], cwd=tmp_path, check=False)
    assert done.returncode == (4 if closed == ">/dev/full" else 0)


@pytest.mark.parametrize(("name", "number"), [("stdout", 1), ("stderr", 2)])
def test_work_goes_on_where_nobody_reads(name: str, number: int, monkeypatch: Any, capfd: Any) -> None:
    read, written = os.pipe()
    os.close(read)
    for target, broken in ((written, None), (os.open("/dev/full", os.O_WRONLY), OutputError)):
        with os.fdopen(target, "w") as stream, capfd.disabled():
            monkeypatch.setattr(sys, name, stream)
            lost = broken and name == "stdout"
            with (
                pytest.raises(broken, match="output cannot be written") if lost else nullcontext(),
                guard_std_streams() as output,
            ):
                for _ in range(3):
                    getattr(sys, name).write("words")
                    getattr(sys, name).flush()
                output.check()
            assert getattr(sys, name) is stream


def test_without_a_home(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("CLEANPAIRS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    pictures = {"image": [picture(k) for k in range(8)], "caption": [f"text {k}" for k in range(8)]}
    write_table(tmp_path / "a.parquet", pictures)
    for at in (nobody, lambda: tmp_path / "a.parquet"):  # no folder can be made in a file
        monkeypatch.setattr(Path, "home", at)
        with pytest.warns(UserWarning, match="CLEANPAIRS_CACHE names another") as told:
            assert command("inspect", "a.parquet", "--filters").code == 0
        assert len(told) == 1
        _temporary_folder().cleanup()
        _temporary_folder.cache_clear()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"status": 1}, "status"), ({"input": {"data": {}}}, "input.data"), ({"result": {"threshold": "x"}}, "result."),
        ([], "cannot be read"), (["x"], "cannot be read"), ({"versions": "x"}, "versions"),
    ],
)  # fmt: skip
def test_a_run_that_is_not_as_fit_writes_it(command: Command, tmp_path: Path, content: Any, word: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(content or "[]"))
    assert_refused(command("report", "run", "--out", "r.html"), 3, "run.json", word)
    assert command("verify", "run")[0] == 3
