"""Values as JSON, or people, get them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any


def plain_text(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def without_secrets(text: str) -> str:
    """``text``. Of a web address neither user nor query: they may hold a password or a signature. Of other URLs no user
    with a password.
    """
    text = re.sub(r"^(\w+://)[^/@]*:[^/]*@", r"\1", text)
    return re.sub(r"^(https?://)(?:[^/?#]*@)?([^?#]*).*", r"\1\2", text, flags=re.IGNORECASE | re.DOTALL)


def percent(share: float, digits: int = 1) -> str:
    """A share in per cent, for people to read."""
    return f"{100 * share:.{digits}f} %"


def plural(count: int, noun: str) -> str:
    """``1 change``, ``2 changes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def first_few(items: Sequence[Any], most: int = 5) -> str:
    """``1, 2, 3, 4, 5, ...``"""
    return ", ".join(map(str, items[:most])) + (", ..." if len(items) > most else "")


def jsonable(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """``value`` in what JSON knows: NaN and infinities become null, paths text, arrays lists, dataclasses objects.
    ``other`` makes something of what is none of these, else TypeError.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "tolist"):  # numpy's scalars and arrays, without importing numpy
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(part, other) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(part, other) for part in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if other is None:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return other(value)
