"""What a benchmark runs on, and with which settings each method: its defaults, a recipe, ``--set``."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from cleanpairs.core import METHODS, ConfigError, DataError, nearest
from cleanpairs.core.recipe import Recipe, find_recipes
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.readers import options_for_others


@dataclass(frozen=True)
class MethodSettings:
    """One method as it takes part. ``digest``: 12 hex digits over every setting that counts, defaults included."""

    method: str
    params: dict[str, Any]
    recipe: str | None
    digest: str

    def estimator(self, random_state: int) -> Any:
        """Return an unfitted estimator of these settings."""
        return METHODS.load(self.method)(**self.params | {"random_state": random_state})

    @property
    def missing(self) -> list[str]:
        """What the method needs and lacks."""
        return [what for name, what in METHODS[self.method].needs.items() if self.params.get(name) is None]


def choose_methods(text: str) -> list[str]:
    """Return the methods of ``all``, or of names with commas, each once. ConfigError for an unknown one."""
    if text.strip() == "all":
        return list(METHODS)
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"no method is named in {text!r} (known: all, {', '.join(METHODS)})")
    return [METHODS[name].name for name in names]


def method_settings(
    methods: Sequence[str], *, recipe: str | None = None, overrides: Sequence[str] = ()
) -> tuple[list[MethodSettings], list[str]]:
    """Return the settings of each method, and notes about what does not concern all of them.

    - ``recipe``: a file or a shipped recipe, for the method that it names, or ``R``, for every method that a recipe
      ``METHOD-R`` is shipped of
    - ``overrides``: ``key=value`` for all methods that have the key, ``METHOD.key=value`` for one

    Raises ConfigError: a setting that none of the methods has, or one of a method that does not take part.
    """
    notes: list[str] = []
    own: dict[str, list[str]] = {method: [] for method in methods}
    for text in overrides:
        section, _, setting = text.partition(".")
        if section not in METHODS:
            takers = _takers(text, methods)
            if len(takers) < len(methods):
                notes.append(f"--set {text} concerns {', '.join(takers)} only")
        elif section in methods:
            text, takers = setting, _takers(setting, [section])
        else:
            raise ConfigError(f"--set {text}: {section} does not take part (methods: {', '.join(methods)})")
        for method in takers:
            own[method].append(text)
    recipes = _recipes(recipe, methods) if recipe is not None else {}
    if recipe is not None and len(recipes) < len(methods):
        others = ", ".join(m for m in methods if m not in recipes)
        notes.append(f"--recipe {recipe} has no settings of {others}: their defaults are used")
    settings = []
    for method in methods:
        resolved = Recipe.resolve(recipes.get(method), overrides=own[method], options={"method": method})
        every = resolved.estimator().get_params()
        counts = {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(every.items())}
        digest = hashlib.sha256(repr(counts | {"random_state": None, "device": None}).encode()).hexdigest()
        settings.append(MethodSettings(method, resolved.params, recipes.get(method), digest[:12]))
    return settings, notes


def _takers(text: str, methods: Sequence[str]) -> list[str]:
    """Return the methods that have the setting of an override."""
    section, _, key = text.partition("=")[0].strip().rpartition(".")
    if key in ("seed", "random_state"):
        raise ConfigError(f"--set {text}: the seeds are what the benchmark counts (--seeds)")
    key = "backbone" if (section, key) == ("backbone", "name") else key
    signatures = {method: signature(METHODS.load(method)).parameters for method in methods}
    takers = [method for method in methods if key in signatures[method]]
    if not takers:
        names = sorted({name for parameters in signatures.values() for name in parameters})
        raise ConfigError(
            f"--set {text}: none of {', '.join(methods)} has a setting {key!r}{nearest(key, names)} "
            f"(known: {', '.join(names)})"
        )
    return takers


def _recipes(recipe: str, methods: Sequence[str]) -> dict[str, str]:
    shipped = find_recipes()
    if Path(recipe).is_file() or recipe in shipped:
        method = Recipe.resolve(recipe).method
        if method not in methods:
            raise ConfigError(f"the recipe {recipe} is of {method}, which does not take part: {', '.join(methods)}")
        return {method: recipe}
    recipes = {method: f"{method}-{recipe}" for method in methods if f"{method}-{recipe}" in shipped}
    if not recipes:
        near = nearest(recipe, sorted({name.partition("-")[2] for name in shipped}))
        raise ConfigError(
            f"no recipe {recipe!r}, nor METHOD-{recipe} of any of {', '.join(methods)}{near} (shipped: "
            f"{', '.join(shipped) or 'none'})"
        )
    return recipes


@dataclass(frozen=True)
class Splits:
    """Clean pairs. ``digest`` says which, ``notes`` where splits were found that nobody named."""

    train: Pairs
    val: Pairs | None
    test: Pairs | None
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """12 hex digits of each split's fingerprint."""
        splits = (self.train, self.val, self.test)
        return "-".join(s.source.fingerprint[:12] if s is not None else "none" for s in splits)


def load_splits(
    data: str, *, val: str | None = None, test: str | None = None, limit: int | None = None, **columns: Any
) -> Splits:
    """Clean training pairs, and the splits that belong to them, if none are given.

    A directory in the research layout has ``dev`` and ``test``. A file ``NAME_train.parquet`` has the neighbours
    ``NAME_val.parquet`` and ``NAME_test.parquet``. At most ``limit`` training rows are read.
    For ``columns`` see :func:`cleanpairs.load_pairs`.

    Raises DataError: the data cannot be read, or is mismatched already.
    """
    split = columns.pop("split", None)
    train = load_pairs(data, split=split, limit=limit, **columns)
    if train.true_mismatch is not None and train.true_mismatch.any():
        raise DataError(f"{data} holds mismatched pairs, by its column 'true_mismatch'; a benchmark needs clean data")
    splits = [_split(role, given, Path(data), columns) for role, given in (("val", val), ("test", test))]
    seen = [split.seen_in(train, role) for role, (split, _) in zip(("val", "test"), splits, strict=True) if split]
    return Splits(train, splits[0][0], splits[1][0], tuple(note for note in [*(n for _, n in splits), *seen] if note))


def _split(role: str, given: str | None, data: Path, columns: dict[str, Any]) -> tuple[Pairs | None, str | None]:
    folder = Path(given) if given is not None else data
    columns = options_for_others(folder, data, columns)
    for name in ("dev", "val") if role == "val" else ("test",):
        if (folder / f"{name}_caps.txt").exists():
            return load_pairs(folder, split=name, **columns), None if given else f"{role}: split {name} of {folder}"
    if given is not None:
        return load_pairs(given, **columns), None
    sibling = data.with_name(f"{data.name.removesuffix('_train.parquet')}_{role}.parquet")
    if data.name.endswith("_train.parquet") and sibling.exists():
        return load_pairs(sibling, **columns), f"{role}: {sibling}, found next to the data"
    return None, f"no {role} pairs"
