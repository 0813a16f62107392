"""Who is told how far a work is."""

from typing import Any


class Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, and says nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *told, **named: None
