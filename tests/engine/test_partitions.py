"""Cuts: every row once, in order, at row groups where these are small."""

from hypothesis import given
from hypothesis import strategies as st

from cleanpairs.engine import plan_partitions


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 25), st.data())
def test_every_row_is_in_one_partition(groups: list[int], target: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, sum(groups)))
    cut = plan_partitions(groups, rows, target=target)
    assert [p.number for p in cut] == list(range(len(cut)))
    assert [r for p in cut for r in range(p.first, p.first + p.rows)] == list(range(rows))
    assert all(p.rows >= 1 for p in cut)
    assert all(p.rows < 3 * target + 1 for p in cut)
