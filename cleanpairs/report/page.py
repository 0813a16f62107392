"""The page: numbers, charts, tables and galleries put into the template, and written as one file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.audit import AuditSample, SheetFragment, sheet_fragment
from cleanpairs.audit.fragment import page
from cleanpairs.core.errors import DataError
from cleanpairs.correspondence.calibration import Calibration
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.report.clusters import clusters
from cleanpairs.report.figures import drawn, precision_recall_figure
from cleanpairs.report.gallery import Cards, galleries
from cleanpairs.report.groups import duplicate_images, duplicate_texts, reused_donors
from cleanpairs.report.outcome import Outcome, outcome_of
from cleanpairs.report.plots import plot_scores, plot_training, series
from cleanpairs.report.precomputed import compare_scores, precomputed_scores
from cleanpairs.report.slices import caption_lengths, slice_tables
from cleanpairs.report.story import flattened, story
from cleanpairs.report.verdict import verdict

MAX_BYTES = 10_000_000  # of a page; galleries are halved until it fits
SHEET_SIZES = (240, 160, 96)  # longest side of the audit's pictures, pixels: the first that fits
MAX_QUARANTINED = 50  # rows of their table


@dataclass(frozen=True)
class ReportFacts:
    """What a page tells beside what became of the pairs.

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
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    calibration: Calibration | None = None
    next_steps: Sequence[tuple[str, str]] = ()
    why: Sequence[str | None] | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    slice_by: Sequence[str] = ()
    audit: AuditSample | None = None
    audit_result: Mapping[str, Any] | None = None
    count: int = 12


def write_report(
    out: str | Path,
    *,
    title: str,
    scores: Any,
    threshold: float,
    pairs: Pairs | None = None,
    plan: RepairPlan | None = None,
    truth: np.ndarray | None = None,
    overwrite: bool = False,
    **about: Any,
) -> Path:
    """Write one self-contained HTML page about what happened to every pair.

    It loads nothing and sends nothing: its content security policy lets in one style and one script by their hashes,
    and pictures that it carries itself. The same arguments give the same bytes.

    - ``scores`` Table or object with ``correspondence`` (N,): low = bad, null or NaN where quarantined. Other columns
      of floats are scores to compare with, as ``pairs.precomputed_scores`` is
    - ``threshold``: in [0, 1]; pairs below it are flagged
    - ``pairs``: the N pairs; without them no picture and no caption is shown
    - ``plan``: without it, pairs below the threshold are shown as flagged, and nothing as repaired or dropped
    - ``truth`` (N,) bool: True where a pair is known to be wrong
    - ``**about``: of :class:`ReportFacts`, by their names

    Raises ConfigError: the input has no such column to slice by; DataError: scores, pairs, plan, truth and audit are
    not about the same pairs; slices or an audit without pairs; OutputExistsError.
    """
    facts = ReportFacts(**about)
    outcome = outcome_of(scores, threshold, plan, truth)
    if pairs is not None and len(pairs) != len(outcome):
        raise DataError(f"the scores are about {len(outcome)} pairs, and the data holds {len(pairs)}")
    if pairs is None and (facts.slice_by or facts.audit is not None):
        raise DataError("slices and the audit sheet need the pairs: give pairs=")
    shown = None if pairs is None else Cards(pairs, outcome)
    fixed = _fixed(facts, outcome, shown, plan) | {"title": visible(title)}
    given, count = precomputed_scores(pairs, scores), facts.count
    while True:
        text = _render(**fixed, **_samples(outcome, shown, given, count, facts.why))
        if count <= 1 or len(text.encode("utf-8")) <= MAX_BYTES:
            break
        count //= 2
    out = Path(out)
    with staged_file(out, overwrite=overwrite) as staging:
        Path(staging).write_text(text, encoding="utf-8")
    return out


def _fixed(facts: ReportFacts, outcome: Outcome, shown: Cards | None, plan: RepairPlan | None) -> dict[str, Any]:
    """What does not depend on how many pairs are shown."""
    info, settings, pairs = facts.info or {}, facts.settings or {}, None if shown is None else shown.pairs
    found: dict[str, Any] = {"clusters": [], "quarantined": [], "slices": [], "sheet": None}
    if shown is not None and pairs is not None:
        lengths = caption_lengths(pairs, outcome)
        found = {
            "clusters": clusters(shown, facts.why or [None] * len(outcome)),
            "quarantined": _quarantined(pairs, outcome),
            "slices": [*slice_tables(pairs, outcome, facts.slice_by), *([lengths] if lengths is not None else [])],
            "sheet": None if facts.audit is None else _sheet(facts.audit, pairs),
        }
    return found | {
        "info": _listed(info),
        "story": [(name, visible(text, 600)) for name, text in story(info, settings, outcome, plan)],
        "settings": _listed(settings),
        "summary": [(visible(k), visible(_number(v))) for k, v in (facts.summary or {}).items()],
        "verdict": verdict(outcome, plan, pairs, info.get("result") or {}, facts.calibration),
        "next_steps": facts.next_steps,
        "total": len(outcome),
        "threshold": outcome.threshold,
        "rows": outcome.rows(),
        "reasons": outcome.reasons(),
        "detection": outcome.detection(),
        "figures": _figures(outcome, facts.metrics),
        "audited": facts.audit_result,
    }


def _listed(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(visible(k), visible(_number(v))) for k, v in flattened(values).items()]


def _samples(
    outcome: Outcome, shown: Cards | None, given: Mapping[str, np.ndarray], count: int,
    why: Sequence[str | None] | None,
) -> dict[str, Any]:  # fmt: skip
    """What shows ``count`` pairs or fewer of many."""
    few = max(1, count // 2)
    found: dict[str, Any] = {"comparisons": compare_scores(outcome, given, shown, few)}
    if shown is None:
        return found | {"galleries": [], "donors": [], "duplicates": []}
    groups = (("The same image", duplicate_images(shown, few)), ("The same text", duplicate_texts(shown, few)))
    return found | {
        "galleries": galleries(shown, count, why),
        "donors": reused_donors(shown, few),
        "duplicates": [(name, group) for name, group in groups if group["total"]],
        "missing": shown.missing,
    }


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
        found.append(("Precision and recall", precision_recall_figure(y, threshold, truth), text))
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


def _sheet(audit: AuditSample, pairs: Pairs) -> SheetFragment:
    """The audit's sheet with pictures as large as half of the page has room for."""
    for size in SHEET_SIZES:
        sheet = sheet_fragment(audit, pairs, size=size)
        if len(sheet.html) <= MAX_BYTES // 2:
            break
    return sheet


def _render(*, sheet: SheetFragment | None, **values: Any) -> str:
    folder = resources.files("cleanpairs.report")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    if sheet is not None:
        style, script = style + sheet.style, sheet.script + script
    return page(
        "template.html",
        folder="cleanpairs.report",
        style=style,
        script=script,
        filters={"share": _share, "figure": _figure},
        sheet=None if sheet is None else sheet.html,
        sheet_pairs=0 if sheet is None else sheet.pairs,
        **values,
    )


def _figure(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


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
