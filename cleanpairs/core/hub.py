"""Whether the Hugging Face hub may be asked: for a name that the user gives, never for one that a file holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

hub_allowed = ContextVar("hub_allowed", default=True)  # else what is in its cache on this machine has to do


@contextmanager
def without_hub() -> Iterator[None]:
    """Within, nothing is asked of the hub: names come out of a model, a run or a plan that a stranger may have made."""
    token = hub_allowed.set(False)
    try:
        yield
    finally:
        hub_allowed.reset(token)
