"""The progress of what runs, which no parameter leads to."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class _Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, but prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


_current: ContextVar[Any] = ContextVar("progress")


def current_progress() -> Any:
    """The :class:`cleanpairs.cli.terminal.Progress` of this thread or task. By default nothing is printed."""
    return _current.get(_Silent())


@contextmanager
def reported_to(progress: Any) -> Iterator[None]:
    """Report to ``progress`` within the block, and close its bar at the end."""
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)
        progress.close()
