"""Checks of constructor parameters. An error names the parameter and its owner, what is allowed and what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from cleanpairs.core.errors import ConfigError

__all__ = ["check_choice", "check_flag", "check_number", "check_whole", "is_share"]


def _refuse(owner: str, name: str, allowed: str, value: Any) -> None:
    raise ConfigError(f"{name} of {owner} must be {allowed}, found {value!r}")


def is_share(value: Any) -> bool:
    """Whether it is a number in [0, 1], such as a threshold that somebody's file holds."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1


def check_whole(owner: str, name: str, value: Any, least: int, *, none: bool = False) -> None:
    """A whole number >= ``least``, numpy's too; or None where ``none``. ConfigError otherwise, as of all checks."""
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        _refuse(owner, name, f"a whole number >= {least}" + (" or None" if none else ""), value)


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


def check_flag(owner: str, name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool):
        _refuse(owner, name, "True or False", value)
