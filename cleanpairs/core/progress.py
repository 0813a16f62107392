"""Progress that is not printed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, but prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class CurrentProgress:
    """The progress of stages that no parameter leads to: ``advance(stage, unit, done, total)``. None by default."""

    advance: Callable[[str, str, int, int], None] = staticmethod(lambda *numbers: None)

    @classmethod
    @contextmanager
    def reported_to(cls, progress: Any) -> Iterator[None]:
        """Report to ``progress``, a :class:`cleanpairs.cli.terminal.Progress`, and close its bar at the end."""
        before, cls.advance = cls.advance, progress.advance
        try:
            yield
        finally:
            cls.advance = before
            progress.close()
