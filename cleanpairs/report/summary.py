"""The page's counts: what became of the pairs, why some are gone, and how well wrong ones were found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.report.outcome import Outcome

MAX_REASONS = 12  # rows of the table of reasons; the rest is summed up


def share(part: float, whole: float) -> str:
    """``"12.3 %"``, or a dash where the whole is nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def number(value: Any) -> Any:
    """Numbers as people read them; other values as they are."""
    if isinstance(value, bool | np.bool_) or value is None:
        return {True: "yes", False: "no", None: "–"}[None if value is None else bool(value)]
    if isinstance(value, int | np.integer):
        return f"{int(value):,}" if abs(int(value)) >= 10_000 else str(int(value))
    if isinstance(value, float | np.floating):
        value = float(value)
        return "–" if math.isnan(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return value


def count_rows(outcome: Outcome) -> list[dict[str, Any]]:
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


def reason_rows(outcome: Outcome) -> list[tuple[str, str, int]]:
    """(Outcome, reason, pairs), most frequent first; behind the first ones the rest is summed up."""
    found = [(kind, visible(reason, 160), n) for kind, reason, n in outcome.reasons()]
    rest = sum(n for *_, n in found[MAX_REASONS:])
    return found[:MAX_REASONS] + ([("", f"{len(found) - MAX_REASONS} other reasons", rest)] if rest else [])


def detection_tiles(outcome: Outcome) -> list[tuple[str, str]]:
    """Detection figures where the truth is known and has both kinds of pairs."""
    if outcome.truth is None:
        return []
    from cleanpairs.scoring.evaluate import detection

    found = detection(outcome.correspondence, outcome.truth, outcome.threshold)
    if math.isnan(found.auroc):
        return []
    names = ("AUROC", "average precision", "precision", "recall", "F1")
    return [(name, f"{value:.3f}") for name, value in zip(names, found.to_dict().values(), strict=True)]
