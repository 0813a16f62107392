"""How an input is cut into partitions: by its row groups and its size alone, so that every engine cuts alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS = 65_536  # of a partition, about: minutes of work for a slow model, seconds for a fast one


@dataclass(frozen=True)
class Partition:
    """The input rows ``first`` to ``first + rows``; ``number`` counts partitions from 0."""

    number: int
    first: int
    rows: int

    @property
    def name(self) -> str:
        """Of its output in the folder of the job."""
        return f"part-{self.number:06d}"


def plan_partitions(groups: Sequence[int], rows: int, *, target: int = ROWS) -> list[Partition]:
    """Cut the first ``rows`` rows of an input whose row groups have so many rows each, in order over all files.

    A cut is where a row group ends, since a row group is read as a whole; one of more than ``2 * target`` rows is cut
    evenly, and read once for each part. A partition has ``target`` rows at least, but for the last one.
    """
    ends: list[int] = []
    row = begun = 0
    for group in groups:
        if group > 2 * target:
            if row > begun:
                ends.append(row)
            parts = group // target
            ends += [row + group * (i + 1) // parts for i in range(parts)]
            begun = row + group
        elif row + group - begun >= target:
            ends.append(row + group)
            begun = row + group
        row += group
    if row > begun:
        ends.append(row)
    cuts = [end for end in ends if end < rows] + ([rows] if rows else [])
    starts = [0, *cuts][: len(cuts)]
    return [Partition(i, first, end - first) for i, (first, end) in enumerate(zip(starts, cuts, strict=True))]
