"""A job is done once: after errors, kills and torn manifests it goes on where it was."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cleanpairs.core.errors import ConfigError, DataError, OutputError, OutputExistsError, ResourceError
from cleanpairs.core.limits import limited
from cleanpairs.data.source import read_cached, write_cached
from cleanpairs.engine import Partition, make_engine, plan_partitions, remove_job, run_partitions
from cleanpairs.engine.work import MANIFEST
from tests.engine.conftest import WORKS
from tests.helpers import assert_raises


@dataclass
class Squares:
    """In this process: which partitions were done; one of them fails."""

    fails: int = -1
    done: list[int] = field(default_factory=list)

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        if partition.number == self.fails:
            path.write_text("half of")
            raise DataError("this one fails")
        self.done.append(partition.number)
        rows = range(partition.first, partition.first + partition.rows)
        path.write_text(" ".join(str(r * r) for r in rows))
        return {"rows": partition.rows}


LOCAL = make_engine("local")
PARTITIONS = plan_partitions([10] * 5, 45, target=10)
WHOLE = " ".join(str(r * r) for r in range(45))


def run(work: Any, folder: Path, job: str = "a", engine: Any = LOCAL, **how: Any) -> list[Any]:
    return run_partitions(work, PARTITIONS, folder, job=job, engine=engine, **how)


def text(folder: Path) -> str:
    return " ".join((folder / p.name).read_text() for p in PARTITIONS)


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module ``squares_for_workers``, which other processes can import too."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "squares_for_workers.py").write_text(WORKS)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    yield importlib.import_module("squares_for_workers")
    del sys.modules["squares_for_workers"]


@pytest.mark.parametrize("harm", ["failed", "killed", "gone", "cut", "changed"])
def test_what_is_damaged_is_done_again_and_what_is_finished_is_not(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "job"
    with pytest.raises(DataError, match="this one fails") if harm == "failed" else nullcontext():
        run(Squares(fails=4 if harm == "failed" else -1), folder)
    manifest, part = folder / MANIFEST, folder / "part-000004"
    if harm == "failed":
        assert not part.exists()  # nothing half-written
    elif harm == "killed":  # between the output and its line
        listed = json.loads(read_cached(manifest) or b"")
        write_cached(manifest, json.dumps(listed | {"done": listed["done"][:4]}).encode())
    elif harm == "gone":
        part.unlink()
    else:
        part.write_text(part.read_text()[:-1] + "7" * (harm == "changed"))
    again, last = Squares(), Squares()
    done = run(again, folder)
    assert again.done == [4] and [f.number for f in done] == [0, 1, 2, 3, 4]
    assert text(folder) == WHOLE
    run(last, folder)
    assert last.done == []  # the manifest is whole again


def test_parts_of_another_job_are_kept_unless_told(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run(Squares(), folder)
    assert_raises(OutputExistsError, "another job", run, Squares(), folder, "b")
    with pytest.raises(OutputExistsError, match="another job"):  # the same rows cut otherwise
        run_partitions(Squares(), plan_partitions([9] * 5, 45, target=9), folder, job="a", engine=LOCAL)
    assert text(folder) == WHOLE
    again = Squares()
    run(again, folder, "b", overwrite=True)
    assert again.done == [0, 1, 2, 3, 4]
    (folder / MANIFEST).write_bytes(b"\xff\x00\n")  # it says of no job that it is its own
    assert_raises(OutputExistsError, "another job", run, Squares(), folder, "b")


def test_a_folder_with_something_else_in_it_keeps_that(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("mine.txt", "part-00001.parquet", "part-000001"):  # as other programs name theirs, too
        (folder / name).write_text("mine")
        assert_raises(OutputExistsError, f"{name}.*no job has made it", run, Squares(), folder, overwrite=True)
        assert [p.name for p in folder.iterdir()] == [name]
        (folder / name).unlink()
    run(Squares(), folder)
    for name in ("mine.txt", "part-00001.parquet"):  # come while it is at work
        (folder / name).write_text("mine")
    run(Squares(), folder, "b", overwrite=True)
    remove_job(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["mine.txt", "part-00001.parquet"]


def test_two_threads_do_not_do_the_same_job(tmp_path: Path) -> None:
    """Of a notebook or a server, say: both would write the same parts and the same lines."""
    job, refused = tmp_path / "job", []

    class Meanwhile(list[int]):
        def append(self, number: int) -> None:
            super().append(number)
            with ThreadPoolExecutor(1) as other:
                refused.append(str(other.submit(run, Squares(), job).exception()))

    first = Squares(done=Meanwhile())
    run(first, job)
    assert first.done == [0, 1, 2, 3, 4] and len(refused) == 5
    assert all(f"{job} is being written by process {os.getpid()} on " in said for said in refused)
    assert len(json.loads(read_cached(job / MANIFEST) or b"")["done"]) == 5
    run(Squares(), job)  # let go of at the end


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_raises(OutputError, "cannot be written", run, Squares(), tmp_path / "file" / "job")


def test_ray_that_is_not_installed_and_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_raises(ConfigError, r"cleanpairs\[ray\]", make_engine, "ray")
    assert_raises(ConfigError, "at least 1", make_engine, "local", workers=0)


@pytest.mark.slow
def test_a_pool_goes_on_when_a_worker_is_killed_and_errors_keep_their_kind(tmp_path: Path, works: Any) -> None:
    deaths, folder, two = tmp_path / "deaths", tmp_path / "job", make_engine("local", workers=2)
    deaths.mkdir()
    for i in range(9):
        (deaths / str(i)).write_text("")
    fatal = works.Squares(dies=0, times=str(deaths))
    assert_raises(ResourceError, "3 times", run, fatal, folder, engine=two)  # one that kills every worker is given up
    for token in list(deaths.iterdir())[1:]:
        token.unlink()
    remove_job(folder)
    work = works.Squares(dies=0, times=str(deaths), refuses=4)
    assert_raises(DataError, "no row 7", run, work, folder, engine=two)
    assert list(deaths.iterdir()) == []  # it did die
    done = run(Squares(), folder)
    assert text(folder) == WHOLE
    by_workers = [f.facts for f in done if "process" in f.facts]
    assert by_workers and os.getpid() not in {facts["process"] for facts in by_workers}
    each = limited(max(1, len(os.sched_getaffinity(0)) // 2))
    assert {tuple(facts["threads"]) for facts in by_workers} == {(each, each)}
