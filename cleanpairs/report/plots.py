"""Plots of a fit on matplotlib axes: the estimators' plots, and the report's charts as SVG in data addresses."""

import base64
import io
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cleanpairs.core import ConfigError, DataError, check_choice, check_whole, plural
from cleanpairs.data import Pairs, visible
from cleanpairs.data.arrays import as_array, as_truths
from cleanpairs.data.decoding import RGB, Decoder, workers_for

KEPT, FLAGGED = "#2f6fb0", "#c8553d"  # distinct for colour-blind readers, too
DASHED: Any = {"color": "#111", "linewidth": 1.2, "linestyle": (0, (4, 2))}
ABOVE: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
_style_lock = threading.Lock()  # matplotlib's settings are the process's


def plot_scores(
    correspondence: ArrayLike, threshold: float, *, truth: np.ndarray | None = None, ax: Axes | None = None
) -> Axes:
    """Histogram of the correspondence (N,), NaN left out, with the threshold below which pairs are flagged.

    ``truth`` (N,) bool: True where a pair is known to be wrong: the bars are split by it, without pairs where it is
    masked. ``ax``: to draw on. New ones by default. Raises DataError: ``truth`` is of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    bins, groups = 50, [("pairs", y, KEPT, "")]
    if truth is not None:
        wrong, unknown = (values.ravel() for values in as_truths(truth))
        if wrong.shape != y.shape:
            raise DataError(f"the truth is about {wrong.shape} pairs, and the scores about {y.shape}")
        y = np.where(unknown, np.nan, y)
        groups = [("matched pairs", y[~wrong], KEPT, ""), ("mismatched pairs", y[wrong], FLAGGED, "////")]
    ax, filled = _new_axes() if ax is None else ax, np.empty(0)
    for label, some, colour, hatch in groups:  # the hatch is distinct without colour, too
        counts, edges = np.histogram(np.clip(some[np.isfinite(some)], 0, 1), bins, (0, 1))
        filled = np.append(filled, counts[counts > 0])
        ax.bar(
            edges[:-1], counts, 1 / bins, align="edge", color=colour, alpha=0.7, label=label, linewidth=0, hatch=hatch,
            edgecolor="#ffffff80",
        )  # fmt: skip
    if len(filled) and filled.max() > 20 * np.median(filled):
        ax.set_yscale("log")
        ax.set_ylim(bottom=0.7)
    ax.axvline(threshold, **DASHED, label=f"threshold {threshold:.3g}")
    counted = "pairs, logarithmic" if ax.get_yscale() == "log" else "pairs"
    ax.set(xlim=(0, 1), xlabel="correspondence (0 = mismatched, 1 = matched)", ylabel=counted)
    ax.legend(**ABOVE, ncols=len(groups) + 1, handlelength=1.8, fontsize="small")
    return ax


def plot_training(metrics: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Loss by epoch and, where validated, rSum on an axis of its own. Stages, which start afresh, apart.

    ``metrics``: one an epoch, with ``loss``, ``val_rsum`` and ``stage``, as an estimator's ``history_``. ``ax``: to
    draw on. New ones by default. Returns the loss's axes.
    """
    ax = _new_axes() if ax is None else ax
    stages = [m.get("stage", 1) for m in metrics]
    starts = [i for i in range(1, len(stages)) if stages[i] != stages[i - 1]]  # of fresh weights: no line across
    epochs, lines = np.insert(np.arange(1.0, len(stages) + 1), starts, np.nan), []
    for name, label, colour, marker in (("loss", "loss", FLAGGED, "o"), ("val_rsum", "validation rSum", KEPT, "s")):
        values = series(metrics, name)
        if not np.isfinite(values).any():
            continue
        axis = ax if name == "loss" else ax.twinx()
        if axis is not ax:
            axis.spines["right"].set_visible(True)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3, "linewidth": 1.4}
        lines += axis.plot(epochs, np.insert(values, starts, np.nan), label=label, **look)
        axis.set_ylabel(label, color=colour)
    for start in starts:
        ax.axvline(start + 0.5, color="#c9cdd3", linewidth=0.8)
    label = "epoch" + (f" (a line starts each of {len(starts) + 1} stages)" if starts else "")
    ax.set(xlabel=label, xlim=(0.5, max(len(metrics), 1) + 0.5))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if lines:
        ax.legend(**ABOVE, handles=lines, ncols=2)
    return ax


def plot_pairs(
    pairs: Pairs, correspondence: np.ndarray, threshold: float, *, which: str | Sequence[int] = "worst", count: int = 8
) -> np.ndarray:
    """Images with their captions and scores, at most ``count``. Those below the threshold are marked as flagged.

    ``which`` {"worst", "borderline", "best", "random"}, pair_ids or a mask: the lowest scores, those nearest to the
    threshold, the highest, or any. Returns (k,) array of Axes, four in a row.
    Raises ConfigError: unknown ``which``, or no such pair. DataError: scores of other pairs, or no pair ids.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    check_whole("plot_pairs", "count", count, 0)
    if len(y) != len(pairs):
        raise DataError(f"the scores are about {plural(len(y), 'pair')}, and the data holds {len(pairs)}")
    if isinstance(which, str):
        check_choice("plot_pairs", "which", which, ("worst", "borderline", "best", "random"))
        ids = np.flatnonzero(np.isfinite(y))
        by = {"worst": y[ids], "borderline": np.abs(y[ids] - threshold), "best": -y[ids]}.get(which)
        some = np.random.default_rng(0).permutation(len(ids)) if by is None else np.argsort(by, kind="stable")
        ids = ids[np.sort(some[:count]) if by is None else some[:count]]
    else:
        chosen = np.asarray(which)
        mask = chosen.dtype == bool and chosen.shape == y.shape
        ids = (np.flatnonzero(chosen) if mask else as_array("the pairs to plot", chosen, int))[:count]
    if not len(ids):
        return np.empty(0, dtype=object)
    if not 0 <= ids.min() <= ids.max() < len(pairs):
        raise ConfigError(f"plot_pairs: pairs are 0 to {len(pairs) - 1}, found {int(ids.min())} to {int(ids.max())}")
    import matplotlib.pyplot as plt

    columns, rows = min(len(ids), 4), -(-len(ids) // 4)
    size = (2.6 * columns, 3.0 * rows)
    axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")[1].ravel()
    with Decoder(RGB, workers_for(len(ids))) as decoder:
        (decoded,) = decoder.batches([(0, pairs.images.read(pairs.image_index[ids].tolist()))])
    images = dict(zip(decoded.rows.tolist(), decoded.arrays, strict=True))
    for k, (ax, i) in enumerate(zip(axes, ids.tolist(), strict=False)):
        ax.set(xticks=[], yticks=[])
        if k in images:
            ax.imshow(images[k])
        else:
            ax.text(0.5, 0.5, "no image", ha="center", va="center", transform=ax.transAxes, color="#666")
        word, colour = ("flagged", FLAGGED) if y[i] < threshold else ("kept", KEPT)
        for spine in ax.spines.values():
            spine.set(color=colour, linewidth=2, visible=True)
        caption = visible(pairs.captions[i] or "(no caption)", 90)
        lines = textwrap.wrap(caption, 30, max_lines=3, placeholder=" …")
        ax.set_title(f"{y[i]:.3f}, {word}", fontsize=8, color=colour, loc="left")
        ax.set_xlabel("\n".join(lines).replace("$", r"\$"), fontsize=8)  # a caption with dollar signs is no formula
    for ax in axes[len(ids) :]:
        ax.set_axis_off()
    return np.asarray(axes[: len(ids)])


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Return one figure by epoch, (E,) float64. NaN where there is none."""
    return np.array([m.get(name) for m in metrics], dtype=np.float64)


def _new_axes() -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.2, 3.4), layout="constrained")[1]


def precision_recall(correspondence: np.ndarray, threshold: float, truth: np.ndarray, ax: Axes) -> None:
    """Precision by recall of the flagged pairs over all thresholds."""
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(truth, -correspondence)
    keep = np.unique(np.linspace(0, len(recall) - 1, 400).astype(int))  # a curve of a million points looks the same
    flagged = correspondence < threshold
    ax.plot(recall[keep], precision[keep], color=KEPT, linewidth=1.6, label="every threshold")
    if flagged.any():
        hits = (flagged & truth).sum()
        ax.plot([hits / truth.sum()], [hits / flagged.sum()], "o", color="#111", label=f"threshold {threshold:.3g}")
    ax.axhline(truth.mean(), color="#8a8f98", linewidth=0.9, linestyle=(0, (2, 2)), label="flagging by chance")
    about = {"xlabel": "recall: share of the mismatched pairs that is flagged", "ylabel": "precision of the flags"}
    ax.set(xlim=(0, 1.01), ylim=(0, 1.02), **about)
    ax.legend(**ABOVE, ncols=3, handlelength=1.4)


def drawn(draw: Callable[[Axes], object]) -> str:
    """A figure as a data address. Outside pyplot's global state, so that a notebook's own figures stay as they are."""
    buffer = io.BytesIO()
    with _style_lock, mpl.rc_context(fname=Path(__file__).with_name("report.mplstyle")):
        figure = Figure(figsize=(5.6, 3.3), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
