"""Input files are opened here: regular files only, as a FIFO or a device would be read for ever.

What takes a path of its own, such as safetensors or numpy, is called after :func:`check_regular`.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, wraps
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from cleanpairs.core.errors import CleanpairsError, DataError, OutputError, ResourceError
from cleanpairs.core.limits import thread_remedy

AnyPath = str | os.PathLike[str]
F = TypeVar("F", bound=Callable[..., Any])


class _NotRegularError(DataError, OSError):
    """A file that is not regular. Callers handle it as any file that cannot be read."""


def error_text(error: BaseException) -> str:
    """The message of an error, on one line. Of an error of the system without number and path."""
    if isinstance(error, IndexError) and isinstance(error.__context__, TimeoutError):
        error = error.__context__  # s3fs looks for a number in it, and there is none
    text = getattr(error, "strerror", None) or " ".join(str(error).split())[:300]
    return text or (type(error).__name__ if error.__cause__ is None else error_text(error.__cause__))


@contextmanager
def reading(
    path: object, how: str = "read", *also: type[Exception], kind: type[CleanpairsError] = DataError
) -> Iterator[None]:
    """Raise errors of the system in the block, and those of the types ``also``, as ``kind``, which names the file.
    CleanpairsError and MemoryError pass.
    """
    try:
        yield
    except (CleanpairsError, MemoryError):
        raise
    except (OSError, *also) as error:  # type: ignore[misc]
        if message := thread_remedy(error):
            raise ResourceError(f"{path} cannot be {how}: {message}") from error
        remedy = "; it is a pointer of Git LFS: run git lfs pull" if _is_pointer(path) else ""
        closed = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.ENOENT, errno.EPERM, errno.EROFS)
        if kind is OutputError and closed:
            remedy = "; allow that, or use a folder that you may write to"
        raise kind(f"{path} cannot be {how}: {error_text(error)}{remedy}") from error


def _is_pointer(path: object) -> bool:
    with suppress(OSError, ValueError):
        return os.path.isfile(str(path)) and begins_with(str(path), b"version https://git-lfs")
    return False


def writing(path: object) -> AbstractContextManager[None]:
    """Raise errors of the system in the block as :class:`OutputError`, which names what cannot be written."""
    return reading(path, "written", kind=OutputError)


def check_regular(path: AnyPath, mode: int | None = None) -> None:
    """Raise OSError where ``path`` is missing, or a directory. DataError (also an OSError) where it is not regular."""
    mode = os.stat(path).st_mode if mode is None else mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        kind = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")
        raise _NotRegularError(f"{os.fspath(path)} is {kind}, not a regular file: copy what it gives into one")


def open_regular(path: AnyPath) -> BufferedReader:
    """Open the file ``path`` to read bytes, and check it again once it is open. Raises as :func:`check_regular`."""
    check_regular(path)  # opening a device may do something, and a FIFO would wait
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    try:
        check_regular(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: AnyPath) -> bytes:
    """The bytes of a file. Raises as :func:`check_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: AnyPath) -> str:
    """The text of a file, in UTF-8. Raises as :func:`check_regular`, and UnicodeDecodeError."""
    return read_bytes(path).decode()


def begins_with(path: AnyPath, mark: bytes) -> bool:
    """Whether a file begins with ``mark``, behind a byte order mark and blanks."""
    with open_regular(path) as file:
        return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(mark)


def read_json(path: AnyPath) -> Any:
    """The value of a JSON file. Raises as :func:`check_regular`. ValueError: it is no JSON, or nested too deeply."""
    try:
        return json.loads(read_bytes(path))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The object that a JSON file holds. DataError, which says ``what`` its directory is not, where it does not."""
    with reading(path, "read as JSON", ValueError):
        if not path.exists():
            raise DataError(f"{path.parent} is no {what}: {path.name} is missing")
        data = read_json(path)
    if not isinstance(data, dict):
        raise DataError(f"{path} does not hold a JSON object")
    return data


def read_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines, none where it is missing. DataError names the line that cannot be read."""
    with reading(path):
        lines = read_bytes(path).splitlines() if path.exists() else []
    values = []
    for number, line in enumerate(lines, start=1):
        with reading(f"{path}, line {number},", "read as JSON", ValueError, RecursionError):
            values.append(json.loads(line))
    return values


def cached_by_file(most: int) -> Callable[[F], F]:
    """A decorator that keeps the last ``most`` results of a function of a file and hashable arguments. The function
    runs again only if the file's size or time of change is another. Raises DataError: the file cannot be looked at.
    """

    def decorated(function: F) -> F:
        @lru_cache(maxsize=most)
        def cached(path: str, size: int, modified: int, *args: Any, **kwargs: Any) -> Any:
            return function(path, *args, **kwargs)

        @wraps(function)
        def checked(path: str, *args: Any, **kwargs: Any) -> Any:
            with reading(path):
                status = os.stat(path)
            return cached(path, status.st_size, status.st_mtime_ns, *args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorated


def sha256_of(path: AnyPath) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits. Raises as :func:`check_regular`."""
    import hashlib

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
