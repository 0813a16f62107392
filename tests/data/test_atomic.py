"""Publishing: the old output or the new one, whole, whatever happens in between."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from cleanpairs.core.errors import CleanpairsError, ConfigError, OutputError, OutputExistsError
from cleanpairs.data import atomic
from cleanpairs.data.atomic import scratch_directory, staged_directory, staged_file, staged_set
from cleanpairs.data.locks import lock_of, output_lock
from tests.helpers import assert_raises

FORK = multiprocessing.get_context("fork")  # a new process imports for a second


def inner(stage: Callable[..., Any], path: Path) -> Path:
    """Of a staged file itself, of a directory a file within."""
    return path / "a" if stage is staged_directory else path


BOTH = pytest.mark.parametrize("stage", [staged_file, staged_directory])


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def codes_of(work: Callable[[int], None], n: int) -> list[int]:
    """The exit codes of processes that do the work, each with its number."""
    processes = [FORK.Process(target=work, args=(number,)) for number in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@BOTH
def test_an_output_is_replaced_whole_when_the_block_ends_or_not_at_all(tmp_path: Path, stage: Any) -> None:
    target = tmp_path / "new" / "out"
    for text, overwrite in (("1", False), ("2", True)):
        with stage(target, overwrite=overwrite) as path:
            (path if stage is staged_file else path / text).write_text(text)
            assert target.exists() == overwrite and path.parent.parent == target.parent
        assert target.read_text() == text if stage is staged_file else names(target) == [text]
        assert names(target.parent) == ["out"]
    with pytest.raises(OutputExistsError, match="overwrite"), stage(target):
        raise AssertionError("never entered")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), stage(target, overwrite=True) as path:  # noqa: PT012
            inner(stage, path).write_text("new")
            raise error("stop")
    assert target.read_text() == "2" if stage is staged_file else names(target) == ["2"]
    assert names(target.parent) == ["out"]


def test_targets_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("old")
    Path("link").symlink_to(precious)
    Path("dangling").symlink_to("nowhere")
    Path("door").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo("fifo")
    Path("folder").mkdir()
    before = names(tmp_path)
    for name in ("link", "dangling", "fifo", "folder", "/dev/null"):
        assert_raises(OutputExistsError, name, staged_file(name, overwrite=True).__enter__)
    for name, told in ((precious, "no regular directory"), (".", "you are in"), (tmp_path.parent, "you are in")):
        assert_raises(OutputExistsError, told, staged_directory(name, overwrite=True).__enter__)
    for alias in (precious, Path("door/precious"), Path("folder/../precious")):
        assert_raises(OutputExistsError, "input", staged_file(alias, overwrite=True, inputs=[precious]).__enter__)
    assert_raises(ConfigError, "an output cannot be a URL", staged_file("s3://bucket/out").__enter__)
    assert precious.read_text() == "old" and names(tmp_path) == before


@pytest.mark.parametrize("filled", [None, "before", "meanwhile"])
def test_an_empty_directory_is_no_output(tmp_path: Path, filled: str | None) -> None:
    (out := tmp_path / "out").mkdir()
    if filled == "before":
        (out / "mine").touch()
    refused = pytest.raises(OutputExistsError, match=r"exists|appeared meanwhile") if filled else nullcontext()
    with refused, staged_directory(out) as staged:
        (staged / "ours").touch()
        if filled == "meanwhile":
            (out / "mine").touch()
    assert names(out) == (["mine"] if filled else ["ours"]) and names(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_an_error_names_its_file(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output where the disk is full, and another file where it is about that."""

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OutputError, match=r"out\.bin cannot be written"), staged_file(tmp_path / "out.bin"):
        fail()
    with pytest.raises(OutputError, match=f"^{tmp_path}/a is full"), staged_file(tmp_path / "a") as staged:
        raise OutputError(f"{staged} is full")
    with pytest.raises(OutputError) as caught, staged_file(tmp_path / "out"):
        (tmp_path / "elsewhere" / "temporary").write_text("x")
    assert "elsewhere/temporary: No such file" in str(caught.value) and str(tmp_path / "out") not in str(caught.value)
    with pytest.raises(CleanpairsError, match="nothing was written"), staged_file(tmp_path / "out"):
        pass
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match=r"out\.bin"), staged_file(tmp_path / "out.bin") as path:
        path.write_text("x")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("x")
    assert_raises(OutputError, "file/out", staged_file(tmp_path / "file" / "out").__enter__)
    with pytest.raises(OutputError, match="moved or removed"), staged_file(tmp_path / "gone" / "out"):
        (tmp_path / "gone").rename(tmp_path / "there")


@pytest.mark.parametrize(("name", "inside", "goes"), [
    ("out[1]-abcdefgh", [".lock", "out[1]"], True), ("out[1]-abcdefgh", [], True),  # killed before it was locked
    ("out[1]-abcdefgh", ["something"], False), ("out[1]-2-abcdefgh", [".lock"], False),
    ("out1-abcdefgh", [".lock"], False), ("out[1]-of-mine", [".lock"], False),
])  # fmt: skip
def test_only_dead_staging_of_its_target_is_collected(tmp_path: Path, name: str, inside: list[str], goes: bool) -> None:
    (folder := tmp_path / f".cleanpairs-{name}").mkdir()
    for file in inside:
        (folder / file).touch()
    with scratch_directory("out[1]", tmp_path) as living, staged_file(tmp_path / "out[1]") as path:
        path.touch()
        assert folder.exists() != goes and living.is_dir()


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "disk"), KeyboardInterrupt()])
def test_a_fault_while_staging_is_locked_leaves_nothing(tmp_path: Path, monkeypatch: Any, error: Any) -> None:
    """None: another writer collects at the worst moment, between the making of the directory and its lock."""
    real = atomic.FileLock.acquire

    def first(lock: Any, *args: Any, **how: Any) -> Any:
        monkeypatch.undo()
        if error is not None:
            raise error
        with scratch_directory("out", tmp_path):
            return real(lock, *args, **how)

    monkeypatch.setattr(atomic.FileLock, "acquire", first)
    stopped = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if stopped else nullcontext(), staged_file(tmp_path / "out") as path:
        path.write_text("x")
    assert names(tmp_path) == ([] if stopped else ["out"])


def test_without_renameat2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_renameat2", _missing)
    folder = tmp_path / "folder"
    for text in ("1", "2"):
        with staged_file(tmp_path / "file", overwrite=text == "2") as path:
            path.write_text(text)
        assert (tmp_path / "file").read_text() == text
        refused = pytest.raises(OutputExistsError, match="one step") if text == "2" else nullcontext()
        with refused, staged_directory(folder, overwrite=text == "2") as path:
            (path / "a").write_text(text)
    assert (folder / "a").read_text() == "1" and names(tmp_path) == ["file", "folder"]


@pytest.mark.parametrize(("old", "modes"), [(False, [0o640, 0o750, 0o640]), (True, [0o600, 0o700, 0o640])])
def test_umask_and_permissions_of_what_was_there(tmp_path: Path, old: bool, modes: list[int], monkeypatch: Any) -> None:
    if old:
        (tmp_path / "file").touch(0o600)
        (tmp_path / "folder").mkdir(0o700)
    set_umask = os.umask
    before = set_umask(0o027)
    monkeypatch.delattr(os, "umask")  # it is the process's, and other threads write meanwhile
    try:
        with staged_file(tmp_path / "file", overwrite=True) as path:
            path.touch(0o600)
        with staged_directory(tmp_path / "folder", overwrite=True) as path:
            (path / "a").touch(0o600)
    finally:
        set_umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder", "folder/a")] == modes


@BOTH
@pytest.mark.parametrize("where", ["block", "sync", "rename", "remove"])
def test_a_kill_leaves_the_old_output_or_the_new_one(tmp_path: Path, stage: Callable[..., Any], where: str) -> None:
    target = tmp_path / "out"

    def write(text: str, overwrite: bool = True) -> None:
        with stage(target, overwrite=overwrite) as path:
            inner(stage, path).write_text(text)
            if text == "new" and where == "block":
                kill()

    def kill(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def killed(number: int) -> None:
        for module, name in {"sync": [(atomic, "sync")], "rename": [(atomic, "_renameat2"), (os, "replace")],
                             "remove": [(atomic.shutil, "rmtree")]}.get(where, []):  # fmt: skip
            setattr(module, name, kill)
        write("new")

    write("old", overwrite=False)
    assert codes_of(killed, 1) == [-signal.SIGKILL]
    assert inner(stage, target).read_text() == ("new" if where == "remove" else "old")
    assert len(names(tmp_path)) == 2  # what the dead writer left
    with stage(target, overwrite=True) as path:
        assert len(names(tmp_path)) == 2  # its staging is collected, and ours is there
        write("second")  # a living writer's is not
        inner(stage, path).write_text("third")
    assert inner(stage, target).read_text() == "third" and names(tmp_path) == ["out"]


@BOTH
def test_of_two_processes_on_one_name_exactly_one_wins(tmp_path: Path, stage: Callable[..., Any]) -> None:
    target, together = tmp_path / "out", FORK.Barrier(2)

    def write(number: int) -> None:
        try:
            with stage(target) as path:
                inner(stage, path).write_text(str(number))
                together.wait()  # both are inside the block, with everything written
        except OutputExistsError:
            sys.exit(5)

    codes = codes_of(write, 2)
    assert sorted(codes) == [0, 5]
    assert inner(stage, target).read_text() == str(codes.index(0)) and names(tmp_path) == ["out"]


def _three(folder: Path, text: str, **options: Any) -> None:
    """A file, a directory and another file, published together."""
    with staged_set() as outputs:
        first, second = outputs.add(folder / "a", **options), outputs.add(folder / "b", directory=True, **options)
        outputs.add(folder / "c", **options).write_text(text)
        first.write_text(text)
        (second / "inner").write_text(text)


def _texts(folder: Path) -> list[str]:
    return [(folder / name).read_text() if (folder / name).exists() else "" for name in ("a", "b/inner", "c")]


def _missing(*_: Any) -> None:
    raise OSError(errno.ENOSYS, "missing")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("late", [False, True])  # it comes when the call has done its work, as a signal may
@pytest.mark.parametrize("call", ["_renameat2", "sync"])
@pytest.mark.parametrize("old", ["old", "", None])  # None: no renameat2 either
def test_a_fault_on_the_way_leaves_every_file_of_a_set_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str | None, error: BaseException, late: bool, call: str
) -> None:
    if old:
        _three(tmp_path, old)
    if old is None:
        monkeypatch.setattr(atomic, "_renameat2", _missing)
        call = "sync"
    most = 3 if call == "_renameat2" else 7  # four files and folders, 3 parents
    real, left = getattr(atomic, call), 0

    def fails_once(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            if late:
                real(*args)
            raise error
        return real(*args)

    monkeypatch.setattr(atomic, call, fails_once)
    for number in range(1, most + 1):
        left = number
        with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
            _three(tmp_path, "new", overwrite=True)
        assert _texts(tmp_path) == [old or ""] * 3 and names(tmp_path) == (["a", "b", "c"] if old else [])
    left = most + 1
    _three(tmp_path, "new", overwrite=True)
    assert _texts(tmp_path) == ["new"] * 3 and names(tmp_path) == ["a", "b", "c"] and left == 1


def test_a_set_stops_at_a_target_that_appears_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError, match="meanwhile"), staged_set() as outputs:  # noqa: PT012
        for name in ("a", "c"):
            outputs.add(tmp_path / name).write_text("mine")
        (tmp_path / "a").write_text("theirs")  # it is renamed last
    assert _texts(tmp_path) == ["theirs", "", ""] and names(tmp_path) == ["a"]
    with staged_set():
        pass


# -- One writer at a time: the second is told who the first is; a dead one holds nothing ------------------------------


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
        told = rf"written by process {other.pid} on .+, since 20\d\d-.*: wait"
        for output in (out, link, tmp_path / "folder" / ".." / "out"):
            assert_raises(OutputExistsError, told, output_lock([tmp_path / "free", output]).__enter__)
        with output_lock([tmp_path / "free"]):  # the refused one has let go of it
            pass
        for message in ("", "{", "[]", '{"pid": "x"}', '{"pid": 3, "host": "a\\u001b[2J", "since": ""}', "x" * 5000):
            lock_of(out).write_text(message)  # whatever it says is read with care
            with pytest.raises(OutputExistsError, match="process") as caught:
                output_lock([out]).__enter__()
            assert str(caught.value).isprintable()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert lock_of(out).exists()
    held = output_lock([out, tmp_path / "free", "."])
    with chdir(tmp_path / "folder"), output_lock([out]), held:  # a command and what it calls
        pass
    assert names(tmp_path) == ["folder", "link"]
    inside = tmp_path / "folder" / "a" / "b" / "out"
    with output_lock([inside]):
        assert lock_of(inside).exists()
    assert names(tmp_path / "folder") == []  # folders that were made for the lock go if nothing came into them
    with output_lock([inside]):
        (tmp_path / "folder" / "a" / "mine").write_text("mine")
    assert names(tmp_path / "folder" / "a") == ["mine"]


@pytest.mark.parametrize("write", [output_lock, lambda paths: staged_file(paths[0])])
@pytest.mark.parametrize(("out", "message"), [
    ("/proc/x", "No such file or directory; allow that, or use a folder that you may write to"),
    (f"{__file__}/a/out", f"{__file__} is a file and no directory; name another output"),
    ("/nonexist-cleanpairs/a/out", "there is no directory /nonexist-cleanpairs; make it first"),
])  # fmt: skip
def test_a_folder_that_takes_no_file(out: str, message: str, write: Callable[..., Any]) -> None:
    assert_raises(OutputError, f"^{out} cannot be written: {message}$", write([out]).__enter__)
    assert not Path("/nonexist-cleanpairs").exists()


def test_one_of_many_gets_it(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for _ in range(40):
            with suppress(OutputExistsError), output_lock([tmp_path / "out"]):
                (tmp_path / "inside").touch(exist_ok=False)  # fails where somebody else is in here
                (tmp_path / "inside").unlink()

    assert codes_of(work, 3) == [0] * 3 and names(tmp_path) == []
