"""Whether the Hugging Face hub may be asked: for a name that the user gives, never for one that a file holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed = ContextVar("allowed", default=True)


def hub_allowed() -> bool:
    """Whether names are looked up on the hub; else what is in its cache on this machine has to do."""
    return _allowed.get()


@contextmanager
def without_hub() -> Iterator[None]:
    """Within, nothing is asked of the hub: names come out of a model, a run or a plan that a stranger may have made."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)
