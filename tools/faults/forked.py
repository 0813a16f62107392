"""Commands in forked children of a warm process: importing torch for each of some thousand tries would take a day."""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "begin_command", "in_child", "in_children", "run_command", "warm"]

_PR_SET_PTRACER = 0x59616D61  # any process of ours may trace the child, also where that is restricted to parents
_ANY = ctypes.c_ulong(-1)
LIMIT = 120  # seconds for one command
WRITING = (
    "write,pwrite64,writev,ftruncate,copy_file_range,sendfile,fsync,fdatasync,rename,renameat,renameat2,link,linkat"
)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (minus the signal that ended it), what it printed, the traced calls.

    ``hung``: it was killed after ``LIMIT`` seconds; ``peak``: bytes that it held at once, this process's own included;
    ``seconds``: of CPU.
    """

    code: int
    out: str
    err: str
    trace: str
    hung: bool = False
    peak: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether what it said is fit for a user: no traceback."""
        return "Traceback (most recent call last)" not in self.err


def warm() -> None:
    """Import everything that commands import, without starting a thread that a fork would lose."""
    import cleanpairs

    for module in pkgutil.walk_packages(cleanpairs.__path__, "cleanpairs."):
        if not module.name.endswith(("__main__",)):
            importlib.import_module(module.name)
    for name in ("datasets", "faiss", "matplotlib.pyplot", "ot", "scipy.optimize", "scipy.sparse",
                 "sklearn.mixture", "sklearn.isotonic", "sklearn.linear_model", "torch", "PIL.PngImagePlugin",
                 "PIL.JpegImagePlugin", "PIL.ImageOps", "safetensors.torch", "safetensors.numpy", "torch.optim",
                 "jinja2", "encodings.unicode_escape"):  # fmt: skip
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    import torch

    layer = torch.nn.Linear(2, 2)
    torch.optim.AdamW(layer.parameters())  # the first one imports torch._dynamo, which makes a folder in TMPDIR
    layer(torch.zeros(1, 2)).sum().backward()  # the first backward pass imports more
    gc.freeze()  # else a child's search for garbage copies all that is shared


def run_command(
    argv: Sequence[str],
    cwd: Path,
    *,
    inject: Sequence[str] | None = None,
    memory: int | None = None,
    become: Callable[[], None] | None = None,
    limit: float = LIMIT,
) -> Outcome:
    """``cleanpairs ARGV`` in ``cwd``.

    Parameters
    ----------
    inject : sequence of str, optional
        Expressions of ``strace -e inject=``; an empty sequence traces only. None: without strace.
    memory : int, optional
        Bytes of address space at most.
    become : callable, optional
        Called in the child just before the command.
    limit : float
        Seconds after which it is killed.
    """
    trace = _said(cwd, "trace")
    trace.unlink(missing_ok=True)
    go_read, go_write = os.pipe()
    child = _fork(argv, cwd, go_read, go_write, memory, become if inject is None else partial(_in_one_process, become))
    tracer = None
    if inject is not None:
        # -D is not used: strace is our child, and ends with the last of the traced processes.
        command = ["strace", "-f", "-y", "-s", "0", "-e", "signal=none", "-o", str(trace), "-e", f"trace={WRITING}"]
        for expression in inject:
            command += ["-e", f"inject={expression}"]
        tracer = subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        message = tracer.stderr.readline()
        if "attached" not in message:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError(f"strace cannot attach: {message.strip()}")
    os.write(go_write, b"x")
    os.close(go_write)
    status, hung, used = _wait(child, limit)
    if tracer is not None:
        tracer.wait()
        assert tracer.stderr is not None
        tracer.stderr.close()
    said_trace = trace.read_text(errors="replace") if trace.exists() else ""
    code = os.waitstatus_to_exitcode(status)
    out, err = (_said(cwd, name).read_text(errors="replace") for name in ("out", "err"))
    return Outcome(code, out, err, said_trace, hung, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)


def _in_one_process(become: Callable[[], None] | None) -> None:
    """Decode images here: a fault is one of the command's own calls, none of a process that decodes."""
    os.environ["CLEANPAIRS_DECODE_WORKERS"] = "0"
    if become is not None:
        become()


def begin_command(argv: Sequence[str], cwd: Path) -> int:
    """``cleanpairs ARGV`` in ``cwd``: the number of its process, for the caller to end and to wait for."""
    go_read, go_write = os.pipe()
    child = _fork(argv, cwd, go_read, go_write)
    os.write(go_write, b"x")
    os.close(go_write)
    return child


def _said(cwd: Path, name: str) -> Path:
    scratch = cwd.parent / f".{cwd.name}-said"
    scratch.mkdir(exist_ok=True)
    return scratch / name


def _fork(
    argv: Sequence[str],
    cwd: Path,
    go_read: int,
    go_write: int,
    memory: int | None = None,
    become: Callable[[], None] | None = None,
) -> int:
    out, err = _said(cwd, "out"), _said(cwd, "err")
    child = os.fork()
    if child == 0:
        os.close(go_write)
        _become(argv, cwd, out, err, go_read, memory, become)
    os.close(go_read)
    return child


def _wait(child: int, limit: float) -> tuple[int, bool, resource.struct_rusage]:
    until = time.monotonic() + limit * max(1.0, os.getloadavg()[0])  # a busy machine is no hang
    while True:
        hung = time.monotonic() > until
        if hung:
            os.kill(child, signal.SIGKILL)
        pid, status, used = os.wait4(child, 0 if hung else os.WNOHANG)
        if pid:
            return status, hung, used
        time.sleep(0.005)


def _become(
    argv: Sequence[str], cwd: Path, out: Path, err: Path, go: int, memory: int | None, become: Callable[[], None] | None
) -> None:
    """The child: waits for the tracer, runs the command, and ends without what the parent would do at its exit."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        os.chdir(cwd)
        (cwd / ".tmp").mkdir(exist_ok=True)
        os.environ |= {"TMPDIR": str(cwd / ".tmp"), "CLEANPAIRS_CACHE": str(cwd / ".cache")}
        tempfile.tempdir = None
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        os.read(go, 1)
        if become is not None:
            become()
        sys.argv = ["cleanpairs", *argv]
        from cleanpairs.cli import main

        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt as error:  # outside of main's own handling: what Python makes of it is the same code
        code = 128 + getattr(error, "number", signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code & 0xFF)


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a forked child, its result by JSON; the parent stays without threads and files.

    Raises
    ------
    RuntimeError
        The child has failed; the message is its traceback.
    """
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        child = _answer(Path(folder) / "answer", function, *args)
        os.waitpid(child, 0)
        return _answered(Path(folder) / "answer")


def in_children(jobs: dict[str, Callable[[], Any]], at_once: int, folder: Path) -> Iterator[tuple[str, Any, float]]:
    """Each job in a forked child, ``at_once`` of them: as they end, their names, results and seconds.

    Raises
    ------
    RuntimeError
        A job has failed; the message is its traceback.
    """
    waiting, running = list(jobs), dict[int, tuple[str, Path, float]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            file = folder / f"answer-{len(waiting)}"
            running[_answer(file, jobs[name])] = name, file, time.monotonic()
        name, file, began = running.pop(os.wait()[0])
        yield name, _answered(file), time.monotonic() - began


def _answer(file: Path, function: Callable[..., Any], *args: Any) -> int:
    """``function(*args)`` in a child, which this starts and returns the number of; its result in ``file``."""
    child = os.fork()
    if child == 0:
        try:
            result = json.dumps({"result": function(*args)})
        except BaseException:
            result = json.dumps({"error": traceback.format_exc()})
        file.write_text(result)
        os._exit(0)
    return child


def _answered(file: Path) -> Any:
    answer = json.loads(file.read_text()) if file.exists() else {"error": "it was killed"}
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["result"]
