"""What became of every pair, as columns: the report's one view on scores, plan and truth."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.display import visible
from cleanpairs.repair.actions import REPAIRED
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.scoring.evaluate import detection

# Kind of outcome -> the actions of a plan (or of scores alone: "flagged") that it sums up.
KINDS: dict[str, tuple[str, ...]] = {
    "kept": ("keep",),
    "repaired": REPAIRED,
    "dropped": ("drop",),
    "flagged": ("flagged",),
    "quarantined": ("quarantine",),
}
MAX_REASONS = 12  # rows of their table; the rest is summed up
_KIND_OF = {action: kind for kind, actions in KINDS.items() for action in actions}


@dataclass(frozen=True)
class Outcome:
    """Columns of N pairs, in pair_id order.

    ``correspondence`` float64, NaN where quarantined; ``kind`` object, keys of :data:`KINDS`; ``reason`` list of str or
    None; ``donor`` int64, -1 without; ``caption`` list of str or None, after repair; ``repair_score`` float64, NaN
    without; ``truth`` bool or None, True where the pair is known to be wrong.
    """

    correspondence: np.ndarray
    threshold: float
    kind: np.ndarray
    action: np.ndarray
    reason: list[str | None]
    donor: np.ndarray
    caption: list[str | None]
    repair_score: np.ndarray
    truth: np.ndarray | None

    def __len__(self) -> int:
        return len(self.correspondence)

    @property
    def scored(self) -> np.ndarray:
        """(N,) bool: not quarantined."""
        return np.isfinite(self.correspondence)

    def rows(self) -> list[dict[str, Any]]:
        """One row a kind, in the order of :data:`KINDS`: how many pairs ``n``, which add up to N; how many are known to
        be wrong, None where the truth is not known; and its place in the bar (thousandths of the width).
        """
        found, start = Counter(self.kind.tolist()), 0.0
        wrong = None if self.truth is None else Counter(self.kind[self.truth].tolist())
        rows = []
        for kind in KINDS:
            if found[kind] or (kind != "flagged" and not found["flagged"]):
                width = 1000 * found[kind] / max(1, len(self))
                bar = {"start": round(start, 2), "width": round(width, 2)}
                rows.append({"kind": kind, "n": found[kind], "wrong": None if wrong is None else wrong[kind], **bar})
                start += width
        return rows

    def reasons(self) -> list[tuple[str, str, int]]:
        """(Kind, reason, pairs) of the pairs that are gone, most frequent first; behind the first ones the rest is
        summed up.
        """
        gone = np.isin(self.kind, ["dropped", "quarantined"])
        found = Counter((self.kind[i], self.reason[i] or "not given") for i in np.flatnonzero(gone)).most_common()
        told = [(kind, visible(reason, 160), n) for (kind, reason), n in found[:MAX_REASONS]]
        rest = sum(n for _, n in found[MAX_REASONS:])
        return told + ([("", f"{len(found) - MAX_REASONS} other reasons", rest)] if rest else [])

    def detection(self) -> list[tuple[str, str]]:
        """How well wrong pairs are found, where the truth is known and has both kinds of pairs."""
        if self.truth is None:
            return []
        found = detection(self.correspondence, self.truth, self.threshold)
        names = ("AUROC", "average precision", "precision", "recall", "F1")
        values = zip(names, found.to_dict().values(), strict=True)
        return [] if math.isnan(found.auroc) else [(name, f"{value:.3f}") for name, value in values]


def outcome_of(scores: Any, threshold: float, plan: RepairPlan | None, truth: np.ndarray | None) -> Outcome:
    """Bring scores, plan and truth together.

    Raises DataError: they are not about the same pairs.
    """
    correspondence, reasons = _scores(scores)
    n = len(correspondence)
    if truth is not None:
        truth = np.asarray(truth, dtype=bool)
        if truth.shape != (n,):
            raise DataError(f"the truth is about {truth.shape} pairs, and the scores about {n}")
    captions: list[str | None] = [None] * n
    if plan is None:
        known, below = np.isfinite(correspondence), correspondence < threshold
        action = np.where(known, np.where(below, "flagged", "keep"), "quarantine").astype(object)
        donor, repair_score = np.full(n, -1), np.full(n, np.nan)
    else:
        table = plan.table
        if table.num_rows != n:
            raise DataError(f"the plan has {table.num_rows} pairs and is not about the {n} pairs of the scores")
        action = np.array(table["action"].to_pylist(), dtype=object)
        donor = table["donor_pair_id"].fill_null(-1).to_numpy()
        repair_score = table["repair_score"].cast(pa.float64()).fill_null(np.nan).to_numpy()
        reasons, captions = table["reason"].to_pylist(), table["caption"].to_pylist()
    kind = np.array([_KIND_OF[a] for a in action], dtype=object)
    return Outcome(correspondence, float(threshold), kind, action, reasons, donor, captions, repair_score, truth)


def _scores(scores: Any) -> tuple[np.ndarray, list[str | None]]:
    if not isinstance(scores, pa.Table):
        correspondence = np.asarray(scores.correspondence, dtype=np.float64)
        if correspondence.ndim != 1:
            raise DataError(f"correspondence must be one number a pair, found the shape {correspondence.shape}")
        return correspondence, [None] * len(correspondence)
    if "correspondence" not in scores.column_names:
        raise DataError(f"the scores have no column 'correspondence' (found: {', '.join(scores.column_names)})")
    if "pair_id" in scores.column_names:
        scores = scores.sort_by("pair_id")
        if not np.array_equal(scores["pair_id"].to_numpy(), np.arange(scores.num_rows)):
            raise DataError("the column pair_id of the scores must hold 0, 1, 2, ... once each")
    correspondence = scores["correspondence"].cast(pa.float64()).fill_null(np.nan).to_numpy()
    reasons = scores["reason"].to_pylist() if "reason" in scores.column_names else [None] * len(correspondence)
    return correspondence, reasons
