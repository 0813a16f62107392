"""How options are declared, and those that several commands share."""

from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from os.path import relpath
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.terminal import echo
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.registry import ENGINES, READERS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def option(names: str, what: Any = None, help: str | None = None, **more: Any) -> Decorator:
    """:func:`click.option` of ``names`` (blanks between) that takes ``what``: text, which is its placeholder in the
    help; one of a list; a value of a type; None: nothing, it is a flag.
    """
    if isinstance(what, str):
        more["metavar"] = what
    else:
        more |= {"is_flag": True} if what is None else {"type": click.Choice(what) if isinstance(what, list) else what}
    return click.option(*names.split(), help=help, **more)


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
    option("--split", "NAME", "Split, where the data has splits.  [default: train]"),
    option("--image-column", "NAME", "Column of images; found by its usual names if not given."),
    option("--text-column", "NAME", "Column of captions; several, as title,description, are joined."),
    option("--key-column", "NAME", "Column of keys."),
    option(
        "--text-vectors",
        "NPY|NAME",
        "Vectors of captions: .npy files beside DATA of .npy (may be repeated); or a column.",
        **ARRAYS,
    ),
    option("--captions", "FILE", "Beside .npy: captions one a line (.txt), or Parquet with any columns."),
    option("--reader", READERS.names(), "Where several fit; see `inspect`."),
    option("--encoding", "NAME", "Of CSV, TSV and .txt that are not UTF-8, like cp1252."),
    option("--image-root", "DIR", "Image paths are relative to it, and may not leave it."),
    option("--allow-urls", None, "Fetch DATA where it is a URL (s3, gs, https).", default=None),
)
engine_options = together(
    option("--engine", ENGINES.names(), "Where tasks run: this machine or Ray.", default="local"),
    option("--workers", click.IntRange(1), "Processes that work at once.", default=1),
    option("--ray-address", "ADDRESS", "Of a Ray cluster; a Ray is started here if not given."),
)
LIMIT = option("--limit", int, "Only the first N rows.", metavar="N")
PER = option("--per", ["caption", "image"], default="caption")
RUN = click.argument("run", required=False, type=click.Path())
TRUST = option(
    "--trust-stored-paths trusted",
    None,
    "Read whatever path or URL the run or plan names, though nobody has named it here: a stranger's may be bad.",
)
LEDGER = option("--ledger", "FILE", "Where the ledger is, if it is not where it was written.")


def chosen_engine(options: dict[str, Any]) -> Any:
    """The :class:`cleanpairs.engine.Engine` of :data:`engine_options`."""
    from cleanpairs.engine import make_engine

    return make_engine(options["engine"], workers=options["workers"], address=options["ray_address"])


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


def warn_of_flags(run: Any, flagged: int, pairs: int, threshold: float) -> None:
    """Say so where of other data than that of fit many more are below the threshold, and it is that of the fit: a model
    that was trained on few pairs knows these far better than any others.
    """
    of_fit = run.info.get("result", {})
    if not (pairs and of_fit.get("pairs") and "flagged" in of_fit and of_fit.get("threshold", threshold) == threshold):
        return
    share, known = flagged / pairs, of_fit["flagged"] / of_fit["pairs"]
    if share > known + 0.1 + 2 * (known * (1 - known) / pairs) ** 0.5:
        echo(
            f"warning: {share:.0%} of these pairs are below the threshold, and {known:.0%} of those that the model was "
            "fitted on, which it is of: these have no threshold of their own (cleanpairs score --help). Go by their "
            "order, or fit on them",
            err=True,
        )


def _number_or_auto(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:
    try:
        return value if value in (None, "auto") else float(str(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number nor 'auto'") from error


CUTS = ("threshold", "max_wrong", "keep")
repair_options = together(
    option(
        "--threshold",
        "P|auto",
        "Pairs below it are repaired or dropped.  [default: the run's]",
        callback=_number_or_auto,
    ),
    option(
        "--max-wrong",
        float,
        "Keep the largest set of which at most this share is mismatched; refused where that is not known.",
        metavar="P",
    ),
    option("--keep", float, "Keep this share of the pairs, the best.", metavar="P"),
    option(
        "--repairs",
        ["probable", "plausible", "none"],
        "probable: those likelier right than wrong, where that can be judged; plausible: what fits best, right or "
        "near; none: drop all below the threshold.",
        default="probable",
    ),
    option(
        "--strategy",
        ["ot", "nearest", "half-replace", "pseudo-caption", "method"],
        "ot: all mismatched pairs jointly, by partial transport; nearest: the best score; half-replace: from trusted "
        "pairs near in what stays; pseudo-caption: the caption of the most similar trusted image; method: the method's "
        "own.",
        default="ot",
    ),
    option("--donors", ["both", "mismatched", "trusted"], default="both"),
    option("--max-reuse", int, "Rows that one donor may serve.", default=1),
    option("--min-repair-score", float, "A repair below it is a drop.", default=0.5),
    option(
        "--min-confidence",
        float,
        "Of --repairs probable: one that is right with a lower probability is a drop.",
        default=0.5,
    ),
    option("--candidates", int, "Nearest captions or images considered for each pair.", default=32),
)


def repair_settings(options: dict[str, Any], run: Any) -> tuple[Any, str | None]:
    """The :class:`cleanpairs.repair.settings.RepairSettings` of a command's options, and what to tell of the threshold
    that they choose.
    """
    from cleanpairs.commands.rematch import chosen_cut
    from cleanpairs.repair.settings import RepairSettings

    threshold, expected = chosen_cut(options["threshold"], options["max_wrong"], options["keep"], run)
    names = {f.name for f in fields(RepairSettings)} & options.keys()
    return RepairSettings(**{name: options[name] for name in names} | {"threshold": threshold}), expected
