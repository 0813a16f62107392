"""rSum and AUROC against noise, a line a method, as a PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Six colours that colour-blind readers tell apart (Okabe and Ito, 2008, without yellow and black); the second six
# methods have them again with open markers and broken lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_UNIFORM = "uniform"
_PANELS = (("rsum", "rSum (test)"), ("auroc", "AUROC of wrong pairs"))


def plot(
    rows: Sequence[Mapping[str, Any]], path: str | Path, *, methods: Sequence[str] | None = None, title: str = ""
) -> None:
    """Means over seeds, with the standard deviation as a bar, against the share of mismatched pairs. Each kind of noise
    that is not uniform has panels of its own, below each other; panels without any figure are left out.
    """
    ran = [row for row in rows if row.get("status") == "ok"]
    order = list(methods) if methods is not None else list(dict.fromkeys(str(row["method"]) for row in ran))
    keys = [(key, label) for key, label in _PANELS if any(row.get(key) is not None for row in ran)]
    kinds = sorted({_kind(row) for row in ran}, key=lambda kind: (kind != _UNIFORM, kind))
    panels = [(kind, key, label) for kind in kinds for key, label in keys]
    across, down = max(len(keys), 1), max(len(kinds), 1)
    style: Any = {"font.family": "DejaVu Sans", "font.size": 9, "axes.spines.right": False, "axes.spines.top": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.2 * across + 1.6, 3.5 * down + 0.3), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        handles: dict[str, Any] = {}
        for at, (kind, key, label) in enumerate(panels, start=1):
            ax: Axes = figure.add_subplot(down, across, at)
            for k, method in enumerate(order):
                cells = [
                    row for row in ran if row["method"] == method and row.get(key) is not None and _kind(row) == kind
                ]
                if cells:
                    handles[method] = _line(ax, cells, key, k, len(order))
            ax.set_xlabel("noise rate" if len(kinds) == 1 else f"noise rate, {kind}")
            ax.set_ylabel(label)
            ax.grid(axis="y", color="#e3e5e8", linewidth=0.7)
            ax.set_axisbelow(True)
        if not panels:
            figure.text(0.5, 0.5, "nothing has been measured yet", ha="center")
        elif handles:
            figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
        if title:
            figure.suptitle(title, fontsize=10)
        figure.savefig(path, format="png", metadata={"Software": None})


def _kind(row: Mapping[str, Any]) -> str:
    """Of noise; rows with a unit in its place, or a file, are of uniform noise."""
    per = str(row.get("per", "caption"))
    return _UNIFORM if per in ("caption", "image", "file") else per


def _line(ax: Axes, cells: Sequence[Mapping[str, Any]], key: str, k: int, n: int) -> Any:
    """One method's line; its points are moved a little aside, so that bars do not cover each other."""
    rates = [row["rate"] if row.get("rate") is not None else row.get("mismatched", 0.0) for row in cells]
    points = pd.Series([row[key] for row in cells]).groupby(np.round(rates, 3)).agg(["mean", "std"])
    colour, second = _COLOURS[k % len(_COLOURS)], k // len(_COLOURS) % 2 == 1
    return ax.errorbar(
        points.index + 0.006 * (k - (n - 1) / 2),
        points["mean"],
        yerr=points["std"].fillna(0),
        color=colour,
        marker=_MARKERS[k % len(_MARKERS)],
        markersize=5,
        markerfacecolor="white" if second else colour,
        linestyle="--" if second else "-",
        linewidth=1.4,
        elinewidth=0.9,
        capsize=2,
    )
