"""Settings as fields of dataclasses that say what they may hold, as ``tau: float = number(0.07, above=0)``, and the
checks of it. A field whose default is True or False is a flag and needs no more than that.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import field, fields
from functools import partial
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import Any

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import nearest

LARGEST_COUNT = 2**31 - 1  # libraries count no further
LARGEST_SEED = 2**32 - 1


def number(default: Any, **limits: Any) -> Any:
    """A field that holds a number within ``limits``, which are :func:`check_number`'s."""
    return field(default=default, metadata={"check": partial(check_number, **limits)})


def whole(default: int | None, least: int, **limits: Any) -> Any:
    """A field that holds a whole number >= ``least``. ``limits``: :func:`check_whole`'s others."""
    return field(default=default, metadata={"check": partial(check_whole, least=least, **limits)})


def text(default: str | None) -> Any:
    """A field that holds a text, or None where that is the default."""
    return field(default=default, metadata={"check": partial(check_text, none=default is None)})


def choice(default: str, *others: str) -> Any:
    """A field that holds one of several words, of which the first is the default."""
    return field(default=default, metadata={"check": partial(check_choice, allowed=(default, *others))})


def check_settings(owner: str, settings: Any) -> None:
    """Raise ConfigError for a field out of its range."""
    for name in (f.name for f in fields(settings)):
        check_setting(owner, type(settings), name, getattr(settings, name))


def check_setting(owner: str, settings: type, name: str, value: Any) -> None:
    """As :func:`check_settings`, of one field. Where a class changes a default, its base has the range."""
    declared = (vars(c).get("__dataclass_fields__", {}).get(name) for c in settings.__mro__)
    declarations = [f for f in declared if f is not None]
    checks = [f.metadata["check"] for f in declarations if "check" in f.metadata]
    if checks:
        checks[0](owner, name, value)
    elif isinstance(declarations[0].default, bool) and not isinstance(value, bool):
        _refuse(owner, name, "True or False", value)


def _refuse(owner: str, name: str, allowed: str, value: Any) -> None:
    raise ConfigError(f"{name} of {owner} must be {allowed}, found {value!r}")


def refuse_unknown(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for a name that is none of the ``known`` settings."""
    for name in set(names).difference(known):
        listed = sorted(known)
        raise ConfigError(f"{owner} has no setting {name!r}{nearest(name, listed)} (known: {', '.join(listed)})")


def is_share(value: Any) -> bool:
    """Whether a value is a number in [0, 1], such as a threshold in a file."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(0 <= value <= 1)  # type: ignore[operator]


def check_whole(
    owner: str, name: str, value: Any, least: int, *, most: int = LARGEST_COUNT, none: bool = False
) -> None:
    """Raise ConfigError for what is no whole number from ``least`` to ``most``. ``none``: None passes."""
    if value is None and none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        beyond = isinstance(value, Integral) and int(value) > most
        upper = f" and <= {most}" if beyond or most < LARGEST_COUNT else ""
        _refuse(owner, name, f"a whole number >= {least}{upper}" + (" or None" if none else ""), value)


def check_seed(owner: str, value: Any) -> None:
    """Raise ConfigError for what is no seed of numpy, scikit-learn and torch."""
    check_whole(owner, "seed", value, 0, most=LARGEST_SEED)


def check_number(owner: str, name: str, value: Any, *, also: Sequence[Any] = (), **limits: float | None) -> None:
    """Raise ConfigError for what is no finite number > ``above``, >= ``least``, <= ``most`` and < ``below``, as far as
    these are given. One of ``also`` passes.
    """
    if any(value is other or (isinstance(other, str) and value == other) for other in also):
        return
    signs = {"above": (">", gt), "least": (">=", ge), "most": ("<=", le), "below": ("<", lt)}
    # As float64, since float32 is printed with fewer digits.
    value = float(value) if isinstance(value, Real) and not isinstance(value, int) else value
    bounds = [(*signs[key], limit) for key, limit in limits.items() if limit is not None]
    real = isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max  # type: ignore[operator]
    if not real or not all(fits(value, limit) for _, fits, limit in bounds):
        allowed = "a number " + " and ".join(f"{sign} {limit:g}" for sign, _, limit in bounds)
        _refuse(owner, name, " or ".join([allowed.rstrip(), *(repr(other) for other in also)]), value)


def check_text(owner: str, name: str, value: Any, *, none: bool = False) -> None:
    """Raise ConfigError for what is no text. ``none``: None passes."""
    if not isinstance(value, str) and not (none and value is None):
        _refuse(owner, name, "text" + " or None" * none, value)


def check_choice(owner: str, name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise ConfigError for what is none of the words ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        _refuse(owner, name, f"one of {', '.join(allowed)}", value)
