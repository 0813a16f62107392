"""What a run says of its pairs: ``cleanpairs report``, ``worst``, ``explain`` and ``neighbours``."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from cleanpairs.cli.options import PathsCommand, Reads, Writes, existing_run, option, run_argument, splitting
from cleanpairs.cli.terminal import echo, print_result, safe
from cleanpairs.core import first_few, percent, read_json, reading
from cleanpairs.core.errors import ConfigError, DataError, MissingInputError, RefusedError
from cleanpairs.core.recipe import read_yaml

if TYPE_CHECKING:
    from cleanpairs.explain import Explainer, Explanation, Neighbours


@click.command(cls=PathsCommand)
@click.argument("named", metavar="[RUN] [PAIR]...", nargs=-1, type=Reads())
@option("--n --limit count", "Number of worst pairs to explain, if no PAIR is given.", click.IntRange(1), default=5)
@option("--neighbours", "Similar pairs to show, by image and by caption.", click.IntRange(1, 50), default=3)
def explain(named: tuple[str, ...], count: int, neighbours: int) -> None:
    """Explain the scores of pairs of RUN (or runs/latest). PAIR is a key, or the number of a pair. Without PAIR the
    worst pairs are explained. If keys are numbers, pair_id:7 is pair 7.

    The explanation has trusted pairs with similar images, and trusted pairs with similar captions. It names words of
    the caption that hardly any similar image has in its captions, and words that it lacks.
    """
    run, explainer, ids = _opened(named)
    explanations = explainer.explain(ids or explainer.worst(count).tolist(), neighbours=neighbours)
    words = {} if (opinions := run.opinions()) is None else opinions.in_words()
    _print([replace(e, opinion=words.get(e.pair_id, "")) for e in explanations])


@click.command(cls=PathsCommand)
@click.argument("named", metavar="[RUN] [PAIR]...", nargs=-1, type=Reads())
@option("--n --limit count", "Pairs to list by image, and as many by caption.", click.IntRange(1, 50), default=10)
def neighbours(named: tuple[str, ...], count: int) -> None:
    """List the pairs of RUN (or runs/latest) with the most similar images and the most similar captions.

    PAIR is a key, or the number of a pair. If keys are numbers, pair_id:7 is pair 7. All pairs are encoded first.
    """
    if not named[_is_run(named) :]:
        raise click.UsageError("PAIR is missing: the key, or the number, of a pair")
    _, explainer, ids = _opened(named)
    _print(explainer.neighbours(ids, count))


def _is_run(named: tuple[str, ...]) -> bool:
    return bool(named) and (Path(named[0]) / "run.json").is_file()


def _opened(named: tuple[str, ...]) -> tuple[Any, "Explainer", list[int]]:
    """RUN and its explainer, which is the first name where that is a run, and the pairs that are named."""
    is_run = _is_run(named)
    opened = existing_run(named[0] if is_run else None)
    pairs = opened.load_input()
    return opened, opened.estimator().explainer(pairs), [_pair(pairs, name) for name in named[is_run:]]


def _print(explanations: Sequence["Explanation | Neighbours"]) -> None:
    print_result(explanations, "\n".join(line for e in explanations for line in _lines(e)))


def _pair(pairs: Any, name: str) -> int:
    same = [i for i, key in enumerate(pairs.keys) if key == name]
    if same:
        if len(same) > 1:
            others = first_few([f"pair_id:{i}" for i in same[1:]])
            echo(f"{len(same):,} pairs have the key {name!r}: pair {same[0]} is taken; the others: {others}", err=True)
        elif name.isdecimal() and int(name) != same[0] and int(name) < len(pairs):
            echo(f"{name} is the key of pair {same[0]}, which is taken; pair_id:{name} takes pair {name}", err=True)
        return same[0]
    number = name.removeprefix("pair_id:")
    if not number.isdecimal():
        raise ConfigError(f"no pair has the key {name!r}, nor is it a run: give a key, or the number of a pair")
    return int(number)


def _lines(e: "Explanation | Neighbours") -> Iterator[str]:
    y = e.correspondence
    doubted = "quarantined" if y != y else f"correspondence {y:.3f}"
    why = getattr(e, "why", None)
    yield f"pair {e.pair_id}, key {safe(e.key)}: {doubted}{', flagged' if getattr(e, 'flagged', False) else ''}"
    yield f"  caption    {safe(e.caption) or '(no caption)'}"
    if why is not None:
        yield f"  why        {safe(why)}"
    if opinion := getattr(e, "opinion", ""):
        yield f"  judge      {opinion}"
    if displaced := getattr(e, "displaced", ""):
        yield f"  displaced  {safe(displaced)}"
    for name, near in (("similar images", e.similar_images), ("similar captions", e.similar_captions)):
        yield f"  {name}{' of trusted pairs' if why is not None else ''}:"
        for n in near:
            doubt = "" if n.trusted else f", not trusted: {n.correspondence:.3f}"
            about = f"(pair {n.pair_id}, key {safe(n.key)}{doubt})"
            yield f"    {n.similarity:.2f}  {safe(n.caption) or '(no caption)'}  {about}"
    yield ""


def _issues(run: Any, count: int) -> tuple[Any, Collection[str]]:
    """Return the worst pairs, and the kinds of issues that were looked for.

    Those that ``fit`` has listed are read, unless answers have changed the scores.
    """
    from cleanpairs.explain import ISSUES, LISTED, SCHEMA
    from cleanpairs.repair.editing import read_csv

    missing, result = False, run.result
    try:
        run.open_input()  # refuses data that have changed
    except MissingInputError:
        missing = True
    file = run.path / "issues.csv"
    if count <= LISTED and file.exists() and run.answered() is None:
        with contextlib.suppress(DataError):  # a spreadsheet may have written it
            issues = read_csv(file, SCHEMA)
            if issues.schema.equals(SCHEMA):
                if missing:
                    echo("the data is not there: this is the list of the fit", err=True)
                place, rank = [ISSUES.index(name) for name in issues["issue"].to_pylist()], issues["rank"].to_numpy()
                order = np.lexsort((rank, place))
                return issues.take(order[rank[order] <= count]), result.get("issues", ISSUES)
    pairs = run.load_input()
    return run.estimator().explainer(pairs).issues(count, result.get("standing_out", ())), ISSUES


@click.command(cls=PathsCommand)
@run_argument
@option("--n --limit count", "Pairs to list for each issue.", click.IntRange(1), default=20)
@option("--out=FILE", "Write the list as CSV, for a spreadsheet.", Writes(".csv"))
@option("--overwrite", "Replace --out.")
def worst(run: str | None, count: int, out: str | None, overwrite: bool) -> None:
    """List the worst pairs of RUN (or runs/latest), by kind of issue and with a reason, however few pairs are flagged.

    Issues: doubtful pairs, first kept pairs that fit much worse than the others. Near-duplicate images with different
    captions. One caption of many images. Images or captions without content. Captions in another script than most
    others. Displaced rows.

    Each pair has a score from 0 to 1, and low is bad. The score of a doubtful pair is its correspondence, that of a
    caption of N images 1 / N.
    """
    from cleanpairs.data.atomic import staged_file
    from cleanpairs.explain import ISSUES, LISTED
    from cleanpairs.repair.editing import write_csv

    issues, kinds = _issues(existing_run(run), count)
    if out is not None:
        with staged_file(out, overwrite=overwrite) as staged:
            write_csv(issues, staged)
    rows, lines = issues.to_pylist(), list[str]()
    for issue in ISSUES:
        listed = [row for row in rows if row["issue"] == issue]
        none = " none" if issue in kinds else f" not looked for in a stream (--n {LISTED + 1} reads all pairs)"
        lines.append(f"{issue}:{'' if listed else none}")
        for row in listed:
            place = f"  {row['rank']:3d}  {row['score']:.3f}  pair {row['pair_id']}"
            lines.append(f"{place}, key {safe(row['key'])}: {safe(row['caption'])}")
            lines.append(f"              {safe(row['why'])}")
    if out is not None:
        lines.append(f"-> {out}")
    print_result(rows, "\n".join(lines))


@click.command(cls=PathsCommand)
@run_argument
@option("--out=FILE", "The page to write.", Writes(".html"), default="report.html")
@option("--slice-by=COLUMN,...", "Columns of the input. The page gets a table of outcomes by the values of each.")
@option("--pairs count", "Cards in each gallery.", click.IntRange(1, 200), default=24)
@option("--truth=FILE", "True mismatches: .npy or Parquet.  [default: the input's true_mismatch]", Reads())
@option("--overwrite", "Replace --out.")
def report(run: str | None, out: str, truth: str | None, **options: Any) -> None:
    """Write one HTML page about RUN (or runs/latest), with counts, scores, and thumbnails of pairs to sort and filter.

    The page opens from disk in any browser, loads nothing and sends nothing. It shows samples of the pairs, and has at
    most 10 MB. Of 250,000 pairs and more it shows repairs where `cleanpairs rematch` has planned them.
    """
    from cleanpairs.data.noise import load_truth
    from cleanpairs.repair.settings import RepairSettings
    from cleanpairs.report import write_report

    chosen = existing_run(run)
    pairs = chosen.load_input()
    plan = saved = chosen.current_plan()
    if plan is None and len(pairs) < RepairSettings.streamed_from:
        plan = chosen.estimator().rematch(pairs, targets="text" if pairs.source.explicit_lists else "both")
    parameters = chosen.reported(pairs, plan)
    data = Path(chosen.info["input"]["data"])
    name = data.parent.name if set(data.name) & set("*?[{") else data.name
    path = write_report(
        out,
        title=f"{chosen.info['method']} on {name}",
        settings=_settings(chosen),
        truth=pairs.true_mismatch if truth is None else load_truth(truth, pairs),
        next_steps=_next_steps(chosen, parameters["calibration"], pairs, saved, unplanned=plan is None),
        slice_by=[name.strip() for name in (options["slice_by"] or "").split(",") if name.strip()],
        audit_result=_audit_result(chosen),
        count=options["count"],
        overwrite=options["overwrite"],
        **parameters,
    )
    lacking = f", without repairs: `{_planning(chosen.path)}` plans them" if plan is None else ""
    print_result({"report": path}, f"written: {path}{lacking}")


def _planning(path: Path) -> str:
    """Return the command that plans the repairs of the run there."""
    from cleanpairs.commands.run import PLAN

    return f"cleanpairs rematch {quote(str(path))} --out {quote(str(path / PLAN))}"


def _settings(run: Any) -> dict[str, Any]:
    file = run.path / "recipe.yaml"
    recipe = read_yaml(file) if file.exists() else {}
    settings: dict[str, Any] = {}
    for section in ("method", "backbone", "train"):
        for key, value in (recipe.get(section) or {}).items():
            if (section, key) != ("method", "name"):
                settings["backbone" if key == "name" else key] = value
    return settings


def _next_steps(run: Any, calibration: Any, pairs: Any, plan: Any, *, unplanned: bool) -> list[tuple[str, str]]:
    from cleanpairs.commands.run import PLAN
    from cleanpairs.estimators.cut import cut_at
    from cleanpairs.repair.plan import as_written
    from cleanpairs.repair.settings import RepairSettings

    near = os.path.relpath(run.path)  # no page tells where a run below the working directory lies
    path = run.path if near.startswith("..") else Path(near)
    name = quote(str(path))
    command = f"cleanpairs export {name} --out out.parquet"
    as_shown = command
    if plan and "data" in plan.settings:  # the file is replaced by every export, and is named only where it must be
        usual, limits = RepairSettings(), (plan.threshold, plan.min_repair_score)
        as_planned = usual.noted().items() <= plan.settings.items() and "recaption" not in plan.settings
        as_planned &= limits == (run.result.get("threshold"), usual.min_repair_score)
        if not as_planned or as_written(run.path / PLAN) is None:
            as_shown = f"cleanpairs export --plan {quote(str(path / PLAN))} --out out.parquet"
        as_shown += splitting(pairs, plan)
    steps = [("Write the kept and the repaired pairs", as_shown)]
    if unplanned:
        steps.append(("Plan the repairs, which the next report shows", _planning(path)))
    y = run.scores().correspondence
    y, cuts = y[y == y], dict[int, tuple[str, str]]()
    for most in (0.05, 0.02, 0.01) if len(y) else ():
        with contextlib.suppress(RefusedError):
            cut = cut_at(y, calibration, str(run.info["method"]), max_wrong=most, keep=None)
            note = f"… keeps {cut.kept:,}, of which about {percent(most, 0)} or less {cut.counted}"
            cuts[cut.kept] = note, f"{command} --max-wrong {most:g}"  # of equal cuts the least share
    steps += cuts.values()
    more = "twenty more questions, for narrower intervals"
    ask = more if run.result.get("answers") else "forty questions, to measure the noise rate"
    return steps + [(f"Answer {ask}", f"cleanpairs review {name} --calibrate")] * (len(y) >= 40)


def _audit_result(run: Any) -> dict[str, Any] | None:
    """Return the result of ``cleanpairs audit --labels``, if there is one. DataError if it is damaged."""
    from cleanpairs.audit.evaluation import AuditResult, ThresholdEstimate

    file = run.path / "audit" / "result.json"
    if not file.exists():
        return None
    with reading(file, "read", ValueError, TypeError, KeyError, OverflowError):
        result = dict(read_json(file))
        for cut in [result["at_threshold"], *result["ladder"]]:
            int(ThresholdEstimate(**cut).threshold)  # a number, and finite
        if missing := {field.name for field in fields(AuditResult)} - result.keys():
            raise ValueError(f"it has no {missing.pop()}")
        return result
