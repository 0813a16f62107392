"""``cleanpairs methods`` and ``cleanpairs recipes``."""

from __future__ import annotations

import inspect

import click

__all__ = ["methods", "recipes"]


@click.command(short_help="List the methods and their settings.")
@click.option("--settings", is_flag=True, help="With every setting and its default.")
def methods(settings: bool) -> None:
    """The methods that `fit --method` takes, a line each."""
    from cleanpairs.registry import METHODS

    for entry in METHODS:
        click.echo(f"{entry.name:<10} {entry.summary}  ({entry.source})")
        for parameter, what in entry.needs.items():
            click.echo(f"{'':<10} needs {parameter}: {what}")
        if settings:
            for setting, value in inspect.signature(entry.load()).parameters.items():
                click.echo(f"    {setting} = {value.default!r}")


@click.command(short_help="List the recipes that ship with the package.")
def recipes() -> None:
    """The names that `fit --recipe` takes, with what to expect of each."""
    from cleanpairs.recipe import find_recipes, recipe_header

    for name, path in find_recipes().items():
        click.echo(f"{name:<20} {recipe_header(path).get('expected', '')}")
