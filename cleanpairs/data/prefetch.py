"""Batches that are read in a thread of their own while those before them are worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from cleanpairs.core.limits import memory_is_capped

T = TypeVar("T")


@contextmanager
def read_ahead(items: Iterator[T], depth: int = 4) -> Iterator[Iterator[T]]:
    """``items`` in order, at most ``depth`` of them ready before they are asked for; errors arise where they are.

    Pays where making an item leaves Python's lock to others, as Arrow and NumPy do. Without a thread where memory is
    capped (:func:`cleanpairs.core.limits.memory_is_capped`).
    """
    if memory_is_capped():
        yield items
        return
    ready: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None, False)):
                    return
            put((None, None, True))
        except BaseException as error:  # whatever it is, it is the reader's to raise
            put((None, error, True))

    def taken() -> Iterator[T]:
        while True:
            item, error, last = ready.get()
            if error is not None:
                raise error
            if last:
                return
            assert item is not None
            yield item

    thread = threading.Thread(target=work, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stopped.set()
        thread.join()
