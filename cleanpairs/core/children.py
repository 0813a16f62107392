"""The one way in which child processes are started. The kernel kills them when the thread that started them ends. The
working directory is not on their path: a stranger's ``json.py`` may lie beside the data.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def start(
    code: str, *args: str, env: Mapping[str, str] | None = None, keep: Sequence[int] = (), **streams: Any
) -> subprocess.Popen[bytes]:
    """A Python process that runs ``code`` with ``sys.argv[1:] == args``.

    It has this process's variables without Python's own (PYTHONPATH and the like), and those of ``env``. It inherits
    the file descriptors ``keep``. From its first moment on it leaves the signals of a terminal to this process.
    For ``**streams`` see :class:`subprocess.Popen`. Raises OSError.
    """
    prologue = (
        "import json, sys\n_path, _parent = json.loads(sys.argv.pop(1))\n"
        "sys.path[:] = [*_path, *(p for p in sys.path if p not in _path)]\n"
        "from cleanpairs.core.children import adopt\nadopt(_parent)\n"
    )
    setup = json.dumps([_import_path(), os.getpid()])
    flags = ["-I", *(["-B"] if sys.dont_write_bytecode else []), *(["-X", "utf8"] if sys.flags.utf8_mode else [])]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGHUP))  # which the child inherits
    try:
        return subprocess.Popen(
            [sys.executable, *flags, "-c", prologue + code, setup, *args],
            env={**os.environ, **(env or {}), "PYTHONSAFEPATH": "1"},
            pass_fds=tuple(keep),
            **streams,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_connected(code: str, **how: Any) -> "tuple[subprocess.Popen[bytes], Connection[Any, Any]]":
    """As :func:`start`, and our end of a pipe. The process gets the other end by :func:`to_parent`."""
    parent, child = Pipe()
    try:
        return start(code, str(child.fileno()), keep=[child.fileno()], stdin=subprocess.DEVNULL, **how), parent
    except OSError:
        parent.close()
        raise
    finally:
        child.close()


def to_parent() -> "Connection[Any, Any]":
    """In a child of :func:`start_connected`: the connection to its parent."""
    return Connection(int(sys.argv[1]))


def adopt(parent: int) -> None:
    """In a child: end when the process ``parent`` does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _import_path() -> list[str]:
    """``sys.path`` without the working directory, and where this package lies, before any other copy of it."""
    package_root = str(Path(__file__).resolve().parents[2])
    try:
        cwd = os.path.realpath(os.getcwd())
    except OSError:  # it has been removed
        cwd = ""
    path = [os.path.abspath(entry) for entry in map(os.fsdecode, sys.path) if entry and (cwd or os.path.isabs(entry))]
    path = [entry for entry in path if os.path.realpath(entry) != cwd]
    at = next((i for i, entry in enumerate(path) if (Path(entry) / "cleanpairs").is_dir()), len(path))
    return [*path[:at], package_root, *path[at:]]
