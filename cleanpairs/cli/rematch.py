"""``cleanpairs rematch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import column_options, engine_options, existing_run, pick_columns, trust_option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.repair_options import REPAIR_NAMES, chosen_threshold, repair_options
from cleanpairs.cli.terminal import echo

__all__ = ["rematch"]


@click.command(cls=PathsCommand, short_help="Plan the repairs, to be reviewed before they are made.")
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@click.option(
    "--out",
    type=Writes(beside=(".json", ".parts"), in_run=("plan.parquet",)),
    required=True,
    metavar="FILE",
    help="The plan to write: Parquet, or CSV where it ends in .csv.",
)
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
@click.option(
    "--spill",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Keep vectors and candidates in files beside --out instead of memory; auto: from 250,000 rows on.",
)
@click.option("--overwrite", is_flag=True, help="Replace --out.")
@trust_option
@json_option
def rematch(paths: tuple[str, ...], out: str, overwrite: bool, as_json: bool, **options: Any) -> None:
    """Plan who gets which caption or image from whom; nothing is changed.

    Without DATA it is the data that RUN (or runs/latest) was fitted on. Read the plan, edit its actions and donors (for
    a caption of your own: the action recaption), and carry it out: cleanpairs export --plan FILE --repaired OUT.

    With --workers the searches for candidates are done by several processes. If these are interrupted, the same command
    goes on where it was: what is found lies in OUT.parts until the plan is made. So do the vectors and candidates of
    many rows (--spill), for inputs that `cleanpairs score` streams: memory then grows much more slowly.
    """
    from cleanpairs.commands.export import chosen_cut
    from cleanpairs.commands.rematch import STREAMED_ROWS, plan_stream
    from cleanpairs.core.errors import ConfigError, OutputExistsError
    from cleanpairs.ops.search import SearchNote

    run, data = _run_and_data(paths)
    if data is not None and options["max_wrong"] is not None:
        raise click.UsageError("--max-wrong goes by the scores of the data that RUN was fitted on: leave DATA out")
    if Path(out).exists() and not overwrite:  # before the work, not after it
        raise OutputExistsError(f"{out} exists; --overwrite replaces it")
    settings = {name: options[name] for name in (*REPAIR_NAMES, "targets")}
    opened, asked = existing_run(run, options["trusted"]), chosen_threshold(options["threshold"])
    threshold, expected = chosen_cut(asked, options["max_wrong"], options["keep"], opened)
    how = {"engine": options["engine"], "workers": options["workers"], "address": options["ray_address"]}
    spill = "never" if options["recaption"] else options["spill"]
    planned = None
    if spill != "never":
        planned = plan_stream(
            opened,
            data,
            out,
            columns=pick_columns(options),
            threshold=threshold,
            overwrite=overwrite,
            least_rows=0 if spill == "always" else STREAMED_ROWS,
            **how,
            **settings,
        )
    if planned is None and options["spill"] == "always":
        raise ConfigError(
            "--spill always: this plan takes all pairs at once. Parquet with vectors and one caption a row, or an "
            "embedding folder, is planned in a stream, by the strategies ot and nearest, with a backbone that compares "
            "vectors, without --recaption, into Parquet: leave --spill out"
        )
    streamed = planned is not None
    if planned is None:
        planned = _in_memory(opened, data, out, options, threshold, overwrite, how, settings)
    summary = planned.summary
    if as_json:
        fields = ("pairs", "kept", "rematched_text", "rematched_image", "recaptioned", "dropped", "quarantined")
        print_json({name: getattr(summary, name) for name in fields})
    else:
        if expected is not None:
            echo(f"{expected}\n")
        for note in planned.settings.get("searches", ()):
            echo(f"search: {SearchNote(**note)}")
        where = " (made in a stream, vectors and candidates in files; --spill never: in memory)" if streamed else ""
        echo(f"{summary}\n\nplan: {out}{where}\nnext: cleanpairs export --plan {out} --repaired FILE")


def _in_memory(
    run: Any,
    data: str | None,
    out: str,
    options: dict[str, Any],
    threshold: float | None,
    overwrite: bool,
    how: dict[str, Any],
    settings: dict[str, Any],
) -> Any:
    """The plan, made and saved; see :class:`cleanpairs.commands.rematch.StreamedPlan`."""
    from cleanpairs.commands.export import plan_run
    from cleanpairs.commands.rematch import StreamedPlan

    _, plan = plan_run(
        run,
        data,
        columns=pick_columns(options),
        threshold=threshold,
        recaption=options["recaption"],
        parts=f"{out}.parts",
        **how,
        **settings,
    )
    plan.save(out, overwrite=overwrite)
    return StreamedPlan(plan.summary(), plan.settings)


def _run_and_data(paths: tuple[str, ...]) -> tuple[str | None, str | None]:
    """``[RUN] [DATA]``: one path is a run if there is a run in it."""
    if len(paths) > 2:
        raise click.UsageError("give RUN, DATA, both or neither")
    if len(paths) == 1 and not (Path(paths[0]) / "run.json").exists():
        return None, paths[0]
    run, data, *_ = (*paths, None, None)
    return run, data
