"""The command line: thin commands that parse, call the library, and print.

Results go to standard output, everything else to standard error. An error is one line: ``Error [kind]: which thing:
what; what to do``. :mod:`cleanpairs.core.errors` has the exit codes. SIGINT, SIGTERM and SIGHUP give 130, 143 and 129.
"""

import atexit
import errno
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import click

from cleanpairs import __version__
from cleanpairs.cli.terminal import echo, flag, guard_std_streams, periodic_progress, safe
from cleanpairs.core import nearest
from cleanpairs.core.errors import CleanpairsError, DataError, OutputError, ResourceError
from cleanpairs.core.interrupt import Terminated
from cleanpairs.core.limits import cap_memory, check_threads, thread_remedy

__all__ = ["COMMANDS", "SECTIONS", "cli", "main"]

# Section of the help -> command -> (module, summary). The summary fits next to the name on a line of 80 columns.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "inspect": ("cleanpairs.cli.listing", "Show how data is read, and which rows cannot be used."),
        "methods": ("cleanpairs.cli.listing", "List the methods and their settings."),
        "recipes": ("cleanpairs.cli.listing", "List the recipes that ship with the package."),
        "demo": ("cleanpairs.cli.listing", "Run a demonstration on clip art."),
    },
    "Clean": {
        "fit": ("cleanpairs.cli.fit", "Train on noisy pairs. Writes a run: scores and a model."),
        "score": ("cleanpairs.cli.apply", "Score any pairs with a fitted model."),
        "rematch": ("cleanpairs.cli.apply", "Plan repairs, which you can review before the export."),
        "export": ("cleanpairs.cli.apply", "Write the cleaned, repaired dataset and its ledger."),
        "push": ("cleanpairs.cli.apply", "Upload a model or an export to the Hugging Face hub."),
    },
    "Review": {
        "report": ("cleanpairs.cli.explain", "Write one HTML page about a run."),
        "worst": ("cleanpairs.cli.explain", "List the worst pairs, by kind of issue."),
        "neighbours": ("cleanpairs.cli.explain", "List pairs with similar images or captions."),
        "explain": ("cleanpairs.cli.explain", "Explain low scores by words and similar pairs."),
        "review": ("cleanpairs.cli.review", "Review pairs and repairs on a local page."),
        "audit": ("cleanpairs.cli.review", "Label a sample, to measure precision and recall."),
        "diff": ("cleanpairs.cli.diff", "Show what an export changed, pair by pair."),
        "restore": ("cleanpairs.cli.diff", "Undo an export: write its input again."),
        "verify": ("cleanpairs.cli.diff", "Check that an export, a run or a file is whole."),
    },
    "Measure": {
        "evaluate": ("cleanpairs.cli.measure", "Measure retrieval, and detection where truth is known."),
        "corrupt": ("cleanpairs.cli.measure", "Mismatch some pairs on purpose. Writes the truth, too."),
        "bench": ("cleanpairs.cli.measure", "Compare methods at several noise rates."),
    },
    "Shell": {"doctor": ("cleanpairs.cli.listing", "Check the installation, and print how to fix it.")},
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Flags of all commands may also stand behind the command's name."""
        flags = [p for p in self.params if isinstance(p, click.Option) and p.is_flag and not p.is_eager]
        names = {name for param in flags for name in param.opts}
        return super().parse_args(ctx, sorted(args, key=lambda arg: arg not in names))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called ``cmd_name``. None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        for option in command.params:  # click names the variable by the parameter: AS_JSON for --json
            if isinstance(option, click.Option) and (long := [name for name in option.opts if name[:2] == "--"]):
                option.envvar = f"CLEANPAIRS_{cmd_name}_{long[0][2:]}".replace("-", "_").upper()
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the command as click does. An error about an unknown name suggests the nearest one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Return the commands and options that begin so, without importing them."""
        from click.shell_completion import CompletionItem

        fitting = {name: summary for name, (_, summary) in COMMANDS.items() if name.startswith(incomplete)}
        names = [CompletionItem(name, help=summary) for name, summary in fitting.items()]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Section, name and one line each, without importing them. The options on one line: it all fits a screen."""
        rows = [
            (f"{section if k == 0 else '':<8} {name}", summary)
            for section, commands in SECTIONS.items()
            for k, (name, (_, summary)) in enumerate(commands.items())
        ]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(rows)
        formatter.write(
            "\nOptions: --version --memory-cap --help --debug --allow-urls --trust-stored-paths\n"
            "Exit codes: 0 ok, 1 bug, 2 usage, 3 data, 4 output, 5 exists, 6 limit, 7 refused\n"
            "Begin: cleanpairs fit data.parquet && cleanpairs export --out out.parquet\n"
        )


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": "CLEANPAIRS",
        "show_default": True,
    },
    params=[
        flag("debug", "Show a traceback with an error."),
        flag("allow-urls", "Fetch DATA where it is a URL (s3, gs, https)."),
        flag(
            "trust-stored-paths",
            "Follow all paths and URLs stored in the run or plan. Use only with files you trust: a forged plan could "
            "read private files.",
        ),
    ],
)
@click.version_option(__version__, prog_name="cleanpairs")
@click.option("--memory-cap", metavar="SIZE", help="Memory that a command may take, like 8GB.")
@click.pass_context
def cli(ctx: click.Context, memory_cap: str | None) -> None:
    """Find the wrong pairs of image-text data, repair them, keep the rest."""
    cap_memory(memory_cap)
    check_threads()
    ctx.color = _color()  # for this command and those below it
    ctx.with_resource(periodic_progress(str(ctx.invoked_subcommand)))


def main() -> None:
    """Entry point of the ``cleanpairs`` command. Exits with the code of the error."""
    atexit.register(gc.freeze)  # else the interpreter searches all that torch has made once more
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has it ignored
            signal.signal(number, _terminate)
    if getattr(sys.unraisablehook, "func", None) is not _resend_signal:
        sys.unraisablehook = partial(_resend_signal, sys.unraisablehook)
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {safe(str(message))}\n"
    with guard_std_streams() as written:
        if not sys.stderr.isatty():  # quiet when not a terminal: the bars of libraries too
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
            os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # a line for each try to reach the hub
        try:
            for argument in sys.argv[1:]:
                if any("\ud800" <= c <= "\udfff" for c in argument):  # a run notes its paths, as text
                    raise click.UsageError(f"the argument {argument} is not UTF-8; rename the file")
            cli.main(prog_name="cleanpairs", standalone_mode=False)
            written.check()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except Exception as error:
            if isinstance(error, click.Abort):  # what click makes of a KeyboardInterrupt, and of the end of a file
                if not isinstance(error.__cause__, EOFError):
                    ended = error.__cause__
                    exec("")  # else Python ends by the signal where an exec was interrupted, as in a dataclass's making
                    sys.exit(128 + (ended.number if isinstance(ended, Terminated) else signal.SIGINT))
                error = error.__cause__
            from cleanpairs.core.distributed import rank_by_environment

            if "--debug" in sys.argv or os.environ.get("CLEANPAIRS_DEBUG", "0") not in ("", "0"):
                echo("".join(traceback.format_exception(error)), err=True)
            if isinstance(error, click.ClickException):
                kind, code, message = "usage", error.exit_code, _usage_message(error)
            else:
                like, text = _classify(error)
                kind, code, message = like.kind, like.exit_code, safe(text or type(error).__name__)
            rank = None
            with suppress(CleanpairsError):  # which may be the error to report
                rank = rank_by_environment()
            head = f"Error [{kind}]{f' of process {rank}' if rank else ''}:"
            echo(message, err=True, head=head, color=_color())
            sys.exit(code)


def _usage_message(error: click.ClickException) -> str:
    """Return click's message without suggestions of unlike names, and where the help is."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        name = error.option_name.lstrip("-")
        near = [p for p in error.possibilities or () if nearest(name, [p.lstrip("-")])]
        takes = context is not None and any("RUN" in p.make_metavar(context) for p in context.command.params)
        message = "No such option '--run': give the directory alone" if takes and name == "run" else None
        error = click.NoSuchOption(error.option_name, message, near, context)
    command = "cleanpairs" if context is None else context.command_path
    return f"{safe(error.format_message())}\nTry '{command} --help' for help."


def _classify(error: Exception) -> tuple[type[CleanpairsError], str]:
    """Return which of our errors it is, or is like, and its message."""
    if isinstance(error, CleanpairsError):
        return type(error), str(error)
    if starved := thread_remedy(error):
        return ResourceError, starved
    if isinstance(error, MemoryError) or (  # torch has no exception of its own on a CPU
        isinstance(error, RuntimeError) and any(s in str(error) for s in ("can't allocate memory", "out of memory"))
    ):
        message = str(error).splitlines()[0] if str(error) else "it was refused"
        cap = os.environ.get("CLEANPAIRS_MEMORY")
        more = f"raise --memory-cap (CLEANPAIRS_MEMORY), which is {cap}" if cap else "give the machine more"
        return ResourceError, f"out of memory ({message}); {more}, or take a smaller --batch-size or --limit"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        closed = "it may not be read or written: change its permissions, or take another path"
        remedy = {
            errno.ENOSPC: "free some space, or write to another disk",
            errno.EACCES: closed,
            errno.EPERM: closed,
            errno.EROFS: "the file system is read-only: take another path",
            errno.EMFILE: "too many files are open: raise the limit (ulimit -n)",
        }.get(error.errno or 0)
        message = error.strerror or str(error) or type(error).__name__
        return OutputError, f"{place}{message}" + (f"; {remedy}" if remedy else "")
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    where = "`cleanpairs --debug COMMAND ...` shows where"
    arrow = any(kind.__name__ == "ArrowException" for kind in type(error).__mro__)
    loop = isinstance(error, RuntimeError) and str(error).startswith("Symlink loop")  # pathlib's, up to Python 3.12
    if arrow or loop or isinstance(error, UnicodeError | RecursionError):  # only data can cause it
        return DataError, f"the input cannot be worked on: {message}; if it is sound: {where}"
    return CleanpairsError, f"{message}; this is a bug of cleanpairs: {where}, please report it"


def _terminate(number: int, frame: Any) -> None:
    """SIGTERM or SIGHUP as an exception: by itself it runs no ``finally``, and leaves staging directories behind."""
    raise Terminated(number)


def _resend_signal(otherwise: Callable[[Any], None], dropped: Any) -> None:
    """Send a signal once more whose exception Python has dropped, as it does within a destructor."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        return otherwise(dropped)
    number = getattr(dropped.exc_value, "number", signal.SIGINT)
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()  # when the destructor has ended


def _color() -> bool | None:
    """Whether to print colours. None: on a terminal. NO_COLOR and FORCE_COLOR are as on no-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None
