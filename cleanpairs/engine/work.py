"""What the unit of work is, and what an engine does with it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import ENGINES
from cleanpairs.data.atomic import staged_file
from cleanpairs.engine.partitions import Partition

Do = Callable[[Partition, Path], dict[str, Any]]
"""``do(partition, path)`` writes the partition's output to ``path`` and returns facts about it, as JSON has them."""


class Work(Protocol):
    """A pure function from a partition to a file, that can be sent to another process; a model is opened there, once a
    worker. The same partition gives the same file, bit for bit, wherever there are as many threads.
    """

    def open(self, threads: int | None) -> Do:
        """Make ready, with so many threads (None: as they are), and return what does a partition."""


@dataclass(frozen=True)
class Finished:
    """``number`` of a partition whose output is in place, its size in ``bytes``, and the ``facts`` of its making."""

    number: int
    bytes: int
    facts: dict[str, Any]


class Engine(Protocol):
    """Drives work over partitions; see :data:`cleanpairs.core.registry.ENGINES`."""

    @property
    def remote(self) -> bool:
        """Whether work is done in other processes, so that it has to be sent there."""

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """Do all partitions, in any order; outputs go to ``folder``, each by :func:`carry_out`.

        Raises CleanpairsError: what the work raises; ResourceError: workers die on a partition again and again.
        """


def carry_out(do: Do, partition: Partition, folder: Path) -> Finished:
    """Do one partition: its output appears in ``folder`` whole or not at all, over that of an earlier attempt."""
    target = folder / partition.name
    with staged_file(target, overwrite=True) as path:
        facts = do(partition, Path(path))
    return Finished(partition.number, target.stat().st_size, facts)


class Worker:
    """What a process of an engine holds: the work, which it opens when it is first asked."""

    def __init__(self, work: Work, threads: int) -> None:
        self.work, self.threads = work, threads
        self.do: Do | None = None

    def __call__(self, partition: Partition, folder: Path) -> Finished | Exception:
        """The partition done, or the error that it raised: one that is not raised here is no death."""
        try:
            self.do = self.do or self.work.open(self.threads)
            return carry_out(self.do, partition, folder)
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
