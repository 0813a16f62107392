"""Values as JSON, files and people get them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any, TypeVar

Value = TypeVar("Value")


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


def rate_in_words(result: Mapping[str, Any]) -> str:
    """A run's estimate of the share of mismatched pairs, in sentences that no truth contradicts.

    Parameters
    ----------
    result : mapping
        ``result`` of run.json.

    Returns
    -------
    str
    """
    names = ("noise_rate", "noise_rate_interval", "noise_rate_bound", "better_than_random")
    rate, interval, bound, better = (result.get(name) for name in names)
    apart = ", apart from captions that are wrong in a detail."  # which fit better than those of similar images
    within = "" if interval is None else f" (95 % interval {percent(interval[0])} to {percent(interval[1])})"
    if result.get("answers") or result.get("opinions"):
        by = " and ".join(plural(result[name], name[:-1]) for name in ("answers", "opinions") if result.get(name))
        by += " of a judge" * bool(result.get("opinions"))
        return f"By {by} about {percent(result['noise_rate'])} of the pairs are mismatched{within}."
    if better is not None and better < 0.4:
        text = (
            "Many pairs are mismatched, or captions of this corpus say little about their images. "
            f"Only {percent(better, 0)} of the pairs that do not look mismatched fit better than 19 of 20 random ones."
        )
        return f"{text} How many are mismatched is unknown."
    if rate is None:
        why = f": {result['why_undetermined']}" if result.get("why_undetermined") else ""
        most = "" if bound is None else f" They are at most {percent(bound)}{apart}"
        return f"The scores do not show how many pairs are mismatched{why}.{most}"
    if result.get("counts_similar"):
        most = "" if bound is None else f"At most {percent(bound)} of the pairs are mismatched{apart} "
        return f"{most}About {percent(rate)} of the pairs fit no better than captions of similar images{within}."
    random = f"About {percent(rate)} of the pairs fit no better than random ones{within}."
    if bound is None:
        return f"{random} Captions that belong to a similar image are not counted."
    low = 0.0 if interval is None else interval[0]
    text = f"{percent(low)} to {percent(bound)} of the pairs are mismatched{apart}"
    return f"{text} Captions that belong to a similar image cannot be counted. {random}"


def displaced_in_words(blocks: Sequence[str], most: int = 3) -> str:
    """The sentences of some blocks, in a line.

    Parameters
    ----------
    blocks : sequence of str
        A sentence each.
    most : int
        How many are shown. Of further blocks only the number is.

    Returns
    -------
    str
    """
    more = len(blocks) - most
    return " ".join(blocks[:most]) + (f" {plural(more, 'more block')} of displaced rows." if more > 0 else "")


def part_of(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Those of the values whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


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
