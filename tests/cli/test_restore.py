"""``cleanpairs restore``: the command around :func:`cleanpairs.export.restore_export`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from cleanpairs.cli import cli
from cleanpairs.core.errors import OutputExistsError
from cleanpairs.data import load_pairs
from cleanpairs.export import export_pairs
from tests.helpers import plan_of


def export(data: str) -> None:
    """Every second pair of ``data`` is dropped; ``out.parquet`` is what is left."""
    pairs = load_pairs(data)
    export_pairs(pairs, plan_of(pairs, ["drop" if i % 2 else "keep" for i in range(len(pairs))]), "out.parquet")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """In a directory with in.parquet, its metadata, and out.parquet."""
    monkeypatch.chdir(tmp_path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(10, dtype=np.float32)), 2)
    table = pa.table({"action": list("abcde"), "caption": [f"text {i}" for i in range(5)], "features": vectors})
    pq.write_table(table.replace_schema_metadata({"made": "by hand"}), "in.parquet")
    export("in.parquet")

    def call(*argv: Any) -> Result:
        return CliRunner().invoke(cli, ["restore", *map(str, argv)])

    return call


def test_there_and_back(command: Callable[..., Result]) -> None:
    result = command("out.parquet", "--out", "back/in.parquet")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "5 rows of 3 columns restored: 3 had not been changed, 0 were changed back, 2 had been dropped and are there "
        "again\nrestored: back/in.parquet\n"
    )
    assert pq.read_table("back/in.parquet").equals(pq.read_table("in.parquet"), check_metadata=True)
    result = command("out.parquet", "--out", "back.parquet", "--json")
    counts = {"rows": 5, "columns": 3, "unchanged": 3, "undone": 0, "returned": 2}
    assert json.loads(result.stdout) == {"path": "back.parquet"} | counts


def test_what_exists_stays_without_overwrite(command: Callable[..., Result]) -> None:
    before = Path("in.parquet").read_bytes()
    error = command("out.parquet", "--out", "in.parquet").exception
    assert isinstance(error, OutputExistsError) and "--overwrite" in str(error)
    assert Path("in.parquet").read_bytes() == before
    assert command("out.parquet", "--out", "in.parquet", "--overwrite").exit_code == 0
    assert command("out.parquet").exit_code == 2  # --out is not guessed
