"""``cleanpairs corrupt``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.options import column_options, pick_columns
from cleanpairs.cli.printing import json_option, print_json

__all__ = ["corrupt"]


@click.command(short_help="Wrong some pairs on purpose, and write the truth beside them.")
@click.argument("data", type=click.Path())
@click.option("--noise", type=float, metavar="RATE", help="Share of pairs to wrong, 0 to 1.")
@click.option("--per", type=click.Choice(["caption", "image"]), default="caption", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--noise-file", metavar="NPY", help="A permutation over captions, in place of --noise.")
@click.option("--out", required=True, metavar="PATH", help="Parquet file, or a directory in the research layout.")
@column_options
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@json_option
def corrupt(
    data: str,
    noise: float | None,
    per: str,
    seed: int,
    noise_file: str | None,
    out: str,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Permute the captions of a random share of DATA's pairs.

    The truth goes into the columns `true_mismatch` and `true_key`, which `fit` never looks at.
    """
    from cleanpairs.data.noise import corrupt as corrupt_data

    if (noise is None) == (noise_file is None):
        raise click.UsageError("give either --noise or --noise-file")
    result = corrupt_data(
        data, noise, per=per, seed=seed, out=out, noise_file=noise_file, overwrite=overwrite, **pick_columns(options)
    )
    wrong = int(result.mismatched.sum())
    n = len(result.mismatched)
    if as_json:
        print_json({"pairs": n, "mismatched": wrong, "out": out})
        return
    click.echo(f"{n:,} pairs, {wrong:,} of them now mismatched ({wrong / max(n, 1):.1%}) -> {out}")
