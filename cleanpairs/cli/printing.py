"""What commands print: for programs one JSON value on one line of standard output, and nothing beside it."""

import json
from typing import Any

import click

from cleanpairs.cli.progress import silence
from cleanpairs.cli.terminal import echo
from cleanpairs.core.plain import plain

json_option = click.option("--json", "as_json", is_flag=True, callback=silence, help="Print JSON, and nothing else.")


def print_json(value: Any) -> None:
    """``value`` as one line of JSON, in ASCII: it reads the same in every locale."""
    echo(json.dumps(plain(value), allow_nan=False))


def print_result(value: Any, as_json: bool, text: object = None) -> None:
    """What a command has found: ``value`` as JSON, or else ``text``, which is that of ``value`` when None."""
    if as_json:
        print_json(value)
    else:
        echo(str(value if text is None else text))
