"""Progress that is not printed."""

from typing import Any


class Silent:
    """As :class:`cleanpairs.cli.terminal.Progress`, but prints nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None
