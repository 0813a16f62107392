"""One writer at a time: the second is told who the first is; a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cleanpairs.core.errors import OutputError, OutputExistsError
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.locks import lock_of, output_lock

HOLDER = "import sys, cleanpairs.data.locks as own\nwith own.output_lock(sys.argv[1:]):\n print(flush=True); input()"


@contextmanager
def held_by_another(*outputs: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLDER, *map(str, outputs)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "\n"
        try:
            yield other
        finally:
            if other.poll() is None:
                other.communicate("\n")


def test_the_second_is_told_who_holds_it_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    out, link = tmp_path / "out", tmp_path / "link"
    (tmp_path / "folder").mkdir()
    link.symlink_to("folder")
    with held_by_another(out, tmp_path / "folder") as other:
        for output in (out, link, tmp_path / "folder" / ".." / "out"):
            with pytest.raises(
                OutputExistsError, match=rf"written by process {other.pid} on .+, since 20\d\d-.*: wait"
            ):
                output_lock([tmp_path / "free", output]).__enter__()
        with output_lock([tmp_path / "free"]):  # the refused one has let go of it
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert lock_of(out).exists()
    with output_lock([out]), output_lock([out, tmp_path / "free"]):  # a command and what it calls
        pass
    lock_of(tmp_path / "folder").unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link"]


def test_folders_that_were_made_for_the_lock_go_if_nothing_came_into_them(tmp_path: Path) -> None:
    with output_lock([tmp_path / "a" / "b" / "out"]):
        assert lock_of(tmp_path / "a" / "b" / "out").exists()
    assert list(tmp_path.iterdir()) == []
    with output_lock([tmp_path / "a" / "b" / "out"]):
        (tmp_path / "a" / "mine").write_text("mine")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["mine"]
    with pytest.raises(OutputError, match="cannot be written"), output_lock([tmp_path / "a" / "mine" / "out"]):
        raise AssertionError


def test_whatever_a_lock_says_is_read_with_care(tmp_path: Path) -> None:
    with held_by_another(tmp_path / "out"):
        for said in ("", "{", "[]", '{"pid": "x"}', '{"pid": 3, "host": "a\\u001b[2J", "since": ""}', "x" * 5000):
            lock_of(tmp_path / "out").write_text(said)
            with pytest.raises(OutputExistsError) as caught:
                output_lock([tmp_path / "out"]).__enter__()
            assert str(caught.value).isprintable() and "process" in str(caught.value)


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom cleanpairs.data.locks import output_lock\n"
        "from cleanpairs.core.errors import OutputExistsError\n"
        "for i in range(40):\n"
        " try:\n"
        "  with output_lock([sys.argv[1]]):\n"
        "   f = open(sys.argv[2], 'x'); f.close()\n"  # fails where somebody else is in here
        "   import os; os.unlink(sys.argv[2])\n"
        " except OutputExistsError: pass\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "out"), str(tmp_path / "inside")]
    running = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(p.communicate()[1], p.returncode) for p in running] == [("", 0)] * 3
    assert list(tmp_path.iterdir()) == [] and os.getpid() not in [p.pid for p in running]


def test_no_directory_is_made_in_the_root(tmp_path: Path) -> None:
    for write in (output_lock, lambda paths: staged_file(paths[0])):
        said = r"out\.parquet cannot be written: there is no directory /nonexist-cleanpairs; make it first"
        with pytest.raises(OutputError, match=said), write(["/nonexist-cleanpairs/a/out.parquet"]):
            pass
    assert not Path("/nonexist-cleanpairs").exists()
    with output_lock([tmp_path / "a" / "b" / "out.parquet"]):
        assert (tmp_path / "a" / "b").is_dir()
