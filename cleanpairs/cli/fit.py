"""``cleanpairs fit``."""

import shlex
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.completion import complete_backbone, complete_image_encoder, complete_method, complete_recipe
from cleanpairs.cli.options import array_files, column_options, pick_columns, trust_option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.progress import Progress, progress_option, quiet_option
from cleanpairs.cli.terminal import echo

SETTINGS = (
    "method", "backbone", "val", "out", "epochs", "batch_size", "micro_batch", "compile", "device", "precision", "seed",
    "max_bad_share", "drop", "encoder", "tune", "text_encoder", "image_encoder", "image_size", "limit",
)  # fmt: skip


@click.command(cls=PathsCommand)
@click.argument("data", required=False, type=click.Path())
@click.option(
    "--image-vectors",
    metavar="NPY",
    multiple=True,
    callback=array_files,
    help="In place of DATA: .npy files of images' vectors; may be repeated. Beside it --text-vectors, --captions.",
)
@click.option(
    "--method",
    metavar="NAME",
    help="Method; `cleanpairs methods` lists them.  [default: auto]",
    shell_complete=complete_method,
)
@click.option(
    "--recipe",
    metavar="FILE|NAME",
    help="Settings from a YAML file, or from one that ships.",
    shell_complete=complete_recipe,
)
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="One setting; may be repeated.")
@click.option("--val", metavar="DATA", help="Clean validation pairs: the best epoch on them is kept.")
@click.option("--out", type=Writes(), metavar="DIR", help="Run directory.  [default: runs/<date>-<method>-<data>]")
@click.option("--backbone", metavar="NAME", help="Dual encoder.", shell_complete=complete_backbone)
@click.option("--encoder", metavar="NAME", help="CLIP or SigLIP for both sides: a directory, or a name on the hub.")
@click.option(
    "--tune", metavar="WHAT", help="Of --encoder: head (towers frozen), lora, blocks:N, full.  [default: head]"
)
@click.option("--text-encoder", metavar="NAME", help="Frozen text encoder; features: the data's caption vectors.")
@click.option(
    "--image-encoder",
    metavar="NAME",
    help="auto, efficientnet_lite0, cnn, features.",
    shell_complete=complete_image_encoder,
)
@click.option("--image-size", type=int, metavar="PX", help="Side of the square that the image encoder sees.")
@click.option("--epochs", type=int, metavar="N", help="Epochs of the last stage.")
@click.option("--batch-size", type=int, metavar="N", help="Pairs of a step, of all processes together.")
@click.option("--micro-batch", type=int, metavar="N", help="Compute a batch in parts of N: less memory, same loss.")
@click.option("--compile", is_flag=True, default=None, help="Compile the towers by torch.compile, if it can be done.")
@click.option(
    "--max-bad-share", type=float, metavar="SHARE", help="More quarantined pairs end the run.  [default: 0.2]"
)
@click.option(
    "--drop", metavar="FILTERS", help="Set aside first, beside what always is: names as in `inspect --filters`, or all."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]))
@click.option("--seed", type=int, metavar="N")
@click.option("--limit", type=int, metavar="N", help="Only the first N rows.")
@click.option(
    "--noise-file", metavar="NPY", help="Wrong the captions by this permutation first, to repeat a published split."
)
@column_options
@click.option("--resume", is_flag=True, help="Go on with the run of --out (or the latest one).")
@click.option("--overwrite", is_flag=True, help="Replace the run of --out.")
@quiet_option("No progress, no table.")
@trust_option
@progress_option
@json_option
def fit(**options: Any) -> None:
    """Train on the pairs of DATA, estimate how far each belongs together, and leave a run directory.

    DATA is Parquet, a directory of `datasets`, WebDataset tars, a folder with a CSV or JSON Lines, embeddings of
    clip-retrieval, COCO's captions, the research layout, hf://owner/name, or a URL with --allow-urls: see
    `cleanpairs inspect DATA`.

    With --noise-file the data stays as it is, and so does what is exported from it: to clean and export the mismatched
    data itself, write it with `cleanpairs corrupt --noise-file` and fit on that.

    On N processes or GPUs: torchrun --nproc-per-node N -m cleanpairs fit DATA ...
    """
    from cleanpairs.commands.fit import check_stored, fit_run
    from cleanpairs.core.distributed import rank_by_environment
    from cleanpairs.core.hub import without_hub

    resume, as_json = options["resume"], options["as_json"]
    recipe, out, stored = _recipe(options)
    if recipe.data.train is None:
        raise click.UsageError("DATA is missing: the Parquet file, glob or directory to fit on")
    quiet = options["quiet"] or rank_by_environment() > 0
    if resume and not (quiet or as_json):
        from cleanpairs.commands.run import Run

        begun = Run(Path(out or recipe.output.out or ""))
        if (begun.path / "run.json").exists() and not begun.has_checkpoint:
            echo(f"{begun.path} has no checkpoint yet: its training begins anew", err=True)
    began = time.time()
    progress = Progress(enabled=not (quiet or as_json), asked=options["progress"])
    named = options["backbone"] is not None or any(o.startswith("backbone") for o in options["overrides"])
    files = {"out": out, "resume": resume, "noise_file": options["noise_file"]}
    try:
        with closing(progress), without_hub() if stored else nullcontext():
            if stored:
                check_stored(recipe, str(out))
            result = fit_run(recipe, **files, progress=progress, backbone_named=named)
    except KeyboardInterrupt:
        if progress.run_path is not None:
            command = f"cleanpairs fit --resume --out {shlex.quote(str(progress.run_path))}"
            echo(f"\nInterrupted; the state is saved. Go on with:\n  {command}", err=True)
        raise
    if as_json and rank_by_environment() == 0:
        print_json({**vars(result), "seconds": round(time.time() - began, 1)})
    elif not (quiet or recipe.output.quiet):
        echo(result.table())


def _recipe(options: dict[str, Any]) -> tuple[Any, str | None, bool]:
    """The recipe; the run to go on with; whether its recipe is that run's own, which somebody else may have written."""
    from cleanpairs.core.recipe import Recipe

    if options["image_vectors"] is not None and options["data"] is not None:
        raise click.UsageError("give either DATA or --image-vectors")
    train = options["data"] or options["image_vectors"]
    given = {name: options[name] for name in SETTINGS} | pick_columns(options) | {"train": train}
    given |= {name: True if options[name] else None for name in ("overwrite", "quiet")}
    if not options["resume"]:
        return Recipe.resolve(options["recipe"], overrides=options["overrides"], options=given), None, False
    from cleanpairs.commands.run import Run

    own = options["recipe"] is None and train is None
    out = str(Run.open(options["out"]).path) if own or options["out"] is None else None
    if own:  # what is given beside the run's own settings counts, and is refused if it makes another training of it
        given["out"] = None
        recipe = Recipe.resolve(f"{out}/recipe.yaml", overrides=options["overrides"], options=given)
        _refuse_elsewhere(str(out), str(recipe.data.train))
        return recipe, out, not options["trusted"]
    recipe = Recipe.resolve(options["recipe"], overrides=options["overrides"], options=given)
    return recipe, out if recipe.output.out is None else None, False


def _refuse_elsewhere(run: str, train: str) -> None:
    """ConfigError where a run's data is not here, and was where the run was begun: the recipe's paths are relative."""
    from cleanpairs.commands.run import Run
    from cleanpairs.core.errors import ConfigError

    known = str((Run(Path(run)).info.get("input") or {}).get("data"))
    if known.endswith(f"/{train}") and Path(known).exists() and not Path(train).exists():
        folder = shlex.quote(known.removesuffix(f"/{train}"))
        raise ConfigError(f"{run} was begun on {train} in another folder, by which its paths go: cd {folder}")
