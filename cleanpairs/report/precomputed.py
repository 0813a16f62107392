"""Scores that the data brings (of CLIP, mostly) beside ours: do they agree, and where do they not?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from cleanpairs.core.errors import DataError
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.figures import comparison_figure
from cleanpairs.report.gallery import Gallery, card_of, load_shown
from cleanpairs.report.outcome import Outcome
from cleanpairs.report.pictures import Pictures

MOST = 4  # scores that are compared
OWN = {"pair_id", "correspondence"}  # numbers of the scores table that are no other score


@dataclass(frozen=True)
class Comparison:
    """Of one precomputed score: over ``pairs`` pairs that have both; AUROC where the truth is known."""

    name: str
    pairs: int
    rank_correlation: float
    auroc: float | None
    auroc_ours: float | None
    figure: str
    galleries: list[Gallery]


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
    pairs: Pairs | None, outcome: Outcome, given: Mapping[str, np.ndarray], pictures: Pictures | None, count: int
) -> list[Comparison]:
    """One comparison a score; those that fewer than two pairs have are left out.

    The pairs that disagree most are those whose ranks by the two scores are furthest apart, ``count`` each way.

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
            Comparison(
                name=visible(name, 60),
                pairs=len(both),
                rank_correlation=float("nan") if constant else float(spearmanr(x, y).statistic),
                auroc=float(roc_auc_score(truth, -x)) if known else None,
                auroc_ours=float(roc_auc_score(truth, -y)) if known else None,
                figure=comparison_figure(x, y, visible(name, 60), outcome.threshold),
                galleries=[]
                if pairs is None or pictures is None
                else _apart(pairs, outcome, pictures, visible(name, 40), values, both, count),
            )
        )
    return out


def _apart(
    pairs: Pairs, outcome: Outcome, pictures: Pictures, name: str, values: np.ndarray, both: np.ndarray, count: int
) -> list[Gallery]:
    """High by the precomputed score and low by ours, and the other way round."""
    gap = (rankdata(values[both]) - rankdata(outcome.correspondence[both])) / len(both)  # in (-1, 1)
    order = np.argsort(-gap, kind="stable")
    found = []
    for ids, title in (
        (both[order[:count][gap[order[:count]] > 0]], f"Higher by {name} than by cleanpairs"),
        (both[order[::-1][:count][gap[order[::-1][:count]] < 0]], f"Lower by {name} than by cleanpairs"),
    ):
        load_shown(pictures, outcome, ids)
        cards = [card_of(pairs, outcome, i, pictures, f"{name} {values[i]:.3g}") for i in ids.tolist()]
        if cards:
            found.append(Gallery("neutral", title, "ranks furthest apart first", len(both), cards))
    return found
