"""Options that several commands share."""

from collections.abc import Callable, Mapping
from functools import reduce
from os.path import relpath
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.terminal import echo
from cleanpairs.core.registry import ENGINES, READERS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Options as one decorator, in their order in the help."""
    return lambda function: reduce(lambda done, decorate: decorate(done), reversed(decorators), function)


COLUMN_NAMES = (
    "split", "image_column", "text_column", "key_column", "text_vectors", "captions", "image_root", "allow_urls",
    "reader", "encoding",
)  # fmt: skip


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


column_options = together(
    click.option("--split", metavar="NAME", help="Split, where the data has splits.  [default: train]"),
    click.option("--image-column", metavar="NAME", help="Column of images; found by its usual names if not given."),
    click.option(
        "--text-column", metavar="NAME", help="Column of captions; several, as title,description, are joined."
    ),
    click.option("--key-column", metavar="NAME", help="Column of keys."),
    click.option(
        "--text-vectors",
        metavar="NPY|NAME",
        multiple=True,
        callback=array_files,
        help="Vectors of captions: .npy files beside DATA of .npy (may be repeated); or a column.",
    ),
    click.option(
        "--captions", metavar="FILE", help="Beside .npy: captions one a line (.txt), or Parquet with any columns."
    ),
    click.option("--reader", type=click.Choice(READERS.names()), help="Where several fit; see `inspect`."),
    click.option("--encoding", metavar="NAME", help="Of CSV, TSV and .txt that are not UTF-8, like cp1252."),
    click.option("--image-root", metavar="DIR", help="Image paths are relative to it, and may not leave it."),
    click.option("--allow-urls", is_flag=True, default=None, help="Fetch DATA where it is a URL (s3, gs, https)."),
)


engine_options = together(
    click.option(
        "--engine", type=click.Choice(ENGINES.names()), default="local", help="Where tasks run: this machine or Ray."
    ),
    click.option("--workers", type=click.IntRange(1), default=1, help="Processes that work at once."),
    click.option("--ray-address", metavar="ADDRESS", help="Of a Ray cluster; a Ray is started here if not given."),
)


def chosen_engine(options: Mapping[str, Any]) -> Any:
    """The :class:`cleanpairs.engine.Engine` of :data:`engine_options`."""
    from cleanpairs.engine import make_engine

    return make_engine(options["engine"], workers=options["workers"], address=options["ray_address"])


def pick_columns(options: dict[str, Any]) -> dict[str, Any]:
    """The values of :func:`column_options` out of a command's options, without those not given."""
    return {name: options[name] for name in COLUMN_NAMES if options.get(name) is not None}


def trust_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--trust-stored-paths``."""
    help = "Read whatever path or URL the run or plan names, though nobody has named it here: a stranger's may be bad."
    return click.option("--trust-stored-paths", "trusted", is_flag=True, help=help)(function)


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


RUN = click.argument("run", required=False, type=click.Path())


REPAIR_NAMES = (
    "repairs", "strategy", "donors", "max_reuse", "min_repair_score", "min_confidence", "candidates",
)  # fmt: skip


def _number_or_auto(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:
    try:
        return value if value in (None, "auto") else float(str(value))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is neither a number nor 'auto'") from error


repair_options = together(
    click.option(
        "--threshold",
        metavar="P|auto",
        callback=_number_or_auto,
        help="Pairs below it are repaired or dropped.  [default: the run's]",
    ),
    click.option(
        "--max-wrong",
        type=float,
        metavar="P",
        help="Keep the largest set of which at most this share is mismatched; refused where that is not known.",
    ),
    click.option("--keep", type=float, metavar="P", help="Keep this share of the pairs, the best."),
    click.option(
        "--repairs",
        type=click.Choice(["probable", "plausible", "none"]),
        default="probable",
        help="probable: those likelier right than wrong, where that can be judged; plausible: what fits best, "
        "right or near; none: drop all below the threshold.",
    ),
    click.option(
        "--strategy",
        type=click.Choice(["ot", "nearest", "half-replace", "pseudo-caption", "method"]),
        default="ot",
        help="ot: all mismatched pairs jointly, by partial transport; nearest: the best score; half-replace: "
        "from trusted pairs near in what stays; pseudo-caption: the caption of the most similar trusted image; "
        "method: the method's own.",
    ),
    click.option("--donors", type=click.Choice(["both", "mismatched", "trusted"]), default="both"),
    click.option("--max-reuse", type=int, default=1, help="Rows that one donor may serve."),
    click.option("--min-repair-score", type=float, default=0.5, help="A repair below it is a drop."),
    click.option(
        "--min-confidence",
        type=float,
        default=0.5,
        help="Of --repairs probable: one that is right with a lower probability is a drop.",
    ),
    click.option("--candidates", type=int, default=32, help="Nearest captions or images considered for each pair."),
)


def repair_settings(options: Mapping[str, Any], threshold: float | None, **more: Any) -> Any:
    """The :class:`cleanpairs.repair.settings.RepairSettings` of a command's options."""
    from cleanpairs.repair.settings import RepairSettings

    return RepairSettings(threshold, **{name: options[name] for name in REPAIR_NAMES}, **more)
