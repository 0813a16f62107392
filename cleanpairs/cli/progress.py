"""How far it is: bars and a line an epoch, on standard error; on a terminal, or where they are asked for."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from cleanpairs.cli.terminal import echo

__all__ = ["Progress", "progress_option"]

VARIABLE = "CLEANPAIRS_PROGRESS"
progress_option = click.option(
    "--progress", is_flag=True, help=f"Progress also where standard error is no terminal (or {VARIABLE}=1)."
)


class Progress:
    """A bar for the images, a bar for the training with loss, pairs/s and time left, a line an epoch.

    Parameters
    ----------
    enabled : bool
        False: nothing is shown.
    asked : bool
        Show it although standard error is no terminal, where it is nothing but lines in somebody's log.
    """

    def __init__(self, enabled: bool = True, asked: bool = False) -> None:
        self.enabled = enabled and (asked or bool(os.environ.get(VARIABLE)) or sys.stderr.isatty())
        self.bar: Any = None
        self.stage = ""
        self.run_path: Any = None

    def started(self, path: Any) -> None:
        """The run directory is made."""
        self.run_path = path
        if self.enabled:
            echo(f"run      {path}", err=True)

    def _advance(self, stage: str, unit: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if self.stage != stage:
            self.close()
            self.stage = stage
            self.bar = tqdm(total=total, desc=f"{stage:<8}", unit=f" {unit}", file=sys.stderr, mininterval=0.5)
        self.bar.total = total  # methods that split learn only then how many pairs an epoch has
        self.bar.update(done - self.bar.n)

    def encode(self, done: int, total: int) -> None:
        """Images have become features."""
        if self.enabled:
            self._advance("images", "images", done, total)

    def encode_texts(self, done: int, total: int) -> None:
        """Captions have become vectors."""
        if self.enabled:
            self._advance("captions", "captions", done, total)

    def step(self, done: int, total: int, loss: float) -> None:
        """Pairs have been trained on."""
        if self.enabled:
            self._advance("training", "pairs", done, total)
            self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

    def epoch(self, record: Any) -> None:
        """An epoch has ended."""
        if self.enabled and self.bar is not None:
            val = f", val rSum {record.val_rsum:.1f}" if record.val_rsum is not None else ""
            line = (
                f"stage {record.stage} epoch {record.epoch}: loss {record.loss:.3f}, flagged {record.flagged:.1%}{val}"
            )
            self.bar.write(line, file=sys.stderr)
            if record.note:
                self.bar.write(f"  note: {record.note}", file=sys.stderr)

    def close(self) -> None:
        """End the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
            self.stage = ""
