"""Printing and progress.

Every command prints by :func:`echo`, since names, captions, runs and manifests may hold what a terminal would obey.
Progress is a bar on a terminal, or where ``CLEANPAIRS_PROGRESS=1`` asks for one, else a line every 30 seconds.
"""

import errno
import json
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, cast

import click

from cleanpairs.core import OutputError, jsonable, memory_is_capped, percent


def safe(text: str, keep: str = "") -> str:
    """Return one line in which all that a terminal would obey, cannot write, or would turn around is escaped.

    Characters of ``keep`` stay. Every kind of blank becomes a plain one.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(c: str) -> str:
    return " " if unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()


def echo(
    text: str = "", *, err: bool = False, fg: str | None = None, head: str = "", color: bool | None = None
) -> None:
    """Print lines, made :func:`safe`, to standard output, or with ``err`` to standard error. All output goes this way.

    The lines have the colour ``fg``. Our own words ``head`` stand before them, in red. Colours can be forced or
    forbidden by ``color``, and None leaves that to the command's context.
    """
    styled = click.style(safe(text, keep="\n\t"), fg=fg, reset=fg is not None)
    click.echo(f"{click.style(head, fg='red', bold=True)} {styled}" if head else styled, err=err, color=color)


def has_flag(name: str) -> bool:
    """Whether the command that runs was given this flag of :func:`cleanpairs.cli.terminal.flag`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(name))


def say(text: str = "") -> None:
    """Print a line for people, except with ``--json``."""
    if not has_flag("json"):
        echo(text)


def print_result(value: Any, text: object = None) -> None:
    """Print the result of a command: ``value`` as JSON with ``--json``, else ``text``, by default ``str(value)``.

    The JSON is ASCII, which reads the same in every locale.
    """
    if has_flag("json"):
        echo(json.dumps(jsonable(value), allow_nan=False))
    else:
        echo(str(value if text is None else text))


class _GuardedStream:
    """A standard stream that may end before the work does: what is written after its end is dropped.

    A full disk under standard output is an error, once the work is done.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._terminal = stream.isatty()
        self._failure: OSError | None = None

    def write(self, text: str) -> int:
        with self._watched():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._watched():
            self._stream.flush()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())  # what is buffered is written at the exit of the process
            os.close(null)
            if self._name == "stdout" and error.errno != errno.EPIPE and not self._terminal:
                self._failure = error

    def check(self) -> None:
        """Raise OutputError if something could not be written."""
        if self._failure is not None:
            raise OutputError(f"standard output cannot be written: {self._failure.strerror}") from self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guard_std_streams() -> Iterator[Any]:
    """Let the command continue if standard output or error is closed, or ends. Yields standard output."""
    for number in range(3):  # else the next file that is opened is standard error to every library
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    with open(os.devnull, "w", encoding="utf-8") as null:
        out, err = (cast(Any, _GuardedStream(getattr(sys, name) or null, name)) for name in ("stdout", "stderr"))
        with redirect_stdout(out), redirect_stderr(err):
            yield out


def cut(text: str, end: str, width: int) -> str:
    """Return ``text`` and ``end`` in at most ``width`` columns. Only the text is shortened."""
    from tqdm.utils import disp_len, disp_trim

    room = max(width - disp_len(end), 12)
    if disp_len(text) > room:
        text = disp_trim(text[:room], room - 3) + "..."  # each character takes a column
    return text + end


def flag(name: str, help: str) -> click.Option:
    """Return a flag for :func:`has_flag`, which is no parameter of a command: ``--json``, ``--quiet``."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[name] = value
        if value and name in ("json", "quiet"):
            Progress(enabled=False)  # no periodic line either

    return click.Option([f"--{name}"], is_flag=True, callback=note, expose_value=False, help=help)


class Progress:
    """A bar for the images, a bar for the training with its loss and the time left, a line an epoch.

    ``delay``: seconds until a bar appears, unless the environment variable asks for it.
    """

    latest: "Progress | None" = None  # what the periodic lines are about

    def __init__(self, enabled: bool = True, delay: float = 5.0) -> None:
        forced = os.environ.get("CLEANPAIRS_PROGRESS", "0") not in ("", "0")
        self.silent, self.status = not enabled or has_flag("quiet") or has_flag("json"), ""
        self.delay, self.enabled = 0.0 if forced else delay, not self.silent and (forced or sys.stderr.isatty())
        Progress.latest = self
        self.bar: Any = None
        self.stage = ""
        self.run_path: Any = None

    def started(self, path: Any) -> None:
        """Note that the run directory is made."""
        self.run_path = path
        if self.enabled:
            echo(f"run      {path}", err=True)

    def advance(self, stage: str, unit: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` units of a stage are done."""
        if self.enabled and self.stage != stage:
            from tqdm import tqdm

            self.close()
            self.stage = stage
            look: dict[str, Any] = {"desc": f"{stage:<8}", "unit": f" {unit}", "mininterval": 0.5, "delay": self.delay}
            if stage == "training":  # each pair is in it once an epoch and network: their number tells nobody anything
                look["bar_format"] = "{l_bar}{bar}| {elapsed} so far, {remaining} left{postfix}"
            self.bar = tqdm(total=total, file=sys.stderr, **look)
        self.status = f": {stage}, {percent(done / max(1, total), 0)}"
        if self.bar is not None:
            self.bar.total = total  # methods that split learn only then how many pairs an epoch has
            self.bar.update(done - self.bar.n)

    def step(self, done: int, total: int, loss: float) -> None:
        """Note that ``done`` of ``total`` pairs have been trained on."""
        self.advance("training", "pairs", done, total)
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{loss:.3f}", refresh=False)

    def epoch(self, record: Any) -> None:
        """Print a line about an epoch that has ended."""
        if self.enabled and self.bar is not None:
            val = f", val rSum {record.val_rsum:.1f}" if record.val_rsum is not None else ""
            figures = f"loss {record.loss:.3f}, flagged {percent(record.flagged)}{val}"
            self.bar.write(f"stage {record.stage} epoch {record.epoch}: {figures}", file=sys.stderr)
            if record.note:
                self.bar.write(f"  note: {record.note}", file=sys.stderr)

    def close(self) -> None:
        """End the bar, and the status of the periodic lines."""
        self.status = self.stage = ""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


@contextmanager
def periodic_progress(command: str, first: float = 5.0, every: float = 30.0) -> Iterator[None]:
    """Print how far the command is, where there is no bar, every ``every`` seconds.

    On a terminal the first line comes after ``first`` seconds. There are no lines where memory is capped: see
    :func:`cleanpairs.core.limits.memory_is_capped`.
    """
    if memory_is_capped():
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    Progress.latest = None

    def report() -> None:
        wait = first if sys.stderr.isatty() else every
        while not ended.wait(wait):
            wait, latest = every, Progress.latest
            if latest is None or not (latest.silent or latest.bar):
                echo(f"{command}{latest.status if latest else ''}, {time.monotonic() - began:.0f} s so far", err=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
