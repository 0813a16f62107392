"""What a person decides: ``cleanpairs audit`` and ``cleanpairs review``."""

import json
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import RUN, TRUST, PathsCommand, Writes, existing_run, option
from cleanpairs.cli.terminal import Progress, echo, print_result
from cleanpairs.core.plain import plain

AUDIT_HELP = """Draw pairs of RUN (or runs/latest) for a person to label; with --labels, judge RUN by the labels.

\b
cleanpairs audit RUN --n 100                        draw: a page and a CSV to label in
cleanpairs audit RUN --labels RUN/audit/labels.csv  precision, recall, calibrated probabilities
cleanpairs audit RUN --thresholds                   without labels: expected precision and recall
"""
# What an option is of: of drawing, or of judging by labels.
BELONGS = {"n": "draw", "out": "draw", "seed": "draw", "probabilities": "labels"}


@click.command(cls=PathsCommand, help=AUDIT_HELP)
@RUN
@option("--n", "Pairs to draw.", click.IntRange(min=1), default=100)
@option("--out=DIR", "Directory of the forms.  [default: RUN/audit]", Writes())
@option("--seed", "Of the draw.", click.IntRange(min=0), default=0)
@option("--labels=FILE", "Read the labels back, and judge the run by them.")
@option(
    "--probabilities=FILE",
    "Parquet with the probability of every pair.  [default: RUN/audit/probabilities.parquet]",
    Writes(),
)
@option("--thresholds", "Without labels: what the scores alone let expect.")
@option("--threshold=P", "Pairs below are flagged.  [default: RUN's]", click.FloatRange(0, 1))
@option("--overwrite", "Replace the forms, if nobody has given labels in them, or --probabilities.")
@TRUST
@click.pass_context
def audit(ctx: click.Context, run: str | None, **options: Any) -> None:
    """Draw the sample, judge by labels, or say what to expect; see AUDIT_HELP."""
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
    with hold([chosen.path / "audit"] if mode == "labels" or options["out"] is None else []):
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


FOLDER, LOG, PROPOSED = "review", "decisions.jsonl", "proposed.parquet"


@click.command(cls=PathsCommand)
@RUN
@option("--plan=FILE", "Review this plan of `cleanpairs rematch`.  [default: RUN's]")
@option(
    "--goal=P",
    "Share of mismatched pairs in the output to get below: what is asked first, and how much is left to do.",
    click.FloatRange(0, 1),
    default=0.02,
)
@option("--write only_write", "Write plan and labels of what was decided, without a page.")
@option("--no-browser", "Print the address only.")
@TRUST
def review(run: str | None, plan: str | None, goal: float, only_write: bool, no_browser: bool, trusted: bool) -> None:
    """Decide about pairs of RUN (or runs/latest) on a page that this machine serves to itself alone.

    Every decision is on the disk, in RUN/review/decisions.jsonl, before the next pair is shown; reviewing goes on where
    it was left. On Ctrl-C, and by the page's button, plan.parquet for `export --plan` and labels.csv for `audit
    --labels` are written beside it.
    """
    from cleanpairs.core.errors import ConfigError
    from cleanpairs.repair.plan import RepairPlan
    from cleanpairs.review.log import DecisionLog
    from cleanpairs.review.session import Review

    opened = existing_run(run, trusted)
    folder = opened.path / FOLDER
    pairs, scores = opened.load_input(), opened.scores()
    chosen = _plan(opened, folder) if plan is None else RepairPlan.load(plan)
    if "data" not in chosen.settings:
        raise ConfigError(f"{plan} does not name its data; `cleanpairs rematch {opened.path}` makes one that does")
    explainer = None if only_write else opened.estimator().explainer(pairs, threshold=chosen.threshold)
    log = DecisionLog(folder / LOG, pairs.source.fingerprint, len(pairs))
    known = opened.calibration() is not None
    session = Review(pairs, chosen, scores.correspondence, log, explainer=explainer, probability=known, goal=goal)
    if not only_write:
        from cleanpairs.review.server import ReviewServer

        session.pair(int(session.listing()[0])) if len(session.listing()) else None  # what is looked up is ready then
        server = ReviewServer(session, folder, title=f"Review of {opened.path.name}")
        Progress(enabled=False)  # nobody waits for the end
        echo(f"open {server.address}   (Ctrl-C ends; {len(log.decided()):,} pairs are decided)")
        with suppress(KeyboardInterrupt):
            if not no_browser:
                click.launch(server.address)
            server.serve()
        server.one.acquire()  # what is asked from now on is not answered
        session.refresh()
    written = session.write(folder)
    text = (
        f"{written['decided']:,} pairs decided -> {written['plan']}: {written['kept']:,} kept, "
        f"{written['repaired']:,} repaired, {written['dropped']:,} dropped\n"
        f"next:  cleanpairs export --plan {quote(written['plan'])} --repaired out.parquet"
    )
    if written["labels"]:
        text += f"\n       cleanpairs audit {quote(str(opened.path))} --labels {quote(written['labels'])}"
    print_result({**written, "progress": session.progress()}, text)


def _plan(run: Any, folder: Path) -> Any:
    """The run's plan, where it says what `export --plan` needs; else the one that was made for its review."""
    from cleanpairs.commands.rematch import rematch_run
    from cleanpairs.commands.run import PLAN
    from cleanpairs.repair.plan import RepairPlan

    for known in (run.path / PLAN, folder / PROPOSED):
        if known.exists() and "data" in (plan := RepairPlan.load(known)).settings:
            return plan
    folder.mkdir(exist_ok=True)
    rematch_run(run, folder / PROPOSED)
    return RepairPlan.load(folder / PROPOSED)
