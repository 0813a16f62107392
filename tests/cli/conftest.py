"""The command line, called in this process."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cleanpairs.cli import main


class Done(NamedTuple):
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Calls ``cleanpairs`` in this process, in the working directory; no traceback."""

    def call(*argv: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["cleanpairs", *map(str, argv)])
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return Done(code, out, err)

    return call


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Command:
    """``in_process``, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return in_process
