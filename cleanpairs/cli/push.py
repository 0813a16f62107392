"""``cleanpairs push``."""

from __future__ import annotations

import click

from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo


@click.command(short_help="Upload a model or an export to the Hugging Face hub.")
@click.argument("what", metavar="RUN|OUT", type=click.Path())
@click.argument("repo", metavar="OWNER/NAME")
@click.option("--public", is_flag=True, help="Make the repository public; private otherwise.")
@click.option("--license", metavar="ID", help="For the card of a model, such as apache-2.0.  [default: unknown]")
@click.option("--card", metavar="FILE", help="Dataset card of an export.  [default: OUT/README.md or OUT.card.md]")
@click.option("--ledger", metavar="FILE", help="Where the ledger of an export is, if it is not where it was written.")
@json_option
def push(
    what: str, repo: str, public: bool, license: str | None, card: str | None, ledger: str | None, as_json: bool
) -> None:
    """Upload the model of a run, or the cleaned data OUT of an export, in one commit.

    The repository is made where there is none, and private unless --public; one that exists stays as it is. The token
    is huggingface_hub's own: HF_TOKEN, or `hf auth login`.
    """
    from pathlib import Path

    from cleanpairs.commands.export import push_run

    if (Path(what) / "run.json").exists():
        if card is not None or ledger is not None:
            raise click.UsageError("--card and --ledger are of an export, and this is a run: its card is written here")
        pushed = push_run(what, repo, license=license, private=not public)
    else:
        from cleanpairs.export import push_export

        if license is not None:
            raise click.UsageError("--license is for a model: an export has its licence in its card already")
        pushed = push_export(what, repo, card=card, ledger=ledger, private=not public)
    if as_json:
        print_json(pushed)
    else:
        echo(str(pushed))
