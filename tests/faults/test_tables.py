"""Some of the random tables and of the changed values that `make faults` tries by the hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.changes import try_changes
from faults.tables import try_tables


@pytest.mark.parametrize("first", [0, 8])
def test_values_come_out_of_every_format_as_they_went_in(tmp_path: Path, first: int) -> None:
    tables, *others = try_tables(range(first, first + 6), tmp_path / "work")
    assert tables.tried == 6 and all(figure.tried > 0 for figure in others)
    assert [list(figure.problems) for figure in (tables, *others) if figure.problems] == []


def test_a_changed_value_is_noticed_also_where_its_hash_is_right(tmp_path: Path) -> None:
    figures = try_changes(range(20), tmp_path / "work")
    assert [figure.problems for figure in figures if figure.problems] == [] and figures[0].tried >= 20
