"""A threshold or a rate that a file holds is a number in [0, 1], or the file is refused and named."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pytest

from cleanpairs.commands.run import mistyped
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan

WRONG = (math.nan, math.inf, -0.1, 1.5, "0.5", True, [0.5])


@pytest.mark.parametrize("name", ["threshold", "min_repair_score"])
def test_a_plan_has_none(tmp_path: Path, name: str) -> None:
    given = {"threshold": 0.5, "min_repair_score": 0.5}
    for value in WRONG:
        with pytest.raises(ConfigError, match=name):
            RepairPlan(PLAN_SCHEMA.empty_table(), **(given | {name: value}))
        plan = RepairPlan(pa.Table.from_pylist([], PLAN_SCHEMA), **given)
        object.__setattr__(plan, name, value)
        for file in ("plan.csv", "plan.parquet"):
            plan.save(tmp_path / file, overwrite=True)
            with pytest.raises(DataError, match=file):
                RepairPlan.load(tmp_path / file)


def test_a_run_has_none() -> None:
    for value in WRONG:
        assert mistyped({"result": {"threshold": value}}) == ["result.threshold"]
        assert mistyped({"result": {"noise_rate": value, "threshold": 1}}) == ["result.noise_rate"]
    assert mistyped({"result": {"noise_rate": None, "threshold": 0.25}}) == []
