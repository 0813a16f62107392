"""``cleanpairs report``."""

import contextlib
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import Any

import click

from cleanpairs.cli.options import RUN, TRUST, existing_run, option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.terminal import print_result


@click.command(cls=PathsCommand)
@RUN
@option("--out", Writes(".html"), default="report.html", metavar="FILE")
@option("--slice-by", "COLUMN,...", "Columns of the input; a table of outcomes for each.")
@option("--pairs count", click.IntRange(1, 200), "Cards a gallery.", default=24)
@option(
    "--audit audit_size",
    click.IntRange(0, 300),
    "Pairs to label in the page; 0 for none.  [default: those of RUN/audit, else 60]",
    metavar="N",
)
@option("--truth", "FILE", "True mismatches: .npy or Parquet; a column `true_mismatch` is found.")
@option("--overwrite", None, "Replace --out.")
@TRUST
def report(run: str | None, out: str, truth: str | None, **options: Any) -> None:
    """One self-contained page: what was done and how, scores and learning, pairs as thumbnails to sort and filter.

    It opens from disk in any browser, loads nothing and sends nothing. It shows samples, never all pairs, and is at
    most 10 MB large. Labels given in it are saved as the CSV that `cleanpairs audit --labels` reads.
    """
    from cleanpairs.repair.plan import RepairPlan
    from cleanpairs.report import write_report

    chosen = existing_run(run, options["trusted"])
    pairs = chosen.load_input()
    plan_file = chosen.path / "plan.parquet"
    plan = RepairPlan.load(plan_file) if plan_file.exists() else chosen.estimator().rematch(pairs)
    scores, calibration = chosen.scores(), chosen.calibration()
    data = Path(chosen.info["input"]["data"])
    name = data.parent.name if set(data.name) & set("*?[{") else data.name
    sample = _sample(chosen, scores, plan.threshold, options["audit_size"])
    path = write_report(
        out,
        title=f"{chosen.info['method']} on {name}",
        info=chosen.info,
        settings=_settings(chosen),
        scores=scores.table,
        metrics=chosen.metrics(),
        threshold=plan.threshold,
        pairs=pairs,
        plan=plan,
        truth=pairs.true_mismatch_mask(truth) if truth is not None else pairs.true_mismatch,
        calibration=calibration,
        next_steps=_next_steps(chosen, scores.correspondence, calibration),
        why=scores.why.to_pylist(),
        slice_by=[name.strip() for name in (options["slice_by"] or "").split(",") if name.strip()],
        audit=sample,
        audit_result=_audit_result(chosen),
        count=options["count"],
        overwrite=options["overwrite"],
    )
    text, labels = f"written: {path}", chosen.path / "audit" / "labels.csv"
    if options["audit_size"] is None and labels.exists() and sample is not None:
        done = int(sample.labelled.sum())
        text += (
            f"\nin it to label: the {len(sample):,} pairs of {labels.parent}, {done:,} of them labelled (--audit N "
            "draws others, 0 none)"
        )
        if done and not labels.with_name("result.json").exists():
            text += f"; not judged yet: cleanpairs audit {quote(str(chosen.path))} --labels {quote(str(labels))}"
    print_result({"report": path}, text)


def _settings(run: Any) -> dict[str, Any]:
    """The estimator's parameters out of the run's recipe; none where it has no recipe."""
    from cleanpairs.core.recipe_yaml import read_yaml

    file = run.path / "recipe.yaml"
    recipe = read_yaml(file) if file.exists() else {}
    found: dict[str, Any] = {}
    for section in ("method", "backbone", "train"):
        values = dict(recipe.get(section) or {})
        name = values.pop("name", None)
        found |= ({"backbone": name} if section == "backbone" and name else {}) | values
    return found


def _next_steps(run: Any, y: Any, calibration: Any) -> list[tuple[str, str]]:
    """What to do next, and its command."""
    from cleanpairs.core.errors import RefusedError
    from cleanpairs.estimators.cut import cut_at

    command = f"cleanpairs export {quote(str(run.path))} --repaired out.parquet"
    found = [("Write what is kept and repaired", command)]
    y = y[y == y]
    for most in (0.05, 0.02, 0.01) if len(y) else ():
        with contextlib.suppress(RefusedError):
            cut = cut_at(y, calibration, str(run.info["method"]), max_wrong=most, keep=None)
            found.append(
                (f"… of which at most {most:.0%} are mismatched: keeps {cut.kept:,}", f"{command} --max-wrong {most:g}")
            )
    return [*found, ("Label some, for figures that rest on labels", f"cleanpairs audit {quote(str(run.path))}")]


def _sample(run: Any, scores: Any, threshold: float, size: int | None) -> Any:
    """The run's own audit with the labels that it holds, unless another size is asked for."""
    from cleanpairs.audit import draw_sample, read_labels

    if size == 0 or not len(scores.correspondence):
        return None
    labels = run.path / "audit" / "labels.csv"
    if size is None and labels.exists():
        return read_labels(labels, keys=scores.table["key"].to_pylist(), correspondence=scores.correspondence)
    return draw_sample(scores.correspondence, size or 60, threshold=threshold)


def _audit_result(run: Any) -> dict[str, Any] | None:
    """What ``cleanpairs audit --labels`` left; DataError where it is not that."""
    from cleanpairs.audit.evaluation import AuditResult, ThresholdEstimate
    from cleanpairs.core.regular import read_json, reading

    file = run.path / "audit" / "result.json"
    if not file.exists():
        return None
    with reading(file, "read", ValueError, TypeError, KeyError, OverflowError):
        found = dict(read_json(file))
        for cut in [found["at_threshold"], *found["ladder"]]:
            int(ThresholdEstimate(**cut).threshold)  # a number, and finite
        if missing := {field.name for field in fields(AuditResult)} - {"probability"} - found.keys():
            raise ValueError(f"it has no {missing.pop()}")
        return found
