"""``cleanpairs verify``: exit codes, what is printed, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from cleanpairs.cli import cli
from cleanpairs.data import ParquetSink


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
    assert "2 rows" in done.output and done.output.endswith("1 checks, nothing wrong\n")
    assert verify(file, "--quiet").output == ""
    (line,) = verify(file, "--json").output.splitlines()
    assert set(json.loads(line)) == {"path", "kind", "ok", "checked", "problems", "notes"}


def test_a_damaged_file_is_exit_code_3_and_its_place_is_named(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[60] ^= 0xFF
    file.write_bytes(whole)
    done = verify(file)
    assert done.exit_code == 3
    assert "WRONG" in done.output and "row group 0, column 'key'" in done.output and "data.parquet" in done.output
    quiet = verify(file, "--quiet")
    assert quiet.exit_code == 3 and len(quiet.output.splitlines()) == 1
    found = json.loads(verify(file, "--json").output)
    assert found["ok"] is False and found["kind"] == "parquet"
    assert [p["place"] for p in found["problems"]] == ["row group 0, column 'key'"]


def test_the_folder_one_is_in_and_nothing_to_verify(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for name in (".", "./"):
        assert verify(name).exit_code == 0 and "2 rows" in verify(name).output
    for name in ("/", "nowhere.parquet"):
        assert getattr(verify(name).exception, "exit_code", None) == 3
