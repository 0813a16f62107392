"""Some of the random tables and of the changed values that `make faults` tries by the hundred."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.changes import try_changes
from faults.tables import try_tables


@pytest.mark.parametrize("first", [0, 8])
def test_values_come_out_of_every_format_as_they_went_in(tmp_path: Path, first: int) -> None:
    found = try_tables(range(first, first + 6), tmp_path / "work")
    assert found.problems == []
    assert found.tried == 6 and found.outputs > 30 and found.values > 10_000


def test_a_changed_value_is_noticed_also_where_its_hash_is_right(tmp_path: Path) -> None:
    found = try_changes(range(20), tmp_path / "work")
    assert found.missed == [] and found.tried == 20
