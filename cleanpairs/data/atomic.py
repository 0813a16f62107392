"""The one way in which files and directories are published: written beside the target, synced, renamed.

What a reader finds is the old output or the new one, whole, never a mixture; on local POSIX filesystems. Publishing
uses Linux's ``renameat2`` (RENAME_NOREPLACE; RENAME_EXCHANGE to replace a directory), so that two writers on one name
cannot both win. An exception leaves the previous output as it was, and removes the staging directory; a kill leaves a
staging directory whose lock is free, which the next writer of that name collects.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cleanpairs.errors import CleanpairsError, OutputError, OutputExistsError

__all__ = ["staged_directory", "staged_file"]

_AT_FDCWD = -100
_LOCKED_WITHIN = 600  # seconds: a living writer locks its staging directory at once
_NOREPLACE, _EXCHANGE = 1, 2
_MISSING = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}  # the filesystem or the kernel has no renameat2


def _renameat2(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, "renameat2 is missing")
    if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_tree(folder: Path) -> None:
    for root, _, files in os.walk(folder):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)  # through links and mounts as well
    except OSError:
        return False


def _refuse(target: Path, overwrite: bool, directory: bool, inputs: Sequence[str | os.PathLike[str]]) -> None:
    """OutputExistsError where ``target`` must not be written."""
    if any(Path(os.path.abspath(i)) == target or _same(Path(i), target) for i in inputs):
        raise OutputExistsError(f"{target} is the input, which is never written; name another output")
    if directory and overwrite and any(Path(i).resolve().is_relative_to(target.resolve()) for i in inputs):
        raise OutputExistsError(f"{target} holds the input, which is never written; name another output")
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    except OSError as error:  # a folder above it is a file, or is closed to us
        raise OutputError(f"{target} cannot be written: {error.strerror or error}") from error
    if stat.S_ISLNK(mode):
        raise OutputExistsError(f"{target} is a symbolic link; name the file itself")
    if not (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)):
        raise OutputExistsError(f"{target} is no regular {'directory' if directory else 'file'}; it is not replaced")
    if not overwrite:
        raise OutputExistsError(f"{target} exists; --overwrite (overwrite=True) replaces it")


def _prefix(name: str) -> str:
    return f".cleanpairs-{name}-"


def _collect_stale(parent: Path, name: str) -> None:
    """Remove staging directories of the target ``name`` whose writer is dead: its lock is free."""
    ours = re.compile(re.escape(_prefix(name)) + r"[a-z0-9_]{8}")  # as mkdtemp has it; "out" is not "out-2"
    for folder in [p for p in parent.iterdir() if ours.fullmatch(p.name)]:
        try:
            fd = os.open(folder / ".lock", os.O_RDWR)
        except FileNotFoundError:
            _collect_unlocked(folder)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # somebody writes there
        finally:
            os.close(fd)


def _collect_unlocked(folder: Path) -> None:
    """Remove a staging directory whose writer died before it held its lock: it has been without one for long."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _LOCKED_WITHIN and {p.name for p in folder.iterdir()} <= {".locking"}:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(staged: Path, target: Path, overwrite: bool, directory: bool) -> None:
    exists = os.path.lexists(target)
    if exists and not overwrite:
        raise OutputExistsError(f"{target} has appeared meanwhile; it is left as it is")
    if not exists:
        try:
            _renameat2(staged, target, _NOREPLACE)
            return
        except FileExistsError as error:
            if not overwrite:
                raise OutputExistsError(f"{target} has appeared meanwhile; it is left as it is") from error
        except OSError as error:
            if error.errno not in _MISSING:
                raise
            if directory:
                os.rename(staged, target)  # refuses a directory that is not empty
            else:
                os.link(staged, target)  # refuses a file that exists
            return
    if not directory:
        os.replace(staged, target)
        return
    try:
        _renameat2(staged, target, _EXCHANGE)
    except OSError as error:
        if error.errno in _MISSING:
            raise OutputExistsError(
                f"{target} cannot be replaced in one step on this filesystem; name another"
            ) from error
        raise


@contextmanager
def _staging(
    target: Path, overwrite: bool, directory: bool, inputs: Sequence[str | os.PathLike[str]]
) -> Iterator[Path]:
    target = Path(os.path.abspath(target))
    _refuse(target, overwrite, directory, inputs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _collect_stale(target.parent, target.name)
        folder = Path(tempfile.mkdtemp(prefix=_prefix(target.name), dir=target.parent))
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}") from error
    lock: int | None = None
    staged = folder / target.name
    try:
        try:
            lock = os.open(folder / ".locking", os.O_RDWR | os.O_CREAT, 0o600)
            with suppress(OSError):  # a courtesy that some network filesystems do not know; the rename is the guarantee
                fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(folder / ".locking", folder / ".lock")  # seen only when it is held
            if directory:
                staged.mkdir()
            yield staged
            if not staged.exists():
                raise CleanpairsError(f"nothing was written for {target}")
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(staged, (0o777 if directory else 0o666) & ~umask)
            for inner in staged.rglob("*") if directory else ():
                os.chmod(inner, (0o777 if inner.is_dir() else 0o666) & ~umask)
            if directory:
                _sync_tree(staged)
            else:
                _sync(staged)
            _publish(staged, target, overwrite, directory)
            _sync(target.parent)
        except CleanpairsError:
            raise
        except OSError as error:
            if error.errno is None:
                raise
            raise OutputError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            with suppress(OSError):
                os.close(lock)


@contextmanager
def staged_file(
    target: str | os.PathLike[str], *, overwrite: bool = False, inputs: Sequence[str | os.PathLike[str]] = ()
) -> Iterator[Path]:
    """A path to write a file to; it becomes ``target`` when the block ends without an exception.

    Parameters
    ----------
    overwrite : bool
        Replace a regular file.
    inputs : sequence of paths
        Never to be written.

    Raises
    ------
    OutputExistsError
        ``target`` exists (without ``overwrite``), is one of the ``inputs``, or no regular file.
    OutputError
        It cannot be written: full disk, permissions.
    """
    with _staging(Path(target), overwrite, False, inputs) as path:
        yield path


@contextmanager
def staged_directory(
    target: str | os.PathLike[str], *, overwrite: bool = False, inputs: Sequence[str | os.PathLike[str]] = ()
) -> Iterator[Path]:
    """An empty directory to fill; it becomes ``target`` when the block ends. As :func:`staged_file` otherwise."""
    with _staging(Path(target), overwrite, True, inputs) as path:
        yield path
