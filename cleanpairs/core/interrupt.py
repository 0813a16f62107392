"""SIGINT, SIGTERM and SIGHUP as a flag that a loop looks at: it stops between two steps, with its state saved."""

import signal
import threading
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP was received, by its ``number`` (KeyboardInterrupt itself stands for SIGINT)."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


class Interrupts:
    """While entered, a first SIGINT, SIGTERM or SIGHUP only sets ``received``. A second SIGINT interrupts at once.
    Nothing happens outside of the main thread, or with ``enabled=False``.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled and threading.current_thread() is threading.main_thread()
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if self.enabled:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def raise_received(self) -> None:
        """KeyboardInterrupt for SIGINT, :class:`Terminated` for the others."""
        raise KeyboardInterrupt() if self.received in (None, signal.SIGINT) else Terminated(self.received)
