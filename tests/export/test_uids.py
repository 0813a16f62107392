"""Uid lists as DataComp's resharder reads them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import diff_export, export_pairs, load_pairs, restore_export
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.ops.columns import with_columns
from cleanpairs.repair.actions import REASONS, UNDETERMINED
from cleanpairs.verification import verify_path
from tests.helpers import assert_raises, write_table


def documented(uids: list[str]) -> np.ndarray:
    """As DataComp's README tells to make the list."""
    found = np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], np.dtype("u8,u8"))
    found.sort()
    return found


@pytest.mark.parametrize(("repeats", "times"), [(1, [1, 1, 1, 1]), (4, [4, 1, 2, 3])])
def test_only_what_was_kept_as_it_was(
    make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path, repeats: int, times: list[int]
) -> None:
    pairs = make_pairs(7)
    uids = pq.read_table(pairs.source.paths[0])["uid"].to_pylist()
    plan = make_plan(pairs, mixed)
    y = pa.array([1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.8], pa.float32())
    plan = replace(plan, table=with_columns(plan.table, {"correspondence": y}), settings={"repeats": repeats})
    summary = export_pairs(pairs, plan, tmp_path / "kept.npy")
    assert (summary.format, summary.rows, summary.kept, summary.dropped) == ("uids", 4, 4, 3)
    assert summary.rematched_text == summary.rematched_image == 0
    found = np.load(tmp_path / "kept.npy", allow_pickle=False)
    assert found.dtype == np.dtype("u8,u8")
    assert np.array_equal(found, documented(np.repeat([uids[i] for i in (0, 4, 5, 6)], times).tolist()))
    assert verify_path(tmp_path / "kept.npy").ok
    if repeats > 1:
        assert_raises(ConfigError, "repeats=4", export_pairs, pairs, plan, tmp_path / "out.parquet")
    ledger = pq.read_table(tmp_path / "kept.npy.ledger.parquet").to_pylist()
    assert ledger[1]["action"] == "drop" and "list of uids" in ledger[1]["reason"] and ledger[1]["out_row"] is None
    assert json.loads((tmp_path / "kept.npy.manifest.json").read_text())["format"] == "uids"
    assert diff_export(tmp_path / "kept.npy").counts["drop"] == 3
    assert_raises(ConfigError, "uids", restore_export, tmp_path / "kept.npy", tmp_path / "back.parquet")


def test_a_list_has_no_column_that_gave_way(tmp_path: Path, make_plan: Any) -> None:
    table = {"uid": ["0" * 31 + c for c in "ab"], "text": ["a", "b"], "features": [[1.0], [2.0]], "action": ["x", "y"]}
    pairs = load_pairs(table)
    summary = export_pairs(pairs, make_plan(pairs, ["keep", "drop"]), tmp_path / "kept.npy")
    assert summary.renamed and "is now" not in str(summary)


def test_any_name_and_no_advice_that_does_not_help(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(3)
    plan = make_plan(pairs, ["keep", "drop", "keep"])
    undetermined = pa.array([None, REASONS[UNDETERMINED], None], pa.string())
    plan = replace(plan, table=with_columns(plan.table, {"reason": undetermined}))
    assert "--repairs" in str(export_pairs(pairs, plan, tmp_path / "out.parquet"))
    summary = export_pairs(pairs, plan, tmp_path / "kept", format="uids")
    assert len(np.load(tmp_path / "kept")) == 2 and verify_path(tmp_path / "kept").ok
    assert "nothing is repaired" in str(summary) and "--repairs" not in str(summary)  # a list holds no repair


def test_what_gives_no_list(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(3, uid=pa.array(["0" * 32, "0" * 31, None]))
    with pytest.raises(DataError, match=f"'{'0' * 31}' is not 32 hex"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "kept.npy")
    pairs = make_pairs(3, uid=pa.array(["a" * 32, "B" * 32, "A" * 32]))
    with pytest.raises(DataError, match=rf"1 uids occur more than once, as {'a' * 32}"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "kept.npy")
    pairs = make_pairs(3, lists=True)
    assert_raises(ConfigError, "several captions", export_pairs, pairs, make_plan(pairs), tmp_path / "kept.npy")
    pairs = make_pairs(3)
    table = pq.read_table(pairs.source.paths[0]).rename_columns(["key", "uids", "image", "caption"])
    pairs = load_pairs(write_table(tmp_path / "uids.parquet", table))
    with pytest.raises(ConfigError, match=r"none; did you mean 'uids'\? Name its ids 'uid' and fit again"):
        export_pairs(pairs, make_plan(pairs), tmp_path / "kept.npy")
    assert not (tmp_path / "kept.npy").exists() and not (tmp_path / "kept.npy.ledger.parquet").exists()
