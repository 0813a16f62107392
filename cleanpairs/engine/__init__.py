"""Work on many rows, partition by partition, in one process, in several, or on a Ray cluster. Resumable."""

from cleanpairs.engine.work import Engine, Finished, Partition, make_engine, plan_partitions, remove_job, run_partitions

__all__ = ["Engine", "Finished", "Partition", "make_engine", "plan_partitions", "remove_job", "run_partitions"]
