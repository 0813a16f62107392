"""Every option that writes against every option that reads, of all commands; a new option takes part by itself."""

import json
import os
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.cli import COMMANDS, cli
from cleanpairs.cli.options import PathsCommand, Reads, Writes, written_and_read
from cleanpairs.data.guard import refuse_inputs
from cleanpairs.repair.plan import METADATA_KEY, PLAN_SCHEMA
from tests.conftest import Command, assert_refused
from tests.data.test_atomic import held_by_another

# Options that take text which is no path: names, columns, numbers in words.
WORDS = {
    *("method", "methods", "backbone", "noise", "kind", "slice_by", "chosen", "drop"),
    *("split", "engine", "threshold", "license", "repo", "recaption_url"),
}


def commands() -> dict[str, click.Command]:
    with click.Context(cli) as ctx:
        found = {name: cli.get_command(ctx, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def writes(command: click.Command) -> list[click.Parameter]:
    return [p for p in command.params if isinstance(p.type, Writes)]


def reads(command: click.Command) -> list[click.Parameter]:
    return [p for p in command.params if isinstance(p.type, Reads) and p.name not in ("columns", "overrides")]


PAIRS = [(name, out.name, into.name) for name, c in commands().items() for out in writes(c) for into in reads(c)]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_is_known_to_read_to_write_or_to_be_no_path(name: str) -> None:
    command = commands()[name]
    for param in command.params:
        text = isinstance(param.type, click.types.StringParamType | click.Path)
        known = isinstance(param.type, Reads | Writes) or param.name in WORDS
        assert known or not text, f"--{param.name} of {name}: give it the type Writes or Reads, or add it here"
        assert not (param.name in WORDS and isinstance(param.type, Reads))
        if text and param.name == "out":
            assert isinstance(param.type, Writes), f"--{param.name} of {name} seems to write"
    assert isinstance(command, PathsCommand) or not writes(command)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table, a directory of tables, a run that goes back to a table, a plan that goes back to another, an export."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path.parent / "cache"))
    table = pa.table({"caption": ["a", "b"], "image": ["a.jpg", "b.jpg"]})
    for name in ("file.parquet", "first.parquet", "planned.parquet", "folder/a.parquet", "elsewhere/b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(table, name)
    (tmp_path / "folder" / "b.parquet").symlink_to(tmp_path / "elsewhere" / "b.parquet")
    os.link("file.parquet", "hard.parquet")
    (tmp_path / "soft").symlink_to("folder")
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    given = {"data": str(tmp_path / "first.parquet"), "options": {}}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"input": given, "status": "complete"}))
    note = {"threshold": 0.5, "min_repair_score": 0.5, "settings": {"data": str(tmp_path / "planned.parquet")}}
    pq.write_table(PLAN_SCHEMA.with_metadata({METADATA_KEY: json.dumps(note).encode()}).empty_table(), "plan.parquet")
    quoted = json.dumps(note).replace('"', '""')
    (tmp_path / "plan.csv").write_text(",".join(PLAN_SCHEMA.names) + f',"{quoted}"\n')
    pq.write_table(table, "kept.parquet")
    (tmp_path / "kept.parquet.manifest.json").write_text(json.dumps({"files": {"../ledger": {}, "dropped": {}}}))
    (tmp_path / "dropped").write_text("x")
    return tmp_path


# What is read, and the outputs by which it, or what it goes back to, would be lost.
LOST = {
    "file.parquet": ("./folder/../file.parquet", "hard.parquet", "."),
    "folder": ("folder", "soft/new", "elsewhere/b.parquet"),
    "fold*/*.parquet": ("folder/a.parquet", "folder/new.parquet"),
    "run": ("run", "run/model/new", "first.parquet"),
    "plan.parquet": ("plan.parquet",),
    "kept.parquet": ("kept.parquet", "kept.parquet.manifest.json"),
}


def argv(name: str, out: str, into: str, output: str, given: str) -> list[str]:
    """A call of the command with these two options; what else it needs is made up."""
    params = commands()[name].params
    arguments = ["--overwrite"] if any("--overwrite" in param.opts for param in params) else []
    for param in params:
        value = output if param.name == out else given if param.name == into else None
        if value is None and param.required:
            value = f"other-{param.name}" if isinstance(param.type, Writes) else "file.parquet"
        if value is not None:
            arguments += [value] if isinstance(param, click.Argument) else [param.opts[-1], value]
    return [name, *arguments]


def state(folder: Path) -> dict[str, Any]:
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(("name", "out", "into"), PAIRS)
def test_no_output_is_holds_or_is_in_an_input(name: str, out: str, into: str, here: Path, in_process: Command) -> None:
    if into == "image_root":  # tables may lie beside the images
        (here / "folder" / "a.jpg").write_bytes(b"picture")
    before = state(here)
    lost = {"folder": ("folder", "soft/a.jpg", ".")} if into == "image_root" else LOST
    for given, outputs in lost.items():
        for output in outputs:
            done = in_process(*argv(name, out, into, output, given))
            if into == "run" != given:  # it is no run, which is said first
                assert done.code in (2, 3), done
            else:
                assert_refused(done, 5, "never written")
    assert state(here) == before


def test_what_lies_elsewhere_is_written(here: Path) -> None:
    """The guard alone is asked: it lets pass what the commands are for."""
    plain = [("folder", "new"), ("file.parquet", "new"), ("fold*/*.parquet", "new"), ("missing", "missing")]
    for name, out, into in PAIRS:
        # the audit of a run lies in there
        for given, output in [("run", "new"), ("run", "run/new.parquet"), *(plain if into != "run" else ())]:
            words = argv(name, out, into, output, given)
            outputs, beside, inputs = written_and_read(commands()[name].make_context(name, words[1:]))
            assert outputs, words
            refuse_inputs([*outputs, *beside], inputs)


@pytest.mark.parametrize("plan", ["plan.parquet", "plan.csv"])
@pytest.mark.parametrize("option", ["--repaired", "--dropped", "--ledger", "--card"])
def test_a_plan_keeps_its_data(option: str, plan: str, here: Path, in_process: Command) -> None:
    before = state(here)
    more = [] if option == "--repaired" else ["--repaired", "new.parquet"]
    for output in ["planned.parquet", plan]:
        assert_refused(in_process("export", "--plan", plan, option, output, *more, "--overwrite"), 5, "never written")
    assert state(here) == before


def test_the_data_of_a_run_is_kept_by_what_reads_the_run(here: Path, in_process: Command) -> None:
    (here / "runs").mkdir()
    (here / "runs" / "latest").symlink_to("../run")
    before = state(here)
    for words in (
        "report --out first.parquet",
        "score file.parquet --out first.parquet",
        "restore kept.parquet --out dropped",
        "fit run/model/config.json --out run",
        "fit file.parquet --set data.val=folder --out folder/run",
    ):
        assert_refused(in_process(*words.split(), "--overwrite"), 5, "never written")
    assert_refused(in_process("report", ".", "--out", "new.html"), 3, "is no run directory")
    assert state(here) == before


def test_one_writer_at_a_time_in_every_command(here: Path, in_process: Command) -> None:
    calls = [argv(name, out, "", "held", "") for name, out in sorted({pair[:2] for pair in PAIRS})]
    with held_by_another(Path("held"), Path("run/audit")) as other:
        before = state(here)
        for words in (*calls, ["audit", "run"]):
            assert_refused(in_process(*words), 5, f"written by process {other.pid} on ")
        assert state(here) == before


def test_images_beside_a_table_are_kept(here: Path, in_process: Command) -> None:
    (here / "a.jpg").write_bytes(b"picture")
    for data in ("file.parquet", "folder --image-root ."):
        assert_refused(in_process(*f"corrupt {data} --noise 0.5 --out a.jpg --overwrite".split()), 5, "never written")
    assert (here / "a.jpg").read_bytes() == b"picture"


@pytest.mark.parametrize(("line", "named"), [
    ("score RUN data.parquet --out scores.csv", "*.parquet"),
    ("rematch RUN --out plan.json", "*.parquet or *.csv"),
    ("worst RUN --out worst.xlsx", "*.csv"),
    ("report RUN --out report.md", "*.html"),
])  # fmt: skip
def test_an_output_is_not_named_as_another_format(line: str, named: str, command: Command, tmp_path: Path) -> None:
    assert_refused(command(*line.split()), 2, f"name it {named}")
    assert not list(tmp_path.iterdir())
