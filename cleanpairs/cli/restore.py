"""``cleanpairs restore``."""

from __future__ import annotations

import click

from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo


@click.command(cls=PathsCommand, short_help="Undo an export: write its input again.")
@click.argument("out", metavar="OUT", type=click.Path())
@click.option(
    "--to", type=Writes(), required=True, metavar="FILE", help="Parquet to write: the table that was exported."
)
@click.option("--ledger", metavar="FILE", help="Where the ledger is, if it is not where it was written.")
@click.option("--overwrite", is_flag=True, help="Replace --to.")
@json_option
def restore(out: str, to: str, ledger: str | None, overwrite: bool, as_json: bool) -> None:
    """Write the input of the export OUT again, out of OUT and its ledger.

    Dropped rows, replaced captions and images, the columns' names, types and metadata, and the order come back: the
    table equals the input's. OUT and its ledger must be as they were exported; a file edited since is refused.
    """
    from cleanpairs.export import restore_export

    summary = restore_export(out, to, ledger=ledger, overwrite=overwrite)
    if as_json:
        fields = ("rows", "columns", "unchanged", "undone", "returned")
        print_json({"path": summary.path} | {name: getattr(summary, name) for name in fields})
    else:
        echo(str(summary))
