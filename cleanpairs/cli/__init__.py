"""The command line: thin commands that parse, call the library, and print.

Exit codes are those of :mod:`cleanpairs.errors`; 130 and 143 on SIGINT and SIGTERM. A traceback is shown for
``--debug`` only.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from typing import Any

import click

from cleanpairs import __version__
from cleanpairs.errors import CleanpairsError, OutputError
from cleanpairs.interrupt import Terminated

__all__ = ["cli", "main"]

# Section of the help -> command -> (module, summary). The summary fits beside the name on a line of 80 columns.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "methods": ("cleanpairs.cli.listing", "List the methods and their settings."),
        "recipes": ("cleanpairs.cli.listing", "List the recipes that ship with the package."),
        "demo": ("cleanpairs.cli.demo", "See it work on the clip art that ships with it."),
    },
    "Clean": {
        "fit": ("cleanpairs.cli.fit", "Train on noisy pairs; leave a run: scores, a model."),
        "score": ("cleanpairs.cli.score", "Score any pairs with a fitted model."),
        "rematch": ("cleanpairs.cli.rematch", "Plan the repairs, to be reviewed before they are made."),
        "export": ("cleanpairs.cli.export", "Write the cleaned, repaired dataset and its ledger."),
    },
    "Review": {
        "report": ("cleanpairs.cli.report", "Write one HTML page about a run."),
        "audit": ("cleanpairs.cli.audit", "Label a sample by hand; precision and recall from it."),
        "diff": ("cleanpairs.cli.diff", "Show what an export changed, pair by pair."),
        "restore": ("cleanpairs.cli.restore", "Undo an export: write its input again."),
    },
    "Measure": {
        "evaluate": ("cleanpairs.cli.evaluate", "Retrieval recall; detection where the truth is known."),
        "corrupt": ("cleanpairs.cli.corrupt", "Wrong some pairs on purpose, and write the truth."),
        "bench": ("cleanpairs.cli.bench", "Methods against noise: the table that papers print."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used: ``cleanpairs --help`` loads no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called ``cmd_name``; None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click does, but an unknown name suggests the nearest one."""
        from cleanpairs.registry import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Section, name and one line each, without importing them."""
        rows = [
            (f"{section if k == 0 else '':<8} {name}", summary)
            for section, commands in SECTIONS.items()
            for k, (name, (_, summary)) in enumerate(commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A first session: cleanpairs fit data.parquet && cleanpairs export --repaired out.parquet",
)
@click.version_option(__version__, prog_name="cleanpairs")
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Find the wrong pairs of an image-text corpus, repair them, and keep the rest."""
    ctx.ensure_object(dict)["debug"] = debug


def main() -> None:
    """Entry point of the ``cleanpairs`` command; exits with the code of the error."""
    debug = "--debug" in sys.argv
    signal.signal(signal.SIGTERM, _terminate)
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as abort:  # what click makes of a KeyboardInterrupt
        sys.exit(143 if isinstance(abort.__cause__, Terminated) else 130)
    except CleanpairsError as error:
        _complain(error, debug)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _complain(error, debug)
        sys.exit(OutputError.exit_code)
    except Exception as error:
        _complain(error, debug, "this is a bug of cleanpairs; --debug shows where: ")
        sys.exit(1)


def _terminate(number: int, frame: Any) -> None:
    """SIGTERM as an exception: by itself it would run no ``finally``, and leave staging directories behind."""
    raise Terminated


def _complain(error: BaseException, debug: bool, prefix: str = "") -> None:
    if debug:
        traceback.print_exception(error)
    click.echo(f"Error: {prefix}{error}" if str(error) else f"Error: {prefix}{type(error).__name__}", err=True)
