"""The old and the new captions of a row, with their sources and probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cleanpairs.export import export_pairs, restore_export


@pytest.mark.parametrize("lists", [False, True])
def test_old_and_new_captions_stand_beside_the_caption(
    lists: bool, make_pairs: Any, make_plan: Any, tmp_path: Path
) -> None:
    pairs = make_pairs(3, struct=True, lists=lists)
    actions = (
        ["keep", "rematch_text", "drop", "recaption", "drop", "drop"]
        if lists
        else ["rematch_text", "recaption", "keep"]
    )
    plan, out = make_plan(pairs, actions), tmp_path / "out.parquet"
    export_pairs(pairs, plan, out, all_captions=True)
    lines = plan.table.to_pylist()
    kinds, expected = {"keep": "original", "rematch_text": "rematched", "recaption": "written"}, []
    for row in range(2 if lists else 3):
        entries = []
        for line in lines[2 * row : 2 * row + 2] if lists else [lines[row]]:
            kept = line["action"] == "keep"
            if line["action"] != "drop":
                weight = line["correspondence"] if kept else line["repair_score"]
                entries.append({"text": line["caption"], "source": kinds[line["action"]], "weight": weight})
                old = {"text": line["original_caption"], "source": "original", "weight": line["correspondence"]}
                entries += [] if kept else [old]
        expected.append(entries)
    table = pq.read_table(out)
    assert table["all_captions"].to_pylist() == expected and len(expected[1]) == 2
    assert [type(cell) for cell in table["caption"].to_pylist()] == [list if lists else str] * len(expected)
    restore_export(out, tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").equals(pq.read_table(pairs.source.paths[0]))
