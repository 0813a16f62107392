"""The engine on this machine: in this process with one worker, else in a pool of processes."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from cleanpairs.core.children import start_connected
from cleanpairs.core.errors import ConfigError, ResourceError
from cleanpairs.engine.work import Finished, Partition, Work, attempt, carry_out, share_of_threads

DEATHS = 3  # of the pool in a row, without a partition finished in between


class LocalEngine:
    """A pool of ``workers`` processes, which share the cores; one worker is this process itself.

    Processes are started anew, not forked: threads of PyTorch and Arrow do not survive a fork. When one dies (the
    kernel kills who takes too much memory), the others are stopped with it, and a new pool does what is left.

    Raises ConfigError: an address is given: there is no cluster here.
    """

    def __init__(self, *, workers: int = 1, address: str | None = None) -> None:
        if address is not None:
            raise ConfigError(f"the address {address!r} is of a cluster, and the engine 'local' has none: use 'ray'")
        self.workers, self.remote = workers, workers > 1

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """See :class:`cleanpairs.engine.work.Engine`."""
        if not self.remote:
            for partition in partitions:
                yield carry_out(work, partition, folder)
            return
        left = {p.number: p for p in partitions}
        deaths = 0
        while left:
            try:
                for finished in self._round(work, list(left.values()), folder):
                    del left[finished.number]
                    deaths = 0
                    yield finished
            except _DeathError as error:
                deaths += 1
                if deaths >= DEATHS:
                    raise ResourceError(
                        f"worker processes died {deaths} times in a row, with {len(left)} partitions left; "
                        f"where memory is short, take fewer than {self.workers} workers. What is done is kept: run "
                        "again to go on"
                    ) from error

    def _round(self, work: Work, partitions: list[Partition], folder: Path) -> Iterator[Finished]:
        """Do partitions until all are done, one fails, or a worker dies."""
        waiting = list(reversed(partitions))
        workers: dict[Connection[Any, Any], subprocess.Popen[bytes]] = {}
        try:
            for _ in range(min(self.workers, len(waiting))):
                process, connection = _start(share_of_threads(self.workers))
                workers[connection] = process
                with _talking():
                    connection.send(work)
                    connection.send((waiting.pop(), folder))
            busy = set(workers)
            while busy:
                for connection in cast("list[Connection[Any, Any]]", wait(busy)):
                    with _talking():
                        said = connection.recv()
                    if isinstance(said, Exception):
                        raise said
                    if waiting:
                        with _talking():
                            connection.send((waiting.pop(), folder))
                    else:
                        busy.remove(connection)
                    yield said
        except _DeathError:
            for process in workers.values():
                process.kill()
            raise
        finally:
            for connection, process in workers.items():  # after an error the others finish the partitions in hand
                connection.close()
                process.wait()


class _DeathError(Exception):
    """A worker died."""


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise _DeathError from error


def _start(threads: int) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """A worker, which does one partition after another."""
    code = "import sys; from cleanpairs.engine.local import serve; serve(int(sys.argv[1]))"
    try:
        return start_connected(code, env={"OMP_NUM_THREADS": str(threads)})
    except OSError as error:
        raise ResourceError(f"no process can be started ({error}): take fewer workers") from error


def serve(number: int) -> None:
    """In a worker: do what comes over the connection of this file descriptor, until it is closed."""
    for signal_number in (signal.SIGINT, signal.SIGHUP):  # which a terminal sends to all: the parent's to handle
        signal.signal(signal_number, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(number)
    with suppress(EOFError, OSError):
        work = connection.recv()
        while True:
            connection.send(attempt(work, *connection.recv()))
