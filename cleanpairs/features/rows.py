"""Rows that are computed once, in order, and streamed to a file that a later run maps. A killed run resumes.

A folder of the cache holds ``rows.npy``, written from front to back, and ``state``: how many rows are whole, their
checksums, and which of them failed and why. The rows are synced before ``state`` counts them. From the first damaged
row on they are computed again. A second run waits for the first.
"""

import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from cleanpairs.core import current_progress, open_regular, writing
from cleanpairs.data.source import read_cached, write_cached

FORMAT = 2
Rows = tuple[np.ndarray, dict[int, str]]  # maybe memory-mapped, and row -> why it failed: those are zero
Chunk = tuple[int, np.ndarray, dict[int, str]]  # its first row, and the same


def compute_rows(
    n: int,
    shape: tuple[int, ...],
    dtype: Any,
    chunks: Callable[[int], Iterator[Chunk]],
    *,
    folder: Path | None = None,
    what: str = "rows",
    limits: str = "",
) -> Rows:
    """Return ``n`` rows of ``shape``, read from ``folder`` or computed. ``folder`` None: they are in memory only.

    ``chunks(first)`` computes from row ``first`` on, in order. The name of ``folder`` must say all that determines the
    rows. Progress is told of ``what`` they are. Where rows failed under other ``limits``, these and all behind the
    first are computed again. So are, once, those of which the system killed the process, as where memory ran out.
    Raises OutputError: the folder cannot be written: full disk, permissions.
    """
    if folder is None or n == 0:
        array, failures = np.zeros((n, *shape), dtype), {}
        for start, values, failed in chunks(0) if n else ():
            array[start : start + len(values)] = values
            failures.update(failed)
        return array, failures
    head, size = _head(n, shape, dtype), int(np.prod(shape)) * np.dtype(dtype).itemsize
    state = _intact(folder, head, size, limits)
    if state.done < n:
        with writing(f"the cache {folder} (CLEANPAIRS_CACHE names another)"):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "lock", fallback_to_soft=False):  # one writer at a time. It ends with its process
                state = _intact(folder, head, size, limits)
                if not state.done:  # another file, as a process may have mapped this one
                    (folder / "rows.npy").unlink(missing_ok=True)
                # Plain writes, not a writable map: a full disk is then an error and no crash.
                with (folder / "rows.npy").open("r+b" if state.done else "w+b") as file:
                    file.write(head)
                    file.seek(len(head) + state.done * size)
                    synced, checksum = time.monotonic(), state.checksums[-1][1] if state.checksums else 0
                    for start, values, failed in chunks(state.done):
                        new = values[state.done - start :]  # all of them, unless the run before cut chunks elsewhere
                        data = np.ascontiguousarray(new, dtype=dtype).tobytes()
                        file.write(data)
                        checksum = zlib.crc32(data, checksum)
                        state.failures.update(failed)
                        state.done = start + len(values)
                        current_progress().advance(what, what, state.done, n)
                        if time.monotonic() - synced > _State.sync_seconds or state.done == n:
                            file.flush()
                            os.fsync(file.fileno())
                            state.checksums.append((state.done, checksum))
                            write_cached(folder / "state", json.dumps({"format": FORMAT, **asdict(state)}).encode())
                            synced = time.monotonic()
    return np.load(folder / "rows.npy", mmap_mode="r", allow_pickle=False), state.failures


@dataclass
class _State:
    """The number of whole rows, which of them failed and why, and (rows, CRC-32 up to there) at several places. Whether
    those that a kill of the system had lost were computed again.
    """

    done: int
    failures: dict[int, str]
    checksums: list[tuple[int, int]]
    limits: str
    again: bool = False
    sync_seconds = 5.0


def _head(n: int, shape: tuple[int, ...], dtype: Any) -> bytes:
    """The header of numpy's file of rows."""
    head = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (n, *shape)}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def _intact(folder: Path, head: bytes, size: int, limits: str) -> _State:
    """The rows, of ``size`` bytes each, in front of the first that is missing or damaged, or failed by other limits."""
    state = _State(0, {}, [], limits)
    note = json.loads(read_cached(folder / "state") or b"{}")
    if note.pop("format", None) != FORMAT:
        return state
    failures = {int(row): why for row, why in note["failures"].items()}
    other = note.get("limits", "") != limits
    killed = [] if note.get("again") else [row for row, why in failures.items() if "SIGKILL" in why]
    whole = min(failures if other else killed, default=None)
    state.again = not other and bool(note.get("again") or killed)
    with suppress(OSError), open_regular(folder / "rows.npy") as file:
        checksum = 0
        if file.read(len(head)) != head:
            return state
        for done, wanted in note["checksums"]:
            if whole is not None and done > whole:
                break
            left = (done - state.done) * size
            while left and (block := file.read(min(left, 1 << 20))):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
            if left or checksum != wanted:
                break
            state.done = done
            state.checksums.append((done, wanted))
    state.failures = {row: why for row, why in failures.items() if row < state.done}
    return state


def digest(*parts: bytes | str) -> str:
    """The first 24 hexadecimal digits of SHA-256 over the parts, each with its length."""
    out = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        out.update(len(data).to_bytes(8, "little") + data)
    return out.hexdigest()[:24]
