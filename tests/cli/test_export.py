"""``cleanpairs restore``: the command around :func:`cleanpairs.export.restore_export`."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cleanpairs import RepairPlan, diff_export, export_pairs
from cleanpairs.cli import cli
from cleanpairs.cli.diff import _change
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import ParquetSink, load_pairs
from cleanpairs.export.diff import Change
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.actions import REASONS
from tests.helpers import assert_raises, picture, plan_of, write_table


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """In a directory with in.parquet, its metadata, and out.parquet."""
    monkeypatch.chdir(tmp_path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(10, dtype=np.float32)), 2)
    table = pa.table({"action": list("abcde"), "caption": [f"text {i}" for i in range(5)], "features": vectors})
    pairs = load_pairs(write_table("in.parquet", table.replace_schema_metadata({"made": "by hand"})))
    export_pairs(pairs, plan_of(pairs, ["keep", "drop", "keep", "drop", "keep"]), "out.parquet")

    def call(*argv: Any) -> Result:
        return CliRunner().invoke(cli, ["restore", *map(str, argv)])

    return call


def test_there_and_back(command: Callable[..., Result]) -> None:
    result = command("out.parquet", "--out", "back/in.parquet")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "5 rows of 3 columns restored: 3 unchanged, 0 changed back, 2 dropped before and now back\n"
        "restored: back/in.parquet\n"
    )
    assert pq.read_table("back/in.parquet").equals(pq.read_table("in.parquet"), check_metadata=True)
    result = command("out.parquet", "--out", "back.parquet", "--json")
    counts = {"rows": 5, "columns": 3, "unchanged": 3, "undone": 0, "returned": 2}
    assert json.loads(result.stdout) == {"path": "back.parquet"} | counts
    assert command("out.parquet").exit_code == 2  # --out is not guessed


# -- ``cleanpairs verify``: exit codes, what is printed, JSON ---------------------------------------------------------


def verify(*argv: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, argv)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = pa.table({"key": ["a", "b"], "caption": ["some words " * 30, "other words " * 30]})
    with ParquetSink(tmp_path / "data.parquet", table.schema) as sink:
        sink.write(table)
    return tmp_path / "data.parquet"


def test_a_whole_file_is_exit_code_0(file: Path) -> None:
    done = verify(file)
    assert done.exit_code == 0
    assert "2 rows, 1 row group, 2 columns" in done.output and done.output.endswith("1 check, nothing wrong\n")
    assert verify(file, "--quiet").output == ""
    (line,) = verify(file, "--json").output.splitlines()
    assert set(json.loads(line)) == {"path", "kind", "ok", "checked", "problems", "notes"}


def test_a_damaged_file_is_exit_code_3(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[60] ^= 0xFF
    file.write_bytes(whole)
    done = verify(file)
    assert done.exit_code == 3
    assert "WRONG" in done.output and "data.parquet" in done.output
    quiet = verify(file, "--quiet")
    assert quiet.exit_code == 3 and len(quiet.output.splitlines()) == 1
    found = json.loads(verify(file, "--json").output)
    assert found["ok"] is False and found["kind"] == "parquet" and found["problems"]


def test_the_folder_one_is_in_and_nothing_to_verify(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for name in (".", "./"):
        assert verify(name).exit_code == 0 and "2 rows" in verify(name).output
    for name in ("/", "nowhere.parquet"):
        assert getattr(verify(name).exception, "exit_code", None) == 3


# -- ``cleanpairs diff``: what an export changed, as a stranger reads it ----------------------------------------------


CAPTIONS = [
    "a dog on grass", "\x1b[31mred\nsecond\u202eline", "=1+1", "two men " * 40, "\u65e5\u672c" * 60, "", "a boat",
    "a car",
]  # fmt: skip
ACTIONS = "rematch_text rematch_text rematch_text rematch_image rematch_text quarantine drop keep".split()
DONORS = [1, 3, 0, 0, 7, None, None, None]


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``out.parquet`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    n = len(CAPTIONS)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(n * 2, dtype=np.float32)), 2)
    keys = ["k\x07" if i == 3 else f"k{i}" for i in range(n)]
    pairs = load_pairs(write_table("in.parquet", {"key": keys, "caption": CAPTIONS, "features": vectors}))
    reasons = [None if a == "keep" else "no partner scores 0.5" for a in ACTIONS]
    correspondence = [None if a == "quarantine" else 0.25 for a in ACTIONS]
    scores = [None if d is None else 0.87 for d in DONORS]
    told = {"reason": reasons, "correspondence": correspondence, "repair_score": scores}
    export_pairs(pairs, plan_of(pairs, ACTIONS, DONORS, **told), "out.parquet")
    return tmp_path / "out.parquet"


@pytest.fixture
def diff(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "80")

    def call(*argv: Any, **settings: Any) -> Result:
        return CliRunner().invoke(cli, ["diff", *map(str, argv)], **settings)

    return call


def test_two_lines_a_pair(diff: Callable[..., Result]) -> None:
    result = diff("out.parquet")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:8] == [
        "out.parquet: 8 pairs",
        "  1 kept, 4 with a new caption, 1 with a new image, 1 dropped, 1 quarantined",
        "",
        "@ k0  (pair 0, correspondence 0.25)",
        "- a dog on grass",
        "+ \\x1b[31mred\\nsecond\\u202eline  (from k1, score 0.87)",
        "",
        "@ k1  (pair 1, correspondence 0.25)",
    ]
    assert "- image of k\\x07\n+ image of k0  (score 0.87)\n  two men two men" in result.stdout
    assert "@ k5  (pair 5)\n- (no caption)\n  quarantined: no partner scores 0.5" in result.stdout
    assert "- a boat\n  dropped: no partner scores 0.5\n" in result.stdout
    assert "a car  (from k7" in result.stdout and "k7  (pair" not in result.stdout  # a kept pair is no change


def test_new_captions_of_data_without_texts_are_said_to_be_none() -> None:
    change = Change(3, "k3", "rematch_text", "", "", "k4", 0.1, 0.9, None)
    lines = [line for line, _ in _change(change, 80)]
    assert lines[1:3] == ["- (no caption)", "+ (no caption)  (from k4, score 0.90)"]


def test_nothing_that_a_terminal_obeys_and_no_line_too_long(diff: Callable[..., Result]) -> None:
    text = diff("out.parquet").stdout
    assert all(c == "\n" or c.isprintable() for c in text)
    assert max(len(line) + sum(c > "\u1100" for c in line) for line in text.splitlines()) == 80
    colored = diff("out.parquet", color=True).stdout
    assert "\x1b[31m- a dog on grass\x1b[0m" in colored
    assert re.sub(r"\x1b\[(31|32|36|0)m", "", colored) == text
    assert "\x1b" not in diff("out.parquet", color=True, env={"NO_COLOR": "1"}).stdout
    plain = CliRunner(charset="ascii").invoke(cli, ["diff", "out.parquet"])
    assert plain.exit_code == 0 and "\\u65e5" in plain.stdout


def test_limit(diff: Callable[..., Result]) -> None:
    text = diff("out.parquet", "--n", "2").stdout
    assert text.count("\n@ ") == 2 and "5 more changes: --n 7 shows all" in text
    assert "@" not in diff("out.parquet", "--limit", "0").stdout
    assert "more" not in diff("out.parquet", "--n", "7").stdout


def test_json_has_all_of_it_and_python_the_same(diff: Callable[..., Result], exported: Path) -> None:
    found = json.loads(diff("out.parquet", "--json").stdout)
    assert found["pairs"] == 8 and sum(found["counts"].values()) == 8 and found["counts"]["keep"] == 1
    assert [c["pair_id"] for c in found["changes"]] == list(range(7))
    assert found["changes"][1]["before"] == CAPTIONS[1] and found["changes"][1]["after"] == CAPTIONS[3]
    assert found["changes"][6] == {
        "pair_id": 6, "key": "k6", "action": "drop", "before": "a boat", "after": None, "source_key": None,
        "correspondence": 0.25, "repair_score": None, "reason": "no partner scores 0.5",
    }  # fmt: skip
    assert len(json.loads(diff("out.parquet", "--json", "--limit", "1").stdout)["changes"]) == 1
    in_python = diff_export(exported)
    assert (in_python.pairs, in_python.changed, len(in_python.changes)) == (8, 7, 7)
    assert_raises(ConfigError, "limit", diff_export, exported, limit=-1)


def test_an_edited_ledger_is_refused_and_another_place_is_taken(diff: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "out.parquet.ledger.parquet").rename(tmp_path / "l.parquet")
    missing = diff("out.parquet").exception
    assert isinstance(missing, DataError) and "--ledger" in str(missing)
    assert diff("out.parquet", "--ledger", "l.parquet").exit_code == 0
    pq.write_table(pq.read_table(tmp_path / "l.parquet").slice(1), tmp_path / "l.parquet")
    with pytest.raises(DataError, match="edited after the export"):
        diff_export(tmp_path / "out.parquet", ledger=tmp_path / "l.parquet")


# -- ``cleanpairs export`` in every format, and ``cleanpairs push``, by a plan: no model is needed --------------------


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """In a directory with in.parquet of five pairs, and plan.parquet that keeps three."""
    monkeypatch.chdir(tmp_path)
    table = {"uid": [f"{i:032x}" for i in range(5)], "image": [picture(i) for i in range(5)]}
    pairs = load_pairs(write_table("in.parquet", {**table, "caption": [f"text {i}" for i in range(5)]}))
    settings = {"data": str(tmp_path / "in.parquet"), "columns": {}}
    plan_of(pairs, ["keep", "drop", "keep", "drop", "keep"], settings=settings).save("plan.parquet")

    def run(*argv: str) -> Result:
        return CliRunner().invoke(cli, ["export", "--plan", "plan.parquet", *argv])

    return run


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (REASONS[8], f"nothing is repaired: {REASONS[8]} (2 pairs); --repairs plausible (repairs='plausible') makes"),
        (REASONS[0], f"nothing is repaired: {REASONS[0]} (2 pairs)\n"),
        (REASONS[11], "0 quarantined\nnear duplicates of better pairs: 2 dropped\n3 rows out"),
        (REASONS[9], None),
        (None, None),  # a person dropped them
    ],
)
def test_an_export_without_repairs_says_why(
    export: Callable[..., Result], reason: str | None, told: str | None
) -> None:
    plan = RepairPlan.load("plan.parquet")
    actions = plan.table["action"].to_pylist()
    column = pa.array([reason if action == "drop" else None for action in actions], pa.string())
    replace(plan, table=with_columns(plan.table, {"reason": column})).save("plan.parquet", overwrite=True)
    out = export("--repaired", "out.parquet").output
    assert "5 pairs in: 3 kept" in out
    assert told in out if told else "nothing is repaired" not in out


def test_an_export_of_nothing_warns_and_names_the_next_step(export: Callable[..., Result]) -> None:
    plan = RepairPlan.load("plan.parquet")
    plan_of(load_pairs("in.parquet"), ["drop"] * 5, settings=plan.settings).save("plan.parquet", overwrite=True)
    done = export("--out", "out.parquet")
    assert done.exit_code == 0 and "warning: no pair is kept" in done.stderr and "review --calibrate" in done.stderr


def test_every_format(export: Callable[..., Result]) -> None:
    done = export("--repaired", "out.parquet", "--format", "xml")
    assert done.exit_code == 2 and "webdataset" in done.output and not Path("out.parquet").exists()
    for argv in (
        ["--repaired", "out{1}.parquet"],
        ["--repaired", "d{s}", "--format", "datasets"],
        ["--repaired", "shards/{00000..}.tar", "--shard-size", "2"],
        ["--repaired", "kept.npy", "--license", "cc0-1.0", "--card", "kept.md"],
    ):
        done = export(*argv, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["rows"] == 3
    assert pq.read_table("out{1}.parquet")["caption"].to_pylist() == ["text 0", "text 2", "text 4"]
    assert len(datasets.load_from_disk("d{s}")) == 3
    assert sorted(p for p in os.listdir("shards") if p.endswith(".tar")) == ["00000.tar", "00001.tar"]
    assert len(np.load("kept.npy")) == 3 and "license: cc0-1.0" in Path("kept.md").read_text()
    for name in ("out{1}.parquet", "d{s}", "shards", "kept.npy"):
        assert Path(f"{name}.ledger.parquet").exists() and Path(f"{name}.manifest.json").exists()


@pytest.mark.usefixtures("command")
def test_a_push_that_cannot_be_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for out, repo, words in (
        ("out.parquet", "me/clean", "no token"),
        ("out.parquet", "clean", "OWNER/NAME"),
        ("nothing.parquet", "me/clean", "there is no file nothing.parquet"),
    ):
        done = CliRunner().invoke(cli, ["push", out, repo])
        assert isinstance(done.exception, ConfigError | DataError) and words in str(done.exception)
    done = CliRunner().invoke(cli, ["push", "out.parquet", "me/clean", "--license", "mit"])
    assert done.exit_code == 2 and "--license is for a model" in done.output
