"""Score, rematch and export on a Ray cluster of two machines, which lose workers and a machine: as one process does."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from cleanpairs.commands import score as scoring
from cleanpairs.commands.export import export_plan
from cleanpairs.commands.rematch import rematch_run
from cleanpairs.commands.score import score_stream
from cleanpairs.core.errors import DataError, ResourceError
from cleanpairs.engine import make_engine, run_partitions
from cleanpairs.engine.ray import RayEngine
from cleanpairs.export import writing
from cleanpairs.ops import search
from cleanpairs.repair.settings import RepairSettings
from tests.commands.test_rematch import fit, write
from tests.engine.squares import Squares, allowed_deaths
from tests.engine.test_job import PARTITIONS, WHOLE, text
from tests.helpers import assert_raises

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "cleanpairs[ray]"'),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines with a processor each, whose workers find this repository."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # the last bit of a sum depends on the threads that add it up
        machine = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        found = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
        found.add_node(**machine)
        path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        ray.init(found.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of whatever runs on Ray the newest worker is killed as soon as a partition is finished; the workers killed."""
    import psutil

    run, killed = RayEngine.run, []

    def killing(self: RayEngine, work: Any, partitions: Any, folder: Path) -> Iterator[Any]:
        for i, finished in enumerate(run(self, work, partitions, folder)):
            if not i and len(partitions) > 1:
                alive = (p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::MapWorker"))
                newest = max(alive, key=lambda process: process.create_time())
                newest.kill()
                killed.append(newest.pid)
            yield finished

    monkeypatch.setattr(RayEngine, "run", killing)
    return killed


@pytest.mark.usefixtures("cluster")
def test_score_rematch_and_export_are_those_of_one_process_though_workers_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: list[int]
) -> None:
    works = (scoring.ScoreWork, "partition_rows", 50), (writing.ExportWork, "partition_rows", 50)
    for module, name, rows in (*works, (search, "_FLAT_BLOCK", 20)):
        monkeypatch.setattr(module, name, rows)
    data = write(tmp_path / "data.parquet", 300, wrong=0.4)
    run, settings = fit(data), RepairSettings(threshold=0.75, repairs="plausible", targets="text")
    here, there = (tmp_path / name for name in ("here", "there"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for folder, engine in ((here, make_engine("local")), (there, make_engine("ray", workers=2))):
        folder.mkdir()
        score_stream(run.path / "model", data, folder / "scores.parquet", engine=engine)
        _, counts = rematch_run(run, folder / "plan.parquet", settings, data, streamed_from=0, engine=engine)
        export_plan(folder / "plan.parquet", folder / "out.parquet", engine=engine)
        assert counts.repaired > 50 and len(deaths) == (0 if folder == here else 4)
    torch.set_num_threads(threads)
    assert len(pq.read_table(there / "scores.parquet")) == 300
    names = sorted(path.name for path in here.iterdir())
    assert sorted(path.name for path in there.iterdir()) == names and len(names) > 4
    for name in names:
        if name.endswith(".parquet"):
            assert (there / name).read_bytes() == (here / name).read_bytes(), name


def test_a_partition_that_kills_every_worker_is_given_up_errors_keep_their_kind_and_a_machine_may_go(
    tmp_path: Path, cluster: Any
) -> None:
    folder, deaths = tmp_path / "job", allowed_deaths(tmp_path / "deaths", 99)

    def run(work: Any) -> Any:
        return run_partitions(work, PARTITIONS, folder, job="a", engine=make_engine("ray", workers=2))

    assert_raises(ResourceError, r"partition 4 .*died 4 times", run, Squares(dies=4, times=deaths))
    assert len(list(deaths.iterdir())) == 95
    assert_raises(DataError, "no row 7", run, Squares(refuses=4))
    cluster.remove_node(cluster.worker_nodes.copy().pop())
    assert [f.number for f in run(Squares())] == [0, 1, 2, 3, 4]
    assert text(folder) == WHOLE
    assert not list(folder.glob("*.attempts"))
