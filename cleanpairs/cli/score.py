"""``cleanpairs score``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.options import column_options, existing_run, pick_columns, split_run_and_data
from cleanpairs.cli.printing import json_option, print_json

__all__ = ["score"]


@click.command(short_help="Score any pairs with a fitted model.")
@click.argument("paths", nargs=-1, metavar="[RUN] DATA", type=click.Path())
@click.option("--out", required=True, metavar="FILE", help="The scores table to write (Parquet).")
@column_options
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@json_option
def score(paths: tuple[str, ...], out: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Matching probability of every pair of DATA against the trusted pairs that RUN keeps (or runs/latest)."""
    from cleanpairs.streaming import score_stream

    run_path, data = split_run_and_data(paths)
    model = existing_run(run_path).model()
    result = score_stream(model, data, out, overwrite=overwrite, columns=pick_columns(options))
    if as_json:
        print_json(result.to_dict())
    else:
        click.echo(
            f"{result.pairs:,} pairs scored, {result.flagged:,} below {result.threshold:.3g}, "
            f"{result.quarantined:,} quarantined -> {out}"
        )
