"""The report's charts, as SVG documents in data addresses: crisp, small, and isolated from the page."""

import base64
import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from sklearn.metrics import precision_recall_curve

from cleanpairs.report.plots import COLOURS

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


def comparison_figure(given: np.ndarray, correspondence: np.ndarray, name: str, threshold: float) -> str:
    """Where pairs lie by two scores, (n,) finite each: a grid of counts, darker = more, by powers of ten."""

    def draw(ax: Axes) -> None:
        counts, x, y = np.histogram2d(given, correspondence, bins=(40, np.linspace(0, 1, 41)))
        mesh = ax.pcolormesh(
            x, y, np.where(counts > 0, counts, np.nan).T, norm=LogNorm(1, max(counts.max(), 2)), cmap="Blues",
            rasterized=True,
        )  # fmt: skip
        ax.figure.colorbar(mesh, ax=ax, label="pairs")
        ax.axhline(threshold, color="#111", linewidth=1.2, linestyle=(0, (4, 2)))
        ax.set_xlabel(name.replace("$", r"\$"))
        ax.set_ylabel("correspondence")

    return drawn(draw)


def precision_recall_figure(correspondence: np.ndarray, threshold: float, truth: np.ndarray) -> str:
    """Precision by recall of the flagged pairs over all thresholds."""
    precision, recall, _ = precision_recall_curve(truth, -correspondence)
    keep = np.unique(np.linspace(0, len(recall) - 1, 400).astype(int))  # a curve of a million points looks the same
    flagged = correspondence < threshold

    def draw(ax: Axes) -> None:
        ax.plot(recall[keep], precision[keep], color=COLOURS["kept"], linewidth=1.6, label="every threshold")
        if flagged.any():
            hits = (flagged & truth).sum()
            ax.plot([hits / truth.sum()], [hits / flagged.sum()], "o", color="#111", label=f"threshold {threshold:.3g}")
        ax.axhline(truth.mean(), color="#8a8f98", linewidth=0.9, linestyle=(0, (2, 2)), label="flagging by chance")
        ax.set_xlim(0, 1.01)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("recall: share of the mismatched pairs that is flagged")
        ax.set_ylabel("precision of the flags")
        ax.legend(loc="lower center", ncols=3, bbox_to_anchor=(0.5, 1.0), handlelength=1.4)

    return drawn(draw)


def drawn(draw: Callable[[Axes], object]) -> str:
    """A figure as a data address; outside pyplot's global state, so that a notebook's own figures stay as they are."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.3), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
