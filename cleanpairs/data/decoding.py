"""Encoded images to small arrays, in processes that may die while the run continues.

A decoder is C code, and its input comes from the web: it may crash, hang, or take more memory than there is. So a
worker process (:func:`serve`) with a limit of memory and of time decodes each image and resizes it. It sends bytes over
a pipe. Nothing is pickled.

A worker that dies or hangs is replaced, and its image gets one more try. An image that fails twice is quarantined with
the reason. The results do not depend on the number of workers, to the bit. Where memory is capped no thread is started,
and one worker at a time decodes.
"""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cleanpairs.core import children
from cleanpairs.core.errors import DataError, ResourceError
from cleanpairs.core.limits import decoding_limits, limit, lower_memory_limit, memory_is_capped
from cleanpairs.core.registry import load_target
from cleanpairs.data.images import ImageSource, read_image
from cleanpairs.ops.mapped import blocks

MISSING = "there is no image"
REPLY = struct.Struct("<BB3I")  # 0 for an array, 1 for a reason. Number of dimensions, sizes. Then the bytes
Result = np.ndarray | str  # an array, or why there is none


@dataclass(frozen=True)
class Preparation:
    """A function of a decoded image, which returns uint8 of up to three dimensions.

    The ``target`` is "module:function". It is called as ``function(image, **settings)`` with an RGB image of Pillow.
    The settings can be written as JSON. For ``about`` see :func:`cleanpairs.data.read_image`. While a batch is in use,
    ``prefetch`` more are prepared.
    """

    target: str
    settings: dict[str, Any] = field(default_factory=dict)
    about: int | None = None
    prefetch: int = 2


@dataclass(frozen=True)
class DecodedBatch:
    """Images from ``start`` on: ``rows`` (k,) int64 of the decoded ones, their ``arrays``, and why others failed."""

    start: int
    size: int
    rows: np.ndarray
    arrays: list[np.ndarray]
    failures: dict[int, str]


RGB = Preparation("numpy:asarray", prefetch=0)  # (H, W, 3), in full size: much to send and to keep


def workers_for(n: int) -> int:
    """Processes for ``n`` images: CLEANPAIRS_DECODE_WORKERS, else one for each 512 images, 8 in all."""
    workers = limit("decode_workers")
    if workers is not None:
        return int(workers)
    if not sys.executable:  # embedded in another program: there is no Python to start
        return 0
    return min(8, len(os.sched_getaffinity(0)), -(-n // 512))


class Decoder(AbstractContextManager["Decoder"]):
    """Decodes batches of encoded images, ahead of their use, in ``workers`` processes that end with its ``with`` block.
    0 decodes in this one, without CLEANPAIRS_DECODE_SECONDS and _MEMORY. Raises ConfigError: a variable holds no limit.
    ResourceError: no process can be started.
    """

    def __init__(self, preparation: Preparation, workers: int) -> None:
        decoding_limits()  # a variable that holds no number would end each worker, and count as a fault of its image
        self.preparation, self.workers, self._closed = preparation, workers, False
        self.seconds, self.memory = float(limit("decode_seconds") or 0), limit("decode_memory")
        self._all: list[_Worker] = []
        self._executor = ThreadPoolExecutor(workers, "decode") if workers and not memory_is_capped() else None
        # It holds the worker of each thread.
        self._local: Any = SimpleNamespace() if self._executor is None else threading.local()

    def __exit__(self, *error: object) -> None:
        """End the processes, at once."""
        self._closed = True
        for worker in list(self._all):
            worker.kill()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.close()

    def batches(self, encoded: Iterable[tuple[int, Sequence[bytes | None]]]) -> Iterator[DecodedBatch]:
        """Decode batches of (first row, encoded images, None where there is none), in order."""
        waiting: deque[tuple[int, Iterator[Result]]] = deque()
        prefetch, each = (0, map) if self._executor is None else (self.preparation.prefetch, self._executor.map)
        for start, chunk in encoded:
            waiting.append((start, each(self._decoded, chunk)))
            while len(waiting) > prefetch:
                yield _gather(*waiting.popleft())
        while waiting:
            yield _gather(*waiting.popleft())

    def _decoded(self, data: bytes | None) -> Result:
        """Decode an image by this thread's worker. If the worker dies, by a new one."""
        if data is None:
            return MISSING
        if not self.workers:
            try:
                return prepare(data, self.preparation)
            except DataError as error:
                return str(error)
        why = ""
        for _ in range(2):
            if self._closed:
                break
            try:
                worker = getattr(self._local, "worker", None) or self._started()
                self._local.worker = worker
                return worker.ask(data, self.seconds)
            except _LostError as error:
                worker.close()
                self._local.worker = None
                why = str(error)
        return f"the image cannot be decoded: {why}, twice"

    def _started(self) -> "_Worker":
        for again in (True, False):  # one that is killed while it starts does not end the run
            worker = _Worker(self.preparation, self.memory)
            self._all.append(worker)
            if self._closed:
                worker.kill()
            try:
                worker.start()
                break
            except ResourceError:
                if not again or self._closed:
                    raise
        return worker


def _gather(start: int, decoded: Iterable[Result]) -> DecodedBatch:
    results = list(decoded)
    failures = {row: " ".join(result.split()) for row, result in enumerate(results, start) if isinstance(result, str)}
    rows = np.array([row for row in range(start, start + len(results)) if row not in failures], dtype=np.int64)
    return DecodedBatch(start, len(results), rows, [r for r in results if not isinstance(r, str)], failures)


def thumbnails(images: ImageSource, rows: np.ndarray, size: int) -> Iterator[bytes | None]:
    """A small JPEG of each of the images ``rows`` (k,), without the original's metadata. None where there is none."""
    with Decoder(_shrunk(size), workers_for(len(rows))) as decoder:
        for batch in decoder.batches((k.start, images.read(rows[k].tolist())) for k in blocks(len(rows), 32)):
            jpegs = dict(zip((batch.rows - batch.start).tolist(), batch.arrays, strict=True))
            yield from (jpegs[i].tobytes() if i in jpegs else None for i in range(batch.size))


def thumbnail(data: bytes, size: int) -> bytes | None:
    """The small JPEG of one image. The process that decodes lives on, for the next call."""
    with _ONE_AT_A_TIME:
        (batch,) = _shrinking(size, os.getpid()).batches([(0, [data])])
    return batch.arrays[0].tobytes() if batch.arrays else None


_ONE_AT_A_TIME = threading.Lock()


@cache
def _shrinking(size: int, process: int) -> Decoder:  # a fork has no thread of its parent
    return Decoder(_shrunk(size), min(1, workers_for(1)))


def _shrunk(size: int) -> Preparation:
    return Preparation("cleanpairs.data.images:small_jpeg", {"size": size}, about=size)


class _LostError(Exception):
    """A worker died or hung."""


class _Worker:
    """One process. Used by one thread at a time."""

    def __init__(self, preparation: Preparation, memory: int) -> None:
        self._setup = json.dumps({**asdict(preparation), "memory": memory}).encode()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process, self._pipe = children.start_connected(
                "from cleanpairs.data.decoding import serve; serve()",
                stdout=self._output,
                stderr=self._output,
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._output.close()
            raise _no_start(str(error)) from error

    def start(self, seconds: float = 120.0) -> None:
        """Send the settings, and wait until the worker is ready, as long as a busy machine may take."""
        try:
            self.ask(self._setup, seconds)
        except _LostError as error:
            self._output.seek(0)
            lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
            raise _no_start(": ".join([str(error), *lines[-1:]])) from error

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """End the process, and close its files."""
        self.kill()
        self._process.wait()
        self._pipe.close()
        self._output.close()

    def ask(self, data: bytes, seconds: float) -> Result:
        """Return the array of an image, or why there is none, within ``seconds``."""
        try:
            self._pipe.send_bytes(data)
            if not self._pipe.poll(seconds):
                self._end()
                raise _LostError(f"it took more than {seconds:g} seconds")
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError):
            code = self._end()
            why = {-s: s.name for s in signal.Signals}.get(code, f"exit code {code}")
            raise _LostError(f"it ended the decoding process ({why})") from None
        failed, dimensions, *shape = REPLY.unpack_from(reply)
        if failed:
            return reply[REPLY.size :].decode()
        return np.frombuffer(reply, np.uint8, offset=REPLY.size).reshape(shape[:dimensions])

    def _end(self) -> int:
        """Kill the process if it still runs. Return its exit code."""
        with suppress(subprocess.TimeoutExpired):  # its pipe closes a moment before it is gone
            self._process.wait(0.5)
        self.kill()
        return self._process.wait()


def _no_start(why: str) -> ResourceError:
    return ResourceError(f"no process to decode images starts: {why}; free memory, or set CLEANPAIRS_DECODE_WORKERS=0")


def prepare(data: bytes, preparation: Preparation) -> np.ndarray:
    """Decode and prepare one image: uint8, of one to three dimensions. Raises DataError, with the reason."""
    function = load_target(preparation.target)
    image = read_image(data, about=preparation.about)
    try:
        return np.ascontiguousarray(function(image, **preparation.settings), dtype=np.uint8)
    except DataError:
        raise
    except Exception as error:  # mostly too little memory: this image is bad, and the run continues
        message = ": ".join(filter(None, (type(error).__name__, str(error))))
        raise DataError(f"the image of {image.width}x{image.height} pixels cannot be prepared: {message}") from error


def serve() -> None:
    """In a worker: answer until the pipe is closed. First come settings as JSON."""
    pipe = children.to_parent()
    with suppress(OSError):  # where memory runs out, the system kills this process and not the run
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(EOFError, OSError):  # the parent process has ended
        setup = json.loads(pipe.recv_bytes())
        memory, preparation = setup.pop("memory"), Preparation(**setup)
        load_target(preparation.target)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            lower_memory_limit(memory)
        pipe.send_bytes(_reply(np.zeros(0, np.uint8)))
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # errors of the start were printed. From here on only decoders print
            os.dup2(null, stream)
        while True:
            data = pipe.recv_bytes()
            try:
                reply = _reply(prepare(data, preparation))
            except DataError as error:
                reply = REPLY.pack(1, 0, 0, 0, 0) + str(error).encode("utf-8", "replace")
            pipe.send_bytes(reply)


def _reply(array: np.ndarray) -> bytes:
    return REPLY.pack(0, array.ndim, *(*array.shape, 0, 0)[:3]) + array.tobytes()
