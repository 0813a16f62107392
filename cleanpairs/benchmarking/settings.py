"""Which settings each method of a benchmark runs with: its defaults, a recipe, ``--set``, options."""

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.recipe import Recipe, find_recipes
from cleanpairs.core.registry import METHODS, nearest

_NOT_THE_FIGURES = ("random_state", "device")  # what makes no other cell of the table


@dataclass(frozen=True)
class MethodSettings:
    """One method as it takes part.

    ``params`` are those given, ``missing`` says what it needs and has not got; ``digest``: 12 hex digits over every
    setting that counts, defaults included: other settings are another experiment.
    """

    method: str
    params: dict[str, Any]
    recipe: str | None
    missing: str | None
    digest: str

    def estimator(self, **changes: Any) -> Any:
        """An unfitted estimator of these settings, with ``changes``."""
        return METHODS.load(self.method)(**{**self.params, **changes})


def choose_methods(text: str) -> list[str]:
    """``all``, or names with commas between them, each once and in their order; ConfigError for an unknown one."""
    if text.strip() == "all":
        return METHODS.names()
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"no method is named in {text!r} (known: all, {', '.join(METHODS.names())})")
    return [METHODS.entry(name).name for name in names]


def method_settings(
    methods: Sequence[str],
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[list[MethodSettings], list[str]]:
    """The settings of each method, and notes about what does not concern all of them.

    - ``recipe``: a file or a shipped recipe, for the method that it names; or ``R``, for every method that a recipe
      ``METHOD-R`` is shipped of. The others keep their defaults. Only settings of methods are read from it
    - ``overrides``: ``key=value`` for all methods that have the key, ``METHOD.key=value`` for one
    - ``options``: as of :meth:`cleanpairs.core.recipe.Recipe.resolve`, for all methods

    Raises ConfigError: a setting that none of the methods has, or one of a method that does not take part.
    """
    notes: list[str] = []
    known = {method: inspect.signature(METHODS.load(method)).parameters for method in methods}
    own: dict[str, list[str]] = {method: [] for method in methods}
    for text in overrides:
        takers, stripped = _takers(text, known)
        if len(takers) < len(methods) and text == stripped:
            notes.append(f"--set {text} concerns {', '.join(takers)} only")
        for method in takers:
            own[method].append(stripped)
    recipes = _recipes(recipe, methods) if recipe is not None else {}
    if recipe is not None and len(recipes) < len(methods):
        others = ", ".join(m for m in methods if m not in recipes)
        notes.append(f"--recipe {recipe} has no settings of {others}: their defaults are used")
    settings = []
    for method in methods:
        shared = {name: value for name, value in (options or {}).items() if name in known[method]}
        resolved = Recipe.resolve(recipes.get(method), overrides=own[method], options={**shared, "method": method})
        missing, digest = _missing(method, resolved.params), _digest(resolved.estimator())
        settings.append(MethodSettings(method, resolved.params, recipes.get(method), missing, digest))
    return settings, notes


def _digest(estimator: Any) -> str:
    params = {k: v for k, v in estimator.get_params().items() if k not in _NOT_THE_FIGURES}
    text = repr(sorted((k, list(v) if isinstance(v, tuple) else v) for k, v in params.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _takers(text: str, known: Mapping[str, Any]) -> tuple[list[str], str]:
    """The methods that an override concerns, and the override without a method's name before it."""
    name, _, value = text.partition("=")
    section, _, key = name.strip().rpartition(".")
    if section in METHODS:
        if section not in known:
            raise ConfigError(f"--set {text}: {section} does not take part (methods: {', '.join(known)})")
        known, text = {section: known[section]}, f"{key}={value}"
    if key in ("seed", "random_state"):
        raise ConfigError(f"--set {text}: the seeds are what the benchmark counts (--seeds)")
    key = "backbone" if (section, key) == ("backbone", "name") else key
    takers = [method for method in known if key in known[method]]
    if not takers:
        names = sorted({name for parameters in known.values() for name in parameters})
        raise ConfigError(
            f"--set {text}: none of {', '.join(known)} has a setting {key!r}{nearest(key, names)} "
            f"(known: {', '.join(names)})"
        )
    return takers, text


def _recipes(recipe: str, methods: Sequence[str]) -> dict[str, str]:
    shipped = find_recipes()
    if Path(recipe).is_file() or recipe in shipped:
        method = Recipe.resolve(recipe).method
        if method not in methods:
            raise ConfigError(f"the recipe {recipe} is of {method}, which does not take part: {', '.join(methods)}")
        return {method: recipe}
    found = {method: f"{method}-{recipe}" for method in methods if f"{method}-{recipe}" in shipped}
    if not found:
        suffixes = sorted({name.partition("-")[2] for name in shipped if "-" in name})
        raise ConfigError(
            f"no recipe {recipe!r}, nor METHOD-{recipe} of any of {', '.join(methods)}{nearest(recipe, suffixes)} "
            f"(shipped: {', '.join(shipped) or 'none'})"
        )
    return found


def _missing(method: str, params: Mapping[str, Any]) -> str | None:
    """What the method's entry says that it needs (parameter -> what that is), as far as it is not set."""
    needs: Any = METHODS.entry(method).needs
    missing = [str(what) for parameter, what in dict(needs).items() if params.get(parameter) is None]
    return " and ".join(missing) or None
