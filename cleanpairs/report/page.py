"""The page: numbers, charts, tables and galleries put into the template, and written as one file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.audit import AuditSample
from cleanpairs.audit.sheet import asset, page, sheet_html
from cleanpairs.core.errors import DataError
from cleanpairs.correspondence.calibration import Calibration
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.report.clusters import clusters
from cleanpairs.report.gallery import Cards, duplicates, galleries, reused_donors
from cleanpairs.report.outcome import Outcome, outcome_of
from cleanpairs.report.plots import drawn, plot_scores, plot_training, precision_recall, series
from cleanpairs.report.precomputed import compare_scores, precomputed_scores
from cleanpairs.report.slices import caption_lengths, slice_tables
from cleanpairs.report.story import flattened, story, verdict

MAX_BYTES = 10_000_000  # of a page; galleries are halved until it fits
SHEET_SIZES = (240, 160, 96)  # longest side of the audit's pictures, pixels: the first that fits
MAX_QUARANTINED = 50  # rows of their table


def write_report(
    out: str | Path,
    *,
    title: str,
    scores: Any,
    threshold: float,
    pairs: Pairs,
    plan: RepairPlan | None = None,
    truth: np.ndarray | None = None,
    info: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    metrics: Sequence[Mapping[str, Any]] = (),
    calibration: Calibration | None = None,
    next_steps: Sequence[tuple[str, str]] = (),
    why: Sequence[str | None] | None = None,
    summary: Mapping[str, Any] | None = None,
    slice_by: Sequence[str] = (),
    audit: AuditSample | None = None,
    audit_result: Mapping[str, Any] | None = None,
    count: int = 12,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about what happened to every one of N pairs.

    It loads nothing and sends nothing: its content security policy lets in one style and one script by their hashes,
    and pictures that it carries itself. The same arguments give the same bytes.

    - ``scores`` Table or object with ``correspondence`` (N,): low = bad, null or NaN where quarantined. Other columns
      of floats are scores to compare with, as ``pairs.precomputed_scores`` is
    - ``threshold``: in [0, 1]; pairs below it are flagged
    - ``plan``: without it, pairs below the threshold are shown as flagged, and nothing as repaired or dropped
    - ``truth`` (N,) bool: True where a pair is known to be wrong
    - ``info``, ``settings``: of the run, as its run.json has them; and the estimator's parameters
    - ``metrics``: one an epoch, with ``loss``, ``stage`` and, where there was validation, ``val_rsum``
    - ``calibration``: of the scores, where they are probabilities: the page begins with the share of mismatched pairs
      in the output
    - ``next_steps``: what may be done next, and the command for it
    - ``why`` (N,): a sentence on what speaks against a pair; see :meth:`cleanpairs.explain.Explainer.why`
    - ``summary``: label -> number, shown large at the top
    - ``slice_by``: columns of the input; a table each
    - ``audit``: pairs to label in the page, which saves the CSV that :func:`cleanpairs.audit.read_labels` reads
    - ``audit_result``: what labels said, as :meth:`cleanpairs.audit.AuditResult.to_dict`
    - ``count``: cards in a gallery; fewer where the page would be larger than 10 MB

    Raises ConfigError: the input has no such column to slice by; DataError: scores, pairs, plan, truth and audit are
    not about the same pairs; OutputExistsError.
    """
    outcome, info, settings = outcome_of(scores, threshold, plan, truth), info or {}, settings or {}
    if len(pairs) != len(outcome):
        raise DataError(f"the scores are about {len(outcome)} pairs, and the data holds {len(pairs)}")
    shown, given = Cards(pairs, outcome), precomputed_scores(pairs, scores)
    style, script = (asset(name, "cleanpairs.report") for name in ("style.css", "page.js"))
    sheet = None if audit is None else _sheet(audit, pairs)
    if sheet is not None:
        style, script = style + asset("sheet.css"), asset("label.js") + script
    told = {
        "title": visible(title),
        "info": _listed(info),
        "story": [(name, visible(text, 600)) for name, text in story(info, settings, outcome, plan)],
        "settings": _listed(settings),
        "summary": _listed(summary or {}),
        "verdict": verdict(outcome, plan, pairs, info.get("result") or {}, calibration),
        "next_steps": next_steps,
        "total": len(outcome),
        "threshold": outcome.threshold,
        "rows": outcome.rows(),
        "reasons": outcome.reasons(),
        "detection": outcome.detection(),
        "figures": _figures(outcome, metrics),
        "clusters": clusters(shown, why or [None] * len(outcome)),
        "quarantined": _quarantined(pairs, outcome),
        "slices": [*slice_tables(pairs, outcome, slice_by), *caption_lengths(pairs, outcome)],
        "missing": shown.missing,
        "audited": audit_result,
        "sheet": sheet,
        "sheet_pairs": 0 if audit is None else len(audit),
    }
    while True:
        few = max(1, count // 2)
        text = page(
            "template.html",
            "cleanpairs.report",
            style=style,
            script=script,
            filters={"share": _share, "figure": _figure},
            galleries=galleries(shown, count, why),
            comparisons=compare_scores(shown, given, few),
            donors=reused_donors(shown, few),
            duplicates=duplicates(shown, few),
            **told,
        )
        if count <= 1 or len(text.encode("utf-8")) <= MAX_BYTES:
            break
        count //= 2
    out = Path(out)
    with staged_file(out, overwrite=overwrite) as staging:
        Path(staging).write_text(text, encoding="utf-8")
    return out


def _listed(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(visible(k), visible(_number(v))) for k, v in flattened(values).items()]


def _figures(outcome: Outcome, metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(Name, data address, what it shows) of the charts that there is something for."""
    y, threshold = outcome.correspondence[outcome.scored], outcome.threshold
    truth = None if outcome.truth is None else outcome.truth[outcome.scored]
    found = []
    if len(y):
        text = "How many pairs have which correspondence; those left of the dashed line, the threshold, are flagged."
        found.append(("Correspondence", drawn(lambda ax: plot_scores(y, threshold, truth=truth, ax=ax)), text))
    if truth is not None and truth.any() and not truth.all():
        text = "The truth of this corpus is known; this is what flagging finds at every threshold."
        found.append(("Precision and recall", drawn(lambda ax: precision_recall(y, threshold, truth, ax)), text))
    if np.isfinite(series(metrics, "val_rsum")).any():  # a loss alone says nothing
        text = "Training loss, and the sum of the six recalls (at most 600) on the validation data."
        found.append(("Learning", drawn(lambda ax: plot_training(metrics, ax=ax)), text))
    return found


def _quarantined(pairs: Pairs, outcome: Outcome) -> list[tuple[int, str, str, str]]:
    """(Pair, key, reason, caption) of the first quarantined pairs."""
    return [
        (
            i,
            visible(pairs.keys[i], 60),
            visible(outcome.reason[i] or pairs.reasons.get(i) or "not given", 160),
            visible(pairs.captions[i] or "(empty caption)", 90),
        )
        for i in np.flatnonzero(outcome.kind == "quarantined")[:MAX_QUARANTINED].tolist()
    ]


def _sheet(audit: AuditSample, pairs: Pairs) -> str:
    """The audit's sheet with pictures as large as half of the page has room for."""
    for size in SHEET_SIZES:
        sheet = sheet_html(audit, pairs, size)
        if len(sheet) <= MAX_BYTES // 2:
            break
    return sheet


def _figure(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def _number(value: Any) -> Any:
    """Numbers as people read them; other values as they are."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else value
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return value
