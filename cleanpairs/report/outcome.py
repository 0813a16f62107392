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

# The actions of a plan (or of scores alone: "flagged") -> the kind of outcome that sums them up.
KINDS = {
    "keep": "kept",
    **dict.fromkeys(REPAIRED, "repaired"),
    "drop": "dropped",
    "flagged": "flagged",
    "quarantine": "quarantined",
}
MAX_REASONS = 12  # rows of their table; the rest is summed up


@dataclass(frozen=True)
class Outcome:
    """Columns of N pairs, in pair_id order.

    ``correspondence`` float64, NaN where quarantined; ``kind`` object, values of :data:`KINDS`; ``reason`` list of str
    or None; ``donor`` int64, -1 without; ``caption`` list of str or None, after repair; ``repair_score`` float64, NaN
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
        """One row a kind, in their order: how many pairs ``n``, which add up to N; how many are known to be wrong, None
        where the truth is not known; and its place in the bar (thousandths of the width).
        """
        found, start, rows = Counter(self.kind.tolist()), 0.0, []
        wrong = None if self.truth is None else Counter(self.kind[self.truth].tolist())
        for kind in dict.fromkeys(KINDS.values()):
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
        """(Name, figure) of how well mismatched pairs are found; empty where the truth is unknown or all alike."""
        if self.truth is None:
            return []
        found = detection(self.correspondence, self.truth, self.threshold)
        names = ("AUROC", "average precision", "precision", "recall", "F1")
        values = zip(names, found.to_dict().values(), strict=True)
        return [] if math.isnan(found.auroc) else [(name, f"{value:.3f}") for name, value in values]


def scores_table(scores: Any) -> pa.Table:
    """A scores table in order of its pairs, or ``correspondence`` (N,) of another object as one. Raises DataError."""
    if not isinstance(scores, pa.Table):
        return pa.table({"correspondence": np.asarray(scores.correspondence, np.float64)})
    names, n = scores.column_names, len(scores)
    scores = scores.sort_by("pair_id") if "pair_id" in names else scores.append_column("pair_id", pa.array(range(n)))
    if "correspondence" not in names or not np.array_equal(scores["pair_id"], np.arange(n)):
        raise DataError(
            f"scores need `correspondence` and 0, 1, 2, ... once each in `pair_id`, found {', '.join(names)}"
        )
    return scores


def outcome_of(scores: Any, threshold: float, plan: RepairPlan | None, truth: np.ndarray | None) -> Outcome:
    """Bring scores, plan and truth together.

    Raises DataError: they are not about the same pairs.
    """
    table = scores_table(scores)
    y, n = table["correspondence"].cast(pa.float64()).fill_null(np.nan).to_numpy(), len(table)
    truth = None if truth is None else np.asarray(truth, dtype=bool)
    for name, other in (("truth", truth), ("plan", plan and plan.table)):
        if other is not None and len(other) != n:
            raise DataError(f"the {name} is about {len(other)} pairs, and the scores about {n}")
    captions: list[str | None] = [None] * n
    if plan is None:
        action = np.where(~np.isfinite(y), "quarantine", np.where(y < threshold, "flagged", "keep")).astype(object)
        donor, repair_score = np.full(n, -1), np.full(n, np.nan)
        reasons = table["reason"].to_pylist() if "reason" in table.column_names else captions
    else:
        action = np.array(plan.table["action"].to_pylist(), dtype=object)
        donor = plan.table["donor_pair_id"].fill_null(-1).to_numpy()
        repair_score = plan.table["repair_score"].cast(pa.float64()).fill_null(np.nan).to_numpy()
        reasons, captions = plan.table["reason"].to_pylist(), plan.table["caption"].to_pylist()
    kind = np.array([KINDS[a] for a in action], dtype=object)
    return Outcome(y, float(threshold), kind, action, reasons, donor, captions, repair_score, truth)
