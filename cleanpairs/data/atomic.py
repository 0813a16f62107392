"""The one way in which files and directories are published: written beside the target, synced, renamed.

A reader finds the old output or the new one, whole, on local POSIX filesystems. By Linux's ``renameat2`` two writers
on one name cannot both win. An exception leaves the previous output as it was. A kill leaves a staging
directory whose lock is free, which the next writer of that name collects.
"""

import ctypes
import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from cleanpairs.core import CleanpairsError, OutputError, OutputExistsError
from cleanpairs.core.regular import AnyPath, error_text, writing
from cleanpairs.data.guard import refuse_foreign, refuse_inputs, refuse_labels
from cleanpairs.data.locks import make_parents


def _renameat2(source: Path, target: Path, exchange: bool) -> None:
    """Rename ``source`` if there is no ``target``, or exchange the two."""
    libc = ctypes.CDLL(None, use_errno=True)
    cwd, flags = -100, 2 if exchange else 1  # AT_FDCWD. RENAME_EXCHANGE, RENAME_NOREPLACE
    if libc.renameat2(cwd, os.fsencode(source), cwd, os.fsencode(target), flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))


def sync(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_empty(target: Path) -> bool:
    """Whether ``target`` is an empty directory, which is no output."""
    return target.is_dir() and not target.is_symlink() and not any(target.iterdir())


@contextmanager
def scratch_directory(name: str, near: AnyPath | None = None) -> Iterator[Path]:
    """A temporary directory in ``near`` or TMPDIR. One that a kill has left is removed when the next is made."""
    parent, prefix = Path(near or tempfile.gettempdir()), f".cleanpairs-{name}-"
    near_by = [name for name in os.listdir(parent) if name.startswith(prefix)]  # a cache may hold thousands of others
    for left in [parent / name for name in near_by if re.fullmatch("[a-z0-9_]{8}", name.removeprefix(prefix))]:
        with suppress(OSError):  # another process writes there: its lock is taken
            if (left / ".lock").exists() or not any(left.iterdir()):
                with FileLock(left / ".lock", blocking=False, fallback_to_soft=False):
                    shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        while True:
            path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            try:
                stack.enter_context(FileLock(path / ".lock", fallback_to_soft=False))
                break
            except FileNotFoundError:  # another writer has removed it as one that a kill has left
                pass
            except OSError:  # some network filesystems have no locks. The rename is the guarantee
                break
        yield path


class _Output:
    """One target, its staging directory, and whether it is published."""

    def __init__(
        self, stack: ExitStack, target: AnyPath, *, directory: bool = False, overwrite: bool = False,
        inputs: Sequence[AnyPath] = (), ours: re.Pattern[str] | None = None, keeps_labels: bool = False,
    ) -> None:  # fmt: skip
        self.target, self.overwrite, self.directory = Path(os.path.abspath(target)), overwrite, directory
        refuse_inputs([self.target], inputs)
        self._refuse(ours, keeps_labels)
        self._written: os.stat_result | None = None  # of the published file, to recognise it
        with writing(self.target):
            make_parents(self.target)
            self.scratch = stack.enter_context(scratch_directory(self.target.name, self.target.parent))
            self.staged = self.scratch / self.target.name
            if directory:
                self.staged.mkdir()

    def _refuse(self, ours: re.Pattern[str] | None, keeps_labels: bool) -> None:
        target, mode = self.target, 0
        with writing(target), suppress(FileNotFoundError, NotADirectoryError):  # a folder may deny access
            mode = os.lstat(target).st_mode
        if not mode:
            return
        if stat.S_ISLNK(mode):
            raise OutputExistsError(f"{target} is a symbolic link; name the file itself")
        if not (stat.S_ISDIR(mode) if self.directory else stat.S_ISREG(mode)):
            kind = "directory" if self.directory else "file"
            raise OutputExistsError(f"{target} is no regular {kind}; it is not replaced")
        with suppress(FileNotFoundError):  # somebody has removed the directory that this process is in
            if self.directory and Path.cwd().is_relative_to(target.resolve()):
                raise OutputExistsError(f"{target} is the directory that you are in, or above it: name another output")
        if _is_empty(target):
            return
        if not keeps_labels:
            refuse_labels(target)
        if not self.overwrite:
            raise OutputExistsError(f"{target} exists; --overwrite (overwrite=True) replaces it")
        if self.directory and ours is not None:
            refuse_foreign(target, ours)

    def finish(self) -> None:
        """Set permissions and sync: all that takes time, or fails on a full disk, before anything is renamed."""
        if not self.scratch.exists():
            raise OutputError(f"{self.target.parent} was moved or removed meanwhile: nothing is written there")
        if not self.staged.exists():
            raise CleanpairsError(f"nothing was written for {self.target}")
        (probe := self.scratch / ".mode").mkdir()  # to read the umask by setting it would change it for other threads
        allowed = os.lstat(probe).st_mode
        mode = (0o777 if self.directory else 0o666) & allowed
        with suppress(OSError):  # a new output has the permissions of the one that it replaces
            mode = os.lstat(self.target).st_mode & 0o777 | stat.S_IRUSR
        os.chmod(self.staged, mode)
        for inner in sorted(self.staged.rglob("*"), reverse=True):  # the contents of a folder before the folder
            os.chmod(inner, (0o777 if inner.is_dir() else 0o666) & allowed)
            sync(inner)
        sync(self.staged)

    def publish(self) -> None:
        self._written = os.lstat(self.staged)
        if self.directory and _is_empty(self.target):
            os.rename(self.staged, self.target)  # fails if it is no longer empty
            return
        try:
            if os.path.lexists(self.target):
                raise FileExistsError(self.target)
            self._rename(exchange=False)
        except FileExistsError as error:
            if not self.overwrite:
                raise OutputExistsError(f"{self.target} has appeared meanwhile; it was not changed") from error
            self._rename(exchange=True)

    def _rename(self, exchange: bool) -> None:
        try:
            _renameat2(self.staged, self.target, exchange)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
                raise
            if exchange and self.directory:
                raise OutputExistsError(f"{self.target} cannot be replaced in one step here; name another") from error
            if exchange:
                self._written = None  # the old file is lost: this cannot be withdrawn
            os.replace(self.staged, self.target)

    def withdraw(self) -> None:
        """Restore the old output, if this one was published. Called after an error."""
        with suppress(OSError):
            if self._written is None or not os.path.samestat(os.lstat(self.target), self._written):
                return
            if os.path.lexists(self.staged):
                _renameat2(self.staged, self.target, True)
            else:
                os.rename(self.target, self.staged)


class StagedSet:
    """Outputs that appear together. See :func:`staged_set`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._outputs = stack, list[_Output]()

    def add(self, target: AnyPath, **how: Any) -> Path:
        """A path to write a file to, or with ``directory`` one to fill. As :func:`staged_file`."""
        self._outputs.append(_Output(self._stack, target, **how))
        return self._outputs[-1].staged

    def _publish(self) -> None:
        for output in self._outputs:
            with writing(output.target):
                output.finish()
        try:
            for output in reversed(self._outputs):
                with writing(output.target):
                    output.publish()
            for output in self._outputs:
                with writing(output.target):
                    sync(output.target.parent)
        except BaseException:
            for output in self._outputs:
                output.withdraw()
            raise


@contextmanager
def staged_set() -> Iterator[StagedSet]:
    """Several outputs of one command. First all are written, then all are synced, then they are renamed. The one that
    was added first is renamed last.

    An error, or an interrupt, leaves every target as it was. A kill between two renames leaves new files beside old
    ones. Raises OutputExistsError, OutputError: as :func:`staged_file`.
    """
    with ExitStack() as stack:
        outputs = StagedSet(stack)
        try:
            yield outputs
        except OutputError as error:  # of a staged file, whose name nobody has given
            for output in outputs._outputs:
                error.args = (str(error).replace(str(output.staged), str(output.target)),)
            raise
        except CleanpairsError:
            raise
        except OSError as error:
            name = os.fsdecode(error.filename or b"")
            targets = [o.target for o in outputs._outputs if not name or name.startswith(str(o.scratch))]
            if error.errno is None if targets else not name:
                raise
            where = f"{targets[-1]} cannot be written" if targets else name  # a temporary file, and no output
            raise OutputError(f"{where}: {error_text(error)}") from error
        outputs._publish()


@contextmanager
def staged_file(target: AnyPath, **how: Any) -> Iterator[Path]:
    """A path to write a file to. It becomes ``target`` when the block ends without an exception.

    ``overwrite``: an existing ``target`` is replaced. ``keeps_labels``: the new file has the labels given by hand of
    ``target``, which is else not replaced. ``ours``: a directory with files whose names it does not match is not.
    Raises OutputExistsError: ``target`` exists (without ``overwrite``), is one of the ``inputs``, or no regular file.
    OutputError: it cannot be written: full disk, permissions.
    """
    with staged_set() as outputs:
        yield outputs.add(target, **how)


def opened_for_lines(path: AnyPath, mode: int = 0o666, *, read_only: bool = False) -> int:
    """A file descriptor of ``path`` for :func:`append_lines`, which can be read too. ``mode``: of a new file.
    ``read_only``: it exists, and nothing is appended.

    Raises OSError: it cannot be opened. OutputError: it is no regular file.
    """
    flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | os.O_CREAT
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OutputError(f"{os.fspath(path)} is no regular file: nothing is written there")
    return file


def append_lines(file: int, path: AnyPath, *what: Mapping[str, Any]) -> None:
    """Append objects as lines of JSON to a file descriptor of ``path``, opened with O_APPEND, and sync it.

    It is one write. Each line begins with a line break: half a line of a killed process spoils only itself.
    Raises OutputError: it cannot be written.
    """
    lines = b"".join(b"\n" + json.dumps(each).encode() + b"\n" for each in what)
    with writing(path):
        written = os.write(file, lines)
        os.fsync(file)
    if written < len(lines) or not os.fstat(file).st_nlink:
        raise OutputError(f"{os.fspath(path)} does not have the whole line: the disk is full, or the file was deleted")


def write_whole(target: AnyPath, text: str) -> None:
    """Write a text file in UTF-8, over an existing one. As :func:`staged_file` otherwise."""
    with staged_file(target, overwrite=True) as staged:
        staged.write_text(text, encoding="utf-8")


def staged_directory(target: AnyPath, **how: Any) -> AbstractContextManager[Path]:
    """As :func:`staged_file`, an empty directory to fill."""
    return staged_file(target, directory=True, **how)
