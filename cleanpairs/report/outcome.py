"""What became of every pair, as columns: the report's one view on scores, plan and truth, and its tables."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cleanpairs.core import DataError, check_number, plural
from cleanpairs.data import Pairs, visible
from cleanpairs.data.arrays import as_array, as_truths
from cleanpairs.data.inspection import count_reasons
from cleanpairs.data.readers import plain_columns
from cleanpairs.repair.actions import REPAIRED
from cleanpairs.repair.plan import RepairPlan

# The actions of a plan (or of scores alone: "flagged") -> the kind of outcome that sums them up.
OUTCOMES = {"keep": "kept", **dict.fromkeys(REPAIRED, "repaired"), "drop": "dropped"}
OUTCOMES |= {"flagged": "flagged", "quarantine": "quarantined"}


@dataclass(frozen=True)
class Outcome:
    """Columns of N pairs, in pair_id order.

    - ``correspondence``, ``repair_score``: NaN where there is none
    - ``donor``: -1 where there is none
    - ``kind``: values of :data:`OUTCOMES`
    - ``caption``: after the repair
    - ``truth``: True where the pair is known to be wrong
    - ``unknown``: quarantined pairs that nobody knows the truth of
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
    unknown: np.ndarray

    def __len__(self) -> int:
        return len(self.correspondence)

    @property
    def scored(self) -> np.ndarray:
        """Which pairs are not quarantined, (N,) bool."""
        return np.isfinite(self.correspondence)

    def rows(self) -> list[dict[str, Any]]:
        """One row a kind. ``n`` pairs are of it, and they add up to N. ``wrong`` of them are known to be mismatched,
        None where the truth of some is unknown. Its place in the bar is in thousandths of the width.
        """
        counts, start, rows = Counter(self.kind.tolist()), 0.0, []
        for kind in dict.fromkeys(OUTCOMES.values()):
            if counts[kind] or (kind != "flagged" and not counts["flagged"]):
                width = 1000 * counts[kind] / max(1, len(self))
                of = self.kind == kind
                wrong = None if self.truth is None or self.unknown[of].any() else int(self.truth[of].sum())
                bar = {"start": round(start, 2), "width": round(width, 2)}
                rows.append({"kind": kind, "n": counts[kind], "wrong": wrong, **bar})
                start += width
        return rows

    def reasons(self, most: int = 12) -> list[tuple[str, str, int]]:
        """Return (kind, reason, pairs) of the pairs that are gone, most frequent first, and a remainder."""
        counts, keys = list[tuple[str, str, int]](), [""] * len(self)
        for kind in ("dropped", "quarantined"):
            why = [(i, self.reason[i] or "not given") for i in np.flatnonzero(self.kind == kind).tolist()]
            counts += [(kind, same["reason"], same["pairs"]) for same in count_reasons(keys, why)]
        counts.sort(key=lambda row: -row[2])
        rest = sum(n for *_, n in counts[most:])
        return counts[:most] + ([("", plural(len(counts) - most, "other reason"), rest)] if rest else [])

    def detection(self) -> list[tuple[str, str]]:
        """Return (name, figure) of the detection of mismatched pairs. Empty if the truth is unknown or constant."""
        if self.truth is None:
            return []
        from cleanpairs.scoring.evaluate import detection  # which imports torch

        found = detection(self.correspondence, self.truth, self.threshold)
        values = zip(("AUROC", "average precision", "precision", "recall", "F1"), found.to_dict().values(), strict=True)
        return [] if math.isnan(found.auroc) else [(k, "-" if math.isnan(v) else f"{v:.3f}") for k, v in values]


def table_of_scores(scores: Any) -> pa.Table:
    """Return a scores table in order of its pairs, or scores (N,), or what has them as ``correspondence``, or a fitted
    estimator, as one. Raises DataError.
    """
    if not isinstance(scores, pa.Table):
        if hasattr(scores, "_fitted"):
            scores._fitted(scores=True)
        y = getattr(scores, "correspondence_", getattr(scores, "correspondence", scores))
        return pa.table({"correspondence": as_array("scores", y, float).astype(np.float64)})
    names, n = scores.column_names, len(scores)
    scores = scores.sort_by("pair_id") if "pair_id" in names else scores.append_column("pair_id", pa.array(range(n)))
    if "correspondence" not in names or not np.array_equal(scores["pair_id"], np.arange(n)):
        raise DataError(f"scores need `correspondence`, and each `pair_id` once, found {', '.join(names)}")
    return scores


def outcome_of(scores: Any, threshold: float, plan: RepairPlan | None, truth: np.ndarray | None) -> Outcome:
    """Bring scores, plan and truth together. Raises DataError: they are not about the same pairs."""
    check_number("the report", "threshold", threshold, least=0, most=1)
    table = table_of_scores(scores)
    y, n = table["correspondence"].cast(pa.float64()).fill_null(np.nan).to_numpy(), len(table)
    truth, unknown = (None, np.zeros(n, bool)) if truth is None else as_truths(truth)
    for name, other in (("truth", truth), ("plan", plan and plan.table)):
        if other is not None and len(other) != n:
            raise DataError(f"the {name} is about {plural(len(other), 'pair')}, and the scores about {n}")
    # Its figures are of all pairs. `evaluate` counts those that are known.
    truth = None if (unknown & np.isfinite(y)).any() else truth
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
    kind = np.array([OUTCOMES[a] for a in action], dtype=object)
    return Outcome(y, float(threshold), kind, action, reasons, donor, captions, repair_score, truth, unknown)


def slice_tables(pairs: Pairs, outcome: Outcome, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return tables of what became of the pairs of each value of a column, one for each column.

    Raises ConfigError: the input has no such column, or it holds lists, structs or bytes. DataError: the pairs were
    only ever in memory, so there are no columns.
    """
    if not columns:
        return []
    columns = [columns] if isinstance(columns, str) else columns
    table = plain_columns(pairs.source, columns, "slice")
    return [_table(name, table[name], pairs, outcome) for name in columns]


def caption_lengths(pairs: Pairs, outcome: Outcome) -> list[dict[str, Any]]:
    """Return a table by the number of words (characters, where hardly any has a space). None without a pair."""
    if not len(pairs):
        return []
    unit, sizes = "words", np.array([len((c or "").split()) for c in pairs.captions], np.float64)
    if np.median(sizes) <= 1:
        unit, sizes = "characters", np.array([len(c or "") for c in pairs.captions], np.float64)
    return [_aggregate(f"{unit} in the caption", *_ranges(sizes), outcome)]


def _table(name: str, column: pa.ChunkedArray, pairs: Pairs, outcome: Outcome, most: int = 20) -> dict[str, Any]:
    """Return the table of a column. Of more values than ``most``, numbers become ranges, others a remainder."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        values = column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
        if len(np.unique(values[np.isfinite(values)])) > most:
            codes, names = _ranges(values)
            return _aggregate(name, codes[pairs.row], names, outcome)
    codes, labels = pd.factorize(np.array(column.to_pylist(), dtype=object))
    of_pair = codes[pairs.row]
    top = np.argsort(-np.bincount(of_pair[of_pair >= 0], minlength=len(labels)), kind="stable")[:most]
    place = np.full(len(labels) + 1, len(top))
    place[top], place[-1] = np.arange(len(top)), -1
    names = [visible(labels[i], 60) or "(empty)" for i in top]
    note = f"the {len(top)} most frequent of {len(labels):,} values" if len(labels) > len(top) else ""
    return _aggregate(name, place[of_pair], [*names, "all others"] if note else names, outcome, note)


def _ranges(values: np.ndarray, ranges: int = 6) -> tuple[np.ndarray, list[str]]:
    """Codes and names of ranges that hold about as many values each. -1 for what is not finite."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(values), -1), []
    edges = np.unique(np.quantile(values[finite], np.linspace(0, 1, ranges + 1), method="nearest"))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(len(edges) - 2, 0))
    inside = pd.Series(values[finite]).groupby(codes[finite])
    ends = zip(inside.min(), inside.max(), strict=True)
    names = [_number(low) if low == high else f"{_number(low)} to {_number(high)}" for low, high in ends]
    return np.where(finite, codes, -1), names


def _number(x: float) -> str:
    """A number with six digits, a large one in full, as days like 20240131 are."""
    return f"{x:.0f}" if 1e6 <= abs(x) < 1e20 else f"{x:.6g}"


def _aggregate(column: str, codes: np.ndarray, names: list[str], outcome: Outcome, note: str = "") -> dict[str, Any]:
    """Of each value, by ``codes`` (N,), -1 for none: the pairs. Of those with a score the share flagged and the mean.
    The share that is truly mismatched, NaN where that is not known.
    """
    y = outcome.correspondence
    pairs = pd.DataFrame({"y": y, "flagged": np.where(outcome.scored, y < outcome.threshold, np.nan)})
    pairs["wrong"] = np.nan if outcome.truth is None else np.where(outcome.unknown, np.nan, outcome.truth)
    values = pairs.groupby(np.where(codes < 0, len(names), codes))
    summary = values.agg(pairs=("y", "size"), flagged=("flagged", "mean"), mean=("y", "mean"), wrong=("wrong", "mean"))
    summary["value"] = [[*names, "(none)"][k] for k in summary.index]
    return {"column": visible(column, 60), "rows": summary.to_dict("records"), "note": note}
