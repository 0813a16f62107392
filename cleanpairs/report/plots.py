"""Pictures of a fit on matplotlib axes: scores, training, pairs. The report's charts and the estimators' plots.

Nothing here sets up a window: axes are drawn on as they come, and made by pyplot where none are given, which draws into
memory where there is no screen.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.parameters import check_choice
from cleanpairs.data.display import visible
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs

COLOURS = {  # told apart by colour-blind readers too
    "kept": "#2f6fb0",
    "repaired": "#1b9e77",
    "dropped": "#c8553d",
    "flagged": "#c8553d",
    "quarantined": "#8a8f98",
}
BINS = 50
CHOICES = ("worst", "borderline", "best", "random")


def plot_scores(
    correspondence: ArrayLike, threshold: float, *, truth: np.ndarray | None = None, ax: Axes | None = None
) -> Axes:
    """Histogram of the correspondence (N,), NaN left out, with the threshold below which pairs are flagged.

    ``truth`` (N,) bool: True where a pair is known to be wrong: the bars are split by it; ``ax``: to draw on; new ones
    by default. The counts are on a logarithmic axis where one bin would flatten all others.
    Raises DataError: ``truth`` is of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    known = np.isfinite(y)
    if truth is not None:
        truth = np.asarray(truth, dtype=bool).ravel()
        if truth.shape != y.shape:
            raise DataError(f"the truth is about {truth.shape} pairs, and the scores about {y.shape}")
        truth = truth[known]
    y = np.clip(y[known], 0, 1)
    ax = _new_axes() if ax is None else ax
    edges = np.linspace(0, 1, BINS + 1)
    groups = [("pairs", y, COLOURS["kept"], "")]
    if truth is not None:
        groups = [
            ("matched pairs", y[~truth], COLOURS["kept"], ""),
            ("mismatched pairs", y[truth], COLOURS["dropped"], "////"),  # told apart without colour too
        ]
    counts = [np.histogram(values, edges)[0] for _, values, _, _ in groups]
    for (label, _, colour, hatch), height in zip(groups, counts, strict=True):
        ax.bar(
            edges[:-1], height, 1 / BINS, align="edge", color=colour, alpha=0.7, label=label, linewidth=0, hatch=hatch,
            edgecolor="#ffffff80",
        )  # fmt: skip
    total = np.concatenate(counts)
    filled = total[total > 0]
    if len(filled) and filled.max() > 20 * np.median(filled):
        ax.set_yscale("log")
        ax.set_ylim(bottom=0.7)
    ax.axvline(threshold, color="#111", linewidth=1.2, linestyle=(0, (4, 2)), label=f"threshold {threshold:.3g}")
    ax.set_xlim(0, 1)
    ax.set_xlabel("correspondence (0 = mismatched, 1 = matched)")
    ax.set_ylabel("pairs" + (", logarithmic" if ax.get_yscale() == "log" else ""))
    above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(groups) + 1}
    ax.legend(**above, handlelength=1.8, frameon=False, fontsize="small")
    return ax


def plot_training(metrics: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Loss by epoch and, where validated, rSum on an axis of its own; stages, which start afresh, apart.

    ``metrics``: one an epoch, with ``loss``, ``val_rsum`` and ``stage``, as an estimator's ``history_``; those without
    a figure are left out; ``ax``: to draw on; new ones by default. Returns the loss's axes.
    """
    ax = _new_axes() if ax is None else ax
    stages = [m.get("stage", 1) for m in metrics]
    starts = [i for i in range(1, len(stages)) if stages[i] != stages[i - 1]]  # of fresh weights: no line across
    epochs, lines = np.insert(np.arange(1.0, len(stages) + 1), starts, np.nan), []
    for name, label, colour, marker in (
        ("loss", "loss", COLOURS["dropped"], "o"),
        ("val_rsum", "validation rSum", COLOURS["kept"], "s"),
    ):
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
    ax.set_xlabel("epoch" + (f" (a line starts each of {len(starts) + 1} stages)" if starts else ""))
    ax.set_xlim(0.5, max(len(metrics), 1) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if lines:
        ax.legend(handles=lines, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0), frameon=False)
    return ax


def choose_pairs(correspondence: np.ndarray, threshold: float, which: str, count: int) -> np.ndarray:
    """(k,) int64: pairs with the lowest scores, the nearest to the threshold, the highest, or any; k <= ``count``.

    Ties are in order of pair_id.
    """
    check_choice("plot_pairs", "which", which, CHOICES)
    y = np.asarray(correspondence, dtype=np.float64)
    ids = np.flatnonzero(np.isfinite(y))
    if which == "random":
        return np.sort(np.random.default_rng(0).permutation(ids)[:count])
    by = {"worst": y[ids], "borderline": np.abs(y[ids] - threshold), "best": -y[ids]}[which]
    return ids[np.argsort(by, kind="stable")[:count]]


def plot_pairs(
    pairs: Pairs,
    correspondence: np.ndarray,
    threshold: float,
    *,
    which: str | Sequence[int] = "worst",
    count: int = 8,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> np.ndarray:
    """Pictures with their captions and scores, at most ``count``; those below the threshold are marked as flagged.

    - ``which`` {"worst", "borderline", "best", "random"}, or pair_ids: the lowest scores, those nearest to the
      threshold, the highest, or any
    - ``axes`` sequence of Axes: to draw on, one a pair; new ones, four in a row, by default

    Returns (k,) array of Axes: a pair without a readable picture has its caption alone.
    Raises ConfigError: unknown ``which``, no such pair, or fewer axes than pairs; DataError: scores of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    if len(y) != len(pairs):
        raise DataError(f"the scores are about {len(y)} pairs, and the data holds {len(pairs)}")
    ids = choose_pairs(y, threshold, which, count) if isinstance(which, str) else np.asarray(which, np.int64)[:count]
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(pairs):
        raise ConfigError(f"plot_pairs: pairs are 0 to {len(pairs) - 1}, found {int(ids.min())} to {int(ids.max())}")
    flat = _grid(len(ids)) if axes is None else np.asarray(axes, dtype=object).ravel()
    if len(flat) < len(ids):
        raise ConfigError(f"plot_pairs needs {len(ids)} axes, one a pair, found {len(flat)}: give more, or lower count")
    pictures = pairs.images.read(pairs.image_index[ids].tolist())
    for ax, i, data in zip(flat, ids.tolist(), pictures, strict=False):
        _draw_pair(ax, data, visible(pairs.captions[i] or "(empty caption)", 90), float(y[i]), threshold)
    for ax in flat[len(ids) :]:
        ax.set_axis_off()
    return flat[: len(ids)]


def _draw_pair(ax: Axes, data: bytes | None, caption: str, score: float, threshold: float) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    try:
        if data is None:
            raise DataError("no picture")
        ax.imshow(np.asarray(read_image(data)))
    except DataError:
        ax.text(0.5, 0.5, "no picture", ha="center", va="center", transform=ax.transAxes, color="#666")
    flagged = score < threshold
    colour = COLOURS["flagged"] if flagged else COLOURS["kept"]
    for spine in ax.spines.values():
        spine.set(color=colour, linewidth=2, visible=True)
    lines = textwrap.wrap(caption, 30, max_lines=3, placeholder=" …")
    text = "\n".join(lines).replace("$", r"\$")  # a caption with dollar signs is no formula
    ax.set_title(f"{score:.3f}, {'flagged' if flagged else 'kept'}", fontsize=8, color=colour, loc="left")
    ax.set_xlabel(text, fontsize=8)


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """(E,) float64 of one figure by epoch; NaN where there is none."""
    values = [m.get(name) for m in metrics]
    return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)


def _new_axes() -> Axes:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.2, 3.4), layout="constrained")[1]


def _grid(n: int) -> np.ndarray:
    import matplotlib.pyplot as plt

    if n == 0:
        return np.empty(0, dtype=object)
    columns = min(n, 4)
    rows = -(-n // columns)
    size = (2.6 * columns, 3.0 * rows)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")[1].ravel()
