"""Scores that the data brings (of CLIP, mostly) beside ours: do they agree, and where do they not?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from cleanpairs.core.errors import DataError
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.figures import comparison_figure
from cleanpairs.report.gallery import Cards
from cleanpairs.report.outcome import Outcome

MOST = 4  # scores that are compared
OWN = {"pair_id", "correspondence"}  # numbers of the scores table that are no other score


def precomputed_scores(pairs: Pairs | None, scores: object) -> dict[str, np.ndarray]:
    """Name -> (N,) float64, NaN where there is none: of the input, then other numbers of the scores table."""
    found: dict[str, np.ndarray] = {}
    for name, values in (getattr(pairs, "precomputed_scores", None) or {}).items():
        found[str(name)] = np.asarray(values, dtype=np.float64)
    if isinstance(scores, pa.Table):
        table = scores.sort_by("pair_id") if "pair_id" in scores.column_names else scores
        for field in table.schema:
            if pa.types.is_floating(field.type) and field.name not in OWN:
                found[field.name] = table[field.name].cast(pa.float64()).fill_null(np.nan).to_numpy()
    return dict(list(found.items())[:MOST])


def compare_scores(
    outcome: Outcome, given: Mapping[str, np.ndarray], shown: Cards | None, count: int
) -> list[dict[str, Any]]:
    """One comparison a score, over the pairs that have both; those that fewer than two pairs have are left out.

    AUROC where the truth is known. The pairs that disagree most are those whose ranks by the two scores are furthest
    apart, ``count`` each way.
    Raises DataError: a score is about another number of pairs.
    """
    out = []
    for name, values in given.items():
        if values.shape != outcome.correspondence.shape:
            raise DataError(
                f"the precomputed score {name!r} is about {values.shape} pairs, the run about {len(outcome)} pairs"
            )
        both = np.flatnonzero(np.isfinite(values) & outcome.scored)
        if len(both) < 2:
            continue
        x, y = values[both], outcome.correspondence[both]
        constant = x.min() == x.max() or y.min() == y.max()
        truth = None if outcome.truth is None else outcome.truth[both]
        known = truth is not None and bool(truth.any()) and not bool(truth.all())
        out.append(
            {
                "name": visible(name, 60),
                "pairs": len(both),
                "rank_correlation": float("nan") if constant else float(spearmanr(x, y).statistic),
                "auroc": float(roc_auc_score(truth, -x)) if known else None,
                "auroc_ours": float(roc_auc_score(truth, -y)) if known else None,
                "figure": comparison_figure(x, y, visible(name, 60), outcome.threshold),
                "galleries": [] if shown is None else _apart(shown, visible(name, 40), values, both, count),
            }
        )
    return out


def _apart(shown: Cards, name: str, values: np.ndarray, both: np.ndarray, count: int) -> list[dict[str, Any]]:
    """High by the precomputed score and low by ours, and the other way round."""
    gap = (rankdata(values[both]) - rankdata(shown.outcome.correspondence[both])) / len(both)  # in (-1, 1)
    found = []
    for sign, title in ((1, f"Higher by {name} than by cleanpairs"), (-1, f"Lower by {name} than by cleanpairs")):
        order = np.argsort(-gap, kind="stable")[::sign][:count]
        ids = both[order[sign * gap[order] > 0]]
        notes = [f"{name} {value:.3g}" for value in values[ids]]
        if len(ids):
            found.append(shown.gallery(title, "ranks furthest apart first", len(both), ids, notes=notes))
    return found
