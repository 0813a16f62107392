"""``cleanpairs audit``."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import RUN, existing_run, trust_option
from cleanpairs.cli.paths import Params, PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_result
from cleanpairs.core.plain import plain

HELP = """Draw pairs of RUN (or runs/latest) for a person to label; with --labels, judge RUN by the labels.

\b
cleanpairs audit RUN --n 100                        draw: a page and a CSV to label in
cleanpairs audit RUN --labels RUN/audit/labels.csv  precision, recall, calibrated probabilities
cleanpairs audit RUN --thresholds                   without labels: expected precision and recall
"""


def _forms(params: Params) -> Path | None:
    """The forms that are drawn, unless labels or scores are judged."""
    judges = params["labels"] is not None or params["thresholds"]
    return None if judges else Path(params["run"] or "runs/latest") / "audit"


def _probabilities(params: Params) -> Path | None:
    """What follows from labels, where it is not named."""
    judges = params["labels"] is not None
    return Path(params["run"] or "runs/latest") / "audit" / "probabilities.parquet" if judges else None


@click.command(cls=PathsCommand, help=HELP)
@RUN
@click.option("--n", default=100, type=click.IntRange(min=1), help="Pairs to draw.")
@click.option(
    "--out", type=Writes(otherwise=_forms), metavar="DIR", help="Directory of the forms.  [default: RUN/audit]"
)
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Of the draw.")
@click.option("--labels", metavar="FILE", help="Read the labels back, and judge the run by them.")
@click.option(
    "--probabilities",
    type=Writes(otherwise=_probabilities),
    metavar="FILE",
    help="Parquet with the probability of every pair.  [default: RUN/audit/probabilities.parquet]",
)
@click.option("--thresholds", is_flag=True, help="Without labels: what the scores alone let expect.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), metavar="P", help="Pairs below are flagged.  [default: RUN's]"
)
@click.option(
    "--overwrite", is_flag=True, help="Replace the forms, if nobody has given labels in them, or --probabilities."
)
@trust_option
@json_option
@click.pass_context
def audit(ctx: click.Context, run: str | None, **options: Any) -> None:
    """Draw the sample, judge by labels, or say what to expect; see HELP."""
    if options["labels"] is not None and options["thresholds"]:
        raise click.UsageError("--labels and --thresholds exclude each other: labels measure what scores let expect")
    mode = "labels" if options["labels"] is not None else "thresholds" if options["thresholds"] else "draw"
    belongs = {"n": "draw", "out": "draw", "seed": "draw", "probabilities": "labels"}
    for name, where in belongs.items():
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and where != mode:
            needs = "goes with --labels" if where == "labels" else f"is for drawing, and not for --{mode}"
            raise click.UsageError(f"--{name} {needs}")
    chosen = existing_run(run, options["trusted"])
    {"draw": _draw, "labels": _judge, "thresholds": _expect}[mode](chosen, options)


def _threshold(run: Any, options: dict[str, Any]) -> float:
    """--threshold, or the run's own; out of run.json, which needs no model."""
    if options["threshold"] is not None:
        return float(options["threshold"])
    known = (run.info.get("result") or {}).get("threshold")
    return float(run.model().threshold_ if known is None else known)


def _draw(run: Any, options: dict[str, Any]) -> None:
    from cleanpairs.audit import draw_sample, write_forms

    folder = Path(options["out"]) if options["out"] is not None else run.path / "audit"
    sample = draw_sample(
        run.scores().correspondence, options["n"], threshold=_threshold(run, options), seed=options["seed"]
    )
    pairs = run.load_input()
    title = f"Audit of {run.path.name}"
    write_forms(folder, sample, pairs, title=title, overwrite=options["overwrite"])
    csv, page, pictures = folder / "labels.csv", folder / "label.html", len(list(folder.glob("images/*")))
    text = (
        f"{len(sample):,} pairs drawn, {pictures:,} with a picture -> {folder}\n"
        f"label: open {page} in a browser and save its CSV, or fill the column `matched` of {csv} (1 or 0)\n"
        f"then:  cleanpairs audit {quote(str(run.path))} --labels {quote(str(csv))}"
    )
    figures = {"pairs": len(sample), "pictures": pictures, "csv": csv, "page": page}
    print_result(figures, options["as_json"], text)


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
    print_result(figures, options["as_json"], f"{result}\n\nprobabilities: {target}")


def _expect(run: Any, options: dict[str, Any]) -> None:
    from cleanpairs.audit import expected_quality

    expected = expected_quality(run.scores().correspondence, run.calibration(), threshold=_threshold(run, options))
    print_result(expected, options["as_json"])
