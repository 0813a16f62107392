"""How far it is, on standard error: bars on a terminal, or where they are asked for; else a line now and then."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from cleanpairs.cli.terminal import echo
from cleanpairs.core.limits import memory_is_capped
from cleanpairs.core.progress import FitProgress

FIRST, EVERY = 5.0, 30.0  # seconds until something is shown on a terminal, and between lines
VARIABLE = "CLEANPAIRS_PROGRESS"
progress_option = click.option(
    "--progress", is_flag=True, help=f"Bars also where standard error is no terminal (or {VARIABLE}=1)."
)


def silence(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Callback of a flag that allows no line now and then either, from the first moment on."""
    if value:
        Progress(enabled=False)
    return value


def quiet_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--quiet``."""
    return click.option("--quiet", is_flag=True, callback=silence, help=help)


class Progress(FitProgress):
    """A bar for the images, a bar for the training with loss, pairs/s and time left, a line an epoch.

    ``enabled``: False: nothing is shown; ``asked``: show it at once, and although standard error is no terminal.
    """

    latest: "Progress | None" = None  # what the lines now and then are about

    def __init__(self, enabled: bool = True, asked: bool = False) -> None:
        asked = asked or bool(os.environ.get(VARIABLE))
        self.silent, self.delay, self.said = not enabled, 0.0 if asked else FIRST, ""
        self.enabled = enabled and (asked or sys.stderr.isatty())
        Progress.latest = self
        self.bar: Any = None
        self.stage = ""
        self.run_path: Any = None

    def started(self, path: Any) -> None:
        """The run directory is made."""
        self.run_path = path
        if self.enabled:
            echo(f"run      {path}", err=True)

    def advance(self, stage: str, unit: str, done: int, total: int) -> None:
        """So much of a stage is done."""
        self.said = f": {stage}, {done:,} of {total:,} {unit}"
        if not self.enabled:
            return
        from tqdm import tqdm

        if self.stage != stage:
            self._end_bar()
            self.stage = stage
            look = {"desc": f"{stage:<8}", "unit": f" {unit}", "mininterval": 0.5, "delay": self.delay}
            self.bar = tqdm(total=total, file=sys.stderr, **look)
        self.bar.total = total  # methods that split learn only then how many pairs an epoch has
        self.bar.update(done - self.bar.n)

    def step(self, done: int, total: int, loss: float) -> None:
        """Pairs have been trained on."""
        self.advance("training", "pairs", done, total)
        if self.bar is not None:
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
        """End the bar, and what the lines say."""
        self.said = ""
        self._end_bar()

    def _end_bar(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
            self.stage = ""


@contextmanager
def lines_now_and_then(command: str) -> Iterator[None]:
    """Every half a minute a line about how far the command is, where there is no bar; on a terminal one after 5 s.

    None where memory is capped: see :func:`cleanpairs.core.limits.memory_is_capped`.
    """
    if memory_is_capped():
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    Progress.latest = None

    def tell() -> None:
        wait = FIRST if sys.stderr.isatty() else EVERY
        while not ended.wait(wait):
            wait, shown = EVERY, Progress.latest
            if shown is None or not (shown.silent or shown.bar):
                echo(f"{command}{shown.said if shown else ''}, {time.monotonic() - began:.0f} s so far", err=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
