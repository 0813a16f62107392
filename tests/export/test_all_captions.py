"""The old and the new captions of a row, with their sources and probabilities."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.export import export_pairs
from cleanpairs.ops.columns import with_columns

from .conftest import restored


def entry(text: str, source: str = "original", weight: float = 0.5) -> dict[str, Any]:
    return {"text": text, "source": source, "weight": weight}


FLAT = [
    [entry("text 1", "rematched", 0.75), entry("text 0")], [entry("new 1", "written", None), entry("text 1")],
    [entry("text 2")],
]  # fmt: skip
LISTED = [
    [entry("text 0"), entry("text 1", "rematched", 0.75), entry("other 0")],
    [entry("new 3", "written", None), entry("other 1")],
]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("actions", "expected"),
    [("rematch_text recaption keep", FLAT), ("keep rematch_text drop recaption drop drop", LISTED)],
)
def test_old_and_new_captions_stand_beside_the_caption(
    actions: str, expected: list[Any], several: bool, make_pairs: Any, make_plan: Any, tmp_path: Path
) -> None:
    lists = expected is LISTED
    pairs, out = make_pairs(3, struct=True, lists=lists), tmp_path / "out.parquet"
    plan = make_plan(pairs, actions.split())
    if several:
        weighted = [entry(f"near {k}", "rematched", 0.5**k) for k in (1, 2, 3)]
        cells = [weighted if action == "rematch_text" else None for action in actions.split()]
        captions = pa.array(cells, plan.table["captions"].type)
        plan = replace(plan, table=with_columns(plan.table, {"captions": captions}))
        expected = [[c for x in row for c in (weighted if x["source"] == "rematched" else [x])] for row in expected]
    export_pairs(pairs, plan, out, all_captions=True)
    table = pq.read_table(out)
    assert table["all_captions"].to_pylist() == expected
    assert [type(cell) for cell in table["caption"].to_pylist()] == [list if lists else str] * len(expected)
    assert restored(out).equals(pq.read_table(pairs.source.paths[0]))
