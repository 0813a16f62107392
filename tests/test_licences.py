"""Every dependency that is declared has its licence listed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def test_every_declared_dependency_is_in_the_list_of_licences() -> None:
    spec = importlib.util.spec_from_file_location("list_licences", REPO / "tools" / "list_licences.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (REPO / "dev" / "licences.md").read_text(encoding="utf-8")
    assert len(tool.declared()["core"]) > 10
    assert tool.missing(text) == [], "python tools/list_licences.py"
    assert "torch" in tool.missing(text.replace("| torch |", "|"))
