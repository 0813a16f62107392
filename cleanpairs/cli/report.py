"""``cleanpairs report``."""

from __future__ import annotations

import click

from cleanpairs.cli.options import RUN, existing_run

__all__ = ["report"]


@click.command(short_help="Write one HTML page about a run.")
@RUN
@click.option("--out", default="report.html", show_default=True, metavar="FILE")
@click.option("--truth", metavar="FILE", help="True mismatches: .npy or Parquet; a column `true_mismatch` is found.")
@click.option("--overwrite", is_flag=True, help="Replace --out.")
def report(run: str | None, out: str, truth: str | None, overwrite: bool) -> None:
    """One self-contained page: counts, histogram, learning curve, the worst pairs and the repairs as thumbnails."""
    from cleanpairs.plan import RepairPlan
    from cleanpairs.report import write_report

    chosen = existing_run(run)
    model, pairs = chosen.estimator(), chosen.load_input()
    plan_file = chosen.path / "plan.parquet"
    plan = RepairPlan.load(plan_file) if plan_file.exists() else model.rematch(pairs)
    known = truth is not None or pairs.true_mismatch is not None
    path = write_report(
        out,
        title=f"{chosen.info['method']} on {pairs.source.paths[0] if pairs.source.paths else 'pairs in memory'}",
        info=chosen.info,
        scores=chosen.scores().table,
        metrics=chosen.metrics(),
        threshold=plan.threshold,
        pairs=pairs,
        plan=plan,
        truth=pairs.true_mismatch_mask(truth) if known else None,
        overwrite=overwrite,
    )
    click.echo(f"written: {path}")
