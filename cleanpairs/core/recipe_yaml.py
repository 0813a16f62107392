"""YAML as recipes are written: safe types only, ``5e-4`` is a number, a key given twice is an error."""

import re
from pathlib import Path
from typing import Any

import yaml

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.regular import open_regular

MAX_BYTES = 1 << 20  # a recipe is a page of text; anything larger is some other file


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, without two of YAML 1.1's surprises."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A dict; a repeated key raises, where PyYAML would silently keep the last."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:merge" and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes the text that :class:`_Loader` would take for a number."""


# YAML 1.1 wants a point and a signed exponent in a float, so that PyYAML reads 5e-4 as text; YAML 1.2 does not.
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def dump_yaml(content: dict[str, Any]) -> str:
    """YAML that :func:`parse_yaml` reads back as ``content``, keys in their order."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)


def parse_yaml(text: str, origin: str) -> Any:
    """The value of one YAML document, of YAML's own types alone. Raises ConfigError: it names ``origin``, line and
    column.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: no object is ever constructed
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{origin}{at}: not readable as YAML: {problem}") from error


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping that a YAML file holds; an empty file is an empty mapping.

    Raises ConfigError: the file cannot be read, is larger than 1 MiB, is not UTF-8, or holds no mapping.
    """
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the recipe {path} is not UTF-8 text (byte {error.start})") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"the recipe {path} is larger than 1 MiB: is it a recipe?")
    content = parse_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a recipe holds sections (method, train, ...), found {type(content).__name__}")
    return content
