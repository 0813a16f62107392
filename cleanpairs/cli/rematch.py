"""``cleanpairs rematch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import column_options, engine_options, existing_run, pick_columns
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.repair_options import REPAIR_NAMES, chosen_threshold, repair_options

__all__ = ["rematch"]


@click.command(short_help="Plan the repairs, to be reviewed before they are made.")
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@click.option("--out", required=True, metavar="FILE", help="The plan to write: Parquet, or CSV where it ends in .csv.")
@repair_options
@click.option(
    "--targets",
    type=click.Choice(["both", "text", "image"]),
    default="both",
    show_default=True,
    help="What may be replaced.",
)
@click.option(
    "--recaption",
    metavar="MODEL",
    help="A captioning model (BLIP, GIT, ViT with a text decoder; a directory or a hub name) writes captions for what "
    "would be dropped; only those that score better than the old ones are used.",
)
@column_options
@engine_options
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@json_option
def rematch(paths: tuple[str, ...], out: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Plan who gets which caption or image from whom; nothing is changed.

    Without DATA it is the data that RUN (or runs/latest) was fitted on. Read the plan, edit its actions and donors (for
    a caption of your own: the action recaption), and carry it out: cleanpairs export --plan FILE --repaired OUT.

    With --workers the searches for candidates are done by several processes. If these are interrupted, the same command
    goes on where it was: what is found lies in OUT.parts until the plan is made.
    """
    from cleanpairs.errors import OutputExistsError
    from cleanpairs.exporting import expected_at, plan_run
    from cleanpairs.ops.search import SearchNote

    if Path(out).exists() and not overwrite:  # before the work, not after it
        raise OutputExistsError(f"{out} exists; --overwrite replaces it")
    run, data = _run_and_data(paths)
    settings = {name: options[name] for name in (*REPAIR_NAMES, "targets")}
    opened, threshold = existing_run(run), chosen_threshold(options["threshold"])
    expected = expected_at(threshold, opened)
    _, plan = plan_run(
        opened,
        data,
        columns=pick_columns(options),
        threshold=threshold,
        recaption=options["recaption"],
        engine=options["engine"],
        workers=options["workers"],
        address=options["ray_address"],
        parts=f"{out}.parts",
        **settings,
    )
    plan.save(out, overwrite=overwrite)
    summary = plan.summary()
    if as_json:
        fields = ("pairs", "kept", "rematched_text", "rematched_image", "recaptioned", "dropped", "quarantined")
        print_json({name: getattr(summary, name) for name in fields})
    else:
        if expected is not None:
            click.echo(f"{expected}\n")
        for note in plan.settings.get("searches", ()):
            click.echo(f"search: {SearchNote(**note)}")
        click.echo(f"{summary}\n\nplan: {out}\nnext: cleanpairs export --plan {out} --repaired FILE")


def _run_and_data(paths: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``[RUN] [DATA]``: one path is a run if there is a run in it."""
    if len(paths) > 2:
        raise click.UsageError("give RUN, DATA, both or neither")
    if len(paths) == 1 and not (Path(paths[0]) / "run.json").exists():
        return None, paths[0]
    run, data, *_ = (*paths, None, None)
    return run, data
