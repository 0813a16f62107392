"""How far it is, on standard error: bars on a terminal, or where they are asked for; else a line now and then."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from cleanpairs.cli.terminal import asked, echo
from cleanpairs.core.limits import memory_is_capped

FIRST, EVERY = 5.0, 30.0  # seconds until something is shown on a terminal, and between lines
VARIABLE = "CLEANPAIRS_PROGRESS"


def flag(name: str, help: str = f"Bars also where standard error is no terminal (or {VARIABLE}=1).") -> click.Option:
    """``--json``, ``--quiet`` or ``--progress``: for :func:`cleanpairs.cli.terminal.asked`, no parameter of a command.

    With the first two there is no line now and then either, from the first moment on.
    """

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[name] = value
        if value and name != "progress":
            Progress(enabled=False)

    return click.Option([f"--{name}"], is_flag=True, callback=note, expose_value=False, help=help)


class Progress:
    """A bar for the images, a bar for the training with loss, pairs/s and time left, a line an epoch.

    ``enabled``: False, or ``--quiet`` or ``--json``: nothing is shown; with ``--progress``, or ``CLEANPAIRS_PROGRESS``,
    it is shown at once, and although standard error is no terminal.
    """

    latest: "Progress | None" = None  # what the lines now and then are about

    def __init__(self, enabled: bool = True) -> None:
        shown = asked("progress") or bool(os.environ.get(VARIABLE))
        self.silent, self.said = not enabled or asked("quiet") or asked("json"), ""
        self.delay, self.enabled = 0.0 if shown else FIRST, not self.silent and (shown or sys.stderr.isatty())
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
