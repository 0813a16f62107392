"""What was computed from a caption or an image goes where these go: a repaired row keeps no vector or score of the old.

The oracle is the plan, pair by pair: a caption that is lent brings its vector, a written one has none, and a given
similarity holds for as long as both caption and image stand as they did.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import Pairs, RepairPlan, export_pairs, load_pairs
from cleanpairs.ops.columns import with_columns
from tests.helpers import write_table

from .conftest import restored

Make, Plan = Callable[..., Pairs], Callable[..., RepairPlan]
ACTIONS = ["keep", "rematch_text", "rematch_image", "recaption", "drop", "keep", "rematch_text", "keep"]
REPAIRED = ("rematch_text", "rematch_image", "recaption")
DIM = 3
NUMBERS = [[i + 0.25, i + 0.5, -float(i)] for i in range(len(ACTIONS))]


STRICT = pa.field("element", pa.float32(), nullable=False)
KINDS = {
    "fixed": pa.list_(pa.float32(), DIM), "fixed, strict inside": pa.list_(STRICT, DIM),
    "list": pa.list_(pa.float32()),
    "half": pa.list_(pa.float16(), DIM),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "null"), [*((kind, True) for kind in KINDS), ("fixed", False)])
def test_a_caption_brings_its_vector(make_pairs: Make, make_plan: Plan, tmp_path: Path, kind: str, null: bool) -> None:
    n = len(ACTIONS)
    vectors = pa.array(NUMBERS, pa.list_(KINDS[kind].value_type)).cast(KINDS[kind])
    scores = {"similarity": pa.array(np.arange(n) / 8, pa.float32()), "clip_score": pa.array(range(n), pa.int16())}
    pairs = make_pairs(n, text_features=vectors, **scores)
    (path,) = map(Path, pairs.source.paths)
    if not null:
        held = pq.read_table(path)
        strictly = [f.with_nullable(f.name not in ("text_features", *scores)) for f in held.schema]
        pairs = load_pairs(write_table(path, held.cast(pa.schema(strictly))))
    before = pq.read_table(path)
    export_pairs(pairs, make_plan(pairs, ACTIONS), tmp_path / "out.parquet", dropped=tmp_path / "gone.parquet")
    out = pq.read_table(tmp_path / "out.parquet")
    out.validate(full=True)
    written = [i for i, a in enumerate(ACTIONS) if a != "drop"]
    assert out["key"].to_pylist() == [f"k{i}" for i in written]
    wanted = {"rematch_text": 1, "recaption": n}  # the vector of the next row, or none
    of = [*NUMBERS, *[None] * n]
    assert out["text_features"].to_pylist() == [of[i + wanted.get(ACTIONS[i], 0)] for i in written]
    assert out["text_features"].type == before["text_features"].type
    for name, values in scores.items():
        assert out[name].to_pylist() == [None if ACTIONS[i] in REPAIRED else values[i].as_py() for i in written]
        assert out[name].type == values.type
    gone = pq.read_table(tmp_path / "gone.parquet")
    assert gone["text_features"].to_pylist() == [NUMBERS[4]]  # of the caption beside it
    assert gone["similarity"].to_pylist() == [0.5]
    assert restored(tmp_path / "out.parquet").equals(before, check_metadata=True)


# Two captions a row: one of the first row is replaced, one of the third is left out, both of the fourth.
LISTED = ["rematch_text", "keep", "keep", "keep", "drop", "keep", "drop", "drop", "keep", "recaption"]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2)])
def test_scores_along_lists_of_captions(make_pairs: Make, make_plan: Plan, tmp_path: Path, kind: pa.DataType) -> None:
    n = len(LISTED) // 2
    along = [[i + 0.0, i + 0.5] if i != 1 else None for i in range(n)]  # a score of each caption, and a row with none
    pairs = make_pairs(n, lists=True, similarity=pa.array(along, kind), clip_score=pa.array(range(n), pa.int32()))
    plan, out, gone = make_plan(pairs, LISTED), tmp_path / "out.parquet", tmp_path / "gone.parquet"
    export_pairs(pairs, plan, out, dropped=gone)
    table = pq.read_table(out)
    table.validate(full=True)
    assert table["similarity"].to_pylist() == [[None, 0.5], [None, None], [2.5], [4.0, None]]
    assert table["clip_score"].to_pylist() == [None, 1, 2, None]  # one for all captions: left out, it still holds
    dropped = pq.read_table(gone).to_pydict()
    assert (dropped["similarity"], dropped["clip_score"]) == ([2.0, 3.0, 3.5], [2, 3, 3])
    assert restored(out).equals(pq.read_table(pairs.source.paths[0]), check_metadata=True)
    again = load_pairs(out)
    nan = np.nan
    np.testing.assert_array_equal(again.precomputed_scores["similarity"], np.float32([nan, 0.5, nan, nan, 2.5, 4, nan]))

    export_pairs(pairs, plan, out, explode=True, overwrite=True)
    table = pq.read_table(out)
    assert table["similarity"].to_pylist() == [None, 0.5, None, None, 2.5, 4.0, None]
    assert table["clip_score"].to_pylist() == [None, 0, 1, 1, 2, 4, None]
    assert restored(out).equals(pq.read_table(pairs.source.paths[0]), check_metadata=True)
    found, wanted = (p.precomputed_scores["similarity"] for p in (load_pairs(out), again))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("lists", "explode"), [(False, False), (True, False), (True, True)])
def test_weights_for_training(make_pairs: Make, make_plan: Plan, tmp_path: Path, lists: bool, explode: bool) -> None:
    """Plausible repairs have their confidence as a weight."""
    pairs = make_pairs(8, lists=lists)
    actions = (ACTIONS * 2)[: len(pairs)] if explode or not lists else ["rematch_text", "keep"] * len(pairs.images)
    plan = make_plan(pairs, actions)
    sure = [0.25 if a == "rematch_text" else 0.75 if a == "rematch_image" else None for a in actions]
    plan = replace(plan, table=with_columns(plan.table, {"confidence": pa.array(sure, pa.float32())}))
    export_pairs(pairs, plan, tmp_path / "out.parquet", explode=explode)
    assert "sample_weight" not in pq.read_schema(tmp_path / "out.parquet").names
    plan = replace(plan, settings={**plan.settings, "repairs": "plausible"})
    export_pairs(pairs, plan, tmp_path / "weighted.parquet", explode=explode)
    found = pq.read_table(tmp_path / "weighted.parquet").column("sample_weight").to_pylist()
    wanted = [1.0 if a == "keep" else c for a, c in zip(actions, sure, strict=True) if a != "drop"]
    assert wanted == (found if explode or not lists else [w for row in found for w in row])
    if not explode:
        assert restored(tmp_path / "weighted.parquet").equals(pq.read_table(pairs.source.paths[0]))


def entry(text: str, source: str = "original", weight: float = 0.5) -> dict[str, Any]:
    return {"text": text, "source": source, "weight": weight}


# The old and the new captions of a row, with their sources and probabilities.
FLAT = [
    [entry("text 1", "rematched", 0.75), entry("text 0")], [entry("new 1", "written", None), entry("text 1")],
    [entry("text 2")],
]  # fmt: skip
OF_LISTS = [
    [entry("text 0"), entry("text 1", "rematched", 0.75), entry("other 0")],
    [entry("new 3", "written", None), entry("other 1")],
]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    ("actions", "expected"),
    [("rematch_text recaption keep", FLAT), ("keep rematch_text drop recaption drop drop", OF_LISTS)],
)
def test_old_and_new_captions_stand_beside_the_caption(
    actions: str, expected: list[Any], several: bool, make_pairs: Any, make_plan: Any, tmp_path: Path
) -> None:
    lists = expected is OF_LISTS
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
