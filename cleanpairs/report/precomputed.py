"""Scores that the data brings (of CLIP, mostly) beside ours: do they agree, and where do they not?"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from scipy.stats import rankdata, spearmanr
from sklearn.metrics import roc_auc_score

from cleanpairs.core.errors import DataError
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.gallery import Cards
from cleanpairs.report.outcome import scores_table
from cleanpairs.report.plots import DASHED, drawn

MOST = 4  # scores that are compared


def precomputed_scores(pairs: Pairs, scores: Any) -> dict[str, np.ndarray]:
    """Name -> (N,) float64, NaN where there is none: of the input, then other numbers of the scores table."""
    found = {name: np.asarray(values, np.float64) for name, values in pairs.precomputed_scores.items()}
    table = scores_table(scores)
    for field in table.schema:
        if pa.types.is_floating(field.type) and field.name != "correspondence":
            found[field.name] = table[field.name].cast(pa.float64()).fill_null(np.nan).to_numpy()
    return dict(list(found.items())[:MOST])


def compare_scores(shown: Cards, given: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    """One comparison a score, over the pairs that have both; those that fewer than two pairs have are left out.

    AUROC where the truth is known. The pairs that disagree most are those whose ranks by the two scores are furthest
    apart, ``count`` each way.
    Raises DataError: a score is about another number of pairs.
    """
    out, outcome = [], shown.outcome
    for name, values in given.items():
        if len(values) != len(outcome):
            raise DataError(
                f"the precomputed score {name!r} is about {len(values)} pairs, the run about {len(outcome)}"
            )
        both = np.flatnonzero(np.isfinite(values) & outcome.scored)
        if len(both) < 2:
            continue
        x, y, told = values[both], outcome.correspondence[both], visible(name, 60)
        constant = x.min() == x.max() or y.min() == y.max()
        truth = None if outcome.truth is None else outcome.truth[both]
        known = truth is not None and bool(truth.any()) and not bool(truth.all())
        out.append({
            "name": told,
            "pairs": len(both),
            "rank_correlation": float("nan") if constant else float(spearmanr(x, y).statistic),
            "auroc": float(roc_auc_score(truth, -x)) if known else None,
            "auroc_ours": float(roc_auc_score(truth, -y)) if known else None,
            "figure": _figure(x, y, told, outcome.threshold),
            "galleries": _apart(shown, visible(name, 40), values, both, count),
        })  # fmt: skip
    return out


def _figure(given: np.ndarray, correspondence: np.ndarray, name: str, threshold: float) -> str:
    """Where pairs lie by two scores, (n,) each: a grid of counts, darker = more, by powers of ten."""

    def draw(ax: Axes) -> None:
        counts, x, y = np.histogram2d(given, correspondence, bins=(40, np.linspace(0, 1, 41)))
        mesh = ax.pcolormesh(
            x, y, np.where(counts > 0, counts, np.nan).T, norm=LogNorm(1, max(counts.max(), 2)), cmap="Blues",
            rasterized=True,
        )  # fmt: skip
        ax.figure.colorbar(mesh, ax=ax, label="pairs")
        ax.axhline(threshold, **DASHED)
        ax.set_xlabel(name.replace("$", r"\$"))
        ax.set_ylabel("correspondence")

    return drawn(draw)


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
