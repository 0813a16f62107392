"""One writer at a time: it locks the hidden file ``.NAME.cleanpairs-lock``, which names the process.

The lock ends with its process, is not inherited by workers, and holds between machines where the file system has such
locks. A file that a kill has left is taken over by the next writer.
"""

import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from cleanpairs.core import OutputError, OutputExistsError
from cleanpairs.core.regular import AnyPath, read_text, writing


def lock_of(output: AnyPath) -> Path:
    """The lock's file of an output."""
    whole = Path(os.path.realpath(output))
    return whole.with_name(f".{whole.name}.cleanpairs-lock")


@contextmanager
def output_lock(outputs: Iterable[AnyPath]) -> Iterator[None]:
    """Keep other writers from these outputs within the block. A thread may lock one again. Raises OutputExistsError,
    which names the process: another process or thread writes one. OutputError: its folder cannot be made or written.
    """
    with ExitStack() as locks:
        for path, output in sorted({lock_of(output): os.fspath(output) for output in outputs}.items()):
            with writing(output):
                for folder in reversed([folder for folder in path.parents if not folder.exists()]):
                    locks.callback(_remove_empty, folder)  # we made it. It stays if it is no longer empty
                make_parents(path.with_name(os.path.basename(os.path.abspath(output))))
                _take(FileLock(path, blocking=False, is_singleton=True, fallback_to_soft=False), locks, output)
        yield


def _take(lock: FileLock, locks: ExitStack, output: str) -> None:
    path = Path(lock.lock_file)
    try:
        locks.enter_context(lock)
    except Timeout:
        if not path.exists():  # filelock waits where a folder takes no file at all, as /proc
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        who = ""
        with suppress(OSError, ValueError):
            who = read_text(path)[:200]
        who = who if who.isprintable() and who.startswith("process ") else "another process"
        raise OutputExistsError(f"{output} is being written by {who}: wait for it, or name another output") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):  # a file system without locks
            raise
    if lock.lock_counter == 1:  # this thread had not locked it before
        locks.callback(path.unlink, missing_ok=True)  # before the lock ends: a waiting writer makes a new file
        who = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%dT%H:%M:%S%z')}"
        with suppress(OSError):  # a full disk will fail the output itself
            path.write_text(who, encoding="utf-8")


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def make_parents(path: Path) -> None:
    """Make the directories above ``path``. Raises OutputError: a file is in the way, or the first would lie in the root
    of the file system.
    """
    if file := next((folder for folder in path.parents if folder.exists() and not folder.is_dir()), None):
        raise OutputError(f"{path} cannot be written: {file} is a file and no directory; name another output")
    missing = [folder for folder in path.parents if not folder.exists()]
    if missing and missing[-1].parent == Path(missing[-1].anchor):
        raise OutputError(f"{path} cannot be written: there is no directory {missing[-1]}; make it first")
    path.parent.mkdir(parents=True, exist_ok=True)
