"""How options are declared, and the options of several commands.

An option that names an output has the type :class:`Writes`, one that names an input the type :class:`Reads`. A command
refuses to write where something lies that it reads, or that a run, a plan or an export that it reads goes back to. It
holds a lock on what it writes for as long as it runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from os.path import realpath, relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from cleanpairs.cli.terminal import echo, flag, has_flag
from cleanpairs.core import BACKBONES, METHODS, CleanpairsError, DataError, nearest, read_json
from cleanpairs.core.parameters import LARGEST_COUNT, LARGEST_SEED
from cleanpairs.core.recipe import DataOptions, find_recipes, override_values, recipe_header

if TYPE_CHECKING:  # numpy and pyarrow take their time
    from cleanpairs.data.guard import Input

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Reads(click.Path):
    """The type of an option that names an input: a file, a directory, a pattern, or a name that may be one."""

    envvar_list_splitter = None  # type: ignore[assignment] # several values of a variable have blanks between them

    def inputs(self, name: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yield what the option called ``name`` reads, as pairs of a name and a path."""
        for path in value if isinstance(value, tuple) else (value,):
            yield name, str(path)


class KeyValues(Reads):
    """The type of an option of ``KEY=VALUE``. The values of some keys are inputs."""

    def inputs(self, name: str, value: Any) -> Iterator[tuple[str, str]]:
        """Yield the inputs among the values."""
        for pair in value.items() if isinstance(value, dict) else (text.partition("=")[::2] for text in value):
            key = pair[0].rpartition(".")[2]
            if key in ("captions", "text_vectors", "image_root", "encoder", "text_encoder", "prompt"):
                yield key, pair[1]


class Writes(click.Path):
    """The type of an option that names an output.

    A name with a known ending that is none of ``endings`` is refused. Files with the endings ``extra`` are written
    next to the output. It may be a file of the run that is read, if its name is in ``in_run``.
    """

    def __init__(self, *endings: str, extra: tuple[str, ...] = (), in_run: tuple[str, ...] = ()) -> None:
        super().__init__(readable=False)
        self.extra, self.in_run, self.endings = extra, in_run, endings

    def check_name(self, value: Any, param: click.Parameter, ctx: click.Context) -> None:
        """Raise BadParameter where the name says that it is of another format, or is none to rename a new output to."""
        if str(value).strip() in ("", "-") or Path(value).name == ".." or Path.cwd().is_relative_to(realpath(value)):
            message = f"{str(value)!r} is no name of an output, or you are in it: name a new one"
            raise click.BadParameter(message, ctx, param)
        endings = ".arrow .csv .feather .html .json .jsonl .md .npy .npz .parquet .tar .tsv .txt .xlsx".split()
        if self.endings and Path(value).suffix.lower() in set(endings).difference(self.endings):
            named = " or *".join(self.endings)
            raise click.BadParameter(f"{value} has the ending of another format: name it *{named}", ctx, param)


def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete methods, backbones, or the recipes that ship. If no recipe begins so, complete files."""
    table = {"method": METHODS, "backbone": BACKBONES}.get(str(parameter.name))
    if table is not None:
        summaries = {name: entry.summary for name, entry in table.items()}
    else:
        summaries = {name: recipe_header(path).get("expected", "") for name, path in find_recipes().items()}
    items = [CompletionItem(name, help=about) for name, about in summaries.items() if name.startswith(incomplete)]
    return items if items or table is not None else [CompletionItem(incomplete, type="file")]


def option(names: str, help: str | None = None, what: Any = None, **more: Any) -> Decorator:
    """:func:`click.option` of ``names``, blanks between, the first perhaps with its placeholder: ``--out=FILE``.

    It takes one value of the list ``what``, or a value of the type ``what``. The type int is a count, N, and float a
    share. Without ``what`` it takes text where it has a placeholder, and else is a flag.
    """
    first, *others = names.split()
    name, _, place = first.partition("=")
    if place or what is int or isinstance(what, click.IntRange):
        more["metavar"] = place or "N"
    elif what is None:
        more["is_flag"] = True
    if name in ("--method", "--backbone", "--recipe"):
        more["shell_complete"] = complete
    if what is int or isinstance(what, click.IntRange):
        what = Whole(getattr(what, "min", None) or 0, getattr(what, "max", None))
    elif what is float:
        what = Share(0, 1)
    kind = click.Choice(what) if isinstance(what, list) else what
    return click.option(name, *others, help=help, type=kind, **more)


class Whole(click.IntRange):
    """A whole number, as large as the libraries take one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does. The error names what is allowed."""
        most = LARGEST_SEED if param is not None and param.name == "seed" else self.max or LARGEST_COUNT
        with suppress(ValueError):
            if (self.min or 0) <= (number := int(value)) <= most:
                return number
        self.fail(f"{value!r} is no whole number from {self.min} to {most}.", param, ctx)


class Share(click.FloatRange):
    """A number from 0 to 1, without NaN, which click's ranges let through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does. The error names what is allowed."""
        with suppress(ValueError):
            if 0 <= (share := float(value)) <= 1:
                return share
        self.fail(f"{value!r} is no number from 0 to 1.", param, ctx)


def group(title: str, *options: Decorator) -> Decorator:
    """Options in their order in the help, under a title."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].group = title  # type: ignore[attr-defined]
        return function

    return decorate


def join_arrays(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    """Names as one: several arrays as a pattern of braces, with absolute paths, which another folder understands."""
    if len(values) < 2:
        return values[0] if values else None
    if odd := [v for v in values if set("{},") & set(v) or not v.endswith(".npy")]:
        raise click.BadParameter(f"several names must be .npy files, and {odd[0]!r} is none; quote a pattern of others")
    urls = all("://" in v for v in values)
    whole = [v if urls else str(Path(v).absolute()) for v in values]
    root = whole[0].partition("://")[0] + "://" if urls else "/"  # another folder understands what begins with it
    return root + "{" + ",".join(v.removeprefix(root) for v in whole) + "}"


def _by_role(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the values of ``--column`` by the names of :class:`DataOptions`."""
    columns = {role: f"{role}_column" for role in ("image", "text", "key")}
    columns |= {"score": "score_columns", "text-vectors": "text_vectors", "captions": "captions"}
    named: dict[str, tuple[str, ...]] = {}
    for value in values:
        role, _, name = value.partition("=")
        if role not in columns or not name:
            near = nearest(role, list(columns))
            raise click.BadParameter(f"{value!r} is not ROLE=NAME, with a ROLE of {', '.join(columns)}{near}")
        named[role] = (*named.get(role, ()), name)
    for several in named.keys() & {"text", "score"}:
        named[several] = (",".join(named[several]),)
    if twice := [role for role, names in named.items() if len(names) > 1 and role != "text-vectors"]:
        raise click.BadParameter(f"{twice[0]} is given twice: keep one")
    return {columns[role]: str(join_arrays(context, parameter, names)) for role, names in named.items()}


column_options: tuple[Decorator, ...] = (
    option(
        "--column=ROLE=NAME columns",
        "Column for a role: image, text (text=title,description joins two), key, score, or text-vectors. With .npy "
        "files: text-vectors=FILE.npy and captions=FILE. May be repeated.",
        KeyValues(),
        multiple=True,
        callback=_by_role,
    ),
    option("--split=NAME", "Split, where the data has splits.  [default: train]"),
    option("--image-root=DIR", "Folder of the images: image paths are relative to it, and may not leave it.", Reads()),
)


def set_option(help: str) -> Decorator:
    """Return the option ``--set`` with its ``help``."""
    return option("--set=KEY=VALUE overrides", f"{help} May be repeated.", KeyValues(), multiple=True)


data_options = group(
    "Data",
    *column_options,
    set_option("Other settings: reader (see `inspect`), encoding (of text files that are not UTF-8)."),
)
limit_option = option("--limit=N", "Only the first N rows.", int)
per_option = option("--per", "Unit of mismatching: single captions, or images with all their captions.",
                    ["caption", "image"], default="caption")  # fmt: skip
run_argument = click.argument("run", required=False, type=Reads())
ledger_option = option("--ledger=FILE", "The ledger, if it was moved.", Reads())


def set_values(options: dict[str, Any], **others: list[str]) -> dict[str, dict[str, Any]]:
    """The values of ``--set`` by section: ``data``, with what other options say of it, and ``others``, with their keys.

    Those of ``data`` are parameters of :func:`cleanpairs.load_pairs`.
    """
    keys = [f.name for f in fields(DataOptions) if f.name not in ("train", "val", "limit")]
    values = override_values(options["overrides"], data=keys, **others)
    values["data"] |= options["columns"]
    values["data"] |= {name: options[name] for name in ("split", "image_root") if options.get(name) is not None}
    values["data"] |= {"allow_urls": True} if has_flag("allow-urls") else {}
    return values


def data_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return how DATA is read, by the options of :data:`data_options`."""
    return set_values(options)["data"]


def existing_run(run: str | None) -> Any:
    """Return the run directory named, or ``runs/latest``, which is printed. DataError when there is none."""
    from cleanpairs.commands.run import LATEST, Run

    opened = Run.open(run, trusted=has_flag("trust-stored-paths"))
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


def reading_as_in_the_fit(run: Any, data: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return how DATA is read: as ``chosen``, and by the columns that ``fit`` was told to read, where DATA has them."""
    from cleanpairs.data import open_source

    columns = {name: column for name, column in run.named_columns().items() if name not in chosen}
    if not columns:
        return chosen
    listed = ", ".join(f"{name.removesuffix('_column')}={column}" for name, column in columns.items())
    try:
        open_source(data, **columns | chosen)
    except DataError as error:
        open_source(data, **chosen)  # another error is told alone
        echo(f"warning: the columns of the fit ({listed}) cannot be read here: {error}", err=True)
        return chosen
    echo(f"columns as in the fit: {listed}", err=True)
    return columns | chosen


def splitting(pairs: Any, plan: Any) -> str:
    """Return the option without which an export drops the pairs of lists of captions that a plan gives new images."""
    return " --captions split" * (pairs.source.explicit_lists and plan.settings.get("targets", "text") != "text")


class PathsCommand(click.Command):
    """A command with ``--json`` and other ``flags``. Its outputs are no inputs, and nobody else's meanwhile."""

    def __init__(self, name: str, *, params: list[click.Parameter], flags: Sequence[click.Option] = (), **how: Any):
        super().__init__(name, params=[*params, *flags, flag("json", "Print JSON, and nothing else.")], **how)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options under the titles of their groups. Flags under the last one."""
        rows: dict[str, list[tuple[str, str]]] = {}
        title = "Options"
        for param in self.get_params(ctx):
            title = getattr(param, "group", title)
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                rows.setdefault(title, []).append(row)
        for title, options in rows.items():
            with formatter.section(title):
                formatter.write_dl(options)
        shared = [p for p in ctx.find_root().command.params if getattr(p, "is_flag", False) and not p.is_eager]
        if shared and ctx.parent is not None:
            with formatter.section("Every command"):
                formatter.write_dl([row for param in shared if (row := param.get_help_record(ctx)) is not None])

    def invoke(self, ctx: click.Context) -> Any:
        """Run it, if its paths allow that."""
        outputs, extra, inputs = written_and_read(ctx)
        if not outputs:
            return super().invoke(ctx)
        from cleanpairs.core.distributed import rank_by_environment
        from cleanpairs.data.guard import refuse_inputs
        from cleanpairs.data.locks import output_lock

        refuse_inputs([*outputs, *extra], inputs)
        for param in self.params:
            if isinstance(param.type, Writes) and (value := ctx.params.get(param.name or "")) is not None:
                param.type.check_name(value, param, ctx)
        with output_lock([] if rank_by_environment() else outputs):  # one of several processes writes
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                if self.name not in ("fit", "bench"):  # they have said more
                    echo("\nInterrupted; no output was changed. The same command begins again, or resumes", err=True)
                raise


def written_and_read(ctx: click.Context) -> tuple[list[Path], list[Path], list["Input"]]:
    """Return the outputs of a command that is called so, what is written next to them, and what it reads."""
    given = [(param, value) for param in ctx.command.params if (value := ctx.params.get(param.name or "")) is not None]
    outputs: list[Path] = []
    extra: list[Path] = []
    inputs: list[Input] = []
    free: tuple[str, ...] = ()
    for param, value in given:
        if isinstance(kind := param.type, Writes):
            output = Path(value)
            tars = output.suffix == ".tar" and set("{*") & set(output.name)  # DIR/{00000..}.tar
            outputs.append(output := output.parent if tars else output)
            extra += [output.with_name(output.name + end) for end in kind.extra if output.name]
            free += kind.in_run
    for param, value in given if outputs else ():
        own = param.name == "recipe" and ctx.params.get("resume")  # that of the run that is resumed
        if isinstance(param.type, Reads) and not own:
            for name, path in param.type.inputs(param.name or "", value):
                inputs += _inputs(name, path, free)
    if outputs and {"run", "paths"} & set(ctx.params):
        inputs += _inputs("run", "runs/latest", free)
    return outputs, extra, inputs


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
            yield from data_inputs(given.get("data"), given.get("options"))
    elif name != "run":  # a run that is none is refused as such
        yield from data_inputs(path, {})
        settings: dict[str, Any] = {}
        if name == "plan":
            from cleanpairs.repair.plan import RepairPlan, as_written

            with suppress(CleanpairsError, OSError, TypeError, ValueError):  # the command will say it
                head = as_written(path)
                settings = dict((RepairPlan.load(path) if head is None else head).settings)
        yield from data_inputs(settings.get("data"), settings.get("columns"))
        manifest = Path(f"{path.rstrip('/')}.manifest.json")
        files = _json(manifest).get("files")
        for file in (manifest, *(manifest.parent / str(part) for part in files)) if isinstance(files, dict) else ():
            yield Input(file)


def _kept_in_run(free: tuple[str, ...], inside: Path) -> bool:
    name = inside.as_posix()
    if name in free:
        return False
    if inside.parts[0] in ("model", "checkpoints"):
        return True
    from cleanpairs.commands.run import run_files

    return run_files().fullmatch(name) is not None


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        if isinstance(content := read_json(path), dict):
            return content
    return {}
