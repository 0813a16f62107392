"""The input of pairs, and the folder of what is computed from them once."""

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from cleanpairs.core import CleanpairsError, DataError
from cleanpairs.core.regular import AnyPath, open_regular, read_bytes, reading, writing
from cleanpairs.data.atomic import staged_file

TABLES = "tables"  # folder of the cache directory: what was made of an input, or of an object


@dataclass(frozen=True)
class Source:
    """All that is needed to read pairs again, and to notice changes.

    - ``kind``: name of the reader, or "memory"
    - ``paths``: absolute, in reading order
    - ``columns``: role -> column
    - ``fingerprint``: SHA-256 over contents and settings
    - ``explicit_lists``: whether the text column holds lists
    - ``options``: further settings that find the same rows again
    - ``original``: the user's own files, where ``paths`` is a copy of them
    """

    kind: str
    paths: tuple[str, ...]
    columns: Mapping[str, str]
    fingerprint: str
    n_rows: int
    image_root: str | None
    explicit_lists: bool
    options: Mapping[str, str] = field(default_factory=dict)
    original: "Source | None" = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that are never written: ``paths``, and those that they are a copy of."""
        return self.paths + (() if self.original is None else self.original.inputs)

    @property
    def joined(self) -> str | None:
        """The added column of captions, where several columns were joined."""
        return self.columns["text"] if self.original is not None and self.original.columns else None

    @property
    def files(self) -> tuple[str, ...]:
        """The user's own files, without the tables in the cache directory. Where there are no others, those tables."""
        tables = cache_dir().absolute() / TABLES
        return tuple(path for path in self.inputs if Path(path).absolute().parent != tables) or self.paths


def with_original(source: Source, paths: Sequence[str]) -> Source:
    """``source``, whose paths are a copy of the user's files ``paths``."""
    original = Source(source.kind, tuple(paths), {}, "", source.n_rows, None, False)
    return replace(source, original=replace(original, fingerprint=fingerprint_of(original)))


def fingerprint_of(source: Source) -> str:
    """SHA-256 over the contents of a source's files as they are now, in order, and of its settings. Pairs in memory
    have their own. Raises DataError: a file cannot be read.
    """
    if source.kind == "memory":
        return source.fingerprint
    root = source.image_root
    beside = root if source.kind == "images" else Path(source.paths[0]).parent  # the table of a folder is elsewhere
    if root and beside and Path(root).is_relative_to(beside):
        root = os.path.relpath(root, beside)  # it moves with the files
    text = f"{source.kind}|{sorted(source.columns.items())}|{source.n_rows}|{root}"
    total = hashlib.sha256((text + (f"|{sorted(source.options.items())}" if source.options else "")).encode())
    for path in source.paths:
        with reading(path):
            total.update(digest_of(path))
    return total.hexdigest()


def refuse_changed_input(source: Source) -> None:
    """Raise :class:`DataError` if the input is not as it was read."""
    if fingerprint_of(source) != source.fingerprint:
        raise DataError(f"the input {', '.join(source.files)} has changed since it was read: score and plan again")
    if source.original is not None:
        refuse_changed_input(source.original)


def cache_dir() -> Path:
    """``$CLEANPAIRS_CACHE``, else ``$XDG_CACHE_HOME/cleanpairs``, else ``~/.cache/cleanpairs``. It need not exist.

    Without a HOME that can be written, it is a temporary folder of this process.
    """
    if folder := os.environ.get("CLEANPAIRS_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "cleanpairs"
    with suppress(RuntimeError):  # a user without HOME, unknown to the system
        home = Path.home() / ".cache" / "cleanpairs"
        there = next(folder for folder in (home, *home.parents) if os.path.exists(folder))
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return home
    return Path(_temporary_folder().name)


def cache_folder(name: str | Path) -> Path:
    """A folder of :func:`cache_dir`, which is made. An absolute path is itself. Raises OutputError: it cannot be."""
    folder = cache_dir() / name
    with writing(f"the cache directory {folder} (CLEANPAIRS_CACHE names another)"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process: one of a fixed name in /tmp may belong to another user."""
    what = "~/.cache cannot be written, so nothing is kept for later commands: CLEANPAIRS_CACHE names another folder"
    warnings.warn(what, stacklevel=3)
    return tempfile.TemporaryDirectory(prefix="cleanpairs-cache-", ignore_cleanup_errors=True)


def write_cached(path: Path, payload: bytes) -> None:
    """Keep a small file in the cache, with its SHA-256 behind it. Raises OutputError: it cannot be written."""
    with staged_file(cache_folder(path.parent.absolute()) / path.name, overwrite=True) as staged:
        staged.write_bytes(payload + hashlib.sha256(payload).digest())


def read_cached(path: Path) -> bytes | None:
    """The payload that :func:`write_cached` kept. None: there is no such file, or it is damaged."""
    with suppress(OSError):
        whole = read_bytes(path)
        payload, check = whole[:-32], whole[-32:]
        if hashlib.sha256(payload).digest() == check:
            return payload
    return None


LARGE = 64 * 2**20  # bytes: hashing a smaller file is faster than remembering its hash
SETTLED = 2.0  # seconds


_digests: dict[str, dict[str, Any]] = {}  # path -> size and times of the file, and its SHA-256


def digest_of(path: AnyPath) -> bytes:
    """SHA-256 (32 bytes) of a file.

    It is kept in memory, and that of a large file in the cache directory. It is used again as long as device, inode,
    size and the times of modification and change are the same. A file that changed in the last two seconds is hashed
    each time, as the clock may not tell a newer change.
    """
    name = os.path.abspath(path)
    if (known := _digests.get(name)) is not None and known["seen"] == _file_state(path):
        return bytes.fromhex(known["sha256"])
    with open_regular(path) as file:
        begun, seen = time.time(), _file_state(file.fileno())
        note = cache_dir() / "digests" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"
        kept = json.loads(read_cached(note) or b"{}") if seen["size"] >= LARGE else {}
        if kept.get("seen") == seen:
            return bytes.fromhex(kept["sha256"])
        digest = hashlib.file_digest(file, "sha256").digest()
        if max(seen["modified"], seen["changed"]) < (begun - SETTLED) * 1e9 and _file_state(file.fileno()) == seen:
            _digests[name] = {"seen": seen, "sha256": digest.hex()}
            with suppress(OSError, CleanpairsError):
                if seen["size"] >= LARGE:
                    write_cached(note, json.dumps(_digests[name]).encode())
        return digest


def _file_state(file: AnyPath | int) -> dict[str, int]:
    stat = os.stat(file)
    times = {"modified": stat.st_mtime_ns, "changed": stat.st_ctime_ns}
    return {"device": stat.st_dev, "inode": stat.st_ino, "size": stat.st_size, **times}
