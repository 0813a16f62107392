"""One joint assignment of parts to rows: greedy over all candidate edges, best first, under capacities.

A *text* edge keeps a row's image and takes a caption from a donor group of equal ones, an *image* edge the reverse. A
member's part serves at most ``capacity`` rows, and so does the part that a repaired row keeps of its own. No two rows
come to the same pair of image and text. Greedy is a 1/2-approximation of the maximum-weight matching, and unlike it
needs only a sort and one pass, of about a million edges a second, over those whose row and donor are still free.
"""

from array import array
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Members:
    """Which members hold each donor group: group ``g`` holds ``member[start[g]:start[g + 1]]``, first choice first."""

    member: np.ndarray
    start: np.ndarray

    @classmethod
    def from_groups(cls, group: np.ndarray, member: np.ndarray, n_groups: int) -> "Members":
        """From parallel arrays: ``group`` (m,) in [0, n_groups) of each ``member`` (m,). Order is kept in a group."""
        start = np.append(0, np.cumsum(np.bincount(group, minlength=n_groups)))
        return cls(member[np.argsort(group, kind="stable")].astype(np.int32), start.astype(np.int32))


class Greedy:
    """An assignment that grows as edges come, best first. Rows, pairs of image and text, and members are numbered from
    0.

    ``row_member`` (R,): the member that each row is itself. ``members``: of every donor group. Text and image groups
    share one numbering. ``capacity``: how many rows one member's caption may serve, and as many its image. At least 1.
    ``text_uses`` (n_members,): how many rows the caption of each serves already.
    """

    def __init__(
        self,
        *,
        n_rows: int,
        n_pairs: int,
        row_member: np.ndarray,
        members: Members,
        n_members: int,
        capacity: int,
        text_uses: np.ndarray | None = None,
    ) -> None:
        # Whole numbers that both Python and NumPy see: a list would hold an object for each.
        used = np.zeros(n_members, np.int32) if text_uses is None else text_uses.astype(np.int32)
        self._uses = array("i", used.tobytes()), array("i", bytes(4 * n_members))  # of texts, of images
        self._chosen, self._donor = array("q", [-1]) * n_rows, array("i", [-1]) * n_rows
        self._cursor = array("i", members.start[:-1].astype(np.int32).tobytes())
        self._owner, self._stop, self._holder = (
            np.ascontiguousarray(part, np.int32).data for part in (row_member, members.start[1:], members.member)
        )
        self._capacity = capacity
        # What is over for good: a bit a pair, and bytes.
        self._made = bytearray(n_pairs // 8 + 1)
        self._done, self._empty = bytearray(n_rows), bytearray(len(self._cursor))

    def take(
        self, edge: np.ndarray, row: np.ndarray, is_image: np.ndarray, group: np.ndarray, pair: np.ndarray
    ) -> None:
        """The next edges (b,): take those that are still possible. Of each: its number, the row that it repairs,
        whether it replaces the image, the donor group, and the number of the pair of image and text that it makes.
        """
        row_done, group_empty = (np.frombuffer(x, np.uint8) for x in (self._done, self._empty))
        step = 1 << 16  # edges between two looks at what is over
        for first in range(0, len(edge), step):
            s = slice(first, first + step)
            open_ = np.flatnonzero((row_done[row[s]] | group_empty[group[s]]) == 0)
            if len(open_):  # few of them, further down the order
                self._walk(*(column[s][open_].tolist() for column in (edge, row, is_image, group, pair)))

    def _walk(
        self, edges: list[int], rows: list[int], are_image: list[bool], groups: list[int], pairs: list[int]
    ) -> None:
        text_uses, image_uses = self._uses
        chosen, donor, owner, capacity = self._chosen, self._donor, self._owner, self._capacity
        cursor, stop, holder = self._cursor, self._stop, self._holder
        made, done, empty = self._made, self._done, self._empty
        for e, r, replaces_image, g, p in zip(edges, rows, are_image, groups, pairs, strict=True):
            if done[r] or made[p >> 3] >> (p & 7) & 1:
                continue
            given, kept = (image_uses, text_uses) if replaces_image else (text_uses, image_uses)
            if kept[owner[r]] >= capacity:
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
            kept[owner[r]] += 1
            made[p >> 3] |= 1 << (p & 7)
            done[r] = 1

    @property
    def edge(self) -> np.ndarray:
        """(R,) int64: the edge that each row has taken so far, -1 where it has none."""
        return np.array(self._chosen, np.int64)

    @property
    def donor(self) -> np.ndarray:
        """(R,) int64: the member that gives each row its part, -1 where it has none."""
        return np.array(self._donor, np.int64)
