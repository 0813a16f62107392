"""``cleanpairs export``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.options import existing_run
from cleanpairs.cli.repair_options import REPAIR_NAMES, chosen_threshold, repair_options

__all__ = ["export"]

WRITTEN = ("dropped", "ledger", "card", "format", "shard_size", "license", "explode", "overwrite")
COMMANDLINE = click.core.ParameterSource.COMMANDLINE


@click.command(short_help="Write the cleaned and repaired dataset, with its ledger.")
@click.option("--run", metavar="DIR", help="Run directory.  [default: runs/latest]")
@click.option("--plan", metavar="FILE", help="Carry out this plan of `cleanpairs rematch`; it needs no run.")
@click.option("--repaired", "out", required=True, metavar="OUT", help="The cleaned data to write: a file or directory.")
@click.option(
    "--format",
    type=click.Choice(["parquet", "webdataset", "datasets", "uids"]),
    help="Of OUT: Parquet; a directory of tars (img2dataset's layout); a directory for datasets.load_from_disk; a .npy "
    "of the uids kept (DataComp's).  [default: by its suffix: .parquet, DIR/{00000..}.tar, .npy]",
)
@click.option("--shard-size", type=int, metavar="N", help="Samples to a tar of webdataset.  [default: 10000]")
@click.option("--dropped", metavar="FILE", help="Parquet of the pairs that were dropped or quarantined.")
@click.option(
    "--ledger",
    metavar="FILE",
    help="Parquet with what happened to every pair of the input.  [default: OUT.ledger.parquet]",
)
@click.option("--card", metavar="FILE", help="Write a dataset card there; a directory has one as its README.md.")
@click.option("--license", metavar="ID", help="Of the data, for the card, such as cc-by-4.0.  [default: unknown]")
@repair_options
@click.option("--explode", is_flag=True, help="One row a pair where a row holds a list of captions.")
@click.option("--overwrite", is_flag=True, help="Replace the outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@click.pass_context
def export(ctx: click.Context, out: str, as_json: bool, **options: Any) -> None:
    """Keep the pairs at or above the threshold, repair the rest by rematching, drop what cannot be repaired."""
    import json

    from cleanpairs.exporting import expected_at, export_plan, export_run

    written = {name: options[name] for name in WRITTEN}
    if options["plan"] is not None:
        decided = [n for n in ("run", "threshold", *REPAIR_NAMES) if ctx.get_parameter_source(n) is COMMANDLINE]
        if decided:
            names = ", ".join("--" + name.replace("_", "-") for name in decided)
            raise click.UsageError(f"{names}: --plan has decided that already; make another plan by cleanpairs rematch")
        summary = export_plan(options["plan"], out, **written)
    else:
        run, threshold = existing_run(options["run"]), chosen_threshold(options["threshold"])
        expected = expected_at(threshold, run)
        if expected is not None and not as_json:
            click.echo(f"{expected}\n")
        summary = export_run(
            run,
            out,
            threshold=threshold,
            **{name: options[name] for name in REPAIR_NAMES},
            **written,
        )
    if as_json:
        fields = ("pairs", "kept", "rematched_text", "rematched_image", "recaptioned", "dropped", "quarantined", "rows")
        click.echo(json.dumps({name: getattr(summary, name) for name in fields}))
    else:
        click.echo(str(summary))
