"""The joint assignment against the optimum of the assignment problem, and what a part that stays counts for."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from cleanpairs.repair.assignment import Members, assign


def assign_texts(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edge and the donor of each row, heaviest edges first.

    Rows 0..R-1 are members 0..R-1 and want a text of one of C groups. Member R + g alone holds group g.
    """
    R, C = weight.shape
    order = np.argsort(-weight.ravel())
    row, group = np.divmod(order, C)
    members = Members.from_groups(np.arange(C), R + np.arange(C), C)
    rest = {"row_member": np.arange(R), "members": members, "text_uses": np.zeros(R + C), "capacity": 1}
    place, donor = assign(row, np.zeros(R * C, bool), group, order, **rest)
    return np.append(order, -1)[place], donor


@pytest.mark.parametrize("seed", range(3))
def test_at_least_half_of_the_best_matching(seed: int) -> None:
    weight = np.random.default_rng(seed).random((12, 9))
    flat = weight.ravel()
    edge, donor = assign_texts(weight)
    best = weight[linear_sum_assignment(weight, maximize=True)].sum()
    reached = flat[edge[edge >= 0]].sum()
    assert best / 2 <= reached <= best
    assert len(set(donor[donor >= 0])) == 9  # nine texts, each given once


def test_the_part_that_stays_counts_as_one_that_is_given() -> None:
    """Row 0 keeps its image beside another caption: row 1 cannot have that image, too."""
    members = Members.from_groups(np.arange(2), np.array([2, 0]), 2)  # a caption of member 2, the image of member 0
    edges = {"row": np.arange(2), "is_image": np.array([False, True]), "group": np.arange(2), "pair": np.arange(2)}
    place, donor = assign(**edges, row_member=np.arange(2), members=members, text_uses=np.zeros(3), capacity=1)
    assert (place.tolist(), donor.tolist()) == ([0, -1], [2, -1])
