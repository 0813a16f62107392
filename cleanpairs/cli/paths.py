"""Which options of a command write and which read, and what holds for all commands by that.

An option that writes is of the type :class:`Writes`; every other one that takes a path reads. A command refuses to
write where something lies that it reads, or that a run, a plan or an export that it reads goes back to, and it holds a
lock on what it writes for as long as it runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cleanpairs.cli.progress import flag

if TYPE_CHECKING:  # they bring numpy and pyarrow, which `cleanpairs --help` does without
    from cleanpairs.data.guard import Input


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
        """As click does; an empty name is a usage error."""
        if not str(value).strip():
            self.fail("the output has no name", param, ctx)
        return super().convert(value, param, ctx)


def reads_a_path(param: click.Parameter) -> bool:
    """Whether it takes the path of an input: by its type, or by its placeholder in the help."""
    if isinstance(param.type, Writes):
        return False
    if isinstance(param.type, click.Path) or param.name in MODELS:
        return True
    return isinstance(param.type, click.types.StringParamType) and any(word in (param.metavar or "") for word in PATHS)


class PathsCommand(click.Command):
    """A command with ``--json`` and other ``flags``, whose outputs are none of its inputs, and that nobody else writes
    meanwhile.
    """

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
            _refuse_ending(ctx, param)
        with hold([] if rank_by_environment() else outputs):  # of several processes that train together one writes
            return super().invoke(ctx)


def _refuse_ending(ctx: click.Context, param: click.Parameter) -> None:
    """BadParameter for an output whose name ends as another format's than what would be written."""
    value, endings = ctx.params.get(param.name or ""), getattr(param.type, "endings", ())
    if endings and value is not None and Path(value).suffix.lower() in ENDINGS.difference(endings):
        raise click.BadParameter(f"{value} is not what would be written: name it *{' or *'.join(endings)}", ctx, param)


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
        if name == "plan":
            settings = _plan_settings(path)
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


def _plan_settings(path: str) -> dict[str, Any]:
    """What a plan notes of its data; nothing where it cannot be read, which the command will say."""
    from cleanpairs.core.errors import CleanpairsError
    from cleanpairs.repair.plan import settings_of

    with suppress(CleanpairsError, OSError):
        return settings_of(path)
    return {}


def _json(path: Path) -> dict[str, Any]:
    from cleanpairs.core.regular import read_json

    with suppress(OSError, ValueError):
        if isinstance(found := read_json(path), dict):
            return found
    return {}
