"""Settings as fields of dataclasses that say what they may hold, and the checks of it.

An error names the setting and its owner, what is allowed and what was found. A field whose default is True or False
is a flag and needs no more than that::

    @dataclass(kw_only=True)
    class Method:
        tau: float = number(0.07, above=0)
        epochs: int = whole(18, 1)
        reduction: str = choice("mean", "sum")
"""

import math
from collections.abc import Sequence
from dataclasses import field, fields
from functools import partial
from numbers import Integral, Real
from typing import Any

from cleanpairs.core.errors import ConfigError


def number(default: Any, **limits: Any) -> Any:
    """A field that holds a number within ``limits``, which are :func:`check_number`'s."""
    return field(default=default, metadata={"check": partial(check_number, **limits)})


def whole(default: int | None, least: int, **limits: Any) -> Any:
    """A field that holds a whole number >= ``least``; ``limits``: :func:`check_whole`'s others."""
    return field(default=default, metadata={"check": partial(check_whole, least=least, **limits)})


def choice(default: str, *others: str) -> Any:
    """A field that holds one of some words, of which the first is the default."""
    return field(default=default, metadata={"check": partial(check_choice, allowed=(default, *others))})


def check_settings(owner: str, settings: Any) -> None:
    """Every field of a dataclass in its range. A class that changes a default leaves the range as its base has it.

    Raises ConfigError: names the first that is not.
    """
    for name in (f.name for f in fields(settings)):
        declared = (vars(c).get("__dataclass_fields__", {}).get(name) for c in type(settings).__mro__)
        known = [f for f in declared if f is not None]
        checks = [f.metadata["check"] for f in known if "check" in f.metadata]
        if checks:
            checks[0](owner, name, getattr(settings, name))
        elif isinstance(known[0].default, bool) and not isinstance(value := getattr(settings, name), bool):
            _refuse(owner, name, "True or False", value)


def _refuse(owner: str, name: str, allowed: str, value: Any) -> None:
    raise ConfigError(f"{name} of {owner} must be {allowed}, found {value!r}")


def is_share(value: Any) -> bool:
    """Whether it is a number in [0, 1], such as a threshold that somebody's file holds."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


def check_whole(owner: str, name: str, value: Any, least: int, *, most: float = math.inf, none: bool = False) -> None:
    """A whole number from ``least`` to ``most``, numpy's too; or None where ``none``. ConfigError otherwise, as of all
    checks.
    """
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        upper = f" and <= {most}" if most < math.inf else ""
        _refuse(owner, name, f"a whole number >= {least}{upper}" + (" or None" if none else ""), value)


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
    also: Sequence[Any] = (),
) -> None:
    """A finite number > ``above``, >= ``least``, <= ``most``, < ``below``, as far as given; or one of ``also``."""
    if any(value is other or (isinstance(other, str) and value == other) for other in also):
        return
    fits = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    fits = fits and (above is None or value > above) and (least is None or value >= least)
    if fits and (most is None or value <= most) and (below is None or value < below):
        return
    limits = {">": above, ">=": least, "<=": most, "<": below}
    allowed = "a number " + " and ".join(f"{sign} {limit:g}" for sign, limit in limits.items() if limit is not None)
    _refuse(owner, name, " or ".join([allowed, *(repr(other) for other in also)]), value)


def check_choice(owner: str, name: str, value: Any, allowed: Sequence[str]) -> None:
    """One of some words."""
    if not isinstance(value, str) or value not in allowed:
        _refuse(owner, name, f"one of {', '.join(allowed)}", value)
