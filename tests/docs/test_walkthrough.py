"""The walk-through of docs/repair.md, block by block: review, edit, apply, undo."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from .conftest import fewer_repairs

PAGE = Path(__file__).parents[2] / "docs" / "repair.md"


@pytest.mark.usefixtures("with_fewer_pictures", "fewer_epochs")
def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., str]) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Walk-through")[1].split("\n## ")[0]
    blocks = re.findall(r"```(python|sh)\n(.*?)```", section, flags=re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "sh", "python", "sh"]
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    for kind, block in blocks:
        if kind == "python":
            exec(compile(fewer_repairs(block), str(PAGE), "exec"), {})
            continue
        printed += map(run, block.strip().splitlines())
    before, after = pq.read_table("noisy.parquet"), pq.read_table("original.parquet")
    assert after.equals(before, check_metadata=True)
    clean = pq.read_table("clean.parquet")
    assert pc.sum(pc.equal(clean["action"], "recaption")).as_py() == 1
    assert "a drawing that somebody looked at" in clean["caption"].to_pylist()
    assert pc.sum(pc.equal(clean["action"], "rematch_text")).as_py() > 0
    assert len(clean) < len(before)
    assert "new caption" in printed[-2]
