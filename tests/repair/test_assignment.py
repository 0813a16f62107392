"""The joint assignment: what a part that stays counts for."""

import numpy as np

from cleanpairs.repair.assignment import Members, assign


def test_the_part_that_stays_counts_as_one_that_is_given() -> None:
    """Row 0 keeps its image beside another caption: row 1 cannot have that image, too."""
    members = Members.from_groups(np.arange(2), np.array([2, 0]), 2)  # a caption of member 2, the image of member 0
    edges = {"row": np.arange(2), "is_image": np.array([False, True]), "group": np.arange(2), "pair": np.arange(2)}
    place, donor = assign(**edges, row_member=np.arange(2), members=members, text_uses=np.zeros(3), capacity=1)
    assert (place.tolist(), donor.tolist()) == ([0, -1], [2, -1])
