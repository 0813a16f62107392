"""``cleanpairs rematch``."""

from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import (
    chosen_engine,
    column_options,
    engine_options,
    existing_run,
    pick_columns,
    repair_options,
    repair_settings,
    run_and_data,
    trust_option,
    warn_of_flags,
)
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@click.option(
    "--out",
    type=Writes(beside=(".json", ".parts"), in_run=("plan.parquet",), endings=(".parquet", ".csv")),
    required=True,
    metavar="FILE",
    help="The plan to write: Parquet, or CSV where it ends in .csv.",
)
@repair_options
@click.option("--targets", type=click.Choice(["both", "text", "image"]), default="both", help="What may be replaced.")
@click.option(
    "--recaption",
    metavar="MODEL",
    help="A captioning model (BLIP, GIT, ViT with a text decoder; a directory or a hub name) writes captions for what "
    "would be dropped; only those that score better than the old ones are used.",
)
@column_options
@engine_options
@click.option(
    "--spill",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    help="Keep vectors and candidates in files beside --out instead of memory; auto: from 250,000 rows on.",
)
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@trust_option
@json_option
def rematch(paths: tuple[str, ...], out: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Plan who gets which caption or image from whom; nothing is changed.

    Without DATA it is the data that RUN (or runs/latest) was fitted on. Read the plan, edit its actions and donors (for
    a caption of your own: the action recaption), and carry it out: cleanpairs export --plan FILE --repaired OUT.

    With --workers the searches for candidates are done by several processes. If these are interrupted, the same command
    goes on where it was: what is found lies in OUT.parts until the plan is made. So do the vectors and candidates of
    many rows (--spill), for inputs that `cleanpairs score` streams: memory then grows much more slowly.
    """
    from cleanpairs.commands.rematch import chosen_cut, rematch_run
    from cleanpairs.ops.search import SearchNote
    from cleanpairs.repair.actions import COUNTED

    run, data = run_and_data(paths)
    if data is not None and options["max_wrong"] is not None:
        raise click.UsageError("--max-wrong goes by the scores of the data that RUN was fitted on: leave DATA out")
    opened = existing_run(run, options["trusted"])
    threshold, expected = chosen_cut(options["threshold"], options["max_wrong"], options["keep"], opened)
    planned = rematch_run(
        opened,
        out,
        repair_settings(options, threshold, targets=options["targets"]),
        data,
        recaption=options["recaption"],
        spill=options["spill"],
        overwrite=overwrite,
        engine=chosen_engine(options),
        **pick_columns(options),
    )
    summary = planned.summary
    if data is not None and threshold is None:
        flagged = summary.pairs - summary.kept - summary.quarantined
        warn_of_flags(opened, flagged, summary.pairs, summary.threshold)
    if as_json:
        print_json({name: getattr(summary, name) for name in ("pairs", *COUNTED)})
    else:
        if expected is not None:
            echo(f"{expected}\n")
        if notes := [SearchNote(**note) for note in planned.settings.get("searches", ())]:
            echo(f"search: {min(notes, key=lambda note: (note.recall, -note.queries))}")
        where = " (made in a stream, vectors and candidates in files; --spill never: in memory)"
        echo(f"{summary}\n\nplan: {out}{where if planned.streamed else ''}")
        echo(f"next: cleanpairs export --plan {quote(str(out))} --repaired FILE")
