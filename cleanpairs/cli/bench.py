"""``cleanpairs bench``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.completion import complete_backbone, complete_methods, complete_recipe
from cleanpairs.cli.options import column_options, pick_columns
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.progress import Progress, progress_option, quiet_option
from cleanpairs.cli.terminal import echo


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


@click.command(cls=PathsCommand, short_help="Methods against noise: the table that the papers print.")
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
        result = run_bench(what, progress=lines)
    except KeyboardInterrupt:
        echo(f"\nInterrupted; what is measured stays in {what.directory}. The same command goes on.", err=True)
        raise
    finally:
        if lines is not None:
            lines.close()
    if options["as_json"]:
        print_json(result.to_dict())
        return
    echo(result.table())
    echo(f"\n{LEGEND}")
    echo(f"* best of its noise; ± over seeds. More in {result.out}: table.md, table.csv, plot.png, bench.jsonl")
