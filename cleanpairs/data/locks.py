"""One writer at a time: who writes an output holds a POSIX record lock on the hidden file ``.NAME.cleanpairs-lock``, in
which it says who it is. The lock ends with its process, is not inherited by workers, and holds between machines where
the file system has such locks. A file that a kill has left is taken over by the next writer.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from cleanpairs.core.errors import OutputError, OutputExistsError
from cleanpairs.core.regular import writing

LOCK_SUFFIX = ".cleanpairs-lock"
_BUSY = {errno.EAGAIN, errno.EACCES}
_held: dict[Path, tuple[int, object]] = {}  # by this process -> the thread, and which of its calls


def lock_of(output: str | os.PathLike[str]) -> Path:
    """The lock's file of an output."""
    whole = Path(os.path.realpath(output))
    return whole.with_name(f".{whole.name}{LOCK_SUFFIX}")


@contextmanager
def hold(outputs: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Nobody else writes these outputs meanwhile; a thread may hold one again. Raises OutputExistsError: another
    process or thread holds one, and which; OutputError: its folder cannot be made or written.
    """
    with ExitStack() as stack:
        for lock, output in sorted({lock_of(output): output for output in outputs}.items()):
            stack.enter_context(_one(lock, os.fspath(output)))
        yield


@contextmanager
def _one(lock: Path, output: str) -> Iterator[None]:
    mine = threading.get_ident(), object()
    holder = _held.setdefault(lock, mine)
    if holder[0] != mine[0]:
        raise _busy(output, "another thread of this process")
    if holder is not mine:
        yield
        return
    with ExitStack() as stack:
        stack.callback(_held.pop, lock)
        with writing(output):
            for folder in reversed([folder for folder in lock.parents if not folder.exists()]):
                stack.callback(_quietly, folder.rmdir)  # made by us; it stays where something came into it
            stack.enter_context(_taken(lock, output))
        yield


def _quietly(function: Callable[[], None]) -> None:
    with suppress(OSError):
        function()


def make_parents(path: Path) -> None:
    """Make the directories above ``path``. Raises OutputError: the first would lie in the root of the file system."""
    missing = [folder for folder in path.parents if not folder.exists()]
    if missing and missing[-1].parent == Path(missing[-1].anchor):
        raise OutputError(f"{path} cannot be written: there is no directory {missing[-1]}; make it first")
    path.parent.mkdir(parents=True, exist_ok=True)


def _taken(lock: Path, output: str) -> ExitStack:
    make_parents(lock.parent / Path(output).name)
    while True:  # again where it was removed by the one that held it before
        with ExitStack() as undone:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            undone.callback(os.close, fd)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _BUSY:
                    raise _busy(output, _holder(fd)) from error  # else it is a file system without locks
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.lstat(lock)):
                    # While it is held: whoever opened it before finds that it is gone, and begins anew.
                    undone.callback(_quietly, lock.unlink)
                    who = {"pid": os.getpid(), "host": socket.gethostname()}
                    who["since"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
                    with suppress(OSError):  # a full disk will be said of the output
                        os.ftruncate(fd, 0)
                        os.pwrite(fd, json.dumps(who).encode("ascii"), 0)
                    return undone.pop_all()


def _busy(output: str, who: str) -> OutputExistsError:
    return OutputExistsError(f"{output} is being written by {who}: wait until it is done, or name another output")


def _holder(fd: int) -> str:
    """Who holds the lock, by what its file says."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        who = json.loads(os.pread(fd, 1000, 0).decode("ascii"))
        pid, host, since = int(who["pid"]), str(who["host"]), str(who["since"])
        return f"process {pid}" + f" on {host[:80]}, since {since[:40]}" * (host + since).isprintable()
    return "another process"
