"""What was computed from a caption or an image goes where these go: a repaired row keeps no vector or score of the old.

The oracle is the plan, pair by pair: a caption that is lent brings its vector, a written one has none, and a given
similarity holds for as long as both caption and image stand as they did.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


def numbers(n: int) -> list[list[float]]:
    return [[i + 0.25, i + 0.5, -float(i)] for i in range(n)]


def strict(kind: pa.DataType) -> pa.DataType:
    return pa.field("element", kind, nullable=False)


KINDS = {
    "fixed": pa.list_(pa.float32(), DIM), "fixed, strict inside": pa.list_(strict(pa.float32()), DIM),
    "list": pa.list_(pa.float32()), "list, strict inside": pa.list_(strict(pa.float32())),
    "large": pa.large_list(pa.float64()), "half": pa.list_(pa.float16(), DIM),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "null"), [*((kind, True) for kind in KINDS), ("fixed", False)])
def test_a_caption_brings_its_vector(make_pairs: Make, make_plan: Plan, tmp_path: Path, kind: str, null: bool) -> None:
    n = len(ACTIONS)
    vectors = pa.array(numbers(n), pa.list_(KINDS[kind].value_type)).cast(KINDS[kind])
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
    wanted = [
        {"rematch_text": numbers(n + 1)[i + 1], "recaption": None}.get(ACTIONS[i], numbers(n)[i]) for i in written
    ]
    assert out["text_features"].to_pylist() == wanted
    assert out["text_features"].type == before["text_features"].type
    for name, values in scores.items():
        assert out[name].to_pylist() == [None if ACTIONS[i] in REPAIRED else values[i].as_py() for i in written]
        assert out[name].type == values.type
    gone = pq.read_table(tmp_path / "gone.parquet")
    assert gone["text_features"].to_pylist() == [numbers(n)[4]]  # of the caption beside it
    assert gone["similarity"].to_pylist() == [0.5]
    assert restored(tmp_path / "out.parquet").equals(before, check_metadata=True)


# Two captions a row: one of the first row is replaced, one of the third is left out, both of the fourth.
LISTED = ["rematch_text", "keep", "keep", "keep", "drop", "keep", "drop", "drop", "keep", "recaption"]


def along(n: int) -> list[list[float] | None]:
    """A score of each caption; the row 1 has none at all, and the row 2 lacks one."""
    return [[i + 0.0, i + 0.5] if i != 1 else None for i in range(n)]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2)])
def test_scores_along_lists_of_captions(make_pairs: Make, make_plan: Plan, tmp_path: Path, kind: pa.DataType) -> None:
    n = len(LISTED) // 2
    pairs = make_pairs(n, lists=True, similarity=pa.array(along(n), kind), clip_score=pa.array(range(n), pa.int32()))
    plan, out, gone = make_plan(pairs, LISTED), tmp_path / "out.parquet", tmp_path / "gone.parquet"
    export_pairs(pairs, plan, out, dropped=gone)
    table = pq.read_table(out)
    table.validate(full=True)
    assert table["similarity"].to_pylist() == [[None, 0.5], [None, None], [2.5], [4.0, None]]
    assert table["clip_score"].to_pylist() == [None, 1, 2, None]  # one for all captions: left out, it still holds
    dropped = pq.read_table(gone)
    assert dropped["similarity"].to_pylist() == [2.0, 3.0, 3.5]
    assert dropped["clip_score"].to_pylist() == [2, 3, 3]
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
