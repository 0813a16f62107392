"""The engine on this machine: in this process with one worker, else in a pool of processes."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from cleanpairs.core.children import start_connected, to_parent
from cleanpairs.core.errors import ConfigError, ResourceError
from cleanpairs.core.limits import limited
from cleanpairs.engine.work import Finished, Partition, Work, attempt, carry_out


class LocalEngine:
    """A pool of ``workers`` processes, which share the cores. One worker is this process itself.

    When a worker dies, another one does its partition. Raises ConfigError: an address is given.
    """

    most_deaths = 3  # in a row, without a partition finished in between

    def __init__(self, *, workers: int = 1, address: str | None = None) -> None:
        if address is not None:
            raise ConfigError(f"the address {address!r} is of a cluster, and the engine 'local' has none: use 'ray'")
        self.workers, self.remote = workers, workers > 1

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """See :class:`cleanpairs.engine.work.Engine`."""
        if not self.remote:
            yield from (carry_out(work, partition, folder) for partition in partitions)
            return
        waiting, deaths = list(reversed(partitions)), 0
        pool: dict[Connection[Any, Any], subprocess.Popen[bytes]] = {}
        busy: dict[Connection[Any, Any], Partition] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    connection = next((c for c in pool if c not in busy), None) or self._start_worker(pool, work)
                    busy[connection] = waiting.pop()
                    with suppress(OSError):  # it has died, which recv below reports
                        connection.send((busy[connection], folder))
                for connection in cast("list[Connection[Any, Any]]", wait(busy)):
                    partition = busy.pop(connection)
                    try:
                        message = connection.recv()
                    except (EOFError, OSError) as error:
                        pool.pop(connection).wait()
                        connection.close()
                        waiting.append(partition)
                        deaths += 1
                        if deaths >= self.most_deaths:
                            raise ResourceError(
                                f"worker processes died {deaths} times in a row; where memory is short, take fewer "
                                f"than {self.workers} workers. What is done is kept: run again to resume (partitions "
                                f"left: {len(waiting) + len(busy)})"
                            ) from error
                        continue
                    if isinstance(message, Exception):
                        raise message
                    deaths = 0
                    yield message
        finally:
            for connection, process in pool.items():
                connection.close()
                if connection in busy:  # after an error or an interrupt: nobody would note what it finishes
                    process.kill()
                process.wait()

    def _start_worker(self, pool: dict[Any, subprocess.Popen[bytes]], work: Work) -> "Connection[Any, Any]":
        """Start one more worker, which does one partition after another. Return the connection to it."""
        code = "from cleanpairs.engine.local import serve; serve()"
        threads = limited(max(1, len(os.sched_getaffinity(0)) // self.workers))  # together they use the cores once
        try:
            process, connection = start_connected(code, env={"OMP_NUM_THREADS": str(threads)})
        except OSError as error:
            raise ResourceError(f"no process can be started ({error}): take fewer workers") from error
        pool[connection] = process
        with suppress(OSError):
            connection.send(work)
        return connection


def serve() -> None:
    """In a worker: do the partitions that come over the connection to the parent, until it is closed."""
    connection = to_parent()
    with suppress(EOFError, OSError):
        work = connection.recv()
        while True:
            connection.send(attempt(work, *connection.recv()))
