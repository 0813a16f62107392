"""The joint assignment: against the optimum of the assignment problem, and its constraints on random graphs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cleanpairs.repair.assignment import Members, assign

Found = tuple[np.ndarray, np.ndarray]


def assign_in_order(
    row: np.ndarray, is_image: np.ndarray, group: np.ndarray, pair: np.ndarray, order: np.ndarray, **rest: Any
) -> Found:
    """The edge and the donor of each row, by edges in ``order``."""
    place, donor = assign(row[order], is_image[order], group[order], pair[order], **rest)
    return np.append(order, -1)[place], donor


def assign_texts(weight: np.ndarray, order: np.ndarray, capacity: int = 1) -> Found:
    """Rows 0..R-1 are members 0..R-1 and want a text of one of C groups; group g is held by member R + g alone."""
    R, C = weight.shape
    row, group = np.divmod(np.arange(R * C), C)
    members = Members.from_groups(np.arange(C), R + np.arange(C), C)
    rest = {"row_member": np.arange(R), "members": members, "text_uses": np.zeros(R + C), "capacity": capacity}
    return assign_in_order(row, np.zeros(R * C, bool), group, np.arange(R * C), order, **rest)


@pytest.mark.parametrize("seed", range(3))
def test_at_least_half_of_the_best_matching(seed: int) -> None:
    weight = np.random.default_rng(seed).random((12, 9))
    flat = weight.ravel()
    edge, donor = assign_texts(weight, np.argsort(-flat))
    best = weight[linear_sum_assignment(weight, maximize=True)].sum()
    reached = flat[edge[edge >= 0]].sum()
    assert best / 2 <= reached <= best
    assert len(set(donor[donor >= 0])) == 9  # nine texts, each given once


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
    rest = {"row_member": np.arange(n), "members": members, "text_uses": np.zeros(n), "capacity": capacity}
    edge, donor = assign_in_order(row, is_image, group, pair, rng.permutation(n_edges), **rest)
    uses: Counter[tuple[str, int]] = Counter()
    made = []
    for r in np.flatnonzero(edge >= 0):
        e = edge[r]
        assert row[e] == r
        held = members.member[members.start[group[e]] : members.start[group[e] + 1]]
        assert donor[r] in held
        given_kind, kept_kind = ("image", "text") if is_image[e] else ("text", "image")
        uses[given_kind, int(donor[r])] += 1
        uses[kept_kind, int(r)] += 1
        made.append(int(pair[e]))
    assert len(set(made)) == len(made)
    assert max(uses.values(), default=0) <= capacity
    assert ((donor >= 0) == (edge >= 0)).all()
