"""The process that decodes images, and may die of one; see :mod:`cleanpairs.data.decoding`.

It is started as a plain Python process and sends bytes over a pipe, so nothing is pickled, and the user's main module
is not run again. The first request is JSON, :class:`cleanpairs.data.decoding.Preparation` and the limit of memory; each
further one is an encoded image. Each has a reply: :data:`REPLY`, and the bytes of the array or of the reason.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core.errors import DataError
from cleanpairs.core.limits import hold_memory
from cleanpairs.core.registry import load_target
from cleanpairs.data.images import read_image

REPLY = struct.Struct("<BB3I")  # 0 an array, 1 a reason; dimensions and their sizes


def prepare(data: bytes, function: Callable[..., Any], settings: dict[str, Any], about: int | None) -> np.ndarray:
    """What is made of one encoded image: an array of uint8, of one to three dimensions.

    Raises DataError: it cannot be decoded, or not prepared; with the reason.
    """
    image = read_image(data, about=about)
    try:
        return np.ascontiguousarray(function(image, **settings), dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # memory that does not suffice, above all: it is this image that is bad, not the run
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"the image of {image.width}x{image.height} pixels cannot be prepared: {said}") from error


def main() -> None:
    """Serve requests until the pipe, whose number is the argument, is closed."""
    for number in (signal.SIGINT, signal.SIGHUP):  # for the process that asks; it ends this one by itself
        signal.signal(number, signal.SIG_IGN)
    pipe: Connection[bytes, bytes] = Connection(int(sys.argv[1]))
    with suppress(OSError):  # where memory runs out, this process is to go and not the run
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(EOFError, OSError):  # the asking process is gone
        given = json.loads(pipe.recv_bytes())
        function = load_target(given["target"])
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            hold_memory(given["memory"])
        pipe.send_bytes(_reply(np.zeros(0, np.uint8)))
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # until here it says why it cannot start; from here on only decoders would complain
            os.dup2(null, stream)
        while True:
            data = pipe.recv_bytes()
            try:
                reply = _reply(prepare(data, function, given["settings"], given["about"]))
            except DataError as error:
                reply = REPLY.pack(1, 0, 0, 0, 0) + str(error).encode("utf-8", "replace")
            pipe.send_bytes(reply)


def _reply(array: np.ndarray) -> bytes:
    return REPLY.pack(0, array.ndim, *(*array.shape, 0, 0)[:3]) + array.tobytes()
