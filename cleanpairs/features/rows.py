"""Rows that are computed once, in order, and streamed to a file that a later run maps: killed, it goes on.

A folder of the cache holds ``rows.npy``, written from front to back, and ``state.json``: how many rows are whole, and
which of them failed and why; the rows are synced before it says so. A second run waits for the first.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_json, writing
from cleanpairs.data.atomic import write_whole

SYNC_SECONDS = 5.0
FORMAT = 1
Progress = Callable[[int, int], None]  # done, and all there is to do
Rows = tuple[np.ndarray, dict[int, str]]  # maybe memory-mapped, and row -> why it failed: those are zero
Chunk = tuple[int, np.ndarray, dict[int, str]]  # its first row, and the same


def compute_rows(
    n: int,
    shape: tuple[int, ...],
    dtype: Any,
    chunks: Callable[[int], Iterator[Chunk]],
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Rows:
    """``n`` rows of ``shape``: out of ``folder``, as far as they are there, else computed; in memory if that is None.

    ``chunks(first)`` computes from row ``first`` on, in order; the name of ``folder`` must say all that determines the
    rows; ``progress(done, total)`` is called after each chunk.
    Raises OutputError: the folder cannot be written: full disk, permissions; DataError: what is in it cannot be read.
    """
    if folder is None or n == 0:
        array, failures = np.zeros((n, *shape), dtype), {}
        for start, values, failed in chunks(0) if n else ():
            array[start : start + len(values)] = values
            failures.update(failed)
            if progress is not None:
                progress(start + len(values), n)
        return array, failures
    done, failures = _state(folder, n)
    if done < n:
        with writing(f"the cache {folder} (CLEANPAIRS_CACHE names another)"):
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / "lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one writer at a time; that of a process that dies is free
                done, failures = _state(folder, n)
                # Plain writes, not a writable map: a full disk is then an error and no crash.
                with (folder / "rows.npy").open("r+b" if done else "w+b") as file:
                    about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
                    np.lib.format.write_array_header_1_0(file, {**about, "shape": (n, *shape)})
                    file.seek(file.tell() + done * int(np.prod(shape)) * np.dtype(dtype).itemsize)
                    synced = time.monotonic()
                    for start, values, failed in chunks(done):
                        new = values[done - start :]  # all of them, unless the run before cut chunks elsewhere
                        file.write(np.ascontiguousarray(new, dtype=dtype).tobytes())
                        failures.update(failed)
                        done = start + len(values)
                        if progress is not None:
                            progress(done, n)
                        if time.monotonic() - synced > SYNC_SECONDS or done == n:
                            file.flush()
                            os.fsync(file.fileno())
                            state = {"format": FORMAT, "rows": n, "done": done, "failures": failures}
                            write_whole(folder / "state.json", json.dumps(state))
                            synced = time.monotonic()
    try:
        array = np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"the cache {folder} cannot be read ({error}): delete that folder") from error
    if array.shape != (n, *shape) or array.dtype != dtype:
        raise DataError(f"the cache {folder} holds {array.dtype} {array.shape}, not {(n, *shape)}: delete that folder")
    return array, failures


def _state(folder: Path, n: int) -> tuple[int, dict[int, str]]:
    """How many rows are whole, and which of them failed; nothing is, where the state is missing or damaged."""
    try:
        state = read_json(folder / "state.json")
        done = int(state["done"])
        failures = {int(row): str(reason) for row, reason in state["failures"].items()}
        if state["format"] != FORMAT or state["rows"] != n or not 0 <= done <= n or not (folder / "rows.npy").exists():
            return 0, {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, {}
    return done, failures


def digest(*parts: bytes | str) -> str:
    """The first 24 hexadecimal digits of SHA-256 over some parts, each with its length."""
    out = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        out.update(len(data).to_bytes(8, "little") + data)
    return out.hexdigest()[:24]
