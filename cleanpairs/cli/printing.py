"""What commands print for programs: one JSON value on one line of standard output, and nothing beside it."""

from __future__ import annotations

import json
from typing import Any

import click

from cleanpairs.cli.progress import Progress
from cleanpairs.cli.terminal import echo
from cleanpairs.core.plain import plain


def _silent(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    if value:
        Progress(enabled=False)
    return value


json_option = click.option("--json", "as_json", is_flag=True, callback=_silent, help="Print JSON, and nothing else.")


def print_json(value: Any) -> None:
    """``value`` as one line of JSON, in ASCII: it reads the same in every locale."""
    echo(json.dumps(plain(value), allow_nan=False))
