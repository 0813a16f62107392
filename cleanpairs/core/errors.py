"""Every error that cleanpairs raises on purpose: what it is, and the exit code that the command line gives it.

On the command line its kind stands before the message, ``Error [data]: ...``. Docs/errors.md has a section on each.
``NotFittedError`` is made at its first import: scikit-learn takes a second to import.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cleanpairs.core.plain import without_secrets


class CleanpairsError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is the process's exit status, ``kind`` a word for it."""

    exit_code: int = 1
    kind: str = "bug"

    def __init_subclass__(cls, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(cls, name, value)

    def __str__(self) -> str:
        """The message, whose URLs are shown by :func:`without_secrets`."""
        return re.sub(r"\b\w+://[^\s'\"]*[^\s'\",:;.)]", lambda url: without_secrets(url[0]), super().__str__())


class ConfigError(CleanpairsError, ValueError, exit_code=2, kind="config"):
    """A setting, option or recipe that cannot be used."""


class DataError(CleanpairsError, ValueError, exit_code=3, kind="data"):
    """Input that cannot be read, or that is not what it claims to be."""


class MissingInputError(DataError):
    """Input that does not exist."""


class OutputError(CleanpairsError, OSError, exit_code=4, kind="output"):
    """Output that cannot be written."""


class OutputExistsError(CleanpairsError, FileExistsError, exit_code=5, kind="exists"):
    """Output that exists already, is locked, is the input, or is no regular file or directory."""


class ResourceError(CleanpairsError, exit_code=6, kind="limit"):
    """A documented limit (memory, pixels, bytes) was met."""


class RefusedError(CleanpairsError, exit_code=7, kind="refused"):
    """A result that is not returned: non-finite, or noise that cannot be distinguished from signal."""


@contextmanager
def needing(what: str, install: str) -> Iterator[None]:
    """Raise ConfigError, with the command to ``install``, where a package that the block imports is missing or fails.
    It names torchvision where that does not fit torch.
    """
    try:
        yield
    except (ImportError, RuntimeError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, RuntimeError) and "torchvision" in str(cause):
            raise ConfigError(f"{what} needs a torchvision that fits torch: {cause}; install both together") from error
        raise ConfigError(f"{what} needs {getattr(error, 'name', None) or error}, run: {install}") from error


def __getattr__(name: str) -> Any:
    if name != "NotFittedError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn.exceptions import NotFittedError as SklearnNotFittedError

    class NotFittedError(CleanpairsError, SklearnNotFittedError, exit_code=2, kind="unfitted"):
        """A result of an estimator before ``fit``."""

        __qualname__ = name

    return globals().setdefault(name, NotFittedError)
