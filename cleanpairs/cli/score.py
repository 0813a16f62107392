"""``cleanpairs score``."""

import math
from typing import Any

import click

from cleanpairs.cli.options import (
    chosen_engine,
    column_options,
    engine_options,
    existing_run,
    option,
    pick_columns,
    run_and_data,
    warn_of_flags,
)
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.terminal import echo, print_result

WORTH_A_WARNING = 0.2  # share of the words


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] DATA", type=click.Path())
@option(
    "--out", Writes(".parquet", beside=(".parts",)), "The scores table to write (Parquet).", required=True,
    metavar="FILE",
)  # fmt: skip
@column_options
@engine_options
@option(
    "--max-unknown",
    click.FloatRange(0, 1),
    "More words of DATA that the model does not know end it.",
    default=0.5,
    metavar="SHARE",
)
@option("--overwrite", None, "Replace --out.")
def score(paths: tuple[str, ...], out: str, **options: Any) -> None:
    """Matching probability of every pair of DATA against the trusted pairs that RUN keeps (or runs/latest).

    The threshold, for data that RUN was not fitted on, is where a pair is as likely mismatched as not, by the scores of
    random pairs of the same images and captions. It is that of the fit for fewer than 80 pairs, for pairs that score no
    higher than random ones or are of the training, and where the fit was given one; for clip-score always.

    Parquet with a column of image vectors is scored in partitions, in bounded memory, by --workers processes. If it is
    interrupted, the same command goes on where it was: what is done lies in OUT.parts until all is.
    """
    from cleanpairs.commands.score import score_stream

    run_path, data = run_and_data(paths)
    if data is None:
        raise click.UsageError("give the DATA to score; the scores of the pairs of a fit are in RUN/scores.parquet")
    run = existing_run(run_path)
    how = {"columns": pick_columns(options), "engine": chosen_engine(options)}
    how |= {name: options[name] for name in ("overwrite", "max_unknown")}
    result = score_stream(run.model_folder, data, out, **how)
    if (result.unknown_words or 0) > WORTH_A_WARNING:
        echo(
            f"warning: the model does not know {result.unknown_words:.0%} of the words of {data}: it was fitted on "
            "other captions, and its scores say less here",
            err=True,
        )
    warn_of_flags(run, result.flagged, result.pairs, result.threshold)
    text = (
        f"{result.pairs:,} pairs scored, {result.flagged:,} below {result.threshold:.3g}, "
        f"{result.quarantined:,} quarantined -> {out}"
    )
    if result.noise_rate is not None:
        rate = "undetermined" if math.isnan(result.noise_rate.value) else result.noise_rate
        text += f"\nthreshold: by random pairs of this data, which the model has not seen; share mismatched: {rate}"
    print_result(result, text)
