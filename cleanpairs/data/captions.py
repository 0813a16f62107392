"""Captions out of values of any kind: one rule for all readers."""

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from cleanpairs.core import plain_text
from cleanpairs.data.columns import USUAL_NAMES

Faults = Mapping[tuple[int, int], str]  # (row, place in its captions) -> why it is unusable


def captions_of(value: Any, depth: int = 3) -> list[tuple[str | None, str | None]]:
    """The captions in a value, at least one, each with the reason why it cannot be used, or None.

    A list has one caption an item. A text that spells a list, as JSON, Python or numpy do, is that list. An
    object has the caption that its field of a usual name holds. Nothing, and NaN, is no caption.
    """
    if value is None or (isinstance(value, float) and value != value):
        return [(None, None)]
    if isinstance(value, str):
        spelled = spelled_out(value) if depth == 3 else None
        if spelled is None:
            first, *others = re.split(r"<(?:__dj__\w+|\|__dj__eoc\|)>", value)  # data-juicer's marks of images and ends
            plain = " ".join(part.strip() for part in [first, *others]).strip() if others else value
            return [(plain_text(plain), None)]
        captions = captions_of(spelled, 2)
        return [(plain_text(value), captions[0][1])] if isinstance(spelled, dict) and captions[0][1] else captions
    if isinstance(value, list) and depth:
        return [pair for item in value for pair in captions_of(item, depth - 1)] or [(None, None)]
    if isinstance(value, dict):
        words = value.get("tokens")  # of Karpathy's JSON
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            value = value | {USUAL_NAMES["text"][-1]: value.get("raw") or " ".join(words)}
        if names := [name for name in USUAL_NAMES["text"] if isinstance(value.get(name), str)]:
            return [(plain_text(value[names[0]]), None)]
        kind = f"an object ({', '.join(map(repr, list(value)[:5]))})"
    else:
        kind = "a list in lists" if isinstance(value, list) else json.dumps(value, default=repr)[:50]
    return [(plain_text(json.dumps(value, ensure_ascii=False, default=repr)), f"the caption is {kind}, not text")]


def are_lists(values: Sequence[Any]) -> bool:
    """Whether captions are lists: one is a list, or a tenth of the texts spell one. A few captions only look so."""
    spelled = [isinstance(spelled_out(text), list) for text in values if isinstance(text, str)]
    return any(isinstance(value, list) for value in values) or 10 * sum(spelled) >= max(len(spelled), 1)


def caption_cell(value: Any, lists: bool) -> tuple[str | list[str | None] | None, dict[int, str]]:
    """The captions of a value in a column of texts, or of lists of them, and place -> why one is unusable."""
    captions = captions_of(value)
    faults = {k: why for k, (_, why) in enumerate(captions) if why}
    if lists:
        return None if captions == [(None, None)] else [text for text, _ in captions], faults
    if len(captions) > 1:
        faults = {0: f"the caption is a list of {len(captions)}, and others have one"}
    return captions[0][0], faults


def caption_column(values: Sequence[Any], lists: bool | None = None) -> tuple[pa.Array, Faults]:
    """A column of captions out of values of any kind: of ``lists`` of texts, or of texts. By :func:`are_lists`, when
    None.
    """
    lists = are_lists(values) if lists is None else lists
    cells = [caption_cell(value, lists) for value in values]
    faults = {(i, k): why for i, (_, bad) in enumerate(cells) for k, why in bad.items()}
    return pa.array([cell for cell, _ in cells], pa.list_(pa.string()) if lists else pa.string()), faults


def caption_field(record: Mapping[str, Any]) -> Any:
    """The first value in an object that holds a caption, by the usual names of its field, else None."""
    values = (record.get(name) for name in USUAL_NAMES["text"])
    return next((v for v in values if v not in ("", [], {}) and captions_of(v)[0] != (None, None)), None)


def spelled_out(text: Any) -> list[Any] | dict[str, Any] | None:
    """The list with texts in it, or the object, that a text spells. None where it spells neither."""
    if not (isinstance(text, str) and text[:64].lstrip()[:1] in ("[", "{") and text.rstrip()[-1:] in ("]", "}")):
        return None
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        return value if isinstance(value, dict) or not value or any(isinstance(item, str) for item in value) else None
    one = r"""None|nan|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""  # as Python writes an item
    with suppress(ValueError, SyntaxError), warnings.catch_warnings(action="ignore"):
        if field := re.match(rf"\s*\{{\s*({one})\s*:", text):
            return {ast.literal_eval(field[1]): None}
        if not re.fullmatch(rf"\[\s*(?:{one})(?:[\s,]+(?:{one}))*\s*\]", text.strip()):  # numpy writes no commas
            return None
        items = (match[0] for match in re.finditer(one, text))
        return [None if item in ("None", "nan") else ast.literal_eval(item) for item in items]
    return None
