"""The limits that a user may move, by environment variables, which are read where they act (docs/limits.md)."""

import errno
import math
import os
import re
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from cleanpairs.core.errors import ConfigError, ResourceError


@dataclass(frozen=True)
class Limit:
    """One limit: ``kind`` is "count", "bytes", "seconds" or "share". ``default`` None means none, or automatic."""

    variable: str
    kind: str
    default: float | None
    what: str


LIMITS: dict[str, Limit] = {
    "pixels": Limit("CLEANPAIRS_MAX_PIXELS", "count", 64_000_000, "pixels of an image"),
    "image_bytes": Limit("CLEANPAIRS_MAX_IMAGE_BYTES", "bytes", 64 * 2**20, "bytes of an image file"),
    "caption_bytes": Limit("CLEANPAIRS_MAX_CAPTION_BYTES", "bytes", 65_536, "bytes of a caption"),
    "bad_share": Limit("CLEANPAIRS_MAX_BAD_SHARE", "share", 0.2, "share of quarantined pairs"),
    "memory": Limit("CLEANPAIRS_MEMORY", "bytes", None, "memory of a command"),
    "decode_seconds": Limit("CLEANPAIRS_DECODE_SECONDS", "seconds", 20.0, "seconds for decoding an image"),
    "decode_memory": Limit("CLEANPAIRS_DECODE_MEMORY", "bytes", 2 * 2**30, "memory of a decoding process"),
    "decode_workers": Limit("CLEANPAIRS_DECODE_WORKERS", "count", None, "decoding processes"),
}


def limit(name: str) -> Any:
    """The limit called ``name``, int of counts and bytes. Raises ConfigError: its variable holds no such number."""
    entry = LIMITS[name]
    text = os.environ.get(entry.variable, "").strip()
    if not text or entry.kind == "bytes":
        return parse_bytes(text, entry.variable) if text else entry.default
    words, allows = {
        "count": ("a whole number, at least 0", lambda value: 0 <= value < 2**63 and value.is_integer()),
        "seconds": ("a number of seconds above 0", lambda value: 0 < value < math.inf),
        "share": ("a share from 0 to 1", lambda value: 0 <= value <= 1),
    }[entry.kind]
    with suppress(ValueError):
        if allows(value := float(text)):
            return int(value) if entry.kind == "count" else value
    raise ConfigError(f"{entry.variable} ({entry.what}) must be {words}, found {text!r}")


def decoding_limits() -> str:
    """The limits beyond which an image counts as undecodable, as far as they are moved, as one text."""
    names = ("pixels", "image_bytes", "decode_seconds", "decode_memory")
    moved = [f"{name}={limit(name)}" for name in names if limit(name) != LIMITS[name].default]
    return " ".join(moved + ["alone"] * (limit("decode_workers") == 0))  # without those of time and memory


def parse_bytes(text: str, name: str = "a number of bytes") -> int:
    """Bytes of ``4GB``, ``512MiB``, ``1.5g`` or a plain number. MB is a million, MiB 2^20. ConfigError for others."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", text.strip().lower())
    value = float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2] or " ") if match else 0
    if not 1 <= value < 2**63:
        raise ConfigError(f"{name} must be bytes above 0 and below 2^63, like 4GB, 512MiB or 1000000, found {text!r}")
    return int(value)


def cap_memory(size: str | None = None) -> None:
    """Let this process, and each that it starts, take no more private memory than ``size``, like ``8GB``, or than
    CLEANPAIRS_MEMORY when None: beyond it there is a MemoryError. Raises ConfigError: no size, or one below 1 GiB.
    """
    variable = LIMITS["memory"].variable
    if size is not None:
        parse_bytes(size, "--memory-cap")
        os.environ[variable] = size
    if (value := limit("memory")) is not None:
        if value < 2**30:  # torch itself would not start
            raise ConfigError(f"{variable} (--memory-cap) must be at least 1GiB, found {value} bytes")
        lower_memory_limit(value)


def memory_is_capped() -> bool:
    """Whether this process has a limit of memory. Then we start no thread: Python waits for ever for one that
    finds no memory for its start.
    """
    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)


def limited(threads: int) -> int:
    """The number of ``threads``, or ``OMP_NUM_THREADS`` where that is lower."""
    most = os.environ.get("OMP_NUM_THREADS", "")
    return min(threads, int(most)) if most.isdecimal() and int(most) else threads


@contextmanager
def one_thread() -> Iterator[None]:
    """Multiply each matrix by one thread within the block. Threads of OpenBLAS that share a product wait for each
    other, and for the next one, in a loop.
    """
    import scipy.linalg  # noqa: F401 - it brings an OpenBLAS
    from threadpoolctl import ThreadpoolController

    blas = ThreadpoolController().select(user_api="blas")
    # Another thread may have set it to one, and will restore what was.
    with nullcontext() if all(each["num_threads"] == 1 for each in blas.info()) else blas.limit(limits=1):
        yield


def in_threads(work: Callable[[slice], None], parts: Iterable[slice]) -> None:
    """Do the work on each part, by one thread a processor, each of which multiplies its matrices alone."""
    threads = 1 if memory_is_capped() else limited(len(os.sched_getaffinity(0)))
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, parts))


def read_ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The same items. While one is used, another thread makes the next."""
    if memory_is_capped():
        yield from items
        return
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def check_threads() -> None:
    """Raise ResourceError where fewer threads can be started than OpenBLAS, OpenMP, Arrow and this process need.

    Notes
    -----
    Without a thread OpenBLAS sends SIGINT to its own process, and OpenMP leaves with 1.
    """
    setting, done = os.environ.get("OMP_NUM_THREADS", ""), threading.Event()
    threads_of_a_library = int(setting) if setting.isdecimal() else len(os.sched_getaffinity(0))
    threads = [threading.Thread(target=done.wait) for _ in range(4 + 3 * threads_of_a_library)]
    try:
        if not memory_is_capped():
            for thread in threads:
                thread.start()
    except RuntimeError as error:
        raise ResourceError(thread_remedy(error)) from error
    finally:
        done.set()


def thread_remedy(error: BaseException) -> str:
    """The remedy for an error of the system, of Python or Arrow that no thread or process can be started, else ""."""
    message = str(error)
    if "can't start new thread" not in message and os.strerror(errno.EAGAIN) not in message:
        return ""
    return f"no thread or process can be started ({message}): raise ulimit -u, or set OMP_NUM_THREADS=1"


def lower_memory_limit(most: int) -> None:
    """Lower RLIMIT_DATA of this process to ``most`` bytes. It is never raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lowest = min([most, *(size for size in (soft, hard) if size != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))
