"""``cleanpairs corrupt``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.options import column_options, pick_columns
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo

_KINDS = ("within", "shift", "collapse", "partial")


@click.command(cls=PathsCommand, short_help="Wrong some pairs on purpose, and write the truth beside them.")
@click.argument("data", type=click.Path())
@click.option("--noise", type=float, metavar="RATE", help="Share of pairs to wrong, 0 to 1.")
@click.option("--per", type=click.Choice(["caption", "image"]), default="caption")
@click.option("--within", metavar="COLUMN", help="Captions are swapped among the pairs of one value of COLUMN.")
@click.option(
    "--shift",
    type=int,
    is_flag=False,
    flag_value=1,
    metavar="[K]",
    help="Runs of images show the captions of the image K further on.  [K: 1]",
)
@click.option(
    "--collapse",
    type=int,
    is_flag=False,
    flag_value=1,
    metavar="[N]",
    help="They all show the same caption, or one of N.  [N: 1]",
)
@click.option(
    "--partial",
    type=float,
    is_flag=False,
    flag_value=0.5,
    metavar="[SHARE]",
    help="A share of their words is replaced by words of another caption.  [SHARE: 0.5]",
)
@click.option("--seed", type=int, default=0)
@click.option("--noise-file", metavar="NPY", help="A permutation over captions, in place of --noise.")
@click.option(
    "--out",
    type=Writes(endings=(".parquet",)),
    required=True,
    metavar="PATH",
    help="Parquet file, or a directory in the research layout.",
)
@column_options
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@json_option
def corrupt(data: str, noise: float | None, noise_file: str | None, out: str, as_json: bool, **options: Any) -> None:
    """Permute the captions of a random share of DATA's pairs, or wrong them as real corpora are.

    The truth goes into the columns `true_mismatch` and `true_key`, which `fit` never looks at.
    """
    from cleanpairs.data.noise import NoiseKind
    from cleanpairs.data.noise import corrupt as corrupt_data

    if (noise is None) == (noise_file is None):
        raise click.UsageError("give either --noise or --noise-file")
    asked = {name: options[name] for name in _KINDS if options[name] is not None}
    if len(asked) > 1 or (asked and noise_file is not None):
        given = [f"--{name}" for name in asked] + (["--noise-file"] if noise_file is not None else [])
        raise click.UsageError(f"give only one of {', '.join(given)}")
    kind = NoiseKind.parse(next((f"{name}:{value}" for name, value in asked.items()), "uniform"))
    result = corrupt_data(
        data,
        noise,
        kind=kind,
        out=out,
        noise_file=noise_file,
        **pick_columns(options),
        **{name: options[name] for name in ("per", "seed", "overwrite")},
    )
    wrong = int(result.mismatched.sum())
    n = len(result.mismatched)
    if as_json:
        how = {"kind": "file" if noise is None else str(kind), "noise": noise}
        print_json({"pairs": n, "mismatched": wrong, **how, "out": out})
        return
    reached = f"{wrong / max(n, 1):.1%}" + (f" of the {noise:.1%} asked for, {kind}" if asked else "")
    echo(f"{n:,} pairs, {wrong:,} of them now mismatched ({reached}) -> {out}")
