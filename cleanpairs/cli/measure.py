"""``cleanpairs evaluate``, ``cleanpairs corrupt`` and ``cleanpairs bench``."""

from contextlib import closing, nullcontext
from typing import Any

import click

from cleanpairs.cli.completion import complete_backbone, complete_methods, complete_recipe
from cleanpairs.cli.options import column_options, existing_run, pick_columns, run_and_data, trust_option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_result
from cleanpairs.cli.progress import Progress, progress_option, quiet_option
from cleanpairs.cli.terminal import echo
from cleanpairs.core.plain import plain


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@click.option("--truth", metavar="FILE", help="True mismatches: .npy (booleans, or a permutation) or Parquet.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), metavar="P", help="For precision and recall.  [default: the run's]"
)
@column_options
@trust_option
@json_option
def evaluate(paths: tuple[str, ...], truth: str | None, threshold: float | None, as_json: bool, **options: Any) -> None:
    """R@1, 5, 10 both ways and rSum of RUN's model (runs/latest if not given) on DATA.

    Without DATA it is the data that RUN was fitted on: recall is what the model remembers there.

    Where DATA has a column `true_mismatch`, or with --truth: AUROC and average precision of detection, and precision,
    recall and F1 at the threshold. The training data is judged by the labels of the run, other data by its scores; the
    data of a run of `fit --noise-file` by its labels of the pairs that this file mismatched.
    """
    import numpy as np

    from cleanpairs.core.errors import ConfigError, DataError
    from cleanpairs.data import load_pairs
    from cleanpairs.scoring.evaluate import detection

    run_path, data = run_and_data(paths)
    run = existing_run(run_path, options["trusted"])
    model = run.model()
    pairs = run.load_input() if data is None else load_pairs(data, **pick_columns(options))
    figures: dict[str, float | None] = dict(model.evaluate(pairs).to_dict())
    mask = pairs.true_mismatch_mask(truth) if truth is not None or pairs.true_mismatch is not None else None
    noise = (run.info.get("input") or {}).get("noise") or {}
    if noised := noise.get("fingerprint") == pairs.source.fingerprint:
        wrong = noise.get("mismatched_pairs")
        if not isinstance(wrong, list) or not all(type(i) is int for i in wrong):
            raise DataError(
                f"{run.path / 'run.json'} does not say which pairs its noise file mismatched (input.noise."
                "mismatched_pairs, a list of their numbers): fit again"
            )
        own = np.isin(pairs.pair_id, wrong)
        if truth is not None and mask is not None and (mask != own).any():
            raise ConfigError(
                f"{truth} mismatches other pairs than the noise file of {run.path} ({noise.get('file')}), "
                "by whose captions it is judged: leave --truth out"
            )
        mask = own
    if mask is not None:
        trained_on = pairs.source.fingerprint == model.fingerprint_ and (run.path / "scores.parquet").exists()
        if trained_on or noised:
            y, unseen = run.scores().correspondence, None
        else:
            found, y = model.scored(pairs)
            unseen = model.threshold_of(found, y)
        limit = model.applied_threshold(unseen) if threshold is None else threshold
        figures.update(detection(y, mask, limit).to_dict())
    figures = {k: None if v is None else round(v, 6) for k, v in plain(figures).items()}
    lines = [f"{'':<16}{'R@1':>8}{'R@5':>8}{'R@10':>8}"]
    for name, prefix in (("image to text", "i2t"), ("text to image", "t2i")):
        lines.append(f"{name:<16}" + "".join(f"{figures[f'{prefix}_r{k}']:>8.1f}" for k in (1, 5, 10)))
    lines.append(f"{'rSum':<16}{figures['rsum']:>8.1f}")
    if mask is not None:
        lines.append("")
        for name in ("auroc", "ap", "precision", "recall", "f1"):
            value = figures[name]
            lines.append(f"{name:<16}{'-' if value is None else f'{value:.3f}':>8}")
    print_result(figures, as_json, "\n".join(lines))


_KINDS = ("within", "shift", "collapse", "partial")


@click.command(cls=PathsCommand)
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
    wrong, n = int(result.mismatched.sum()), len(result.mismatched)
    how = {"kind": "file" if noise is None else str(kind), "noise": noise}
    reached = f"{wrong / max(n, 1):.1%}" + (f" of the {noise:.1%} asked for, {kind}" if asked else "")
    text = f"{n:,} pairs, {wrong:,} of them now mismatched ({reached}) -> {out}"
    print_result({"pairs": n, "mismatched": wrong, **how, "out": out}, as_json, text)


class _Lines(Progress):
    """A line a cell on standard error, and a bar for the one that runs."""

    def note(self, text: str) -> None:
        """Something that the user should know."""
        echo(f"note     {text}", err=True)

    def cell(self, at: int, total: int, row: dict[str, Any], *, done_before: bool) -> None:
        """The line."""
        self.close()
        head = f"[{at}/{total}] {row['method']:<10} noise {row['noise']} seed {row['seed']}: "
        if row["status"] != "ok":
            echo(head + str(row["error"]), err=True)
            return
        words = [f"{name} {row[key]:.{digits}f}" for name, key, digits in _SHOWN if row.get(key) is not None]
        words.append("was there" if done_before else f"{row['total_seconds']:.0f} s")
        echo(head + ", ".join(words), err=True)


_SHOWN = (("rSum", "rsum", 1), ("AUROC", "auroc", 3), ("F1", "f1", 3), ("repair", "repair_precision", 3))


def _rates(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers with commas between them") from error


@click.command(cls=PathsCommand)
@click.argument("data", type=click.Path())
@click.option("--methods", metavar="all|A,B", default="all", shell_complete=complete_methods)
@click.option("--noise", metavar="R,R", default="0.2,0.4,0.6,0.8", callback=_rates)
@click.option("--noise-file", "noise_files", metavar="NPY", multiple=True, help="In place of --noise; may be repeated.")
@click.option("--seeds", type=click.IntRange(min=1), metavar="N", default=3)
@click.option("--per", type=click.Choice(["caption", "image"]), default="caption")
@click.option(
    "--kind",
    metavar="KIND,KIND",
    default="uniform",
    help="How pairs are mismatched: uniform, within:COLUMN, shift[:K], collapse[:N], partial[:SHARE].",
)
@click.option("--val", metavar="DATA", help="Clean validation pairs.  [default: what belongs to DATA]")
@click.option("--test", metavar="DATA", help="Clean test pairs.  [default: what belongs to DATA]")
@click.option("--backbone", metavar="NAME", help="Dual encoder, for all methods.", shell_complete=complete_backbone)
@click.option(
    "--recipe",
    metavar="FILE|NAME",
    help="A recipe; or R, for each method that has a recipe METHOD-R.",
    shell_complete=complete_recipe,
)
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="For all methods that have it; METHOD.KEY for one."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N rows of DATA.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]))
@column_options
@click.option(
    "--out", type=Writes(), metavar="DIR", help="Where the table goes, and grows.  [default: runs/bench-<data>]"
)
@quiet_option("No progress, and no line a cell.")
@progress_option
@json_option
def bench(data: str, **options: Any) -> None:
    """Wrong some of DATA's clean pairs, fit every method on them, and judge it by the truth.

    A line is added to DIR/bench.jsonl after each fit; the same command goes on where it was stopped, and other methods,
    noise or seeds are added to what is there. Leaves DIR/table.md, table.csv and plot.png.

    The splits that belong to DATA are dev and test of a research directory, and NAME_val.parquet and NAME_test.parquet
    beside NAME_train.parquet.
    """
    from cleanpairs.benchmarking import LEGEND, Bench, run_bench

    what = Bench(
        data=data,
        **{k: options[k] for k in ("methods", "noise", "noise_files", "seeds", "per", "kind", "val", "test")},
        **{k: options[k] for k in ("recipe", "overrides", "limit", "out")},
        options={k: options[k] for k in ("backbone", "device")},
        columns=pick_columns(options),
    )
    quiet = options["quiet"] or options["as_json"]
    lines = None if quiet else _Lines(asked=options["progress"])
    try:
        with nullcontext() if lines is None else closing(lines):
            result = run_bench(what, progress=lines)
    except KeyboardInterrupt:
        echo(f"\nInterrupted; what is measured stays in {what.directory}. The same command goes on.", err=True)
        raise
    more = f"* best of its noise; ± over seeds. More in {result.out}: table.md, table.csv, plot.png, bench.jsonl"
    print_result(result.to_dict(), options["as_json"], f"{result.table()}\n\n{LEGEND}\n{more}")
