"""``cleanpairs export``."""

from __future__ import annotations

import click

from cleanpairs.cli.options import existing_run

__all__ = ["export"]


@click.command(short_help="Write the cleaned and repaired dataset, with its ledger.")
@click.option("--run", metavar="DIR", help="Run directory.  [default: runs/latest]")
@click.option("--repaired", "out", required=True, metavar="FILE", help="The cleaned Parquet file to write.")
@click.option("--dropped", metavar="FILE", help="Parquet of the pairs that were dropped or quarantined.")
@click.option("--ledger", metavar="FILE", help="Parquet with what happened to every pair of the input.")
@click.option("--threshold", metavar="P|auto", help="Pairs below it are repaired or dropped.  [default: the run's]")
@click.option("--min-repair-score", type=float, default=0.5, show_default=True, help="A repair below it is a drop.")
@click.option("--donors", type=click.Choice(["both", "mismatched", "trusted"]), default="both", show_default=True)
@click.option("--max-reuse", type=int, default=1, show_default=True, help="Rows that one donor may serve.")
@click.option("--explode", is_flag=True, help="One row a pair where a row holds a list of captions.")
@click.option("--overwrite", is_flag=True, help="Replace the outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def export(
    run: str | None,
    out: str,
    dropped: str | None,
    ledger: str | None,
    threshold: str | None,
    min_repair_score: float,
    donors: str,
    max_reuse: int,
    explode: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Keep the pairs at or above the threshold, repair the rest by rematching, drop what cannot be repaired."""
    import json

    from cleanpairs.exporting import export_run

    chosen: float | str | None = threshold
    if threshold not in (None, "auto"):
        try:
            chosen = float(str(threshold))
        except ValueError as error:
            raise click.BadParameter(
                f"{threshold!r} is neither a number nor 'auto'", param_hint="--threshold"
            ) from error
    summary = export_run(
        existing_run(run),
        out,
        dropped=dropped,
        ledger=ledger,
        threshold=chosen,
        min_repair_score=min_repair_score,
        donors=donors,
        max_reuse=max_reuse,
        explode=explode,
        overwrite=overwrite,
    )
    if as_json:
        fields = ("pairs", "kept", "rematched_text", "rematched_image", "dropped", "quarantined", "rows")
        click.echo(json.dumps({name: getattr(summary, name) for name in fields}))
    else:
        click.echo(str(summary))
