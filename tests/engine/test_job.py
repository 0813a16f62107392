"""Cuts hold every row once. A job is done once: after errors, kills and torn manifests it goes on where it was."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanpairs.core.errors import ConfigError, DataError, OutputError, OutputExistsError, ResourceError
from cleanpairs.core.limits import limited
from cleanpairs.data.source import read_cached, write_cached
from cleanpairs.engine import make_engine, plan_partitions, remove_job, run_partitions
from cleanpairs.engine.work import MANIFEST
from tests.engine.squares import Squares, allowed_deaths
from tests.helpers import assert_raises

LOCAL = make_engine("local")
PARTITIONS = plan_partitions([10] * 5, 45, target=10)
WHOLE = " ".join(str(r * r) for r in range(45))


def run(work: Any, folder: Path, job: str = "a", engine: Any = LOCAL, **how: Any) -> list[Any]:
    return run_partitions(work, PARTITIONS, folder, job=job, engine=engine, **how)


def text(folder: Path) -> str:
    return " ".join((folder / p.name).read_text() for p in PARTITIONS)


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 25), st.data())
def test_every_row_is_in_one_partition(groups: list[int], target: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, sum(groups)))
    cut = plan_partitions(groups, rows, target=target)
    assert [p.number for p in cut] == list(range(len(cut)))
    assert [r for p in cut for r in range(p.first, p.first + p.rows)] == list(range(rows))
    assert all(1 <= p.rows < 3 * target + 1 for p in cut)


@pytest.mark.parametrize("harm", ["failed", "killed", "gone", "cut", "changed"])
def test_what_is_damaged_is_done_again_and_what_is_finished_is_not(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "job"
    with pytest.raises(DataError, match="no row 7") if harm == "failed" else nullcontext():
        run(Squares(refuses=4 if harm == "failed" else -1), folder)
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
    otherwise = plan_partitions([9] * 5, 45, target=9)  # the same rows
    assert_raises(OutputExistsError, "another job", run_partitions, Squares(), otherwise, folder, job="a", engine=LOCAL)
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
    assert all(f"{job} is being written by process {os.getpid()} on " in message for message in refused)
    assert len(json.loads(read_cached(job / MANIFEST) or b"")["done"]) == 5
    run(Squares(), job)  # let go of at the end


def test_a_folder_that_cannot_be_made_ray_that_is_not_installed_and_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert_raises(OutputError, "cannot be written", run, Squares(), tmp_path / "file" / "job")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_raises(ConfigError, r"cleanpairs\[ray\]", make_engine, "ray")
    assert_raises(ConfigError, "at least 1", make_engine, "local", workers=0)


@pytest.mark.slow
def test_a_pool_goes_on_when_a_worker_is_killed_and_errors_keep_their_kind(tmp_path: Path) -> None:
    deaths, folder, two = allowed_deaths(tmp_path / "deaths", 9), tmp_path / "job", make_engine("local", workers=2)
    assert_raises(ResourceError, "3 times", run, Squares(dies=0, times=deaths), folder, engine=two)  # and is given up
    for token in list(deaths.iterdir())[1:]:
        token.unlink()
    remove_job(folder)
    assert_raises(DataError, "no row 7", run, Squares(dies=0, times=deaths, refuses=4), folder, engine=two)
    assert list(deaths.iterdir()) == []  # it did die
    assert_raises(DataError, "no row 7", run, Squares(refuses=1, waits=0), tmp_path / "other", engine=two)
    assert not (tmp_path / "other" / "part-000000").exists()  # nobody waited for it
    done = run(Squares(), folder)
    assert text(folder) == WHOLE
    by_workers = [f.facts for f in done if f.facts["process"] != os.getpid()]
    each = limited(max(1, len(os.sched_getaffinity(0)) // 2))
    assert {tuple(facts["threads"]) for facts in by_workers} == {(each, each)}
