"""``cleanpairs export`` in every format, and ``cleanpairs push``, by a plan: no model is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cleanpairs.cli import cli
from cleanpairs.core.errors import ConfigError, OutputError
from cleanpairs.data import load_pairs
from cleanpairs.repair.actions import REASONS
from cleanpairs.repair.plan import RepairPlan
from tests.helpers import picture as png
from tests.helpers import plan_of


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """In a directory with in.parquet of five pairs, and plan.parquet that keeps three."""
    monkeypatch.chdir(tmp_path)
    n = 5
    table = {"uid": [f"{i:032x}" for i in range(n)], "image": [png(i) for i in range(n)]}
    pq.write_table(pa.table({**table, "caption": [f"text {i}" for i in range(n)]}), "in.parquet")
    pairs = load_pairs("in.parquet")
    actions = ["drop" if i % 2 else "keep" for i in range(n)]
    settings = {"data": str(tmp_path / "in.parquet"), "columns": {}}
    plan_of(pairs, actions, settings=settings).save("plan.parquet")

    def run(*argv: str) -> Result:
        return CliRunner().invoke(cli, ["export", "--plan", "plan.parquet", *argv])

    return run


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (REASONS[8], f"nothing is repaired: {REASONS[8]} (2); --repairs plausible (repairs='plausible') makes"),
        (REASONS[0], f"nothing is repaired: {REASONS[0]} (2)\n"),
        (REASONS[9], None),
        (None, None),  # a person dropped them
    ],
)
def test_an_export_without_repairs_says_why(
    command: Callable[..., Result], reason: str | None, told: str | None
) -> None:
    plan = RepairPlan.load("plan.parquet")
    actions = plan.table["action"].to_pylist()
    column = pa.array([reason if action == "drop" else None for action in actions], pa.string())
    at = plan.table.column_names.index("reason")
    replace(plan, table=plan.table.set_column(at, "reason", column)).save("plan.parquet", overwrite=True)
    out = command("--repaired", "out.parquet").output
    assert "5 pairs in: 3 kept" in out
    assert told in out if told else "nothing is repaired" not in out


def test_every_format(command: Callable[..., Result]) -> None:
    for argv in (
        ["--repaired", "out.parquet"],
        ["--repaired", "ds", "--format", "datasets"],
        ["--repaired", "shards/{00000..}.tar", "--shard-size", "2"],
        ["--repaired", "kept.npy", "--license", "cc0-1.0", "--card", "kept.md"],
    ):
        done = command(*argv, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["rows"] == 3
    assert pq.read_table("out.parquet")["caption"].to_pylist() == ["text 0", "text 2", "text 4"]
    assert len(datasets.load_from_disk("ds")) == 3
    assert sorted(p for p in os.listdir("shards") if p.endswith(".tar")) == ["00000.tar", "00001.tar"]
    assert len(np.load("kept.npy")) == 3 and "license: cc0-1.0" in Path("kept.md").read_text()
    for name in ("out.parquet", "ds", "shards", "kept.npy"):
        assert Path(f"{name}.ledger.parquet").exists() and Path(f"{name}.manifest.json").exists()


def test_what_cannot_be(command: Callable[..., Result]) -> None:
    for argv, words in (
        (["--repaired", "out"], "--format (parquet"),
        (["--repaired", "out.parquet", "--shard-size", "3"], "the tars of webdataset"),
        (["--repaired", "out.parquet", "--format", "uids"], "named as parquet"),
    ):
        done = command(*argv)
        assert isinstance(done.exception, ConfigError) and words in str(done.exception)
    done = command("--repaired", "out.parquet", "--format", "xml")
    assert done.exit_code == 2 and "webdataset" in done.output
    assert not Path("out.parquet").exists()


def test_a_push_that_cannot_be_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for repo, words in (("me/clean", "no token"), ("clean", "OWNER/NAME")):
        done = CliRunner().invoke(cli, ["push", "out.parquet", repo])
        assert isinstance(done.exception, ConfigError) and words in str(done.exception)


def test_a_push_that_fails_leaves_the_export(command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    assert command("--repaired", "out.parquet", "--card", "out.parquet.card.md").exit_code == 0
    done = CliRunner().invoke(cli, ["push", "out.parquet", "me/clean"])
    assert isinstance(done.exception, OutputError) and "whole on disk" in str(done.exception)
    done = CliRunner().invoke(cli, ["push", "out.parquet", "me/clean", "--license", "mit"])
    assert done.exit_code == 2 and "--license is for a model" in done.output
