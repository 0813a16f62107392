"""How options are declared, those of several commands, and which of them write: others that take a path read.

A command refuses to write where something lies that it reads, or that a run, a plan or an export that it reads goes
back to, and it holds a lock on what it writes for as long as it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial, reduce
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from cleanpairs.cli.terminal import echo, flag
from cleanpairs.core.errors import CleanpairsError
from cleanpairs.core.recipe import DataOptions, find_recipes, recipe_header
from cleanpairs.core.registry import BACKBONES, METHODS, READERS
from cleanpairs.core.regular import read_json

if TYPE_CHECKING:  # numpy and pyarrow take their time
    from cleanpairs.data.guard import Input

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell is offered: methods, backbones, or the recipes that ship; files, where no recipe begins so."""
    table = {"method": METHODS, "backbone": BACKBONES}.get(str(parameter.name))
    if table is not None:
        known = {name: entry.summary for name, entry in table.items()}
    else:
        known = {name: recipe_header(path, name).get("expected", "") for name, path in find_recipes().items()}
    found = [CompletionItem(name, help=about) for name, about in known.items() if name.startswith(incomplete)]
    return found if found or table is not None else [CompletionItem(incomplete, type="file")]


def option(names: str, help: str | None = None, what: Any = None, **more: Any) -> Decorator:
    """:func:`click.option` of ``names``, blanks between, the first perhaps with its placeholder: ``--out=FILE``.

    It takes ``what``: one of a list, or a value of a type; else text where it has a placeholder; else it is a flag.
    """
    first, *others = names.split()
    name, _, place = first.partition("=")
    if place:
        more |= {"metavar": place} | ({"is_flag": False} if "flag_value" in more else {})  # which it may go without
    elif what is None:
        more["is_flag"] = True
    if name in ("--method", "--backbone", "--recipe"):
        more["shell_complete"] = complete
    kind = click.Choice(what) if isinstance(what, list) else what
    return click.option(name, *others, help=help, type=kind, **more)


def together(*decorators: Decorator) -> Decorator:
    """Options as one decorator, in their order in the help."""
    return lambda function: reduce(lambda done, decorate: decorate(done), reversed(decorators), function)


def array_files(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Names as one: several arrays as a pattern of braces, with absolute paths, which another folder understands."""
    if len(values) < 2:
        return values[0] if values else None
    if odd := [v for v in values if set("{},") & set(v) or not v.endswith(".npy")]:
        raise click.BadParameter(f"{odd[0]!r} is none of several .npy files, without braces and commas")
    urls = all("://" in v for v in values)
    whole = [v if urls else str(Path(v).absolute()) for v in values]
    root = whole[0].partition("://")[0] + "://" if urls else "/"  # another folder understands what begins with it
    return root + "{" + ",".join(v.removeprefix(root) for v in whole) + "}"


ARRAYS: dict[str, Any] = {"multiple": True, "callback": array_files}
column_options = together(
    option("--split=NAME", "Split, where the data has splits.  [default: train]"),
    option("--image-column=NAME", "Column of images; found by its usual names if not given."),
    option("--text-column=NAME", "Column of captions; several, as title,description, are joined."),
    option("--key-column=NAME", "Column of keys."),
    option(
        "--text-vectors=NPY|NAME",
        "Vectors of captions: .npy files beside DATA of .npy (may be repeated); or a column.",
        **ARRAYS,
    ),
    option("--captions=FILE", "Beside .npy: captions one a line (.txt), or Parquet with any columns."),
    option("--reader", "Where several fit; see `inspect`.", list(READERS)),
    option("--encoding=NAME", "Of CSV, TSV and .txt that are not UTF-8, like cp1252."),
    option("--image-root=DIR", "Image paths are relative to it, and may not leave it."),
    option("--allow-urls", "Fetch DATA where it is a URL (s3, gs, https).", default=None),
)
LIMIT = option("--limit=N", "Only the first N rows.", int)
PER = option("--per", what=["caption", "image"], default="caption")
RUN = click.argument("run", required=False, type=click.Path())
TRUST = option(
    "--trust-stored-paths trusted",
    "Read every path and URL that the run or plan names, by which a stranger's could have private files read; "
    "else those beside it, and those that have been named on this machine.",
)
LEDGER = option("--ledger=FILE", "Where the ledger is, if it is not where it was written.")


def pick_columns(options: dict[str, Any]) -> dict[str, Any]:
    """The values of :data:`column_options` out of a command's options, without those not given."""
    names = [f.name for f in fields(DataOptions) if f.name not in ("train", "val", "limit")]
    return {name: options[name] for name in names if options.get(name) is not None}


def existing_run(run: str | None, trusted: bool = False) -> Any:
    """The run directory named, or ``runs/latest``, which is told; DataError when there is none."""
    from cleanpairs.commands.run import LATEST, Run

    opened = Run.open(run, trusted=trusted)
    if run is None:
        echo(f"{LATEST} is {relpath(opened.path)}", err=True)
    return opened


def run_and_data(paths: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``[RUN] [DATA]``: one path is a run if there is a run in it."""
    if len(paths) > 2:
        raise click.UsageError("give RUN, DATA, both or neither")
    if len(paths) == 1 and not (Path(paths[0]) / "run.json").exists():
        return None, paths[0]
    run, data, *_ = (*paths, None, None)
    return run, data


PATHS = ("FILE", "DIR", "DATA", "PATH", "NPY", "MODEL", "RUN", "OUT")  # in the placeholder of an option that reads one
MODELS = ("encoder", "text_encoder")  # a name, or a directory
ENDINGS = frozenset(".arrow .csv .feather .html .json .jsonl .md .npy .npz .parquet .tar .tsv .txt .xlsx".split())


class Writes(click.Path):
    """The type of an option that names an output.

    ``beside``: endings of the files that are written beside it; ``in_run``: files of a run that it may be, though the
    run is read; ``endings``: of what is written, so that a name does not say that it is something else.
    """

    def __init__(self, *endings: str, beside: tuple[str, ...] = (), in_run: tuple[str, ...] = ()) -> None:
        super().__init__(readable=False)
        self.beside, self.in_run, self.endings = beside, in_run, endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does; no name, and that of the root, is a usage error."""
        if not str(value).strip() or not Path(value).absolute().name:
            self.fail(f"the output {value!s:.5} has no name", param, ctx)
        return super().convert(value, param, ctx)


def reads_a_path(param: click.Parameter) -> bool:
    """Whether it takes the path of an input: by its type, or by its placeholder in the help."""
    if isinstance(param.type, Writes):
        return False
    if isinstance(param.type, click.Path) or param.name in MODELS:
        return True
    return isinstance(param.type, click.types.StringParamType) and any(word in (param.metavar or "") for word in PATHS)


class PathsCommand(click.Command):
    """A command with ``--json`` and other ``flags``; its outputs are no inputs, and nobody else's meanwhile."""

    def __init__(self, name: str, *, params: list[click.Parameter], flags: Sequence[click.Option] = (), **how: Any):
        super().__init__(name, params=[*params, *flags, flag("json", "Print JSON, and nothing else.")], **how)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it, if its paths allow that."""
        outputs, beside, inputs = written_and_read(ctx)
        if not outputs:
            return super().invoke(ctx)
        from cleanpairs.core.distributed import rank_by_environment
        from cleanpairs.data.guard import refuse_inputs
        from cleanpairs.data.locks import hold

        refuse_inputs([*outputs, *beside], inputs)
        for param in self.params:
            endings, value = getattr(param.type, "endings", ()), ctx.params.get(param.name or "")
            if endings and value is not None and Path(value).suffix.lower() in ENDINGS.difference(endings):
                named = " or *".join(endings)
                raise click.BadParameter(f"{value} is not what would be written: name it *{named}", ctx, param)
        with hold([] if rank_by_environment() else outputs):  # of several processes that train together one writes
            return super().invoke(ctx)


def written_and_read(ctx: click.Context) -> tuple[list[Path], list[Path], list["Input"]]:
    """The outputs of a command that is called so, what is written beside them, and what it reads."""
    given = [(param, value) for param in ctx.command.params if (value := ctx.params.get(param.name or "")) is not None]
    outputs: list[Path] = []
    beside: list[Path] = []
    inputs: list[Input] = []
    free: tuple[str, ...] = ()
    for param, value in given:
        if isinstance(kind := param.type, Writes):
            output = Path(value)
            outputs.append(output := output.parent if "{" in output.name else output)  # DIR/{00000..}.tar
            beside += [output.with_name(output.name + end) for end in kind.beside if output.name]
            free += kind.in_run
    for param, value in given if outputs else ():
        own = param.name == "recipe" and ctx.params.get("resume")  # the run's, which it goes on with
        if reads_a_path(param) and not own:
            for path in value if isinstance(value, tuple) else (value,):
                inputs += _inputs(param.name or "", str(path), free)
    if outputs and {"run", "paths"} & set(ctx.params):
        inputs += _inputs("run", "runs/latest", free)
    return outputs, beside, inputs


def _inputs(name: str, path: str, free: tuple[str, ...]) -> Iterator["Input"]:
    from cleanpairs.data.guard import Input, data_inputs

    if "://" in path:
        return
    if name == "image_root":
        yield from data_inputs(None, {"image_root": path})
    elif (Path(path) / "run.json").is_file():
        yield Input(path, keeps=partial(_kept_in_run, free))
        given = _json(Path(path) / "run.json").get("input")
        if isinstance(given, dict):
            yield from data_inputs(given.get("data"), given.get("options"), given.get("noise"))
    else:
        yield from data_inputs(path, {})
        settings: dict[str, Any] = {}
        if name == "plan":
            from cleanpairs.repair.plan import settings_of

            with suppress(CleanpairsError, OSError):  # the command will say it
                settings = settings_of(path)
        yield from data_inputs(settings.get("data"), settings.get("columns"))
        beside = Path(f"{path.rstrip('/')}.manifest.json")
        files = _json(beside).get("files")
        for file in (beside, *(beside.parent / str(part) for part in files)) if isinstance(files, dict) else ():
            yield Input(file)


def _kept_in_run(free: tuple[str, ...], inside: Path) -> bool:
    from cleanpairs.commands.run import RUN_FILES

    name = inside.as_posix()
    if name in (*free, "audit/probabilities.parquet"):
        return False
    return inside.parts[0] in ("model", "checkpoints") or RUN_FILES.fullmatch(name) is not None


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        if isinstance(found := read_json(path), dict):
            return found
    return {}
