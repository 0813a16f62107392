"""One joint assignment of parts to rows: greedy over all candidate edges, best first, under capacities.

A *text* edge keeps a row's image and takes a caption from a donor group of equal ones, an *image* edge the reverse. A
member's part serves at most ``capacity`` rows, and so does the part that a repaired row keeps of its own. No two rows
come to the same pair of image and text. Greedy is a 1/2-approximation of the maximum-weight matching. It needs only a
sort and one pass over the edges whose row and donor are still free, about a million a second.
"""

from array import array
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Members:
    """Which members hold each donor group: group ``g`` holds ``member[start[g]:start[g + 1]]``, first choice first."""

    member: np.ndarray
    start: np.ndarray

    @cached_property
    def first(self) -> np.ndarray:
        """The first choice of each group, (G,)."""
        return self.member[self.start[:-1]]

    @classmethod
    def from_groups(cls, group: np.ndarray, member: np.ndarray, n_groups: int) -> "Members":
        """From parallel arrays: ``group`` (m,) in [0, n_groups) of each ``member`` (m,). Order is kept in a group."""
        start = np.append(0, np.cumsum(np.bincount(group, minlength=n_groups)))
        return cls(member[np.argsort(group, kind="stable")].astype(np.int32), start.astype(np.int32))


def assign(
    row: np.ndarray, is_image: np.ndarray, group: np.ndarray, pair: np.ndarray, *, rows: int,
    members: Members, text_uses: np.ndarray, capacity: int,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Take of E edges, best first, those that are still possible.

    An edge has the ``row`` that it repairs, whether it replaces the image, the donor ``group``, and the number of the
    ``pair`` of image and text that it makes. Text and image groups share one numbering.

    - ``rows``: R. Each row is itself the member of its number
    - ``text_uses`` (M,): how many rows the caption of each member serves already
    - ``capacity``: how many rows a caption may serve, and as many an image, at least 1

    Returns (R,) int64 twice: the place of the edge that each row has taken, and the member that gives its part. -1
    where it has none.
    """
    # Whole numbers that both Python and NumPy see: a list would hold an object for each.
    uses = text_uses.astype(np.int32).tobytes()
    of_texts, of_images = array("i", uses), array("i", bytes(len(uses)))
    chosen, donor = array("q", [-1]) * rows, array("i", [-1]) * rows
    cursor = array("i", members.start[:-1].astype(np.int32).tobytes())
    stop, holder = (np.ascontiguousarray(part, np.int32).data for part in (members.start[1:], members.member))
    # What is over for good: a bit a pair, and bytes.
    made, done, empty = bytearray(int(pair.max(initial=0)) // 8 + 1), bytearray(len(chosen)), bytearray(len(cursor))
    row_done, group_empty = (np.frombuffer(x, np.uint8) for x in (done, empty))
    step = 1 << 16  # edges between two looks at what is over
    for first in range(0, len(row), step):
        s = slice(first, first + step)
        free = first + np.flatnonzero((row_done[row[s]] | group_empty[group[s]]) == 0)  # few, further down the order
        columns = (column[free].tolist() for column in (row, is_image, group, pair))
        for e, r, replaces_image, g, p in zip(free.tolist(), *columns, strict=True):
            if done[r] or made[p >> 3] >> (p & 7) & 1:
                continue
            given, kept = (of_images, of_texts) if replaces_image else (of_texts, of_images)
            if kept[r] >= capacity:
                continue
            at, end = cursor[g], stop[g]
            while at < end and given[holder[at]] >= capacity:
                at += 1
            cursor[g] = at  # uses never fall: what is used up stays so
            if at == end:
                empty[g] = 1
                continue
            chosen[r], donor[r] = e, holder[at]
            given[holder[at]] += 1
            kept[r] += 1
            made[p >> 3] |= 1 << (p & 7)
            done[r] = 1
    return np.array(chosen, np.int64), np.array(donor, np.int64)
