"""What a person decides on the labelling page: ``cleanpairs audit`` and ``cleanpairs review``."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from cleanpairs.cli.options import PathsCommand, Reads, Writes, existing_run, option, run_argument, splitting
from cleanpairs.cli.terminal import Progress, echo, has_flag, print_result
from cleanpairs.core import RefusedError, jsonable, plural

if TYPE_CHECKING:
    from cleanpairs.review.session import Session

no_browser_option = option("--no-browser", "Print the address of the page only.")


@click.command(cls=PathsCommand)
@run_argument
@option("--n", "Pairs to draw.  [default: 100]", click.IntRange(min=1))
@option("--out=DIR", "Directory of the sample.  [default: RUN/audit]", Writes())
@option("--seed", "Seed of the draw.", click.IntRange(min=0), default=0)
@option("--page", "Label on a local page. Ctrl-C ends.")
@no_browser_option
@option("--labels=FILE", "Read the labels of a CSV, and evaluate the run by them.", Reads())
@option("--thresholds", "Without labels: the expected precision and recall, by the scores.")
@option("--threshold=P", "Evaluate with pairs of a correspondence below P flagged.  [default: RUN's own]", float)
@option("--overwrite", "Draw anew, if nobody has given labels.")
@click.pass_context
def audit(ctx: click.Context, run: str | None, **options: Any) -> None:
    """Label a random sample of RUN (or runs/latest) by hand, to measure precision, recall and the noise rate.

    \b
    cleanpairs audit RUN --page              draw 100 pairs, label them on a local page, end with Ctrl-C
    cleanpairs audit RUN                     draw them into RUN/audit/labels.csv, for a spreadsheet
    cleanpairs audit RUN --labels FILE       evaluate RUN by the labels in a CSV
    cleanpairs audit RUN --thresholds        without labels: expected precision and recall

    The page hides the scores. It goes on with the pairs that were drawn before.
    """  # noqa: D301
    from cleanpairs.audit import expected_quality
    from cleanpairs.data.locks import output_lock

    if options["labels"] is not None and options["thresholds"]:
        raise click.UsageError("--labels and --thresholds exclude each other: give one of them")
    mode = "labels" if options["labels"] is not None else "thresholds" if options["thresholds"] else "draw"
    for name in ("n", "out", "seed", "page", "no_browser"):
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if mode != "draw" and given:
            raise click.UsageError(f"--{name.replace('_', '-')} is for drawing, not for --{mode}")
        if name == "no_browser" and given and not options["page"]:
            raise click.UsageError("--no-browser is for a page: give --page, too")
    chosen = existing_run(run)
    if mode == "thresholds":
        from cleanpairs.correspondence.calibration import Estimate

        answered, cut = chosen.answered(), _threshold(chosen, options)
        cut = cut if answered is None or options["threshold"] is not None else answered.threshold
        y, name = chosen.scores().correspondence, str(chosen.path)
        expected = expected_quality(y, chosen.calibration(), threshold=cut, run=name)
        if (interval := chosen.result.get("noise_rate_interval")) is not None:  # as `fit` printed it
            expected = replace(expected, noise_rate=Estimate(chosen.result["noise_rate"], *interval))
        return print_result(expected)
    with output_lock([chosen.path / "audit"] if mode == "labels" or options["out"] is None else []):
        if mode == "labels":
            print_result(*_evaluated(chosen, options, Path(options["labels"])))
        else:
            _audit(chosen, options)


def _threshold(run: Any, options: dict[str, Any]) -> float:
    """--threshold, or the run's own, from run.json, which needs no model."""
    if options["threshold"] is not None:
        return float(options["threshold"])
    threshold = (run.info.get("result") or {}).get("threshold")
    return float(run.model().threshold_ if threshold is None else threshold)


def _audit(run: Any, options: dict[str, Any]) -> None:
    from cleanpairs.audit import draw_sample, read_labels, update_labels, write_labels
    from cleanpairs.review.session import Session

    command = f"cleanpairs audit {quote(str(run.path))}"
    page = f"{command} --page" + (f" --out {quote(options['out'])}" if options["out"] else "")
    folder = Path(options["out"]) if options["out"] is not None else run.path / "audit"
    csv, pairs, y = folder / "labels.csv", run.load_input(), run.fitted_scores().correspondence
    begun = options["page"] and csv.exists() and not options["overwrite"]
    sample = read_labels(csv, keys=pairs.keys, correspondence=y) if begun else None
    if sample is None or min(options["n"] or len(sample), (y == y).sum()) != len(sample):  # it is another draw
        drawn = draw_sample(y, options["n"] or 100, threshold=_threshold(run, options), seed=options["seed"])
        write_labels(folder, drawn, pairs, overwrite=options["overwrite"])
        sample = read_labels(csv, keys=pairs.keys, correspondence=y)
    if not options["page"]:
        images = len(list(folder.glob("images/*")))
        text = (
            f"{plural(len(sample), 'pair')} drawn, {images:,} with an image -> {csv}\n"
            f"label on a page:     {page}\n"
            "or in a spreadsheet: fill the column `matched` (1 or 0), then\n"
            f"                     {command} --labels {quote(str(csv))}"
        )
        return print_result({"pairs": len(sample), "pictures": images, "csv": csv}, text)
    session = Session(pairs, None, y, run.decision_log(len(pairs)), sample=sample, saved=csv.stat().st_mtime)

    def judge() -> tuple[Any, str]:
        if csv.exists():  # somebody may have typed into it meanwhile
            saved = csv.stat().st_mtime
            session.take_labels(read_labels(csv, keys=pairs.keys, correspondence=y), saved)
        update_labels(csv, session.labels(), pairs)
        return _evaluated(run, options, csv)

    _serve(session, lambda: judge()[1], f"Audit of {run.path.name}", options["no_browser"])
    none = {"labelled": 0}, f"no pair is labelled yet; {page} resumes"
    print_result(*(judge() if session.labels().labelled.any() else none))


def _evaluated(run: Any, options: dict[str, Any], csv: Path) -> tuple[dict[str, Any], str]:
    """Evaluate the run by the labels, and write the result there. Returns it as figures and as text."""
    from cleanpairs.audit import evaluate_audit, read_labels
    from cleanpairs.data.atomic import write_whole

    scores = run.fitted_scores()
    sample = read_labels(csv, keys=scores.table["key"].to_pylist(), correspondence=scores.correspondence)
    threshold = _threshold(run, options)
    result = evaluate_audit(sample, scores.correspondence, threshold=threshold)
    figures = {"threshold": threshold, "labels": str(csv.absolute()), **result.to_dict()}
    write_whole(run.path / "audit" / "result.json", json.dumps(jsonable(figures), indent=2, allow_nan=False) + "\n")
    fitted = "" if run.answered() is None else "\nthese are the scores of the fit, without the answers"
    return figures, f"{result}{fitted}"


@click.command(cls=PathsCommand)
@run_argument
@option("--calibrate", "Ask about the pairs whose answers improve noise rate and threshold most.")
@option("--n", "With --calibrate: number of answers in all.  [default: 40, or 20 more]", click.IntRange(min=1))
@option("--labels=FILE", "With --calibrate: take the answers from a CSV with the columns pair_id and matched.", Reads())
@option(
    "--judge=MODEL[@URL]",
    "With --calibrate: ask a model about 200 doubtful pairs (--n). MODEL is a BLIP matching model (a directory or a "
    "hub name). With @URL it is on a server, such as NAME@http://localhost:8000/v1. Its key is in OPENAI_API_KEY.",
    Reads(),
)
@option("--plan=FILE", "Review this plan of `cleanpairs rematch`.  [default: RUN's]", Reads())
@option("--write only_write", "Write the plan with the decisions so far, without a page.")
@no_browser_option
def review(
    run: str | None, calibrate: bool, n: int | None, labels: str | None, judge: str | None, plan: str | None,
    only_write: bool, no_browser: bool,
) -> None:  # fmt: skip
    """Decide about the flagged pairs and the repairs of RUN (or runs/latest) on a local page.

    Every answer is saved in RUN/review/decisions.jsonl before the next pair is shown. The same command goes on where
    you stopped. Ctrl-C, or the page's button, writes RUN/review/plan.parquet for `export --plan`.

    With --calibrate the page asks about forty pairs, and hides their scores. The answers give the noise rate, the
    threshold and the probabilities. `export` and `report` use them from then on.
    """
    from cleanpairs.core.errors import ConfigError
    from cleanpairs.repair.plan import RepairPlan
    from cleanpairs.review.session import Session

    opened = existing_run(run)
    if calibrate:
        if plan is not None or only_write:
            raise click.UsageError("--plan and --write are for a review of decisions, not for --calibrate")
        return _calibrate(opened, n, labels, judge, no_browser)
    if n is not None or labels is not None or judge is not None:
        raise click.UsageError("--n, --labels and --judge go with --calibrate")
    folder, pairs, y = opened.path / "review", opened.load_input(), opened.scores().correspondence
    chosen = _plan(opened, folder) if plan is None else RepairPlan.load(plan)
    if "data" not in chosen.settings:
        raise ConfigError(f"{plan} does not name its data; cleanpairs rematch {quote(str(opened.path))} makes another")
    explainer = None if only_write else opened.estimator().explainer(pairs, threshold=chosen.threshold)
    log, first = opened.decision_log(len(pairs)), opened.result.get("standing_out", ())
    session = Session(pairs, chosen, y, log, explainer=explainer, calibration=opened.calibration(), first=first)

    def write() -> tuple[dict[str, Any], str]:
        done = session.write_plan(folder / "plan.parquet")
        text = f"{plural(done['decided'], 'pair')} decided -> {done['plan']}: {done['kept']:,} kept, "
        text += f"{done['repaired']:,} repaired, {done['dropped']:,} dropped"
        next_step = f"cleanpairs export --plan {quote(done['plan'])} --out out.parquet{splitting(pairs, chosen)}"
        return done, f"{text}\nnext:  {next_step}"

    if not only_write:
        for pair in session.queue()[:1].tolist():
            session.question(pair)  # what it looks up is ready then
        _serve(session, lambda: write()[1], f"Review of {opened.path.name}", no_browser)
    print_result(*write())


def _ask_judge(run: Any, pairs: Any, y: Any, labels: dict[int, bool | None], judge: str, count: int) -> None:
    """Store in the run the opinions of a judge, MODEL or MODEL@URL, about ``count`` pairs. ``labels``: by people."""
    from cleanpairs.audit import second_opinions
    from cleanpairs.commands.run import OPINIONS
    from cleanpairs.data.atomic import write_whole
    from cleanpairs.repair.chat import ChatJudge

    model, scheme, address = judge.partition("@http")
    model_judge: Any
    if scheme:
        model_judge = ChatJudge(model, f"http{address}", cache=run.path / "review" / "judge.jsonl")
    else:
        from cleanpairs.encoders.pretrained import Matcher

        model_judge = Matcher(model)
    answers = {i: label for i, label in labels.items() if label is not None}
    threshold = float(run.info["result"]["threshold"])
    opinions = second_opinions(pairs, y, model_judge, threshold=threshold, answers=answers, count=count)
    write_whole(run.path / OPINIONS, json.dumps(vars(opinions)) + "\n")
    for kind, places in model_judge.problems.items() if scheme else ():
        echo(f"judge: {kind} ({len(places):,}), such as {places[0]}", err=True)


def _calibrate(run: Any, n: int | None, csv: str | None, judge: str | None, no_browser: bool) -> None:
    """Ask, read the answers of a CSV, or ask a judge, and print the calibrated figures."""
    from cleanpairs.audit import read_answers
    from cleanpairs.review.session import Session

    pairs, y, ask = run.load_input(), run.fitted_scores().correspondence, csv is None and judge is None
    if ask and (usable := len(y[y == y])) < 20:
        raise RefusedError(f"answers count from 20 on, and {run.path.name} has {plural(usable, 'pair')}")
    log = run.decision_log(len(pairs))
    if csv is not None:
        log.label(read_answers(csv, correspondence=y, keys=pairs.keys))  # by which a judge is judged, too
    if judge is not None:
        _ask_judge(run, pairs, y, log.labels(), judge, n or 200)
    wanted = n if n is not None else max(40, len(log.labels()) + 20 * (len(log.labels()) >= 40))
    session = Session(pairs, None, y, log, wanted=wanted if ask else 0)

    def figures() -> tuple[dict[str, Any], str]:
        if (answered := run.answered()) is not None:
            return answered.figures(), f"{answered}\nnext:  cleanpairs export {quote(str(run.path))} --out out.parquet"
        answers = sum(label is not None for label in log.labels().values())
        message = f"{plural(answers, 'answer')} so far: from 20 on they count. cleanpairs review {quote(str(run.path))}"
        return {"answers": answers}, f"{message} --calibrate resumes"

    if ask:
        _serve(session, lambda: figures()[1], f"Calibration of {run.path.name}", no_browser)
    print_result(*figures())


def _plan(run: Any, folder: Path) -> Any:
    """Return the run's plan, where it says what `export --plan` needs, else the one that was made for its review."""
    from cleanpairs.repair.plan import RepairPlan

    proposed = folder / "proposed.parquet"
    for known in (None, proposed):
        if (plan := run.current_plan(known)) is not None and "data" in plan.settings:
            return plan
    from cleanpairs.commands.rematch import rematch_run  # which imports torch

    folder.mkdir(exist_ok=True)
    rematch_run(run, proposed, overwrite=True)
    return RepairPlan.load(proposed)


def _serve(session: "Session", finish: Callable[[], str], title: str, no_browser: bool) -> None:
    """Show the page until Ctrl-C."""
    from cleanpairs.review.server import LabelServer

    server = LabelServer(session, finish, title=title)
    Progress(enabled=False)  # nobody waits for the end
    echo(
        f"open {server.address}   (Ctrl-C ends; {plural(int(session.answered[session.known].sum()), 'pair')} answered)",
        err=has_flag("json"),
    )
    with suppress(KeyboardInterrupt):
        on_screen = sys.platform != "linux" or not {"DISPLAY", "WAYLAND_DISPLAY"}.isdisjoint(os.environ)
        if on_screen and not no_browser:  # without a screen, what should open a browser only complains
            click.launch(server.address)
        server.serve()
    server.lock.acquire()  # later requests are not answered
    session.log.refresh()
