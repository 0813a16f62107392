"""Every error that cleanpairs raises on purpose: what it is, and the exit code that the command line gives it.

A message says which thing, of what, what is allowed, what was found, and what to do. On the command line its kind
stands before it, ``Error [data]: ...``. docs/errors.md has a section on each kind, and the table of exit codes.

``NotFittedError`` is made when it is first asked for: scikit-learn takes a second to import, and ``--help`` and the
completion of a shell are to take less than that.
"""

from typing import Any


class CleanpairsError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is the process's exit status, ``kind`` a word for it."""

    exit_code: int = 1
    kind: str = "bug"


class ConfigError(CleanpairsError, ValueError):
    """A setting, option or recipe that cannot be used."""

    exit_code = 2
    kind = "config"


class DataError(CleanpairsError, ValueError):
    """Input that cannot be read, or that is not what it claims to be."""

    exit_code = 3
    kind = "data"


class OutputError(CleanpairsError, OSError):
    """Output that cannot be written."""

    exit_code = 4
    kind = "output"


class OutputExistsError(CleanpairsError, FileExistsError):
    """Output that exists already, is locked, is the input, or is no regular file or directory."""

    exit_code = 5
    kind = "exists"


class ResourceError(CleanpairsError):
    """A documented limit (memory, pixels, bytes) was met."""

    exit_code = 6
    kind = "limit"


class RefusedError(CleanpairsError):
    """A result that we will not hand out: non-finite, or noise that cannot be told from signal."""

    exit_code = 7
    kind = "refused"


def __getattr__(name: str) -> Any:
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError as SklearnNotFittedError

    class NotFittedError(CleanpairsError, SklearnNotFittedError):
        """An estimator was asked for a result before ``fit``."""

        __qualname__, exit_code, kind = name, 2, "unfitted"

    return globals().setdefault(name, NotFittedError)
