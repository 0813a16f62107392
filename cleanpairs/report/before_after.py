"""The picture of repairs: each image with the caption that it had, struck through, and the one that it got."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw, ImageFont

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import PlanLike

__all__ = ["before_after_figure"]

SCALE = 2  # pixels per unit of layout: sharp on dense screens
_WIDTH, _PICTURE, _GAP, _LINE, _PADDING = 250, 150, 16, 20, 14  # of one card, in units
_RED, _GREEN, _FAINT, _RULE = "#9b3a28", "#0f6b4f", "#666d76", "#dfe3e8"
_LONGEST = 90  # characters of a caption


def before_after_figure(
    pairs: Pairs,
    plan: PlanLike,
    out: str | Path,
    *,
    pair_ids: Sequence[int] | None = None,
    count: int = 4,
    overwrite: bool = False,
) -> Path:
    """Write a PNG of repaired pairs: image, caption before (struck through), caption after, scores.

    Parameters
    ----------
    pairs : Pairs
        N pairs with pictures.
    plan : RepairPlan
        Of these pairs.
    out : path
        The PNG file.
    pair_ids : sequence of int, optional
        Which repairs (action ``rematch_text``) to show; by default the ``count`` surest whose pictures differ.

    Raises
    ------
    DataError
        The data has no pictures, a picture cannot be read, or the plan gives no pair another caption.
    ConfigError
        A pair in ``pair_ids`` gets no other caption.
    """
    table = plan.table.sort_by("pair_id")
    if table.num_rows != len(pairs):
        raise DataError(f"the plan is about {table.num_rows} pairs, and the data holds {len(pairs)}")
    chosen = _surest(pairs, table, count) if pair_ids is None else list(pair_ids)
    if not chosen:
        raise DataError("the plan gives no pair another caption: there is nothing to draw")
    actions = table["action"].to_pylist()
    for i in chosen:
        action = actions[i] if 0 <= i < len(pairs) else "none: there is no such pair"
        if action != "rematch_text":
            raise ConfigError(f"pair {i} gets no other caption (its action is {action}): choose another")
    cards = []
    for i, data in zip(chosen, pairs.images.read([int(pairs.image_index[i]) for i in chosen]), strict=True):
        row = table.slice(i, 1).to_pylist()[0]
        if data is None:
            raise DataError(f"pair {i} has no picture (does the data hold vectors only?): choose pairs that have one")
        score = f"score {row['correspondence']:.2f} → {row['repair_score']:.2f}"
        cards.append((read_image(data), visible(pairs.captions[i], _LONGEST), visible(row["caption"], _LONGEST), score))
    picture = _draw(cards)
    out = Path(out)
    with staged_file(out, overwrite=overwrite) as staging:
        picture.save(staging, format="PNG", optimize=True)
    return out


def _surest(pairs: Pairs, table: pa.Table, count: int) -> list[int]:
    action = np.array(table["action"].to_pylist(), dtype=object)
    score = np.array(table["repair_score"].to_pylist(), dtype=float)
    ids = np.flatnonzero(action == "rematch_text")
    group, chosen = pairs.pair_image_group, dict[int, int]()
    for i in ids[np.argsort(-score[ids], kind="stable")]:
        chosen.setdefault(int(group[i]), int(i))
        if len(chosen) == count:
            break
    return list(chosen.values())


def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"  # ships with matplotlib: the same picture everywhere
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / name), size * SCALE)


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Lines of at most ``width`` pixels."""
    lines: list[str] = []
    for word in text.split() or ["(empty)"]:
        for piece in textwrap.wrap(word, 24):
            if lines and font.getlength(f"{lines[-1]} {piece}") <= width:
                lines[-1] += f" {piece}"
            else:
                lines.append(piece)
    return lines


def _draw(cards: list[tuple[Image.Image, str, str, str]]) -> Image.Image:
    plain, bold, small = _font(13), _font(13, bold=True), _font(11)
    inner = (_WIDTH - 2 * _PADDING) * SCALE
    texts = [(_wrapped(before, plain, inner), _wrapped(after, bold, inner)) for _, before, after, _ in cards]
    n_before, n_after = max(len(b) for b, _ in texts), max(len(a) for _, a in texts)
    height = _PADDING + _PICTURE + _PADDING + (n_before + n_after + 1) * _LINE + 8 + _PADDING
    sheet = Image.new(
        "RGB", ((_WIDTH * len(cards) + _GAP * (len(cards) + 1)) * SCALE, (height + 2 * _GAP) * SCALE), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for k, ((image, _, _, score), (before, after)) in enumerate(zip(cards, texts, strict=True)):
        left, top = (_GAP + k * (_WIDTH + _GAP)) * SCALE, _GAP * SCALE
        box = (left, top, left + _WIDTH * SCALE, top + height * SCALE)
        draw.rounded_rectangle(box, 8 * SCALE, outline=_RULE, width=SCALE)
        factor = _PICTURE * SCALE / max(image.size)  # small pictures are enlarged, none is cropped
        size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
        picture = image.resize(size, Image.Resampling.LANCZOS)
        x, y = left + (_WIDTH * SCALE - picture.width) // 2, top + _PADDING * SCALE
        sheet.paste(picture, (x, y + (_PICTURE * SCALE - picture.height) // 2))
        x, y = left + _PADDING * SCALE, y + (_PICTURE + _PADDING) * SCALE
        for line in before:
            draw.text((x, y), line, font=plain, fill=_RED)
            middle = y + 9 * SCALE
            draw.line((x, middle, x + plain.getlength(line), middle), fill=_RED, width=SCALE)
            y += _LINE * SCALE
        y = top + (2 * _PADDING + _PICTURE + n_before * _LINE + 4) * SCALE
        for line in after:
            draw.text((x, y), line, font=bold, fill=_GREEN)
            y += _LINE * SCALE
        y = top + (height - _PADDING - _LINE + 3) * SCALE
        draw.text((x, y), score, font=small, fill=_FAINT)
    return sheet
