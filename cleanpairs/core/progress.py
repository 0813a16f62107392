"""Who is told how far a fit is."""

from pathlib import Path
from typing import Any


class FitProgress:
    """Who is told how far it is; this one says nothing."""

    def started(self, path: Path) -> None:
        """The run directory is made."""

    def advance(self, stage: str, unit: str, done: int, total: int) -> None:
        """So many units of a stage are done."""

    def step(self, done: int, total: int, loss: float) -> None:
        """Pairs have been trained on."""

    def epoch(self, record: Any) -> None:
        """An epoch has ended."""

    def close(self) -> None:
        """The fit has ended."""
