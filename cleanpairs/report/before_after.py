"""The picture of repairs: each image with the caption that it had, struck through, and the one that it got."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import BoxStyle, FancyBboxPatch
from matplotlib.transforms import Bbox
from PIL import Image

from cleanpairs.core.errors import DataError
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.actions import acted
from cleanpairs.repair.plan import RepairPlan

_WIDTH, _PICTURE, _LINE, _PADDING = 2.6, 1.5, 0.19, 0.12  # of one card, in inches
_RED, _GREEN, _FAINT, _RULE = "#9b3a28", "#0f6b4f", "#666d76", "#dfe3e8"
_LONGEST = 90  # characters of a caption


def before_after_figure(
    pairs: Pairs,
    plan: RepairPlan,
    out: str | Path,
    *,
    count: int = 4,
    overwrite: bool = False,
) -> Path:
    """Write a PNG of the ``count`` surest repairs of captions whose pictures differ: image, caption before (struck
    through), caption after, scores.

    Raises DataError: the data has no pictures, a picture cannot be read, or the plan gives no pair another caption.
    """
    table = plan.table.sort_by("pair_id")
    if table.num_rows != len(pairs):
        raise DataError(f"the plan is about {table.num_rows} pairs, and the data holds {len(pairs)}")
    chosen = _surest(pairs, table, count)
    if not chosen:
        raise DataError("the plan gives no pair another caption: there is nothing to draw")
    cards = []
    for i, data in zip(chosen, pairs.images.read([int(pairs.image_index[i]) for i in chosen]), strict=True):
        row = table.slice(i, 1).to_pylist()[0]
        if data is None:
            raise DataError(f"pair {i} has no picture (does the data hold vectors only?): there is nothing to draw")
        score = f"score {row['correspondence']:.2f} → {row['repair_score']:.2f}"
        cards.append((read_image(data), visible(pairs.captions[i], _LONGEST), visible(row["caption"], _LONGEST), score))
    out = Path(out)
    with staged_file(out, overwrite=overwrite) as staging:
        _draw(cards).savefig(staging, format="png", metadata={"Software": None})
    return out


def _surest(pairs: Pairs, table: pa.Table, count: int) -> list[int]:
    score = np.array(table["repair_score"].to_pylist(), dtype=float)
    ids = np.flatnonzero(acted(table, ["rematch_text"]))
    ids = ids[np.argsort(-score[ids], kind="stable")]
    of_each = np.sort(np.unique(pairs.pair_image_group[ids], return_index=True)[1])
    found: list[int] = ids[of_each[:count]].tolist()
    return found


def _draw(cards: list[tuple[Image.Image, str, str, str]]) -> Figure:
    texts = [(_wrapped(before), _wrapped(after)) for _, before, after, _ in cards]
    n_before, n_after = max(len(b) for b, _ in texts), max(len(a) for _, a in texts)
    height = _PICTURE + 5 * _PADDING + (n_before + n_after + 1) * _LINE
    figure = Figure(figsize=(len(cards) * _WIDTH, height), dpi=200, facecolor="white")
    FigureCanvasAgg(figure)
    inches = figure.dpi_scale_trans
    for k, ((image, _, _, score), (before, after)) in enumerate(zip(cards, texts, strict=True)):
        left, y = k * _WIDTH + 2 * _PADDING, height - 3 * _PADDING - _PICTURE
        corner, size = (left - _PADDING, _PADDING), (_WIDTH - 2 * _PADDING, height - 2 * _PADDING)
        round_corners = BoxStyle("round", pad=0, rounding_size=0.08)
        figure.add_artist(FancyBboxPatch(corner, *size, boxstyle=round_corners, fc="none", ec=_RULE, transform=inches))
        box = Bbox.from_bounds(left, y + _PADDING, _WIDTH - 4 * _PADDING, _PICTURE)
        ax = figure.add_axes(box.transformed(inches + figure.transFigure.inverted()).bounds)
        ax.imshow(np.asarray(image), interpolation="lanczos")  # small pictures are enlarged, none is cropped
        ax.set_axis_off()
        look: dict[str, Any] = {"transform": inches, "va": "top", "parse_math": False, "fontfamily": "DejaVu Sans"}
        for n, line in enumerate(before):
            text = figure.text(left, y - n * _LINE, line, color=_RED, fontsize=9, **look)
            struck = text.get_window_extent()
            middle = (struck.y0 + struck.y1) / 2
            figure.add_artist(Line2D([struck.x0, struck.x1], [middle, middle], color=_RED, lw=0.8, transform=None))
        y -= n_before * _LINE
        for n, line in enumerate(after):
            figure.text(left, y - n * _LINE, line, color=_GREEN, fontsize=9, fontweight="bold", **look)
        figure.text(left, y - (n_after + 0.2) * _LINE, score, color=_FAINT, fontsize=8, **look)
    return figure


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 28) or ["(empty)"]
