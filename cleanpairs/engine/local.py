"""The engine on this machine: in this process with one worker, else in a pool of processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from cleanpairs.engine.partitions import Partition
from cleanpairs.engine.work import Do, Finished, Work, carry_out, share_of_threads
from cleanpairs.errors import ConfigError, ResourceError

__all__ = ["LocalEngine"]

DEATHS = 3  # of the pool in a row, without a partition finished in between


class LocalEngine:
    """A pool of ``workers`` processes, which share the cores; one worker is this process itself.

    Processes are spawned, not forked: threads of PyTorch and Arrow do not survive a fork. When one dies (the kernel
    kills who takes too much memory), the others are stopped with it, and a new pool does what is left.

    Raises
    ------
    ConfigError
        An address is given: there is no cluster here.
    """

    def __init__(self, *, workers: int = 1, address: str | None = None) -> None:
        if address is not None:
            raise ConfigError(f"the address {address!r} is of a cluster, and the engine 'local' has none: use 'ray'")
        self.workers = workers

    @property
    def remote(self) -> bool:
        """Whether work is done in other processes."""
        return self.workers > 1

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """See :class:`cleanpairs.engine.work.Engine`."""
        if not self.remote:
            do = work.open(None)
            for partition in partitions:
                yield carry_out(do, partition, folder)
            return
        left = {p.number: p for p in partitions}
        deaths = 0
        while left:
            try:
                for finished in self._round(work, list(left.values()), folder):
                    del left[finished.number]
                    deaths = 0
                    yield finished
            except BrokenProcessPool as error:
                deaths += 1
                if deaths >= DEATHS:
                    raise ResourceError(
                        f"worker processes died {deaths} times in a row, with {len(left)} partitions left; "
                        f"where memory is short, take fewer than {self.workers} workers. What is done is kept: run "
                        "again to go on"
                    ) from error

    def _round(self, work: Work, partitions: list[Partition], folder: Path) -> Iterator[Finished]:
        workers = min(self.workers, len(partitions))
        pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(work, share_of_threads(self.workers)),
        )
        try:
            futures: list[Future[Finished]] = [pool.submit(_do_one, p, folder) for p in partitions]
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the others finish the partitions in hand


_work: tuple[Work, int] | None = None
_do: Do | None = None


def _begin(work: Work, threads: int) -> None:
    """In a worker. The work is opened with the first partition: the pool would swallow an error raised here."""
    global _work
    for number in (signal.SIGINT, signal.SIGHUP):  # which a terminal sends to all: the parent's to handle
        signal.signal(number, signal.SIG_IGN)
    _work = work, threads


def _do_one(partition: Partition, folder: Path) -> Finished:
    global _do
    assert _work is not None
    if _do is None:
        _do = _work[0].open(_work[1])
    return carry_out(_do, partition, folder)
