"""Recipes: a YAML file, ``--set key=value`` and command line options become validated settings.

A recipe has up to five sections. ``method``, ``backbone`` and ``train`` hold constructor parameters of the method's
estimator (three headings for the reader: each parameter may stand under any of them, once); ``data`` holds the fields
of :class:`DataOptions`, ``output`` those of :class:`OutputOptions`::

    # command: cleanpairs fit data.parquet --recipe crcl-clipart
    # hardware: 2 CPU cores
    # minutes: 2.5
    # expected: AUROC 0.97 +- 0.01 (3 seeds)
    # date: 2026-01-31
    method: {name: crcl}
    backbone: {name: vse_inf, dim: 512}
    train: {epochs: 10, batch_size: 128, seed: 0}
    data: {val: dev.parquet}
    output: {out: runs/clipart}

Paths are relative to the working directory. Later wins: default, recipe, ``--set``, option.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.papers import PAPERS, header_of, made_recipes, settings_of
from cleanpairs.core.recipe_yaml import dump_yaml, parse_yaml, read_yaml
from cleanpairs.core.registry import METHODS, nearest
from cleanpairs.core.regular import read_text

HEADER_KEYS = ("command", "hardware", "minutes", "expected", "date")  # comments that every shipped recipe opens with
DEFAULT_METHOD = "auto"
_ALIASES = {"seed": "random_state"}  # the command line's name -> the constructor's
_ESTIMATOR_SECTIONS = ("method", "backbone", "train")


@dataclass(frozen=True)
class DataOptions:
    """What to read; see :func:`cleanpairs.load_pairs`."""

    train: str | None = None
    val: str | None = None
    reader: str | None = None
    encoding: str | None = None
    split: str | None = None
    limit: int | None = None
    image_column: str | None = None
    text_column: str | None = None
    key_column: str | None = None
    text_vectors: str | None = None
    captions: str | None = None
    image_root: str | None = None
    allow_urls: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """Where the run goes and how much is said."""

    out: str | None = None
    overwrite: bool = False
    quiet: bool = False
    json: bool = False


_OPTION_SECTIONS: dict[str, type] = {"data": DataOptions, "output": OutputOptions}


@dataclass(frozen=True)
class Recipe:
    """Validated settings of one run, made by :meth:`resolve`; ``params``: constructor parameters that were given."""

    method: str = DEFAULT_METHOD
    params: dict[str, Any] = field(default_factory=dict)
    data: DataOptions = DataOptions()
    output: OutputOptions = OutputOptions()

    @classmethod
    def resolve(
        cls,
        recipe: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Recipe:
        """Settings out of a recipe (a file, or the name of a shipped one), then ``--set`` overrides, then options.

        ``overrides``: ``key=value`` or ``section.key=value``; the value is YAML (``lr=5e-4``, ``threshold=null``);
        ``options``: keys as in a recipe without their section, with ``method`` and ``backbone`` for the two names; None
        means not given.
        Raises ConfigError: it names the file (or the option), the key and the nearest known key.
        """
        layers: list[tuple[str, list[_Setting]]] = []
        if recipe is not None:
            origin, content = _content_of(recipe)
            layers.append((origin, _settings_of(content, origin)))
        layers.append(("--set", [_setting_of_override(text) for text in overrides]))
        given = {key: value for key, value in (options or {}).items() if value is not None}
        layers.append(("options", [_Setting(None, key, value) for key, value in given.items()]))

        method = DEFAULT_METHOD
        for origin, settings in layers:
            for setting in filter(_is_method_name, settings):
                if not isinstance(setting.value, str):
                    raise ConfigError(f"{origin}: the method's name must be text, found {setting.value!r}")
                method = setting.value
        values: dict[str, dict[str, Any]] = {"params": {}, "data": {}, "output": {}}
        parameters = _constructor(method)
        for origin, settings in layers:
            seen: set[str] = set()
            for setting in settings:
                if _is_method_name(setting):
                    continue
                target, key = _place(setting, method, parameters, origin)
                if recipe is not None and origin == layers[0][0] and key in seen:
                    raise ConfigError(f"{origin}: {key!r} is set twice: keep one of the two")
                seen.add(key)
                values[target][key] = _checked(target, key, setting.value, parameters, origin)
        return cls(method, values["params"], DataOptions(**values["data"]), OutputOptions(**values["output"]))

    def estimator(self) -> Any:
        """An unfitted estimator of these settings."""
        return METHODS.load(self.method)(**self.params)

    def to_yaml(self) -> str:
        """Every setting, defaults included, as a recipe that resolves to the same run."""
        signature = _constructor(self.method)
        params = {name: p.default for name, p in signature.items() if p.default is not p.empty} | self.params
        sections: dict[str, dict[str, Any]] = {"method": {"name": self.method}, "backbone": {}, "train": {}}
        if "backbone" in params:
            sections["backbone"]["name"] = params.pop("backbone")
        estimator = METHODS.load(self.method)
        for key, value in params.items():
            sections[section_of(estimator, key)][key] = list(value) if isinstance(value, tuple) else value
        sections |= {"data": asdict(self.data), "output": asdict(self.output)}
        return dump_yaml(sections)


def section_of(method: type, key: str) -> str:
    """The heading under which a recipe has a setting: ``section`` of the class that brings it, else ``method``."""
    for origin in reversed(method.__mro__):
        if key in vars(origin).get("__annotations__", {}):
            return str(vars(origin).get("section", "method"))
    return "method"


def find_recipes() -> dict[str, Path]:
    """Name -> file of the shipped recipes, sorted: of the source tree, or of the installed package.

    The file of one that is made (:mod:`cleanpairs.core.papers`) is the table that it is made of.
    """
    package = Path(__file__).resolve().parents[1]
    source = package.parent / "recipes"
    in_source_tree = (package.parent / "pyproject.toml").is_file() and source.is_dir()
    folder = source if in_source_tree else package / "_recipes"
    found = {path.stem: path for path in folder.glob("*.yaml") if path.name != PAPERS}
    found |= {name: folder / PAPERS for name in made_recipes(folder)}
    return dict(sorted(found.items()))


def recipe_text(name: str) -> str:
    """A shipped recipe as YAML, under the comments that say what to expect; ConfigError where there is none."""
    path = _path_of(name)
    if not _is_made(path, name):
        return read_text(path)
    header = "".join(f"# {key}: {value}\n" for key, value in recipe_header(path, name).items())
    return header + dump_yaml(_sections_of(path, name))


def recipe_header(path: str | Path, name: str) -> dict[str, str]:
    """The ``# key: value`` lines that open a recipe, by key; those of :data:`HEADER_KEYS` only.

    ``path``, ``name``: of :func:`find_recipes`.
    """
    if _is_made(Path(path), name):
        return header_of(Path(path).parent, name)
    header: dict[str, str] = {}
    for line in read_text(path).splitlines():
        if not line.startswith("#"):
            break
        key, colon, value = line.lstrip("# ").partition(":")
        if colon and key in HEADER_KEYS and value.strip():
            header[key] = value.strip()
    return header


@dataclass(frozen=True)
class _Setting:
    section: str | None  # None: the key alone says where it belongs
    key: str
    value: Any


def _is_method_name(setting: _Setting) -> bool:
    return (setting.section, setting.key) in {("method", "name"), (None, "method")}


def _path_of(recipe: str | Path) -> Path:
    path = Path(recipe)
    if path.is_file():
        return path
    shipped = find_recipes()
    if str(recipe) in shipped:
        return shipped[str(recipe)]
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        raise ConfigError(f"the recipe {recipe} is no file")
    near = nearest(str(recipe), list(shipped)) or f" (shipped: {', '.join(shipped) or 'none'})"
    raise ConfigError(f"no recipe {str(recipe)!r}{near}")


def _is_made(path: Path, name: str | Path) -> bool:
    return path.name == PAPERS and str(name) in made_recipes(path.parent)


def _content_of(recipe: str | Path) -> tuple[str, dict[Any, Any]]:
    """What a recipe is called in messages, and its sections."""
    path = _path_of(recipe)
    if _is_made(path, recipe):
        return f"the recipe {recipe}", _sections_of(path, str(recipe))
    return str(path), read_yaml(path)


def _sections_of(path: Path, name: str) -> dict[str, Any]:
    """A recipe that is made, as its file would hold it."""
    method = name.rsplit("-", 1)[0]
    estimator = METHODS.load(method)
    sections: dict[str, dict[str, Any]] = {"method": {"name": method}, "backbone": {}, "train": {}}
    for key, value in settings_of(path.parent, name).items():
        section, value = section_of(estimator, key), list(value) if isinstance(value, tuple) else value
        sections[section]["name" if key == "backbone" else key] = value
    return {section: body for section, body in sections.items() if body}


def _settings_of(content: dict[Any, Any], path: str) -> list[_Setting]:
    settings: list[_Setting] = []
    for section, body in content.items():
        _check_section(section, path)
        if isinstance(body, str) and section in {"method", "backbone"}:
            body = {"name": body}
        if not isinstance(body, dict | None):
            raise ConfigError(f"{path}: the section {section!r} must hold keys and values, found {body!r}")
        settings += [_Setting(section, str(key), value) for key, value in (body or {}).items()]
    return settings


def _check_section(section: Any, origin: str) -> None:
    known = [*_ESTIMATOR_SECTIONS, *_OPTION_SECTIONS]
    if section not in known:
        raise ConfigError(
            f"{origin}: unknown section {section!r}{nearest(str(section), known)} (known: {', '.join(known)})"
        )


def _setting_of_override(text: str) -> _Setting:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().rpartition(".")
    if not equals or not key or (dot and not section):
        raise ConfigError(f"--set takes key=value or section.key=value, found {text!r}")
    return _Setting(section or None, key, parse_yaml(value, f"--set {name.strip()}"))


def _constructor(method: str) -> dict[str, inspect.Parameter]:
    """Constructor parameters of a method's estimator, by name."""
    parameters = inspect.signature(METHODS.load(method)).parameters
    return {name: p for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def _place(setting: _Setting, method: str, parameters: Mapping[str, Any], origin: str) -> tuple[str, str]:
    """(``params``, ``data`` or ``output``; the key there) of one setting."""
    section, key = setting.section, _ALIASES.get(setting.key, setting.key)
    if section == "backbone" and key == "name":
        key = "backbone"
    if section is not None:
        _check_section(section, origin)
    known = {
        target: [f.name for f in fields(cls)] for target, cls in _OPTION_SECTIONS.items() if section in (None, target)
    }
    if section not in _OPTION_SECTIONS:
        known["params"] = list(parameters)
    for target, names in known.items():
        if key in names:
            return target, key
    if "params" in known and "epochs" not in parameters and key in _constructor(DEFAULT_METHOD):
        raise ConfigError(f"{origin}: {setting.key!r} is a setting of trainings, and {method} trains nothing")
    names = sorted({name for names in known.values() for name in names} | set(_ALIASES))
    where = f"{section}.{setting.key}" if section else setting.key
    of = f"section {section!r} with method {method}" if section else f"method {method}"
    raise ConfigError(
        f"{origin}: unknown key {where!r}{nearest(setting.key, names)} (known for {of}: {', '.join(names)})"
    )


def _checked(target: str, key: str, value: Any, parameters: Mapping[str, Any], origin: str) -> Any:
    """``value``, if it is of a type that ``key`` takes; the estimator itself checks ranges when it is fitted."""
    if target == "params":
        default = parameters[key].default
        if isinstance(value, list) and isinstance(default, tuple):
            return tuple(value)
        if isinstance(value, dict):
            raise ConfigError(f"{origin}: {key!r} takes a value, found keys and values: {value!r}")
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ConfigError(f"{origin}: {key!r} must be true or false, found {value!r}")
        return value
    if isinstance(value, Path):
        value = str(value)
    wanted = get_type_hints(_OPTION_SECTIONS[target])[key]
    if (isinstance(value, bool) and wanted is not bool) or not isinstance(value, wanted):
        name = getattr(wanted, "__name__", str(wanted)).replace("str", "text").replace("None", "null")
        raise ConfigError(f"{origin}: {target}.{key} must be {name}, found {value!r}")
    return value
