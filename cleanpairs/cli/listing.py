"""What there is to see: ``cleanpairs methods``, ``cleanpairs recipes`` and ``cleanpairs demo``."""

import inspect
import resource
from contextlib import closing
from typing import Any

import click

from cleanpairs.cli.completion import complete_recipe
from cleanpairs.cli.options import option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.progress import Progress, flag
from cleanpairs.cli.terminal import echo, print_result, say


@click.command(cls=PathsCommand)
@option("--settings", None, "With every setting and its default.")
def methods(settings: bool) -> None:
    """The methods that `fit --method` takes, a line each."""
    from cleanpairs.core.recipe import section_of
    from cleanpairs.core.registry import METHODS

    listed: list[dict[str, Any]] = []
    for entry in METHODS:
        about: dict[str, Any] = {key: getattr(entry, key) for key in ("name", "summary", "source", "needs")}
        if settings:
            from cleanpairs.estimators import PairCleaner

            method = entry.load()
            known = inspect.signature(method).parameters
            about["settings"] = {setting: value.default for setting, value in known.items()}
            own = set(known) - set(inspect.signature(PairCleaner).parameters)
            about["sections"] = {s: "own" if s in own else section_of(method, s) for s in about["settings"]}
        listed.append(about)
    lines = []
    for about in listed:
        lines.append(f"{about['name']:<10} {about['summary']}  ({about['source']})")
        lines += [f"{'':<10} needs {parameter}: {what}" for parameter, what in about["needs"].items()]
        for section in ("own", "method", "backbone", "train"):
            some = [s for s, found in about.get("sections", {}).items() if found == section]
            lines += [f"    {'' if k else section:<9} {s} = {about['settings'][s]!r}" for k, s in enumerate(some)]
    print_result(listed, "\n".join(lines))


@click.group(invoke_without_command=True, params=[flag("json", "Print JSON, and nothing else.")])
@click.pass_context
def recipes(ctx: click.Context) -> None:
    """The names that `fit --recipe` takes, with what to expect of each."""
    from cleanpairs.core.recipe import find_recipes, recipe_header

    if ctx.invoked_subcommand is None:
        listed = [{"name": name, **recipe_header(path, name)} for name, path in find_recipes().items()]
        print_result(listed, "\n".join(f"{r['name']:<20} {r.get('expected', '')}" for r in listed))


@recipes.command(short_help="Print one of them, to use it as it is or to change it.")
@click.argument("name", shell_complete=complete_recipe)
def show(name: str) -> None:
    """The recipe NAME as a YAML file, with what to expect of it: `recipes show crcl-coco > mine.yaml`."""
    from cleanpairs.core.recipe import recipe_text

    echo(recipe_text(name).rstrip())


@click.command(cls=PathsCommand, flags=[flag("quiet", "No progress bar."), flag("progress")])
@option("--out", Writes(), "Where everything goes.", default="demo", metavar="DIR")
@option("--noise", float, "Share of pairs to wrong.", default=0.3)
@option("--seed", int, default=0)
@option("--images", None, "Train from the pixels (a small CNN) instead of frozen features.")
def demo(out: str, noise: float, seed: int, images: bool) -> None:
    """Wrong 30 % of the clip art's pairs, find them, repair them, and measure what that does for retrieval."""
    from cleanpairs.commands.demo import run_demo

    with closing(Progress()) as bar:
        result = run_demo(out, noise=noise, seed=seed, images=images, say=say, progress=bar)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"\n{result['seconds']:.0f} s, {peak:,.0f} MB at the peak"
    print_result({**result, "peak_mb": round(peak), "out": out}, text)
