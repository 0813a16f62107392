"""The report's charts, as SVG documents in data addresses: crisp, small, and isolated from the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.metrics import precision_recall_curve

__all__ = ["COLOURS", "histogram_figure", "learning_figure", "precision_recall_figure"]

COLOURS = {  # told apart by colour-blind readers too
    "kept": "#2f6fb0",
    "repaired": "#1b9e77",
    "dropped": "#c8553d",
    "flagged": "#c8553d",
    "quarantined": "#8a8f98",
}
_BINS = 50
_STYLE: Any = {
    "axes.edgecolor": "#9aa0a8",
    "axes.labelcolor": "#30343a",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same picture everywhere
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "cleanpairs",  # the same figure is the same bytes
    "xtick.color": "#565b63",
    "ytick.color": "#565b63",
}


def histogram_figure(correspondence: np.ndarray, threshold: float, truth: np.ndarray | None) -> str:
    """Pairs by correspondence, (N,) without NaN, split by truth (N,) bool where it is known; the threshold as a line.

    The counts are on a logarithmic axis where one bin would flatten all others.
    """
    edges = np.linspace(0, 1, _BINS + 1)
    groups: list[tuple[str, np.ndarray, str]] = (
        [("pairs", correspondence, COLOURS["kept"])]
        if truth is None
        else [
            ("matched pairs", correspondence[~truth], COLOURS["kept"]),
            ("mismatched pairs", correspondence[truth], COLOURS["dropped"]),
        ]
    )
    with mpl.rc_context(_STYLE):
        figure, ax = _figure()
        counts = [np.histogram(np.clip(values, 0, 1), edges)[0] for _, values, _ in groups]
        for (label, _, colour), height in zip(groups, counts, strict=True):
            ax.bar(edges[:-1], height, 1 / _BINS, align="edge", color=colour, alpha=0.75, label=label, linewidth=0)
        total = np.concatenate(counts)
        filled = total[total > 0]
        if len(filled) and filled.max() > 20 * np.median(filled):
            ax.set_yscale("log")
            ax.set_ylim(bottom=0.7)
        ax.axvline(threshold, color="#111", linewidth=1.2, linestyle=(0, (4, 2)), label=f"threshold {threshold:.3g}")
        ax.set_xlim(0, 1)
        ax.set_xlabel("correspondence (0 = mismatched, 1 = matched)")
        ax.set_ylabel("pairs" + (", logarithmic" if ax.get_yscale() == "log" else ""))
        ax.legend(loc="upper center", ncols=len(groups) + 1, bbox_to_anchor=(0.5, 1.14), handlelength=1.4)
        return _data_address(figure)


def learning_figure(metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Loss and, where validated, rSum by epoch, pieces apart; None without an epoch."""
    x = np.arange(1, len(metrics) + 1)
    loss, rsum = _series(metrics, "loss"), _series(metrics, "val_rsum")
    if not np.isfinite(loss).any() and not np.isfinite(rsum).any():
        return None
    pieces = [m.get("piece", 1) for m in metrics]
    starts = [0] + [i for i in range(1, len(pieces)) if pieces[i] != pieces[i - 1]]
    spans = list(zip(starts, [*starts[1:], len(x)], strict=True))
    with mpl.rc_context(_STYLE):
        figure, ax = _figure()
        lines = []
        for axis, values, name, colour in (
            (ax, loss, "loss", COLOURS["dropped"]),
            (None, rsum, "validation rSum", COLOURS["kept"]),
        ):
            if not np.isfinite(values).any():
                continue
            if axis is None:
                axis = ax.twinx()
                axis.spines["right"].set_visible(True)
            for a, b in spans:  # each piece starts from fresh weights: no line across
                (line,) = axis.plot(x[a:b], values[a:b], color=colour, marker="o", markersize=3, linewidth=1.4)
            line.set_label(name)
            lines.append(line)
            axis.set_ylabel(name, color=colour)
        for start in starts[1:]:
            ax.axvline(start + 0.5, color="#c9cdd3", linewidth=0.8)
        ax.set_xlabel("epoch" + (f" (a line starts each of {len(spans)} pieces)" if len(spans) > 1 else ""))
        ax.set_xlim(0.5, len(x) + 0.5)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.legend(handles=lines, loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.14))
        return _data_address(figure)


def precision_recall_figure(correspondence: np.ndarray, threshold: float, truth: np.ndarray) -> str | None:
    """Precision by recall of the flagged pairs over all thresholds; None where only one kind of pair occurs."""
    if not truth.any() or truth.all():
        return None
    precision, recall, _ = precision_recall_curve(truth, -correspondence)
    keep = np.unique(np.linspace(0, len(recall) - 1, 400).astype(int))  # a curve of a million points looks the same
    flagged = correspondence < threshold
    with mpl.rc_context(_STYLE):
        figure, ax = _figure()
        ax.plot(recall[keep], precision[keep], color=COLOURS["kept"], linewidth=1.6, label="every threshold")
        if flagged.any():
            hits = (flagged & truth).sum()
            ax.plot([hits / truth.sum()], [hits / flagged.sum()], "o", color="#111", label=f"threshold {threshold:.3g}")
        ax.axhline(truth.mean(), color="#8a8f98", linewidth=0.9, linestyle=(0, (2, 2)), label="flagging by chance")
        ax.set_xlim(0, 1.01)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("recall: share of the mismatched pairs that is flagged")
        ax.set_ylabel("precision of the flags")
        ax.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.14), handlelength=1.4)
        return _data_address(figure)


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    values = [m.get(name) for m in metrics]
    return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)


def _figure() -> tuple[Figure, Axes]:
    """A figure outside pyplot's global state, so that a notebook's own figures stay as they are."""
    figure = Figure(figsize=(5.6, 3.1), layout="constrained")
    return figure, figure.add_subplot()


def _data_address(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
