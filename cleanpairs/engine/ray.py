"""The engine on a Ray cluster, or on a local Ray: a pool of actors, each of which holds the opened work."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import CleanpairsError, ConfigError, ResourceError
from cleanpairs.engine.partitions import Partition
from cleanpairs.engine.work import Finished, Work, carry_out, cores, limited

__all__ = ["RayEngine"]

RETRIES = 3  # of a partition whose actor died


class RayEngine:
    """``workers`` actors on the cluster at ``address`` ("auto": the one of this machine), or on a Ray started here.

    The input and the folder of the output must have the same paths on all machines (a network filesystem). An actor
    that dies, or whose machine does, is started again, and does its partition again. The GPUs of the cluster are shared
    among the actors.

    Raises
    ------
    ConfigError
        Ray is not installed.
    """

    def __init__(self, *, workers: int = 1, address: str | None = None) -> None:
        self.workers, self.address = workers, address
        _ray()

    @property
    def remote(self) -> bool:
        """Work is always sent to other processes."""
        return True

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """See :class:`cleanpairs.engine.work.Engine`."""
        ray = _ray()
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray)
        try:
            yield from self._drive(ray, work, list(partitions), Path(folder).absolute())
        finally:
            if ours:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        here = {} if self.address else {"num_cpus": max(cores(), self.workers), "include_dashboard": False}
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **here)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"at {self.address}" if self.address else "here"
            raise ConfigError(f"no Ray {where}: {error}") from error

    def _drive(self, ray: Any, work: Work, partitions: list[Partition], folder: Path) -> Iterator[Finished]:
        workers = min(self.workers, len(partitions))
        threads, gpus = self._shares(ray)
        kind = ray.remote(
            num_cpus=threads, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES, max_concurrency=1
        )(_Worker)
        # By value: a reference may be gone when an actor is started again.
        actors = [kind.remote(work, limited(threads)) for _ in range(workers)]
        waiting = list(reversed(partitions))
        running: dict[Any, tuple[Any, Partition]] = {}

        def give(actor: Any) -> None:
            partition = waiting.pop()
            running[actor.do.remote(partition, folder)] = actor, partition

        for actor in actors:
            give(actor)
        while running:
            (ready, *_), _ = ray.wait(list(running), num_returns=1)
            actor, partition = running.pop(ready)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                raise (cause if isinstance(cause, CleanpairsError) else error) from None
            except ray.exceptions.RayError as error:
                raise ResourceError(
                    f"partition {partition.number} (rows {partition.first:,} to {partition.first + partition.rows:,}) "
                    f"was given up after its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}. What is "
                    "done is kept: run again to go on"
                ) from error
            if waiting:
                give(actor)

    def _shares(self, ray: Any) -> tuple[int, float]:
        """CPUs (and threads) and GPUs of each actor, so that together they use the cluster once."""
        have = ray.cluster_resources()
        gpus = have.get("GPU", 0) / self.workers
        return max(1, int(have.get("CPU", 1) // self.workers)), float(int(gpus) if gpus >= 1 else gpus)


class _Worker:
    """What an actor is."""

    def __init__(self, work: Work, threads: int) -> None:
        self.work, self.threads = work, threads
        self.open: Any = None

    def do(self, partition: Partition, folder: Path) -> Finished:
        if self.open is None:  # not at the start: an error raised there would look like a death
            self.open = self.work.open(self.threads)
        return carry_out(self.open, partition, folder)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError('the engine "ray" needs Ray: pip install "cleanpairs[ray]"') from error
    return ray
