"""From a finished run to the cleaned dataset: what ``cleanpairs export`` and the demonstration call."""

from __future__ import annotations

from pathlib import Path

from cleanpairs.correspondence.valley import find_valley
from cleanpairs.errors import ConfigError, RefusedError
from cleanpairs.export import ExportSummary, export_pairs
from cleanpairs.run import Run

__all__ = ["export_run", "resolve_threshold"]


def resolve_threshold(threshold: float | str | None, run: Run) -> float | None:
    """A number out of ``--threshold``: itself, the valley's for "auto", None for the run's own.

    Raises
    ------
    ConfigError
        Not in [0, 1].
    RefusedError
        "auto", and the scores of the run do not separate.
    """
    if threshold == "auto":
        y = run.scores().correspondence
        valley = find_valley(y[y == y])
        if not valley.separated:
            raise RefusedError(
                f"--threshold auto: the scores of {run.path.name} do not separate into two groups; give a number"
            )
        return valley.threshold
    if threshold is None:
        return None
    if isinstance(threshold, str) or not 0 <= threshold <= 1:
        raise ConfigError(f"the threshold must be in [0, 1] or 'auto', found {threshold!r}")
    return float(threshold)


def export_run(
    run: Run,
    out: str | Path,
    *,
    dropped: str | Path | None = None,
    ledger: str | Path | None = None,
    threshold: float | str | None = None,
    min_repair_score: float = 0.5,
    donors: str = "both",
    max_reuse: int = 1,
    explode: bool = False,
    overwrite: bool = False,
) -> ExportSummary:
    """Plan the repairs of a run's input and write the result; see :func:`cleanpairs.export.export_pairs`.

    The plan is kept in the run, as ``plan.parquet``.

    Raises
    ------
    CleanpairsError
        As reading the input, planning and exporting do.
    """
    limit = resolve_threshold(threshold, run)
    model = run.estimator()
    pairs = run.load_input()
    lists = pairs.source.explicit_lists and not explode
    plan = model.rematch(
        pairs,
        threshold=limit,
        min_repair_score=min_repair_score,
        donors=donors,
        targets="text" if lists else "both",
        max_reuse=max_reuse,
    )
    plan.save(run.path / "plan.parquet")
    return export_pairs(pairs, plan, out, dropped=dropped, ledger=ledger, explode=explode, overwrite=overwrite)
