"""``cleanpairs diff``: what an export changed, as a stranger reads it."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cleanpairs.cli import cli
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputExistsError
from cleanpairs.data import load_pairs
from cleanpairs.export import diff_export, export_pairs
from tests.helpers import plan_of

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
    pq.write_table(pa.table({"key": keys, "caption": CAPTIONS, "features": vectors}), "in.parquet")
    pairs = load_pairs("in.parquet")
    reasons = [None if a == "keep" else "no partner scores 0.5" for a in ACTIONS]
    correspondence = [None if a == "quarantine" else 0.25 for a in ACTIONS]
    scores = [None if d is None else 0.87 for d in DONORS]
    told = {"reason": reasons, "correspondence": correspondence, "repair_score": scores}
    export_pairs(pairs, plan_of(pairs, ACTIONS, DONORS, **told), "out.parquet")
    return tmp_path / "out.parquet"


@pytest.fixture
def command(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "80")

    def call(*argv: Any, **settings: Any) -> Result:
        return CliRunner().invoke(cli, ["diff", *map(str, argv)], **settings)

    return call


def test_two_lines_a_pair(command: Callable[..., Result]) -> None:
    result = command("out.parquet")
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


def test_nothing_that_a_terminal_obeys_and_no_line_too_long(command: Callable[..., Result]) -> None:
    text = command("out.parquet").stdout
    assert all(c == "\n" or c.isprintable() for c in text)
    assert max(len(line) + sum(c > "\u1100" for c in line) for line in text.splitlines()) == 80
    colored = command("out.parquet", color=True).stdout
    assert "\x1b[31m- a dog on grass\x1b[0m" in colored
    assert re.sub(r"\x1b\[(31|32|36|0)m", "", colored) == text
    assert "\x1b" not in command("out.parquet", color=True, env={"NO_COLOR": "1"}).stdout
    plain = CliRunner(charset="ascii").invoke(cli, ["diff", "out.parquet"])
    assert plain.exit_code == 0 and "\\u65e5" in plain.stdout


def test_limit_and_action(command: Callable[..., Result]) -> None:
    text = command("out.parquet", "--n", "2").stdout
    assert text.count("\n@ ") == 2 and "5 more changes: --n 7 shows all" in text
    text = command("out.parquet", "--limit", "0", "--action", "drop").stdout
    assert "@" not in text and "1 more change: --n 1 shows all" in text
    text = command("out.parquet", "--action", "drop", "--action", "quarantine").stdout
    assert re.findall("^@ k([0-9])", text, re.M) == ["5", "6"] and "more" not in text
    assert "nothing of this kind" in command("out.parquet", "--action", "recaption").stdout
    assert command("out.parquet", "--action", "keep").exit_code == 2


def test_json_and_csv_have_all_of_it(command: Callable[..., Result], tmp_path: Path) -> None:
    found = json.loads(command("out.parquet", "--json").stdout)
    assert found["pairs"] == 8 and sum(found["counts"].values()) == 8 and found["counts"]["keep"] == 1
    assert [c["pair_id"] for c in found["changes"]] == list(range(7))
    assert found["changes"][1]["before"] == CAPTIONS[1] and found["changes"][1]["after"] == CAPTIONS[3]
    assert found["changes"][6] == {
        "pair_id": 6, "key": "k6", "action": "drop", "before": "a boat", "after": None, "source_key": None,
        "correspondence": 0.25, "repair_score": None, "reason": "no partner scores 0.5",
    }  # fmt: skip
    assert len(json.loads(command("out.parquet", "--json", "--limit", "1").stdout)["changes"]) == 1

    result = command("out.parquet", "--out", "changes.csv")
    assert result.stdout == "7 changes -> changes.csv\n"
    with open("changes.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["before"] for row in rows] == [f"'{c}" if c.startswith("=") else c for c in CAPTIONS[:7]]
    again = command("out.parquet", "--out", "changes.csv")
    assert isinstance(again.exception, OutputExistsError)
    assert command("out.parquet", "--out", "changes.csv", "--overwrite", "--limit", "1").exit_code == 0
    assert command("out.parquet", "--out", "x.csv", "--json").exit_code == 2


def test_python_has_the_same(exported: Path) -> None:
    found = diff_export(exported)
    assert (found.pairs, found.changed, len(found.changes)) == (8, 7, 7)
    assert found.counts == {a: ACTIONS.count(a) for a in found.counts} and next(iter(found.counts)) == "keep"
    assert [c.pair_id for c in diff_export(exported, actions="drop").changes] == [6]
    assert found.changes[3].after == found.changes[3].before == CAPTIONS[3] and found.changes[3].source_key == "k0"
    assert diff_export(exported, limit=0).changes == ()
    with pytest.raises(ConfigError, match="did you mean 'drop'"):
        diff_export(exported, actions=["dropp"])
    with pytest.raises(ConfigError, match="limit"):
        diff_export(exported, limit=-1)


def test_an_edited_ledger_is_refused_and_another_place_is_taken(command: Callable[..., Result], tmp_path: Path) -> None:
    ledger = tmp_path / "out.parquet.ledger.parquet"
    ledger.rename(tmp_path / "l.parquet")
    missing = command("out.parquet").exception
    assert isinstance(missing, DataError) and "--ledger" in str(missing)
    assert command("out.parquet", "--ledger", "l.parquet").exit_code == 0
    pq.write_table(pq.read_table(tmp_path / "l.parquet").slice(1), tmp_path / "l.parquet")
    with pytest.raises(DataError, match="edited after the export"):
        diff_export(tmp_path / "out.parquet", ledger=tmp_path / "l.parquet")


def test_what_is_no_export(command: Callable[..., Result]) -> None:
    for name, message in (("in.parquet", "no export of cleanpairs"), ("nothing.parquet", "there is no file")):
        error = command(name).exception
        assert isinstance(error, CleanpairsError) and error.exit_code == 3 and message in str(error)
