"""Batches that are read in a thread of their own while those before them are worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from cleanpairs.core.limits import memory_is_capped

T = TypeVar("T")
_END: Any = object()


@contextmanager
def read_ahead(items: Iterator[T], depth: int = 4) -> Iterator[Iterator[T]]:
    """``items`` in order, at most ``depth`` of them ready before they are asked for; errors arise where they are.

    Pays where making an item leaves Python's lock to others, as Arrow and NumPy do. Without a thread where memory is
    capped (:func:`cleanpairs.core.limits.memory_is_capped`).
    """
    if memory_is_capped():
        yield items
        return
    thread = ThreadPoolExecutor(1, "read-ahead")

    def taken() -> Iterator[T]:
        ready: deque[Future[T]] = deque(thread.submit(next, items, _END) for _ in range(depth))
        while (item := ready.popleft().result()) is not _END:
            ready.append(thread.submit(next, items, _END))
            yield item

    try:
        yield taken()
    finally:
        thread.shutdown(cancel_futures=True)
