"""``cleanpairs completion``, and what a shell is offered for the names that options take.

Nothing here imports torch: a shell asks at every press of the tab key.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from cleanpairs.cli.terminal import echo
from cleanpairs.core.registry import BACKBONES, METHODS

COMPLETE_VARIABLE = "_CLEANPAIRS_COMPLETE"  # by it a shell asks, as click's scripts do
SHELLS = ("bash", "zsh", "fish")

HELP = """Print the completion script of a shell (by default, that of $SHELL).

\b
bash  eval "$(cleanpairs completion bash)"    in ~/.bashrc
zsh   eval "$(cleanpairs completion zsh)"     in ~/.zshrc, after compinit
fish  cleanpairs completion fish | source     in ~/.config/fish/config.fish
"""


@click.command(help=HELP)
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print click's script for the shell."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"say for which shell: {', '.join(SHELLS)} ($SHELL is {name or 'not set'})")
    script = get_completion_class(name)
    assert script is not None  # click has a class for each of SHELLS
    echo(script(ctx.find_root().command, {}, "cleanpairs", COMPLETE_VARIABLE).source())


def _completes(names: Callable[[], Iterable[tuple[str, str]]]) -> Callable[..., list[CompletionItem]]:

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name, help=summary) for name, summary in names() if name.startswith(incomplete)]

    return complete


def _recipes() -> Iterable[tuple[str, str]]:
    from cleanpairs.core.recipe import find_recipes, recipe_header

    return ((name, recipe_header(path, name).get("expected", "")) for name, path in find_recipes().items())


complete_method = _completes(lambda: ((entry.name, entry.summary) for entry in METHODS))
complete_backbone = _completes(lambda: ((entry.name, entry.summary) for entry in BACKBONES))


def complete_recipe(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the recipes that ship, with what to expect; files, where none begins so."""
    return _completes(_recipes)(ctx, parameter, incomplete) or [CompletionItem(incomplete, type="file")]
