"""``cleanpairs restore``: the command around :func:`cleanpairs.export.restore_export`."""

import json
import os
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cleanpairs import RepairPlan, diff_export, export_pairs
from cleanpairs.cli import cli
from cleanpairs.core.errors import ConfigError
from cleanpairs.data import ParquetSink, load_pairs
from tests.conftest import Command, assert_refused
from tests.helpers import assert_raises, picture, plan_of, vector_column, write_table


def test_there_and_back(command: Command) -> None:
    vectors = vector_column(np.arange(10, dtype=np.float32).reshape(5, 2))
    table = pa.table({"action": list("abcde"), "caption": [f"text {i}" for i in range(5)], "features": vectors})
    pairs = load_pairs(write_table(Path("in.parquet"), table.replace_schema_metadata({"made": "by hand"})))
    export_pairs(pairs, plan_of(pairs, ["keep", "drop", "keep", "drop", "keep"]), "out.parquet")
    counts = "5 rows of 3 columns restored: 3 unchanged, 0 changed back, 2 dropped before and now back"
    assert command("restore", "out.parquet", "--out", "back/in.parquet").out == f"{counts}\nrestored: back/in.parquet\n"
    assert pq.read_table("back/in.parquet").equals(pq.read_table("in.parquet"), check_metadata=True)
    told = json.loads(command("restore", "out.parquet", "--out", "back.parquet", "--json").out)
    assert told == {"path": "back.parquet", "rows": 5, "columns": 3, "unchanged": 3, "undone": 0, "returned": 2}
    assert command("restore", "out.parquet").code == 2  # --out is not guessed


def test_verify_says_whether_a_file_is_whole(command: Command) -> None:
    """The folder one is in, too; what is not there is an error of the data."""
    file, table = Path("data.parquet"), pa.table({"key": ["a", "b"], "caption": ["some words " * 30, "others " * 30]})
    with ParquetSink(file, table.schema) as sink:
        sink.write(table)
    code, out, _ = command("verify", file)
    assert code == 0 and "2 rows, 1 row group, 2 columns" in out and out.endswith("1 check, nothing wrong\n")
    for name, code in ((".", 0), ("./", 0), ("/", 3), ("nowhere.parquet", 3)):
        done = command("verify", name)
        assert done.code == code and ("2 rows" in done.out) == (code == 0)
    whole = bytearray(file.read_bytes())
    whole[60] ^= 0xFF
    file.write_bytes(whole)
    code, out, _ = command("verify", file)
    assert code == 3 and "WRONG" in out and "data.parquet" in out
    found = json.loads(command("verify", file, "--json").out)
    assert found["ok"] is False and found["kind"] == "parquet" and found["problems"]


# -- ``cleanpairs diff``: what an export changed, as a stranger reads it ----------------------------------------------


CAPTIONS = [
    "a dog on grass", "\x1b[31mred\nsecond\u202eline", "=1+1", "two men " * 40, "\u65e5\u672c" * 60, "", "a boat",
    "a car",
]  # fmt: skip
ACTIONS = "rematch_text rematch_text rematch_text rematch_image rematch_text quarantine drop keep".split()
DONORS = [1, 3, 0, 0, 7, None, None, None]


@pytest.fixture
def diff(command: Command) -> Command:
    """``cleanpairs diff``, where ``out.parquet`` is in the current directory."""
    n = len(CAPTIONS)
    vectors = vector_column(np.arange(n * 2, dtype=np.float32).reshape(n, 2))
    keys = ["k\x07" if i == 3 else f"k{i}" for i in range(n)]
    pairs = load_pairs(write_table(Path("in.parquet"), {"key": keys, "caption": CAPTIONS, "features": vectors}))
    told = {
        "reason": [None if a == "keep" else "no partner scores 0.5" for a in ACTIONS],
        "correspondence": [None if a == "quarantine" else 0.25 for a in ACTIONS],
        "repair_score": [None if d is None else 0.87 for d in DONORS],
    }
    export_pairs(pairs, plan_of(pairs, ACTIONS, DONORS, **told), "out.parquet")
    return partial(command, "diff")


def test_nothing_that_a_terminal_obeys(diff: Command) -> None:
    text = diff("out.parquet").out
    assert all(c == "\n" or c.isprintable() for c in text) and ", pair 7, score" in text and "(pair 0, score" in text
    plain = CliRunner(charset="ascii").invoke(cli, ["diff", "out.parquet"])
    assert plain.exit_code == 0 and "\\u65e5" in plain.stdout


def test_json_has_all_of_it_and_python_the_same(diff: Command) -> None:
    found = json.loads(diff("out.parquet", "--json").out)
    assert found["pairs"] == 8 and sum(found["counts"].values()) == 8 and found["counts"]["keep"] == 1
    assert [c["pair_id"] for c in found["changes"]] == list(range(7))
    assert found["changes"][1]["before"] == CAPTIONS[1] and found["changes"][1]["after"] == CAPTIONS[3]
    assert found["changes"][6] == {
        "pair_id": 6, "key": "k6", "action": "drop", "before": "a boat", "after": None, "source_pair_id": None,
        "source_key": None, "correspondence": 0.25, "repair_score": None, "reason": "no partner scores 0.5",
    }  # fmt: skip
    assert len(json.loads(diff("out.parquet", "--json", "--limit", "1").out)["changes"]) == 1
    in_python = diff_export("out.parquet")
    assert (in_python.pairs, in_python.changed, len(in_python.changes)) == (8, 7, 7)
    assert_raises(ConfigError, "limit", diff_export, "out.parquet", limit=-1)


def test_an_edited_ledger_is_refused_and_another_place_is_taken(diff: Command) -> None:
    Path("out.parquet.ledger.parquet").rename("l.parquet")
    assert_refused(diff("out.parquet"), 3, "--ledger")
    assert diff("out.parquet", "--ledger", "l.parquet").code == 0
    pq.write_table(pq.read_table("l.parquet").slice(1), "l.parquet")
    assert_refused(diff("out.parquet", "--ledger", "l.parquet"), 3, "edited after the export")


# -- ``cleanpairs export`` in every format, and ``cleanpairs push``, by a plan: no model is needed --------------------


@pytest.fixture
def export(command: Command) -> Command:
    """In a directory with in.parquet of five pairs, and plan.parquet that keeps three."""
    table = {"uid": [f"{i:032x}" for i in range(5)], "image": [picture(i) for i in range(5)]}
    pairs = load_pairs(write_table(Path("in.parquet"), {**table, "caption": [f"text {i}" for i in range(5)]}))
    settings = {"data": str(Path("in.parquet").absolute()), "columns": {}, "about": {"method": "crcl", "noise": "Few."}}
    plan_of(pairs, ["keep", "drop", "keep", "drop", "keep"], settings=settings).save("plan.parquet")
    return partial(command, "export", "--plan", "plan.parquet")


def test_an_export_of_nothing_warns_and_names_the_next_step(export: Command) -> None:
    plan = RepairPlan.load("plan.parquet")
    for action, step in (("drop", "`cleanpairs review RUN --calibrate`"), ("quarantine", "`cleanpairs inspect DATA`")):
        plan_of(load_pairs("in.parquet"), [action] * 5, settings=plan.settings).save("plan.parquet", overwrite=True)
        assert_refused(export("--out", f"{action}.parquet"), 0, "warning: no pair is kept", step)


def test_every_format(export: Command) -> None:
    assert_refused(export("--repaired", "out.parquet", "--format", "xml"), 2, "webdataset")
    assert not Path("out.parquet").exists()
    for argv in (
        ["--repaired", "out{1}.parquet"],
        ["--repaired", "d{s}", "--format", "datasets"],
        ["--repaired", "shards/{00000..}.tar", "--shard-size", "2"],
        ["--repaired", "kept.npy", "--license", "cc0-1.0", "--card", "kept.md"],
    ):
        done = export(*argv, "--json")
        assert done.code == 0 and json.loads(done.out)["rows"] == 3, done.err
    assert pq.read_table("out{1}.parquet")["caption"].to_pylist() == ["text 0", "text 2", "text 4"]
    assert len(datasets.load_from_disk("d{s}")) == 3
    assert sorted(p for p in os.listdir("shards") if p.endswith(".tar")) == ["00000.tar", "00001.tar"]
    assert len(np.load("kept.npy")) == 3
    assert all(words in Path("kept.md").read_text() for words in ("license: cc0-1.0", "- method: crcl", "- Few."))
    for name in ("out{1}.parquet", "d{s}", "shards", "kept.npy"):
        assert Path(f"{name}.ledger.parquet").exists() and Path(f"{name}.manifest.json").exists()


@pytest.mark.usefixtures("diff")
def test_a_push_that_cannot_be_is_refused(in_process: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nonexistent/token")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert_refused(in_process("push", "out.parquet", "me/clean"), 2, "no token")
    assert_refused(in_process("push", "nothing.parquet", "me/clean"), 3, "there is no file nothing.parquet")
    assert_refused(in_process("push", "out.parquet", "me/clean", "--license", "mit"), 2, "--license is for a model")
