"""What the unit of work is, and what an engine does with it.

An input is cut into partitions by its row groups and its size alone, so that every engine cuts alike.
"""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import ENGINES
from cleanpairs.data.atomic import staged_file

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


Work = Callable[[Partition, Path], dict[str, Any]]
"""``work(partition, path)`` writes the partition's output to ``path`` and returns facts about it, as JSON has them.

It can be sent to another process, and opens a model there when it is first called. The same partition gives the same
file, bit for bit, wherever there are as many threads.
"""


@dataclass(frozen=True)
class Finished:
    """``number`` of a partition whose output is in place, its size in ``bytes``, and the ``facts`` of its making."""

    number: int
    bytes: int
    facts: dict[str, Any]


class Engine(Protocol):
    """Drives work over partitions; see :data:`cleanpairs.core.registry.ENGINES`. ``remote``: it is done in other
    processes, so that it has to be sent there.
    """

    remote: bool

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """Do all partitions, in any order; outputs go to ``folder``, each by :func:`carry_out`.

        Raises CleanpairsError: what the work raises; ResourceError: workers die on a partition again and again.
        """


def carry_out(work: Work, partition: Partition, folder: Path) -> Finished:
    """Do one partition: its output appears in ``folder`` whole or not at all, over that of an earlier attempt."""
    target = folder / partition.name
    with staged_file(target, overwrite=True) as path:
        facts = work(partition, Path(path))
    return Finished(partition.number, target.stat().st_size, facts)


def attempt(work: Work, partition: Partition, folder: Path) -> Finished | Exception:
    """In a worker: the partition done, or the error that it raised: one that is not raised here is no death."""
    try:
        return carry_out(work, partition, folder)
    except Exception as error:
        error.add_note(f"in a worker process:\n{traceback.format_exc()}")
        return error


def share_of_threads(workers: int) -> int:
    """Threads of each of ``workers`` processes, so that together they use the cores once."""
    return limited(max(1, len(os.sched_getaffinity(0)) // workers))


def limited(threads: int) -> int:
    """``threads``, or fewer where ``OMP_NUM_THREADS`` says so."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) else threads


def make_engine(name: str, *, workers: int = 1, address: str | None = None) -> Engine:
    """The engine registered as ``name``; ``workers``: processes at once; ``address``: of the cluster, where it has one.

    Raises ConfigError: an unknown engine, no worker, an address for an engine without a cluster, or its package is
    missing.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, found {workers}")
    engine: Engine = ENGINES.load(name)(workers=workers, address=address)
    return engine
