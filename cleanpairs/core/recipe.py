"""Recipes: a YAML file, ``--set key=value`` and command line options, of which later wins, become validated settings.

A recipe has up to five sections, as docs/recipes.md shows. Constructor parameters of the method's estimator stand in
``method``, ``backbone`` or ``train``, in any of the three. The fields of :class:`DataOptions` stand in ``data``, and
those of :class:`OutputOptions` in ``output``.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import check_setting, text, whole
from cleanpairs.core.registry import METHODS, nearest
from cleanpairs.core.regular import open_regular, read_text


@dataclass(frozen=True)
class DataOptions:
    """The input and how to read it. See :func:`cleanpairs.load_pairs`."""

    train: str | None = text(None)
    val: str | None = text(None)
    reader: str | None = text(None)
    encoding: str | None = text(None)
    split: str | None = text(None)
    limit: int | None = whole(None, 0, none=True)
    image_column: str | None = text(None)
    text_column: str | None = text(None)
    key_column: str | None = text(None)
    score_columns: str | None = text(None)
    text_vectors: str | None = text(None)
    captions: str | None = text(None)
    image_root: str | None = text(None)
    allow_urls: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """Where the run is written, and whether the command prints its progress."""

    out: str | None = text(None)
    overwrite: bool = False
    quiet: bool = False


_OPTION_SECTIONS: dict[str, type] = {"data": DataOptions, "output": OutputOptions}
_SECTIONS = ("method", "backbone", "train", *_OPTION_SECTIONS)


@dataclass(frozen=True)
class Recipe:
    """Validated settings of one run, made by :meth:`resolve`. ``params``: constructor parameters that were given."""

    method: str = "auto"
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
    ) -> "Recipe":
        """Settings out of a recipe (a file, or the name of a shipped one), then ``--set`` overrides, then options.

        ``overrides``: ``key=value`` or ``section.key=value``, the value YAML. ``options``: keys as in a recipe without
        their section, ``method`` and ``backbone`` for the two names. None means not given.
        Raises ConfigError: it names the file (or the option), the key and the nearest known key.
        """
        settings = [] if recipe is None else _settings_of(recipe)
        in_recipe = len(settings)
        settings += [_setting_of_override(text) for text in overrides]
        settings += [_Setting("options", None, key, v) for key, v in (options or {}).items() if v is not None]
        method = cls.method
        for setting in settings:
            if setting.names_method:
                if not isinstance(setting.value, str):
                    raise ConfigError(f"{setting.origin}: the method's name must be text, found {setting.value!r}")
                method = setting.value
        values: dict[str, dict[str, Any]] = {"params": {}, "data": {}, "output": {}}
        parameters = _constructor(method)
        for k, setting in enumerate(settings):
            if not setting.names_method:
                target, key = _place(setting, method, parameters)
                if k < in_recipe and key in values[target]:
                    raise ConfigError(f"{setting.origin}: {key!r} is set twice: keep one of the two")
                values[target][key] = value = _checked(target, key, setting, parameters)
                if target == "params" and k < in_recipe:  # the estimator, which checks all, knows no file
                    _check_range(setting.origin, method, METHODS.load(method), key, value)
        return cls(method, values["params"], DataOptions(**values["data"]), OutputOptions(**values["output"]))

    def estimator(self) -> Any:
        """Return an unfitted estimator of these settings."""
        return METHODS.load(self.method)(**self.params)

    def to_yaml(self) -> str:
        """Every setting, defaults included, as a recipe that resolves to the same run."""
        params = {name: p.default for name, p in _constructor(self.method).items()} | self.params
        backbone = {"name": params.pop("backbone")} if "backbone" in params else {}
        content: dict[str, dict[str, Any]] = {"method": {"name": self.method}, "backbone": backbone, "train": {}}
        for key, value in params.items():
            section = section_of(METHODS.load(self.method), key)
            content[section][key] = list(value) if isinstance(value, tuple) else value
        content |= {"data": asdict(self.data), "output": asdict(self.output)}
        return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def section_of(method: type, key: str) -> str:
    """The heading under which a recipe has a setting: ``section`` of the class that brings it, else ``method``."""
    for origin in reversed(method.__mro__):
        if key in vars(origin).get("__annotations__", {}):
            return str(vars(origin).get("_section", "method"))
    return "method"


def find_recipes() -> dict[str, Path]:
    """Name -> file of the shipped recipes, sorted."""
    package = Path(__file__).resolve().parents[1]
    source = package.parent / "recipes"
    in_source_tree = (package.parent / "pyproject.toml").is_file() and source.is_dir()
    folder = source if in_source_tree else package / "_recipes"
    return {path.stem: path for path in sorted(folder.rglob("*.yaml"), key=lambda path: path.stem)}


def recipe_header(path: str | Path) -> dict[str, str]:
    """The ``# key: value`` lines that open a recipe, by key."""
    header, keys = dict[str, str](), ("command", "hardware", "minutes", "expected", "date")
    for line in read_text(path).splitlines():
        if not line.startswith("#"):
            break
        key, colon, value = line.lstrip("# ").partition(":")
        if colon and key in keys and value.strip():
            header[key] = value.strip()
    return header


class _Setting(NamedTuple):
    origin: str  # what errors call it
    section: str | None  # None: the key alone says where it belongs
    key: str
    value: Any

    @property
    def names_method(self) -> bool:
        return self[1:3] in {("method", "name"), (None, "method")}


def path_of(recipe: str | Path) -> Path:
    """The file of a recipe: its path, or the name of one that ships. ConfigError: there is none."""
    path, shipped = Path(recipe), find_recipes()
    if path.is_file() or str(recipe) in shipped:
        return path if path.is_file() else shipped[str(recipe)]
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        raise ConfigError(f"the recipe {recipe} is no file")
    near = nearest(str(recipe), list(shipped)) or f" (shipped: {', '.join(shipped) or 'none'})"
    raise ConfigError(f"no recipe {str(recipe)!r}{near}")


def _settings_of(recipe: str | Path) -> list[_Setting]:
    path = path_of(recipe)
    settings: list[_Setting] = []
    for section, body in read_yaml(path).items():
        _check_section(section, str(path))
        if isinstance(body, str) and section in {"method", "backbone"}:
            body = {"name": body}
        if not isinstance(body, dict | None):
            raise ConfigError(f"{path}: the section {section!r} must hold keys and values, found {body!r}")
        settings += [_Setting(str(path), section, str(key), value) for key, value in (body or {}).items()]
    return settings


def _check_section(section: Any, origin: str, known: Sequence[str] = _SECTIONS) -> None:
    if section not in known:
        near = nearest(str(section), list(known))
        raise ConfigError(f"{origin}: unknown section {section!r}{near} (known: {', '.join(known)})")


def override_values(overrides: Sequence[str], **known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Section -> key -> value of ``--set`` where there is no recipe. ``known``: the keys of each section.

    Raises ConfigError: a key or a section is not known, or a value of ``data`` is of another type.
    """
    values: dict[str, dict[str, Any]] = {section: {} for section in known}
    for override in overrides:
        setting = _setting_of_override(override, list(known))
        names = [key for section in known if setting.section in (None, section) for key in known[section]]
        if setting.key not in names:
            near = nearest(setting.key, names)
            raise ConfigError(f"--set: unknown key {setting.key!r}{near} (known: {', '.join(sorted(names))})")
        section = setting.section or next(section for section in known if setting.key in known[section])
        value = _checked("data", setting.key, setting, {}) if section == "data" else setting.value
        values[section][setting.key] = value
    return values


def _setting_of_override(text: str, sections: Sequence[str] = _SECTIONS) -> _Setting:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().rpartition(".")
    if not equals or not key or (dot and not section):
        raise ConfigError(f"--set takes key=value or section.key=value, found {text!r}")
    if section:
        _check_section(section, "--set", sections)
    return _Setting("--set", section or None, key, parse_yaml(value, f"--set {name.strip()}"))


def _constructor(method: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(METHODS.load(method)).parameters


def _place(setting: _Setting, method: str, parameters: Mapping[str, Any]) -> tuple[str, str]:
    """(``params``, ``data`` or ``output``, the key there) of one setting."""
    origin, section, key, _ = setting
    key = "backbone" if (section, key) == ("backbone", "name") else {"seed": "random_state"}.get(key, key)
    places = {target: [f.name for f in fields(cls)] for target, cls in _OPTION_SECTIONS.items()}
    places["params"] = list(parameters)
    if section is not None:
        places = {target: places[target] for target in [section if section in places else "params"]}
    for target, names in places.items():
        if key in names:
            return target, key
    if "params" in places and "epochs" not in parameters and key in _constructor(Recipe.method):
        raise ConfigError(f"{origin}: {setting.key!r} is a setting of trainings, and {method} trains nothing")
    names = sorted({name for names in places.values() for name in names} | {"seed"})
    where = f"{section}.{setting.key}" if section else setting.key
    owner = f"section {section!r} with method {method}" if section else f"method {method}"
    near = nearest(setting.key, names)
    raise ConfigError(f"{origin}: unknown key {where!r}{near} (known for {owner}: {', '.join(names)})")


def _checked(target: str, key: str, setting: _Setting, parameters: Mapping[str, Any]) -> Any:
    """The value, if ``key`` takes it. The estimator itself checks the ranges of its parameters when it is fitted."""
    origin, value = setting.origin, setting.value
    if target != "params":
        value = str(value) if isinstance(value, Path) else value
        _check_range(origin, target, _OPTION_SECTIONS[target], key, value)
        return value
    default = parameters[key].default
    if isinstance(value, dict):
        raise ConfigError(f"{origin}: {key!r} takes a value, found keys and values: {value!r}")
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ConfigError(f"{origin}: {key!r} must be true or false, found {value!r}")
    return tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value


def _check_range(origin: str, owner: str, settings: type, key: str, value: Any) -> None:
    """Raise ConfigError, which names ``origin``, for a value that a field of ``settings`` does not take."""
    try:
        check_setting(owner, settings, key, value)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without two of YAML 1.1's surprises. None is null, too."""

    def get_single_node(self) -> Any:
        """The document's node. It raises where the aliases stand for so much that a message of it fills the memory."""
        node, left = super().get_single_node(), 2**20
        waiting = [] if node is None else [node]
        while waiting:
            found = waiting.pop()
            left -= len(found.value)
            if left < 0:
                raise yaml.MarkedYAMLError(None, None, "it is too large with its aliases written out")
            if isinstance(found, yaml.CollectionNode):
                waiting += chain.from_iterable(found.value) if isinstance(found, yaml.MappingNode) else found.value
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A dict. A repeated key raises, where PyYAML would silently keep the last."""
        seen: set[Any] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.MarkedYAMLError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes the text that :class:`_Loader` would take for something else."""


# YAML 1.1 wants a point and a signed exponent in a float, so that PyYAML reads 5e-4 as text. YAML 1.2 does not.
# Messages and Python say None, and YAML null.
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("None$"), ["N"])
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def parse_yaml(text: str, origin: str) -> Any:
    """The value of a YAML document, of YAML's own types. Raises ConfigError: it names ``origin``, line and column."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: no object is ever constructed
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{origin}{at}: not readable as YAML: {problem}") from error


def read_yaml(path: Path, most_bytes: int = 2**20) -> dict[Any, Any]:
    """The mapping that a YAML file holds, empty of an empty one. ConfigError where it holds none, or above 1 MiB."""
    try:
        with open_regular(path) as file:
            raw = file.read(most_bytes + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe {path} is not UTF-8 text (byte {error.start})") from error
    if len(raw) > most_bytes:
        raise ConfigError(f"the recipe {path} is larger than {most_bytes:,} bytes: is it a recipe?")
    content = parse_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a recipe holds sections (method, train, ...), found {type(content).__name__}")
    return content
