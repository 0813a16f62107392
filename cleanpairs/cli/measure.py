"""``cleanpairs evaluate``, ``cleanpairs corrupt`` and ``cleanpairs bench``."""

from dataclasses import fields
from typing import Any

import click

from cleanpairs.cli.options import (
    PathsCommand,
    Reads,
    Writes,
    column_options,
    data_options,
    data_settings,
    existing_run,
    group,
    limit_option,
    option,
    per_option,
    reading_as_in_the_fit,
    run_and_data,
    set_option,
)
from cleanpairs.cli.terminal import Progress, echo, flag, print_result, say
from cleanpairs.core import jsonable, percent, plural, reported_to


@click.command(cls=PathsCommand)
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=Reads())
@data_options
@group(
    "Evaluation",
    option("--truth=FILE", "True mismatches: .npy (booleans, or a permutation) or Parquet.", Reads()),
    option("--threshold=P", "Threshold for precision and recall.  [default: the run's]", float),
    option("--folds=N", "Means over N parts of the images. MS-COCO 1K has 5.", click.IntRange(1), default=1),
)
def evaluate(paths: tuple[str, ...], truth: str | None, threshold: float | None, folds: int, **options: Any) -> None:
    """Measure retrieval on DATA with the model of RUN (or runs/latest): captions for images, and images for captions.

    The output has R@1, R@5 and R@10 in both directions, in percent, and rSum, the sum of the six. Without DATA the data
    of the fit is used, which the model has memorised in part.

    If DATA has a column `true_mismatch`, or with --truth, the output has the detection of mismatched pairs, too: AUROC,
    average precision, and precision, recall and F1 at the threshold. Pairs of the fit have the scores of the run. Other
    pairs are scored by its model.
    """
    from cleanpairs.data import load_pairs
    from cleanpairs.data.noise import load_truth
    from cleanpairs.scoring.evaluate import detection

    run_path, data = run_and_data(paths)
    run = existing_run(run_path)
    how = {} if data is None else reading_as_in_the_fit(run, data, data_settings(options))
    pairs = run.load_input() if data is None else load_pairs(data, **how)
    own = pairs.source.fingerprint == run.fingerprint
    model = run.estimator(fitted=not own)
    figures: dict[str, float | None] = dict(model.evaluate(pairs, folds=folds).to_dict())
    mask = pairs.true_mismatch if truth is None else load_truth(truth, pairs)
    if own and run.result.get("epochs"):
        say("the model was trained on these pairs and has memorised some: its recall on other pairs may be lower")
    if mask is not None:
        y, found = model._scores_and_threshold(pairs)
        limit = found if threshold is None else threshold
        figures.update(detection(y, mask, limit).to_dict())
    figures = {k: None if v is None else round(v, 6) for k, v in jsonable(figures).items()}

    def cell(name: str, digits: int = 1) -> str:
        return f"{'-' if figures[name] is None else f'{figures[name]:.{digits}f}':>8}"

    lines = [f"{'':<16}{'R@1':>8}{'R@5':>8}{'R@10':>8}"]
    for name, prefix in (("image to text", "i2t"), ("text to image", "t2i")):
        lines.append(f"{name:<16}" + "".join(cell(f"{prefix}_r{k}") for k in (1, 5, 10)))
    lines.append(f"{'rSum':<16}{cell('rsum')}")
    if mask is not None:
        lines += ["", *(f"{name:<16}{cell(name, 3)}" for name in ("auroc", "ap", "precision", "recall", "f1"))]
    print_result(figures, "\n".join(lines))


@click.command(cls=PathsCommand)
@click.argument("data", type=Reads())
@data_options
@group(
    "Noise",
    option("--noise=RATE", "Share of pairs to mismatch, 0 to 1.", float),
    option(
        "--kind=KIND",
        "How pairs are mismatched: uniform, within:COLUMN, shift[:K], collapse[:N], partial[:SHARE], "
        "copied[:noun|:COLUMN], edited, truncated[:WORDS] or boilerplate; see docs/inputs.md.",
        default="uniform",
    ),
    per_option,
    option("--seed=N", "Random seed.", int, default=0),
    option("--noise-file=NPY", "A permutation over captions or images, in place of --noise.", Reads()),
)
@group(
    "Output",
    option("--out=PATH", "Parquet file, or a directory in the research layout.", Writes(".parquet"), required=True),
    option("--overwrite", "Replace --out."),
)
def corrupt(data: str, noise: float | None, noise_file: str | None, out: str, **options: Any) -> None:
    """Mismatch a random share of DATA's pairs on purpose: exchange their captions, or imitate errors of real data.

    The truth is written to the columns `true_mismatch` and `true_key`, which `fit` does not use.
    """
    from cleanpairs.data.noise import NoiseKind
    from cleanpairs.data.noise import corrupt as corrupt_data

    if (noise is None) == (noise_file is None):
        raise click.UsageError("give either --noise or --noise-file")
    kind = NoiseKind.parse(options["kind"])
    if noise_file is not None and str(kind) != "uniform":
        raise click.UsageError("give only one of --kind, --noise-file")
    how = {name: options[name] for name in ("per", "seed", "overwrite")} | data_settings(options)
    result = corrupt_data(data, noise, kind=kind, out=out, noise_file=noise_file, **how)
    wrong, n = int(result.mismatched.sum()), len(result.mismatched)
    reached = percent(wrong / max(n, 1))
    if str(kind) != "uniform" and noise is not None:
        reached += f" of the {percent(noise)} asked for, {kind}"
    text = f"{plural(n, 'pair')}, {wrong:,} of them now mismatched ({reached}) -> {out}"
    named = "file" if noise is None else str(kind)
    print_result({"pairs": n, "mismatched": wrong, "kind": named, "noise": noise, "out": out}, text)


class _Lines(Progress):
    """A line a cell on standard error, and a bar for the one that runs."""

    def note(self, text: str) -> None:
        """Something that the user should know."""
        if not self.silent:
            echo(f"note     {text}", err=True)

    def cell(self, at: int, total: int, row: dict[str, Any], *, done_before: bool) -> None:
        """Print the line."""
        self.close()
        line = str(row.get("error"))
        if row["status"] == "ok":
            columns = (("rSum", "rsum", 1), ("AUROC", "auroc", 3), ("F1", "f1", 3), ("repair", "repair_precision", 3))
            words = [f"{name} {row[key]:.{digits}f}" for name, key, digits in columns if row.get(key) is not None]
            words += ["no pair is mismatched"] * (row["rate"] > 0 and row.get("mismatched") == 0)
            line = ", ".join([*words, "was there" if done_before else f"{row['seconds']:.0f} s"])
        if not self.silent:
            echo(f"[{at}/{total}] {row['method']:<10} noise {row['noise']} seed {row['seed']}: {line}", err=True)


def _rates(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers with commas between them") from error


@click.command(cls=PathsCommand, flags=[flag("quiet", "No progress, and no line for each fit.")])
@click.argument("data", type=Reads())
@group(
    "Data",
    option("--val=DATA", "Clean validation pairs, in the format of DATA.  [default: see above]", Reads()),
    option("--test=DATA", "Clean test pairs, in the format of DATA.  [default: see above]", Reads()),
    *column_options,
    limit_option,
)
@group(
    "Noise",
    option("--noise=R,R", "Shares of pairs to mismatch.", default="0.2,0.4,0.6,0.8", callback=_rates),
    option("--kind=KIND,KIND", "Kinds of noise, see `cleanpairs corrupt --help`.", default="uniform"),
    per_option,
    option("--noise-file=NPY noise_files", "Permutations, not --noise. May be repeated.", Reads(), multiple=True),
    option("--seeds=N", "Number of seeds: each fit is repeated.", click.IntRange(min=1), default=3),
)
@group(
    "Model",
    option("--methods=all|A,B", "Methods to fit.", default="all"),
    option("--recipe=FILE|NAME", "A recipe. Or a suffix R, for the recipe METHOD-R of each method.", Reads()),
    set_option("A setting of the methods that have it: backbone=sgr. METHOD.KEY is for one, data.KEY for the data."),
)
@group(
    "Output",
    option("--out=DIR", "Directory of the table. Each call adds to the table.  [default: runs/bench-<data>]", Writes()),
)
def bench(data: str, **options: Any) -> None:
    """Mismatch some of DATA's clean pairs, fit every method on them, and evaluate it by the truth.

    A line is added to DIR/bench.jsonl after each fit. The same command resumes where it was stopped, and other methods,
    noise or seeds are added to the lines. The results are in DIR/table.md, table.csv and plot.png.

    Default validation and test pairs are found in two cases: a research directory has dev and test, and
    NAME_train.parquet has NAME_val.parquet and NAME_test.parquet next to it.
    """
    from cleanpairs.benchmarking import Bench, run_bench, to_text
    from cleanpairs.benchmarking.table import LEGEND

    of_data = [text for text in options["overrides"] if text.startswith("data.")]
    options["columns"] = data_settings(options | {"overrides": of_data})
    options["overrides"] = tuple(text for text in options["overrides"] if text not in of_data)
    what = Bench(data=data, **{f.name: options[f.name] for f in fields(Bench) if f.name in options})
    try:
        with reported_to(_Lines()):
            result = run_bench(what)
    except KeyboardInterrupt:
        echo(f"\nInterrupted; the results so far are in {what.directory}. The same command resumes.", err=True)
        raise
    more = f"More in {result.out}: table.md, table.csv, plot.png, bench.jsonl"
    print_result(result.to_dict(), f"{to_text(result.rows)}\n\n{LEGEND}\n{more}")
