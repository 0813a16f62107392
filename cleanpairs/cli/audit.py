"""``cleanpairs audit``."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import RUN, TRUST, existing_run, option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.terminal import print_result
from cleanpairs.core.plain import plain

HELP = """Draw pairs of RUN (or runs/latest) for a person to label; with --labels, judge RUN by the labels.

\b
cleanpairs audit RUN --n 100                        draw: a page and a CSV to label in
cleanpairs audit RUN --labels RUN/audit/labels.csv  precision, recall, calibrated probabilities
cleanpairs audit RUN --thresholds                   without labels: expected precision and recall
"""
# What an option is of: of drawing, or of judging by labels.
BELONGS = {"n": "draw", "out": "draw", "seed": "draw", "probabilities": "labels"}


@click.command(cls=PathsCommand, help=HELP)
@RUN
@option("--n", click.IntRange(min=1), "Pairs to draw.", default=100)
@option("--out", Writes(), "Directory of the forms.  [default: RUN/audit]", metavar="DIR")
@option("--seed", click.IntRange(min=0), "Of the draw.", default=0)
@option("--labels", "FILE", "Read the labels back, and judge the run by them.")
@option(
    "--probabilities",
    Writes(),
    "Parquet with the probability of every pair.  [default: RUN/audit/probabilities.parquet]",
    metavar="FILE",
)
@option("--thresholds", None, "Without labels: what the scores alone let expect.")
@option("--threshold", click.FloatRange(0, 1), "Pairs below are flagged.  [default: RUN's]", metavar="P")
@option("--overwrite", None, "Replace the forms, if nobody has given labels in them, or --probabilities.")
@TRUST
@click.pass_context
def audit(ctx: click.Context, run: str | None, **options: Any) -> None:
    """Draw the sample, judge by labels, or say what to expect; see HELP."""
    from cleanpairs.audit import expected_quality
    from cleanpairs.data.locks import hold

    if options["labels"] is not None and options["thresholds"]:
        raise click.UsageError("--labels and --thresholds exclude each other: labels measure what scores let expect")
    mode = "labels" if options["labels"] is not None else "thresholds" if options["thresholds"] else "draw"
    for name, where in BELONGS.items():
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE and where != mode:
            needs = "goes with --labels" if where == "labels" else f"is for drawing, and not for --{mode}"
            raise click.UsageError(f"--{name} {needs}")
    chosen = existing_run(run, options["trusted"])
    if mode == "thresholds":
        y = chosen.scores().correspondence
        print_result(expected_quality(y, chosen.calibration(), threshold=_threshold(chosen, options)))
        return
    with hold([chosen.path / "audit"]):
        (_judge if mode == "labels" else _draw)(chosen, options)


def _threshold(run: Any, options: dict[str, Any]) -> float:
    """--threshold, or the run's own; out of run.json, which needs no model."""
    if options["threshold"] is not None:
        return float(options["threshold"])
    known = (run.info.get("result") or {}).get("threshold")
    return float(run.model().threshold_ if known is None else known)


def _draw(run: Any, options: dict[str, Any]) -> None:
    from cleanpairs.audit import draw_sample, write_forms

    folder = Path(options["out"]) if options["out"] is not None else run.path / "audit"
    threshold = _threshold(run, options)
    sample = draw_sample(run.scores().correspondence, options["n"], threshold=threshold, seed=options["seed"])
    title = f"Audit of {run.path.name}"
    write_forms(folder, sample, run.load_input(), title=title, overwrite=options["overwrite"])
    csv, page, pictures = folder / "labels.csv", folder / "label.html", len(list(folder.glob("images/*")))
    text = (
        f"{len(sample):,} pairs drawn, {pictures:,} with a picture -> {folder}\n"
        f"label: open {page} in a browser and save its CSV, or fill the column `matched` of {csv} (1 or 0)\n"
        f"then:  cleanpairs audit {quote(str(run.path))} --labels {quote(str(csv))}"
    )
    print_result({"pairs": len(sample), "pictures": pictures, "csv": csv, "page": page}, text)


def _judge(run: Any, options: dict[str, Any]) -> None:
    import numpy as np
    import pyarrow as pa

    from cleanpairs.audit import evaluate_audit, read_labels
    from cleanpairs.data.atomic import staged_file, write_whole
    from cleanpairs.data.writing import ParquetSink

    scores = run.scores()
    sample = read_labels(options["labels"], keys=scores.table["key"].to_pylist(), correspondence=scores.correspondence)
    threshold = _threshold(run, options)
    result = evaluate_audit(sample, scores.correspondence, threshold=threshold)
    table = scores.table.select(["pair_id", "key", "correspondence"]).append_column(
        "probability", pa.array(result.probability, mask=~np.isfinite(result.probability))
    )
    own = options["probabilities"] is None  # the run's own files follow from the labels: they are replaced
    target = run.path / "audit" / "probabilities.parquet" if own else Path(options["probabilities"])
    with (
        staged_file(target, overwrite=own or options["overwrite"], inputs=[options["labels"]]) as staged,
        ParquetSink(staged, table.schema) as sink,
    ):
        sink.write(table)
    figures = {"threshold": threshold, "labels": str(Path(options["labels"]).absolute()), **result.to_dict()}
    write_whole(run.path / "audit" / "result.json", json.dumps(plain(figures), indent=2, allow_nan=False) + "\n")
    print_result(figures, f"{result}\n\nprobabilities: {target}")
