"""``cleanpairs fit``."""

import shlex
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import (
    PathsCommand,
    Reads,
    Writes,
    column_options,
    data_settings,
    group,
    join_arrays,
    limit_option,
    option,
    set_option,
)
from cleanpairs.cli.terminal import Progress, echo, flag, has_flag, print_result
from cleanpairs.core import ConfigError, reported_to
from cleanpairs.core.recipe import Recipe


@click.command(cls=PathsCommand, flags=[flag("quiet", "No progress, no table.")])
@click.argument("data", nargs=-1, type=Reads(), callback=join_arrays)
@group(
    "Data",
    *column_options,
    limit_option,
    option("--val=DATA", "Clean validation pairs, read as DATA. The best epoch on them gives the model.", Reads()),
    option("--drop=FILTERS", "Also quarantine pairs that match these filters (see `inspect --filters`), or `all`."),
)
@group(
    "Model",
    option("--method=NAME", "Method; `cleanpairs methods` lists them.  [default: auto]"),
    option("--backbone=NAME", "Dual encoder to train: mlp, vse_inf, saf, sgr or sgraf.  [default: mlp]"),
    option("--encoder=NAME", "Encoder of both sides: a directory, a hub name, or open_clip:MODEL/PRETRAINED.", Reads()),
)
@group(
    "Training",
    option("--epochs=N", "Epochs of the last stage.", int),
    option("--batch-size=N", "Pairs in a batch, over all processes.", int),
    option("--device", "Where to train. auto: on a GPU, if there is one.", ["auto", "cpu", "cuda"]),
    option("--seed=N", "Random seed.", int),
    option("--recipe=FILE|NAME", "Settings from a YAML file, or from a name of `cleanpairs recipes`.", Reads()),
    set_option("A setting of the method (see `methods METHOD --settings`), or of the data: data.encoding=cp1252."),
)
@group(
    "Output",
    option("--out=DIR", "Run directory.  [default: runs/<date>-<method>-<data>]", Writes()),
    option("--resume", "Resume the run of --out, or runs/latest."),
    option("--overwrite", "Replace the run of --out."),
)
def fit(**options: Any) -> None:
    """Train on the pairs of DATA, score each pair, and write a run directory. A low score means a mismatched pair.

    DATA is Parquet, a directory of `datasets`, WebDataset tars, a folder with a CSV or JSON Lines, embeddings of
    clip-retrieval, COCO's captions, the research layout, or hf://owner/name. It may also be .npy files of images'
    vectors, or a URL with --allow-urls. `cleanpairs inspect DATA` shows how it is read.

    On N processes or GPUs: torchrun --nproc-per-node N -m cleanpairs fit DATA ...
    """
    from cleanpairs.commands.fit import check_stored, fit_run, result_table
    from cleanpairs.commands.run import Run
    from cleanpairs.core.distributed import rank_by_environment
    from cleanpairs.core.hub import without_hub

    recipe, out, stored = _recipe(options)
    if recipe.data.train is None:
        raise click.UsageError("DATA is missing: the Parquet file, glob or directory to fit on")
    first = not rank_by_environment()
    began, progress = time.time(), Progress(enabled=first and not recipe.output.quiet)
    begun = Run(Path(out or recipe.output.out or ""))
    if options["resume"] and not progress.silent and begun.path.is_dir():
        states = ["is complete"] * begun.complete
        states += ["has no checkpoint: the fit begins anew"] * (not begun.has_checkpoint())
        if states:
            echo(f"{begun.path} {', and '.join(states)}", err=True)
    named = options["backbone"] is not None or any(o.startswith("backbone") for o in options["overrides"])
    try:
        with reported_to(progress), without_hub() if stored else nullcontext():
            if stored:
                check_stored(recipe, str(out))
            result = fit_run(recipe, out=out, resume=options["resume"], backbone_named=named)
    except KeyboardInterrupt:
        if progress.run_path is not None:
            command = f"cleanpairs fit --resume --out {shlex.quote(str(progress.run_path))}"
            saved = Run(progress.run_path).has_checkpoint()
            state = "the state is saved. Resume with" if saved else "there is no checkpoint yet. Begin anew with"
            echo(f"\nInterrupted; {state}:\n  {command}", err=True)
        raise
    if first and (has_flag("json") or not recipe.output.quiet):
        print_result({**result, "seconds": round(time.time() - began, 1)}, result_table(result))


def _recipe(options: dict[str, Any]) -> tuple[Any, str | None, bool]:
    """Return the recipe, the run to resume, and whether the recipe is that run's own, which may be another person's."""
    from cleanpairs.commands.run import LATEST, Run

    train = options["data"]
    no_settings = ("data", "columns", "recipe", "overrides", "resume")
    given = {name: None if value is False else value for name, value in options.items() if name not in no_settings}
    given |= data_settings(options | {"overrides": ()}) | {"train": train, "quiet": has_flag("quiet") or None}
    own = options["resume"] and options["recipe"] is None and train is None
    resumed = options["resume"] and (own or options["out"] is None)
    if own and (run := Run(Path(options["out"] or LATEST))).is_unused():
        raise ConfigError(f"the fit of {run.path} was killed as it began: give the whole command again")
    out = str(Run.open(options["out"]).path) if resumed else None
    if own:  # options in addition to the run's own settings count, and are refused if they make another training of it
        given["out"] = None
    chosen = f"{out}/recipe.yaml" if own else options["recipe"]
    recipe = Recipe.resolve(chosen, overrides=options["overrides"], options=given)
    return recipe, out if own or recipe.output.out is None else None, bool(own and not has_flag("trust-stored-paths"))
