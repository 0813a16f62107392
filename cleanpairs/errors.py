"""Every error that cleanpairs raises on purpose, and the exit code that the command line gives it.

::

    Exception
    └── CleanpairsError            1  a bug of ours when raised bare
        ├── ConfigError            2  usage or configuration (also a ValueError)
        ├── DataError              3  the input is unreadable or not what it claims (also a ValueError)
        ├── OutputError            4  the output cannot be written: full disk, permissions (also an OSError)
        ├── OutputExistsError      5  the output exists, is locked, or is no regular file or directory
        ├── ResourceError          6  a resource limit was met
        ├── RefusedError           7  the result would not be trustworthy: non-finite, undetermined
        └── NotFittedError         2  used before ``fit`` (also sklearn's NotFittedError)

A message says which thing, of what, what is allowed, what was found, and what to do.
"""

from __future__ import annotations

from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

__all__ = [
    "CleanpairsError",
    "ConfigError",
    "DataError",
    "NotFittedError",
    "OutputError",
    "OutputExistsError",
    "RefusedError",
    "ResourceError",
]


class CleanpairsError(Exception):
    """Base of all errors raised on purpose; ``exit_code`` is the process's exit status."""

    exit_code: int = 1


class ConfigError(CleanpairsError, ValueError):
    """A setting, option or recipe that cannot be used."""

    exit_code = 2


class NotFittedError(CleanpairsError, _SklearnNotFittedError):
    """An estimator was asked for a result before ``fit``."""

    exit_code = 2


class DataError(CleanpairsError, ValueError):
    """Input that cannot be read, or that is not what it claims to be."""

    exit_code = 3


class OutputError(CleanpairsError, OSError):
    """Output that cannot be written."""

    exit_code = 4


class OutputExistsError(CleanpairsError, FileExistsError):
    """Output that exists already, is locked, is the input, or is no regular file or directory."""

    exit_code = 5


class ResourceError(CleanpairsError):
    """A documented limit (memory, pixels, bytes) was met."""

    exit_code = 6


class RefusedError(CleanpairsError):
    """A result that we will not hand out: non-finite, or noise that cannot be told from signal."""

    exit_code = 7
