"""One writer at a time: who writes an output holds a lock beside it, and others are told who that is.

The lock is a POSIX record lock on the hidden file ``.NAME.cleanpairs-lock``, in which the holder says who it is. It
ends with its process, however that ends, is not inherited by workers, and holds between machines where the file system
has such locks. A file that a kill has left is taken over by the next writer, and removed with its lock.
"""

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
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
    """Nobody else writes these outputs meanwhile; a thread may hold one again, as a command and what it calls do.

    Raises OutputExistsError: another process holds one; the message says which, on which machine, and since when; or
    another thread of this one does; OutputError: the folder of an output cannot be made or written.
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
        raise OutputExistsError(_busy(output, "another thread of this process"))
    if holder is not mine:
        yield
        return
    made: list[Path] = []
    fd: int | None = None
    try:
        with writing(output):
            made = [folder for folder in lock.parents if not folder.exists()]
            fd = _take(lock, output)
        yield
    finally:
        if fd is not None:
            with suppress(OSError):
                os.unlink(lock)  # while it is held: whoever opened it before finds that it is gone, and begins anew
            os.close(fd)
        del _held[lock]
        for folder in made:  # by us, and nothing came into it
            with suppress(OSError):
                folder.rmdir()


def make_parents(path: Path) -> None:
    """Make the directories above ``path``, but none in the root of the file system: that is a slip, or no disk there.

    Raises OutputError: the first that is missing would be there; OSError: they cannot be made.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    if missing and missing[-1].parent == Path(missing[-1].anchor):
        raise OutputError(f"{path} cannot be written: there is no directory {missing[-1]}; make it first")
    path.parent.mkdir(parents=True, exist_ok=True)


def _take(lock: Path, output: str) -> int:
    make_parents(lock.parent / Path(output).name)
    while True:  # again where it was removed by the one that held it before
        with ExitStack() as undone:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            undone.callback(os.close, fd)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _BUSY:
                    raise OutputExistsError(_busy(output, _holder(fd))) from error
                undone.pop_all()
                return fd  # a file system without locks
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.lstat(lock)):
                    undone.callback(os.unlink, lock)  # after a signal: it is ours, and would be left behind
                    _sign(fd)
                    undone.pop_all()
                    return fd


def _busy(output: str, who: str) -> str:
    return f"{output} is being written by {who}: wait until it is done, or name another output"


def _sign(fd: int) -> None:
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    with suppress(OSError):  # a full disk will be said of the output
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(who).encode("ascii"), 0)


def _holder(fd: int) -> str:
    """Who holds the lock, by what its file says."""
    try:
        who = json.loads(os.pread(fd, 1000, 0).decode("ascii"))
        pid, host, since = int(who["pid"]), str(who["host"]), str(who["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    if not (host + since).isprintable():
        return f"process {pid}"
    return f"process {pid} on {host[:80]}, since {since[:40]}"
