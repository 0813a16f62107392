"""``cleanpairs rematch``."""

from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import (
    TRUST,
    chosen_engine,
    column_options,
    engine_options,
    existing_run,
    option,
    pick_columns,
    repair_options,
    repair_settings,
    run_and_data,
    warn_of_flags,
)
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.terminal import print_result, say


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@option(
    "--out",
    Writes(".parquet", ".csv", beside=(".json", ".parts"), in_run=("plan.parquet",)),
    "The plan to write: Parquet, or CSV where it ends in .csv.",
    required=True,
    metavar="FILE",
)
@repair_options
@option("--targets", ["both", "text", "image"], "What may be replaced.", default="both")
@option(
    "--recaption",
    "MODEL",
    "A captioning model (BLIP, GIT, ViT with a text decoder; a directory or a hub name) writes captions for what "
    "would be dropped; only those that score better than the old ones are used.",
)
@column_options
@engine_options
@option(
    "--spill",
    ["auto", "always", "never"],
    "Keep vectors and candidates in files beside --out instead of memory; auto: from 250,000 rows on.",
    default="auto",
)
@option("--overwrite", None, "Replace --out.")
@TRUST
def rematch(paths: tuple[str, ...], out: str, **options: Any) -> None:
    """Plan who gets which caption or image from whom; nothing is changed.

    Without DATA it is the data that RUN (or runs/latest) was fitted on. Read the plan, edit its actions and donors (for
    a caption of your own: the action recaption), and carry it out: cleanpairs export --plan FILE --repaired OUT.

    With --workers the searches for candidates are done by several processes. If these are interrupted, the same command
    goes on where it was: what is found lies in OUT.parts until the plan is made. So do the vectors and candidates of
    many rows (--spill), for inputs that `cleanpairs score` streams: memory then grows much more slowly.
    """
    from cleanpairs.commands.rematch import rematch_run
    from cleanpairs.ops.search import SearchNote
    from cleanpairs.repair.actions import COUNTED

    run, data = run_and_data(paths)
    if data is not None and options["max_wrong"] is not None:
        raise click.UsageError("--max-wrong goes by the scores of the data that RUN was fitted on: leave DATA out")
    opened = existing_run(run, options["trusted"])
    settings, expected = repair_settings(options, opened)
    how = {name: options[name] for name in ("recaption", "spill", "overwrite")} | pick_columns(options)
    planned = rematch_run(opened, out, settings, data, engine=chosen_engine(options), **how)
    summary = planned.summary
    if data is not None and settings.threshold is None:
        flagged = summary.pairs - summary.kept - summary.quarantined
        warn_of_flags(opened, flagged, summary.pairs, summary.threshold)
    if expected is not None:
        say(f"{expected}\n")
    if notes := [SearchNote(**note) for note in planned.settings.get("searches", ())]:
        say(f"search: {min(notes, key=lambda note: (note.recall, -note.queries))}")
    where = " (made in a stream, vectors and candidates in files; --spill never: in memory)"
    text = f"{summary}\n\nplan: {out}{where if planned.streamed else ''}"
    text += f"\nnext: cleanpairs export --plan {quote(str(out))} --repaired FILE"
    print_result({name: getattr(summary, name) for name in ("pairs", *COUNTED)}, text)
