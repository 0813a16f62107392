"""The engine on a Ray cluster, or on a local Ray: partitions are the rows of a Ray Data pipeline of one stage."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import ConfigError, ResourceError, needing
from cleanpairs.core.limits import limited
from cleanpairs.engine.work import ATTEMPTS, Finished, Partition, Work, attempt


class RayEngine:
    """``workers`` actors on the cluster at ``address`` ("auto": the one of this machine), or on a Ray started here.

    Input and output must have the same paths on all machines. Raises ConfigError: Ray Data is not installed.
    """

    remote = True  # work is always sent to other processes

    def __init__(self, *, workers: int = 1, address: str | None = None) -> None:
        with needing('the engine "ray"', 'pip install "cleanpairs[ray]"'):
            import ray.data  # noqa: F401
        self.workers, self.address = workers, address

    def run(self, work: Work, partitions: Sequence[Partition], folder: Path) -> Iterator[Finished]:
        """See :class:`cleanpairs.engine.work.Engine`."""
        import ray

        for partition in partitions:  # files of a job that was stopped
            _attempts(partition, folder).unlink(missing_ok=True)
        with self._connected(ray), _quiet(ray.data.DataContext.get_current()):
            resources = ray.cluster_resources()
            threads, gpus = max(1, int(resources.get("CPU", 1) // self.workers)), resources.get("GPU", 0) / self.workers
            dataset = ray.data.from_items(list(partitions), override_num_blocks=len(partitions)).map_batches(
                _Stage,
                fn_constructor_args=(work, limited(threads), Path(folder).absolute()),
                batch_size=1,
                batch_format="numpy",
                compute=ray.data.ActorPoolStrategy(
                    size=min(self.workers, len(partitions)),
                    max_tasks_in_flight_per_actor=1,
                    max_concurrent_calls_per_actor=1,
                ),
                num_cpus=threads,
                num_gpus=float(int(gpus) if gpus >= 1 else gpus),
            )
            for row in dataset.iter_rows():
                if isinstance(error := row["result"], Exception):
                    raise error
                yield row["result"]

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """Connect to the caller's Ray, or start or join one and leave it after the block."""
        if ray.is_initialized():
            yield
            return
        local: dict[str, Any] = {}
        if not self.address:
            local = {"num_cpus": max(len(os.sched_getaffinity(0)), self.workers), "include_dashboard": False}
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = f"at {self.address}" if self.address else "here"
            raise ConfigError(f"no Ray {where}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


class _Stage:
    """An actor. Ray Data gives a partition to another actor whenever one dies. This class limits how often."""

    most_attempts = 4

    def __init__(self, work: Work, threads: int, folder: Path) -> None:
        import torch

        torch.set_num_threads(threads)
        pa.set_cpu_count(threads)
        self.work, self.folder = work, folder

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        result = np.empty(1, object)
        result[0] = self._result(*batch["item"])
        return {"result": result}

    def _result(self, partition: Partition) -> Finished | Exception:
        attempts = _attempts(partition, self.folder)
        with attempts.open("ab") as file:
            file.write(b".")
            begun = file.tell()
        try:
            if begun > self.most_attempts:
                return ResourceError(
                    f"partition {partition.number} (rows {partition.first:,} to {partition.first + partition.rows:,}) "
                    f"was given up after its worker died {self.most_attempts} times. What is done is kept: run again "
                    "to resume"
                )
            return attempt(self.work, partition, self.folder)
        finally:
            attempts.unlink()


def _attempts(partition: Partition, folder: Path) -> Path:
    """A file with one byte for each time that the partition was begun. It is removed when the partition is done."""
    return folder / f"{partition.name}{ATTEMPTS}"


@contextmanager
def _quiet(context: Any) -> Iterator[None]:
    """Turn off Ray Data's progress and messages within the block: the job prints its own."""
    logger, bars = logging.getLogger("ray.data"), context.enable_progress_bars
    level = logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        logger.setLevel(level)
