"""``cleanpairs review``."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from cleanpairs.cli.options import RUN, TRUST, existing_run, option
from cleanpairs.cli.paths import PathsCommand
from cleanpairs.cli.progress import Progress
from cleanpairs.cli.terminal import echo, print_result

FOLDER, LOG, PROPOSED = "review", "decisions.jsonl", "proposed.parquet"


@click.command(cls=PathsCommand)
@RUN
@option("--plan", "FILE", "Review this plan of `cleanpairs rematch`.  [default: RUN's]")
@option(
    "--goal",
    click.FloatRange(0, 1),
    "Share of mismatched pairs in the output to get below: what is asked first, and how much is left to do.",
    default=0.02,
    metavar="P",
)
@option("--write only_write", None, "Write plan and labels of what was decided, without a page.")
@option("--no-browser", None, "Print the address only.")
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
            server.serve_forever()
        server.one.acquire()  # what is asked from now on is not answered
        session.refresh()
    written = session.write(folder)
    text = (
        f"{written['decided']:,} pairs decided -> {written['plan']}: {written['kept']:,} kept, "
        f"{written['repaired']:,} repaired, {written['dropped']:,} dropped\n"
        f"next:  cleanpairs export --plan {shlex.quote(written['plan'])} --repaired out.parquet"
    )
    if written["labels"]:
        text += f"\n       cleanpairs audit {shlex.quote(str(opened.path))} --labels {shlex.quote(written['labels'])}"
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
