"""The same work on a local Ray with two workers, one of which is killed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cleanpairs import InfoNCE
from cleanpairs.commands import score as streaming_module
from cleanpairs.commands.score import score_stream
from cleanpairs.core.errors import DataError, ResourceError
from cleanpairs.engine import make_engine, plan_partitions, run_partitions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "cleanpairs[ray]"'),
]

PARTITIONS = plan_partitions([10] * 5, 45, target=10)
WHOLE = " ".join(str(r * r) for r in range(45))


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory, squares_source: str) -> Iterator[Any]:
    """A Ray with two processors, which knows the module ``squares_for_ray``."""
    import ray

    folder = tmp_path_factory.mktemp("modules")
    (folder / "squares_for_ray.py").write_text(squares_source)
    sys.path.insert(0, str(folder))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}},
        object_store_memory=100 * 2**20,
    )  # fmt: skip
    yield importlib.import_module("squares_for_ray")
    ray.shutdown()
    sys.path.remove(str(folder))
    del sys.modules["squares_for_ray"]


def tokens(folder: Path, n: int) -> str:
    folder.mkdir()
    for i in range(n):
        (folder / str(i)).write_text("")
    return str(folder)


def test_a_killed_worker_is_started_again(tmp_path: Path, works: Any) -> None:
    work = works.Squares(dies=1, times=tokens(tmp_path / "deaths", 1))
    done = run_partitions(work, PARTITIONS, tmp_path / "job", job="a", engine=make_engine("ray", workers=2))
    assert [f.number for f in done] == [0, 1, 2, 3, 4]
    assert " ".join((tmp_path / "job" / p.name).read_text() for p in PARTITIONS) == WHOLE
    assert list((tmp_path / "deaths").iterdir()) == []  # it did die
    assert len({f.facts["process"] for f in done}) >= 2


def test_what_kills_every_worker_is_given_up_errors_keep_their_kind_and_it_goes_on(tmp_path: Path, works: Any) -> None:
    two, folder = make_engine("ray", workers=2), tmp_path / "job"
    with pytest.raises(ResourceError, match="partition 4"):
        run_partitions(works.Squares(dies=4, times=tokens(tmp_path / "d", 99)), PARTITIONS, folder, job="a", engine=two)
    with pytest.raises(DataError, match="no row 7"):
        run_partitions(works.Squares(refuses=4), PARTITIONS, folder, job="a", engine=two)
    run_partitions(works.Squares(), PARTITIONS, folder, job="a", engine=two)
    assert " ".join((folder / p.name).read_text() for p in PARTITIONS) == WHOLE


def test_scores_are_those_of_the_local_engine_bit_for_bit(
    tmp_path: Path, works: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(streaming_module, "PARTITION", 20)
    rng = np.random.default_rng(0)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=90 * 6).astype(np.float32)), 6)
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (90, 3))]
    data = tmp_path / "data.parquet"
    pq.write_table(pa.table({"caption": captions, "image_features": flat}), data, row_group_size=20)
    model = InfoNCE(dim=8, dim_word=4, epochs=1, batch_size=8, eval_group_size=8, device="cpu").fit(data)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the last bit of a sum depends on the threads that add it up
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    score_stream(model, data, tmp_path / "local.parquet")
    torch.set_num_threads(threads)
    score_stream(model, data, tmp_path / "ray.parquet", engine="ray", workers=2)
    assert (tmp_path / "local.parquet").read_bytes() == (tmp_path / "ray.parquet").read_bytes()
    assert len(pq.read_table(tmp_path / "ray.parquet")) == 90
