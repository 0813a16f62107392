"""The joint assignment: against the optimum of the assignment problem, and its constraints on random graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cleanpairs.repair.assignment import Greedy, Members


def assign_greedily(
    row: np.ndarray, is_image: np.ndarray, group: np.ndarray, pair: np.ndarray, order: np.ndarray, **sizes: Any
) -> Greedy:
    """Edges in ``order``, all at once."""
    greedy = Greedy(n_pairs=int(pair.max(initial=-1)) + 1, **sizes)
    greedy.take(order, row[order], is_image[order], group[order], pair[order])
    return greedy


def assign(weight: np.ndarray, order: np.ndarray, capacity: int = 1) -> Greedy:
    """Rows 0..R-1 are members 0..R-1 and want a text of one of C groups; group g is held by member R + g alone."""
    R, C = weight.shape
    row, group = np.divmod(np.arange(R * C), C)
    members = Members.from_groups(np.arange(C), R + np.arange(C), C)
    sizes = {"n_rows": R, "row_member": np.arange(R), "members": members, "n_members": R + C, "capacity": capacity}
    return assign_greedily(row, np.zeros(R * C, bool), group, np.arange(R * C), order, **sizes)


@pytest.mark.parametrize("seed", range(3))
def test_at_least_half_of_the_best_matching(seed: int) -> None:
    weight = np.random.default_rng(seed).random((12, 9))
    flat = weight.ravel()
    found = assign(weight, np.argsort(-flat))
    best = weight[linear_sum_assignment(weight, maximize=True)].sum()
    reached = flat[found.edge[found.edge >= 0]].sum()
    assert best / 2 <= reached <= best
    assert len(set(found.donor[found.donor >= 0])) == 9  # nine texts, each given once


def test_a_part_serves_as_many_rows_as_its_capacity() -> None:
    weight = np.ones((5, 1))
    assert (assign(weight, np.arange(5), capacity=3).donor >= 0).sum() == 3


def test_no_edges() -> None:
    found = assign(np.ones((3, 2)), np.arange(0))
    assert (found.edge == -1).all() and (found.donor == -1).all()
    assert len(assign(np.ones((0, 2)), np.arange(0)).edge) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_constraints_on_random_graphs(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 7))
    n_groups = data.draw(st.integers(1, 5))
    n_edges = data.draw(st.integers(0, 40))
    capacity = data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    row, is_image = rng.integers(0, n, n_edges), rng.random(n_edges) < 0.5
    # even groups hold texts, odd ones images, as a caller's numbering has it
    group = np.minimum(2 * rng.integers(0, n_groups, n_edges) + is_image, 2 * n_groups - 1)
    pair = rng.integers(0, 20, n_edges)
    members = Members.from_groups(rng.integers(0, 2 * n_groups, n), np.arange(n), 2 * n_groups)
    sizes = {"n_rows": n, "row_member": np.arange(n), "members": members, "n_members": n, "capacity": capacity}
    found = assign_greedily(row, is_image, group, pair, rng.permutation(n_edges), **sizes)
    uses: Counter[tuple[str, int]] = Counter()
    made = []
    for r in np.flatnonzero(found.edge >= 0):
        e = found.edge[r]
        assert row[e] == r
        held = members.member[members.start[group[e]] : members.start[group[e] + 1]]
        assert found.donor[r] in held
        given_kind, kept_kind = ("image", "text") if is_image[e] else ("text", "image")
        uses[given_kind, int(found.donor[r])] += 1
        uses[kept_kind, int(r)] += 1
        made.append(int(pair[e]))
    assert len(set(made)) == len(made)
    assert max(uses.values(), default=0) <= capacity
    assert ((found.donor >= 0) == (found.edge >= 0)).all()


def test_members_keep_their_order() -> None:
    members = Members.from_groups(np.array([2, 0, 2, 0]), np.array([7, 5, 3, 9]), 4)
    np.testing.assert_array_equal(members.member, [5, 9, 7, 3])
    np.testing.assert_array_equal(members.start, [0, 2, 2, 4, 4])
