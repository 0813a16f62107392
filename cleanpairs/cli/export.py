"""``cleanpairs export`` and ``cleanpairs push``."""

from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import (
    REPAIR_NAMES,
    RUN,
    chosen_engine,
    engine_options,
    existing_run,
    repair_options,
    repair_settings,
    trust_option,
)
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json, print_result
from cleanpairs.cli.terminal import echo

WRITTEN = ("dropped", "ledger", "card", "format", "shard_size", "license", "explode", "overwrite")
COMMANDLINE = click.core.ParameterSource.COMMANDLINE


@click.command(cls=PathsCommand)
@RUN
@click.option("--run", "run_option", metavar="DIR", hidden=True)  # as it was spelt before RUN was an argument
@click.option("--plan", metavar="FILE", help="Carry out this plan of `cleanpairs rematch`; it needs no run.")
@click.option(
    "--repaired",
    "out",
    type=Writes(beside=(".manifest.json", ".ledger.parquet", ".card.md", ".parts", ".search")),
    required=True,
    metavar="OUT",
    help="The cleaned data to write: a file or directory.",
)
@click.option(
    "--format",
    type=click.Choice(["parquet", "webdataset", "datasets", "uids"]),
    help="Of OUT: Parquet; a directory of tars (img2dataset's layout); a directory for datasets.load_from_disk; a .npy "
    "of the uids kept (DataComp's).  [default: by its suffix: .parquet, DIR/{00000..}.tar, .npy]",
)
@click.option("--shard-size", type=int, metavar="N", help="Samples to a tar of webdataset.  [default: 10000]")
@click.option("--dropped", type=Writes(), metavar="FILE", help="Parquet of the pairs that were dropped or quarantined.")
@click.option(
    "--ledger",
    type=Writes(),
    metavar="FILE",
    help="Parquet with what happened to every pair of the input.  [default: OUT.ledger.parquet]",
)
@click.option(
    "--card", type=Writes(), metavar="FILE", help="Write a dataset card there; a directory has one as its README.md."
)
@click.option("--license", metavar="ID", help="Of the data, for the card, such as cc-by-4.0.  [default: unknown]")
@click.option("--push-to-hub", "repo", metavar="OWNER/NAME", help="Upload OUT with its card; private unless --public.")
@click.option("--public", is_flag=True, help="Make the repository of --push-to-hub public.")
@repair_options
@click.option("--explode", is_flag=True, help="One row a pair where a row holds a list of captions.")
@click.option("--overwrite", is_flag=True, help="Replace the outputs.")
@engine_options
@trust_option
@json_option
@click.pass_context
def export(ctx: click.Context, out: str, repo: str | None, public: bool, as_json: bool, **options: Any) -> None:
    """Keep the pairs of RUN (or runs/latest) at or above the threshold, repair the rest by rematching, drop what cannot
    be repaired.

    With --plan, Parquet is written in bounded memory, and by several processes with --workers. If these are
    interrupted, the same command goes on where it was: what is done lies in OUT.parts until all is.
    """
    from cleanpairs.commands.export import export_plan, export_run
    from cleanpairs.commands.rematch import chosen_cut
    from cleanpairs.export import push_export

    written = {name: options[name] for name in WRITTEN} | {"engine": chosen_engine(options)}
    if public and repo is None:
        raise click.UsageError("--public is of --push-to-hub OWNER/NAME, which is not given")
    if repo is not None:
        written["card"] = card_to_push(out, repo, options)
    run_path = options["run"] or options["run_option"]
    if options["run"] and options["run_option"]:
        raise click.UsageError("--run names a run as RUN does: give one of them")
    if options["plan"] is not None:
        decided = ["RUN"] if run_path else []
        decided += [
            "--" + name.replace("_", "-")
            for name in ("threshold", "max_wrong", "keep", *REPAIR_NAMES)
            if ctx.get_parameter_source(name) is COMMANDLINE
        ]
        if decided:
            names = ", ".join(decided)
            raise click.UsageError(f"{names}: --plan has decided that already; make another plan by cleanpairs rematch")
        summary = export_plan(options["plan"], out, trusted=options["trusted"], **written)
    else:
        run = existing_run(run_path, options["trusted"])
        threshold, expected = chosen_cut(options["threshold"], options["max_wrong"], options["keep"], run)
        if expected is not None and not as_json:
            echo(f"{expected}\n")
        summary = export_run(run, out, repair_settings(options, threshold), **written)
    if not as_json:
        echo(str(summary))
    pushed = None
    if repo is not None:
        pushed = push_export(
            summary.files["out"], repo, private=not public, card=written["card"], ledger=summary.files["ledger"]
        )
    if as_json:
        from cleanpairs.repair.actions import COUNTED

        counts = {name: getattr(summary, name) for name in ("pairs", *COUNTED, "rows")}
        print_json(counts if pushed is None else {**counts, "pushed": pushed})
    elif pushed is not None:
        echo(str(pushed))


def card_to_push(out: str, repo: str, options: dict[str, Any]) -> str | None:
    """The dataset card of an export that is to be pushed; None for a directory. Finds out first that it can be."""
    from cleanpairs.core.errors import OutputExistsError
    from cleanpairs.export.formats import choose_format, make_format
    from cleanpairs.export.pushing import beside_card, check_push

    check_push(repo)
    name, path = choose_format(out, options["format"])
    if make_format(name).directory:
        return options["card"]
    beside = beside_card(path)
    if options["card"] is None and beside.exists():  # and may have been written by hand
        raise OutputExistsError(f"{beside} exists; --card {beside} replaces it with --overwrite, or names another file")
    return str(options["card"] or beside)


@click.command()
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
    print_result(pushed, as_json)
