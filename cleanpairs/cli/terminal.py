"""What is printed: nothing that a terminal would obey, no more than there is room for, and no end where nobody reads.

Every command prints by :func:`echo`: names of columns and files, captions, and what a run or a manifest says are
others' text, and may hold anything. For programs, with ``--json``, it prints one JSON value on one line, and nothing
beside it.
"""

import errno
import json
import os
import sys
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import click

from cleanpairs.core.errors import OutputError
from cleanpairs.core.plain import plain


def plural(count: int, noun: str) -> str:
    """``1 change``, ``2 changes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def safe(text: str, keep: str = "") -> str:
    """One line without anything that a terminal would obey, cannot write, or would turn around; blanks as blanks.

    Control characters, halves of surrogate pairs and marks of direction become escapes, those in ``keep`` excepted.
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
    """Print lines, made :func:`safe`; the one way to the terminal. ``err``: to standard error; ``fg``: colour of the
    text; ``head``: our own words before it, red; ``color``: whether to colour; by the context of the command when None.
    """
    shown = safe(text, keep="\n\t")
    if fg is not None:
        shown = click.style(shown, fg=fg)
    if head:
        shown = f"{click.style(head, fg='red', bold=True)} {shown}"
    click.echo(shown, err=err, color=color)


def asked(name: str) -> bool:
    """Whether the command that runs was given this flag of :func:`cleanpairs.cli.progress.flag`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(name))


def say(text: str = "") -> None:
    """A line for people: nothing with ``--json``."""
    if not asked("json"):
        echo(text)


def print_result(value: Any, text: object = None) -> None:
    """What a command has found: ``value`` with ``--json``, in ASCII, as it reads the same in every locale; else
    ``text``, which is that of ``value`` when None.
    """
    if asked("json"):
        echo(json.dumps(plain(value), allow_nan=False))
    else:
        echo(str(value if text is None else text))


class _Steady:
    """A standard stream that may end before the work does: what is written after its end goes nowhere. Only of standard
    output, and only a full disk, is it an error, once the work is done.
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
        """OutputError where something that was written is lost."""
        if self._failure is not None:
            raise OutputError(f"standard output cannot be written: {self._failure.strerror}") from self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def steady_streams() -> Iterator[Any]:
    """Standard output and error that may be closed, or end, without an end of the command; given is the output."""
    for number in range(3):  # else the next file that is opened is standard error to every library
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        stream = open(os.devnull, "w", encoding="utf-8") if stream is None else stream  # noqa: SIM115 - until the exit
        setattr(sys, name, _Steady(stream, name))
    written: Any = sys.stdout
    try:
        yield written
    finally:
        sys.stdout, sys.stderr = before


def columns(char: str) -> int:
    """Columns that a terminal gives a character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, end: str, width: int) -> str:
    """``text`` and ``end`` in at most ``width`` columns: of the text as much as there is room for, of the end all."""
    room = max(width - sum(map(columns, end)), 12)
    taken = list(accumulate(map(columns, text), initial=0))  # by the first 0, 1, ... characters
    if taken[-1] <= room:
        return text + end
    return text[: bisect_right(taken, room - 3) - 1] + "..." + end
