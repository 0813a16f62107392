"""Whether the Hugging Face hub may be used: for a name that the user gives, never for one in a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

hub_allowed = ContextVar("hub_allowed", default=True)  # else only its cache on this machine is read


@contextmanager
def without_hub() -> Iterator[None]:
    """Fetch nothing from the hub within the block: its names are from a file that a stranger may have made."""
    token = hub_allowed.set(False)
    try:
        yield
    finally:
        hub_allowed.reset(token)
