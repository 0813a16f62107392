"""Batches read ahead: all of them, in order, errors in their place, and a thread that ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cleanpairs.data.prefetch import read_ahead


def readers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("read-ahead")]


@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_every_item_in_order(n: int) -> None:
    with read_ahead(iter(range(n)), depth=2) as items:
        assert list(items) == list(range(n))
    assert not readers()


def test_an_error_comes_after_what_was_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("third")

    seen = []
    with pytest.raises(KeyError, match="third"), read_ahead(failing()) as items:
        seen.extend(item for item in items)
    assert seen == [1, 2] and not readers()


def test_no_more_is_read_than_is_asked_for_and_leaving_early_ends_it() -> None:
    read = []

    def endless() -> Iterator[int]:
        for i in iter(int, 1):
            read.append(i)
            yield len(read)

    with read_ahead(endless(), depth=2) as items:
        assert [next(items), next(items)] == [1, 2]
    assert not readers() and len(read) <= 2 + 2 + 2  # taken, ready, in hand
    with pytest.raises(ZeroDivisionError), read_ahead(endless(), depth=2) as items:
        raise ZeroDivisionError
    assert not readers()
