"""SHA-256 of large files, remembered: a file that is as it was is not read again for it.

Score, rematch and export of one input each need its fingerprint, and hashing takes as long as half of the scoring. What
is remembered is believed while the file is the same one (device and inode), of the same size, and was not touched
since, by the times of its last modification and change; the latter cannot be set by a program. A file that had been
changed within two seconds before it was hashed is not remembered: the clock may not tell another change.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from cleanpairs.core.errors import CleanpairsError
from cleanpairs.core.regular import open_regular, read_json
from cleanpairs.data.atomic import write_whole

LARGE = 64 * 2**20  # bytes: smaller files are hashed sooner than it is worth to remember them
SETTLED = 2.0  # seconds


def digest_of(path: str | os.PathLike[str], folder: Path, *, least: int = LARGE) -> bytes:
    """SHA-256 (32 bytes) of a file.

    ``folder``: where digests are remembered; where it cannot be written they are not; ``least``: bytes of a file that
    is remembered.
    Raises OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        begun, seen = time.time(), _seen(file.fileno())
        note = folder / f"{hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()}.json"
        if seen["size"] >= least:
            with suppress(OSError, ValueError, TypeError, KeyError):
                known = read_json(note)
                if known["seen"] == seen and len(digest := bytes.fromhex(known["sha256"])) == 32:
                    return digest
        digest = hashlib.file_digest(file, "sha256").digest()
        settled = max(seen["modified"], seen["changed"]) < (begun - SETTLED) * 1e9
        if seen["size"] >= least and settled and _seen(file.fileno()) == seen:
            with suppress(OSError, CleanpairsError):
                write_whole(note, json.dumps({"seen": seen, "sha256": digest.hex()}))
        return digest


def _seen(fd: int) -> dict[str, int]:
    found = os.fstat(fd)
    return {
        "device": found.st_dev,
        "inode": found.st_ino,
        "size": found.st_size,
        "modified": found.st_mtime_ns,
        "changed": found.st_ctime_ns,
    }
