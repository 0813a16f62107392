"""Progress that is not printed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar


class Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, but prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class CurrentProgress:
    """The progress of stages that no parameter leads to, of this thread or task. None by default."""

    _advance: ClassVar[ContextVar[Callable[[str, str, int, int], None]]] = ContextVar("advance")

    @classmethod
    def advance(cls, stage: str, unit: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` units of a stage are done."""
        if (advance := cls._advance.get(None)) is not None:
            advance(stage, unit, done, total)

    @classmethod
    @contextmanager
    def reported_to(cls, progress: Any) -> Iterator[None]:
        """Report to ``progress``, a :class:`cleanpairs.cli.terminal.Progress`, and close its bar at the end."""
        token = cls._advance.set(progress.advance)
        try:
            yield
        finally:
            cls._advance.reset(token)
            progress.close()
