"""The progress of what runs, which no parameter leads to."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar


class _Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, but prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class CurrentProgress:
    """The :class:`cleanpairs.cli.terminal.Progress` of this thread or task. By default nothing is printed."""

    _current: ClassVar[ContextVar[Any]] = ContextVar("progress")

    @classmethod
    def get(cls) -> Any:
        """Return it."""
        return cls._current.get(_Silent())

    @classmethod
    def advance(cls, stage: str, unit: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` units of a stage are done."""
        cls.get().advance(stage, unit, done, total)

    @classmethod
    @contextmanager
    def reported_to(cls, progress: Any) -> Iterator[None]:
        """Report to ``progress``, and close its bar at the end."""
        token = cls._current.set(progress)
        try:
            yield
        finally:
            cls._current.reset(token)
            progress.close()
