"""The page: numbers, charts and galleries put into the template, and written as one file."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa
from sklearn.metrics import average_precision_score, roc_auc_score

from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.errors import DataError
from cleanpairs.report.figures import histogram_figure, learning_figure, precision_recall_figure
from cleanpairs.report.gallery import galleries
from cleanpairs.report.outcome import Outcome, PlanLike, ScoresLike, outcome_of

__all__ = ["write_report"]

MAX_REASONS = 12  # rows of the table of reasons; the rest is summed up


def write_report(
    out: str | Path,
    *,
    title: str,
    scores: pa.Table | ScoresLike,
    threshold: float,
    info: Mapping[str, Any] | None = None,
    metrics: Sequence[Mapping[str, Any]] = (),
    pairs: Pairs | None = None,
    plan: PlanLike | None = None,
    truth: np.ndarray | None = None,
    summary: Mapping[str, Any] | None = None,
    count: int = 12,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about what happened to every pair.

    It loads nothing, runs nothing (its content security policy forbids both) and is some hundred kilobytes large. The
    same arguments give the same bytes.

    Parameters
    ----------
    out : path
        The HTML file; written beside and renamed.
    title : str
        Of the page.
    scores : Table or object with ``correspondence`` (N,)
        The scores table; low = bad, null or NaN where quarantined.
    threshold : float
        In [0, 1]; pairs below it are flagged.
    info : mapping
        About the run (command, seed, versions), shown as a table.
    metrics : sequence of mappings
        One an epoch, with ``loss`` and, where there was validation, ``val_rsum``; ``piece`` tells pieces apart.
    pairs : Pairs, optional
        The N pairs; without them no picture and no caption is shown.
    plan : RepairPlan, optional
        Without it, pairs below the threshold are shown as flagged, and nothing as repaired or dropped.
    truth : (N,) bool, optional
        True where a pair is known to be wrong.
    summary : mapping
        Label -> number, shown large at the top.
    count : int
        Cards in a gallery.
    overwrite : bool
        Replace an existing file.

    Raises
    ------
    DataError
        Scores, pairs, plan and truth are not about the same pairs.
    OutputExistsError
        The file exists, and ``overwrite`` was not asked for.
    """
    outcome = outcome_of(scores, threshold, plan, truth)
    if pairs is not None and len(pairs) != len(outcome):
        raise DataError(f"the scores are about {len(outcome)} pairs, and the data holds {len(pairs)}")
    known = outcome.correspondence[outcome.scored]
    known_truth = None if outcome.truth is None else outcome.truth[outcome.scored]
    page = _render(
        title=visible(title),
        info=[(visible(k), visible(_number(v))) for k, v in (info or {}).items()],
        summary=[(visible(k), visible(_number(v))) for k, v in (summary or {}).items()],
        total=len(outcome),
        threshold=outcome.threshold,
        rows=_rows(outcome),
        reasons=_reasons(outcome),
        detection=_detection(outcome),
        galleries=galleries(pairs, outcome, count) if pairs is not None else [],
        figures=[
            (name, figure, text)
            for name, figure, text in (
                (
                    "Correspondence",
                    histogram_figure(known, outcome.threshold, known_truth) if len(known) else None,
                    "How many pairs have which correspondence; those left of the threshold are flagged.",
                ),
                (
                    "Precision and recall",
                    precision_recall_figure(known, outcome.threshold, known_truth) if known_truth is not None else None,
                    "The truth of this corpus is known; this is what flagging finds at every threshold.",
                ),
                (
                    "Learning",
                    learning_figure(metrics),
                    "Training loss and, where there was validation data, the sum of its six recalls (at most 600).",
                ),
            )
            if figure is not None
        ],
    )
    out = Path(out)
    with staged_file(out, overwrite=overwrite) as staging:
        Path(staging).write_text(page, encoding="utf-8")
    return out


def _render(**values: Any) -> str:
    folder = resources.files("cleanpairs.report")
    style = (folder / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["share"] = _share
    template = environment.from_string((folder / "template.html").read_text(encoding="utf-8"))
    # The style is ours and has no markup to escape; its hash is what the policy lets in.
    return template.render(style=style, style_hash=digest, **values)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _number(value: Any) -> Any:
    """Numbers as people read them; other values as they are."""
    if isinstance(value, bool | np.bool_) or value is None:
        return {True: "yes", False: "no", None: "–"}[None if value is None else bool(value)]
    if isinstance(value, int | np.integer):
        return f"{int(value):,}" if abs(int(value)) >= 10_000 else str(int(value))
    if isinstance(value, float | np.floating):
        value = float(value)
        return "–" if math.isnan(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return value


def _rows(outcome: Outcome) -> list[dict[str, Any]]:
    """One row a kind: count, wrong ones, and its place in the bar (thousandths of the width)."""
    wrong = outcome.wrong()
    rows, start = [], 0.0
    for kind, n in outcome.counts().items():
        width = 1000 * n / max(1, len(outcome))
        rows.append(
            {"kind": kind, "n": n, "wrong": wrong and wrong[kind], "start": round(start, 2), "width": round(width, 2)}
        )
        start += width
    return rows


def _reasons(outcome: Outcome) -> list[tuple[str, str, int]]:
    found = [(kind, visible(reason, 160), n) for kind, reason, n in outcome.reasons()]
    rest = sum(n for *_, n in found[MAX_REASONS:])
    return found[:MAX_REASONS] + ([("", f"{len(found) - MAX_REASONS} other reasons", rest)] if rest else [])


def _detection(outcome: Outcome) -> list[tuple[str, str]]:
    """Detection figures where the truth is known and has both kinds of pairs."""
    if outcome.truth is None:
        return []
    y, truth = outcome.correspondence[outcome.scored], outcome.truth[outcome.scored]
    if not truth.any() or truth.all():
        return []
    flagged = y < outcome.threshold
    hits = float((flagged & truth).sum())
    figures = {
        "AUROC": roc_auc_score(truth, -y),
        "average precision": average_precision_score(truth, -y),
        "precision": hits / max(1, flagged.sum()),
        "recall": hits / truth.sum(),
        "F1": 2 * hits / (flagged.sum() + truth.sum()),
    }
    return [(name, f"{value:.3f}") for name, value in figures.items()]
