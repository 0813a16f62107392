"""A plan in a person's hands: as CSV for a spreadsheet, and what follows from edits."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cleanpairs.core import DataError, open_regular, reading
from cleanpairs.ops.columns import one_array, taken, with_columns
from cleanpairs.repair.actions import CAPTIONED, DISPLACED, KINDS, REASONS, acted

JUDGED = ("repair_score", "margin", "confidence", "captions")  # belong to one donor


def write_csv(table: pa.Table, path: str | Path) -> None:
    """UTF-8 with a byte order mark. Null is an empty field, lists are JSON, and text that looks like a formula gets an
    apostrophe.
    """
    lists = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    cells = {name: [None if v is None else json.dumps(v) for v in table[name].to_pylist()] for name in lists}
    table = with_columns(table, {name: pa.array(values, pa.string()) for name, values in cells.items()})
    with open(path, "wb") as file:
        file.write(b"\xef\xbb\xbf")  # without it spreadsheets take UTF-8 for something else
        csv.write_csv(without_formulas(table), file)


def without_formulas(table: pa.Table) -> pa.Table:
    """Return ``table`` with an apostrophe before text that spreadsheets take for a formula."""
    return _replaced(table, r"^[=+\-@\t\r']", r"'\0")  # before an apostrophe, too, so that reading undoes it


def _replaced(table: pa.Table, pattern: str, by: str) -> pa.Table:
    """Replace ``pattern`` in all columns of strings."""
    kinds = (pa.string(), pa.large_string())
    texts = [field.name for field in table.schema if field.type in kinds]
    return with_columns(table, {name: pc.replace_substring_regex(table[name], pattern, by) for name in texts})


def _dialect(path: str | Path) -> tuple[Any, str]:
    """Return where fields end, at what follows the first name, and the decimal point.

    Some spreadsheets write ``;`` between fields, and most of them 0,5.
    """
    with open_regular(path) as file:
        found = re.match(r'"?\w+"?([;,])', file.readline().decode("utf-8-sig", "replace"))
        comma = found and found[1] == ";" and re.search(rb';"?-?\d+,\d+"?;', file.read())
    return csv.ParseOptions(delimiter=found[1] if found else ",", newlines_in_values=True), "," if comma else "."


def read_csv(path: str | Path, schema: pa.Schema) -> pa.Table:
    """Read a file of :func:`write_csv`, perhaps edited, with the columns of ``schema``. Raises DataError."""
    lists = [field for field in schema if pa.types.is_nested(field.type)]
    with reading(path, "read as a plan in CSV", pa.ArrowException, ValueError, TypeError):
        delimited, point = _dialect(path)
        table = csv.read_csv(
            path,
            parse_options=delimited,
            convert_options=csv.ConvertOptions(
                decimal_point=point,
                # pandas writes whole numbers beside empty cells as 12.0
                column_types={f.name: pa.float64() if pa.types.is_integer(f.type) else f.type for f in schema}
                | {f.name: pa.string() for f in lists},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        whole = [f for f in schema if pa.types.is_integer(f.type) and f.name in table.column_names]
        table = with_columns(table, {field.name: table[field.name].cast(field.type) for field in whole})
        table = _replaced(table, "^'", "")
        for field in (field for field in lists if field.name in table.column_names):
            cells = [None if text is None else json.loads(text) for text in table[field.name].to_pylist()]
            table = with_columns(table, {field.name: pa.array(cells, field.type)})
    return table.sort_by("pair_id") if "pair_id" in table.column_names else table


def same_key(written: str | None, key: str, rel_tol: float = 1e-5) -> bool:
    """Whether ``written`` is what a spreadsheet, or pandas, may make of ``key``: 7 of 007, or 1.23457E+16."""
    try:
        return written == key or math.isclose(float((written or "").replace(",", ".")), float(key), rel_tol=rel_tol)
    except ValueError:
        return False


def followed(table: pa.Table) -> pa.Table:
    """Derive columns from ``action`` and ``donor_pair_id``. Scores are null where ``donor_key`` is another's, or
    ``caption`` is that of another repair.

    Raises DataError: a caption was edited while action and donor say whose it is.
    """
    n, donor = len(table), np.array(table["donor_pair_id"].fill_null(-1), np.int64)
    actions = (["rematch_text"], ["rematch_image"], ["recaption"], ["drop", "quarantine"], ["keep"])
    takes_text, takes_image, written, gone, keeps = (acted(table, names) for names in actions)
    repaired = takes_text | takes_image
    if not (repaired | written | gone | keeps).all() or (repaired & ((donor < 0) | (donor >= n))).any():
        return table
    given, donor = donor, np.where(repaired, donor, -1)
    lender = pa.array(donor, mask=~repaired)
    original = one_array(table["original_caption"].fill_null(""))
    given_key, text = one_array(table["donor_key"]), one_array(table["caption"])
    own_key = taken(one_array(table["key"]), lender)
    derived = pc.if_else(pa.array(takes_text), taken(original, lender), original)
    caption = pc.if_else(pa.array(written), text, pc.if_else(pa.array(gone), None, derived))
    same = ~repaired | _true(pc.or_kleene(pc.is_null(given_key), pc.equal(given_key, own_key)))
    for i in np.flatnonzero(~same).tolist():  # pandas makes 7.0 of 007 beside empty cells
        same[i] = same_key(given_key[i].as_py(), own_key[i].as_py() or "", rel_tol=0)
    # It still has the caption of that donor, or of that model.
    taken_back = keeps & (_true(pc.is_valid(given_key)) | _true(one_array(pc.starts_with(table["reason"], CAPTIONED))))
    # Of a row that was repaired just now the caption is still its own, or that of the donor of before. Donors of one
    # image have one key.
    joined, follows = pc.binary_join_element_wise, ~_true(pc.not_equal(text, caption))
    of_key = pc.is_in(joined(own_key, text, "\0"), joined(one_array(table["key"]), original, "\0"))
    as_before = repaired & (_true(pc.equal(text, original)) | _true(of_key))
    edited = (keeps | repaired) & same & ~taken_back & ~as_before & ~follows
    if edited.any():
        i = int(np.flatnonzero(edited)[0])
        raise DataError(
            f"pair {i} of the repair plan has the caption {text[i].as_py()[:60]!r}, and its action "
            f"{table['action'][i].as_py()!r} gives it {(caption[i].as_py() or '')[:60]!r}: captions follow from action "
            "and donor_pair_id; for one of your own write the action 'recaption'"
        )
    same &= follows
    donated = taken(original, pa.array(given, mask=(given < 0) | (given >= n)))
    # Of a caption that was written for it, else the caption of a donor was judged.
    judged = pa.array((repaired & same) | (written & ((given < 0) | _true(pc.equal(text, donated)))))
    new = {
        "original_caption": original,
        "caption": caption,
        "donor_pair_id": lender,
        "donor_key": own_key,
        **{name: pc.if_else(judged, table[name], None) for name in JUDGED},
        "captions": pc.if_else(pa.array(takes_text & same), table["captions"], None),
        "reason": _reason(table, repaired & same),
        "donor_use": pa.array(donor_use(donor, takes_text, takes_image), mask=~repaired),
    }
    return with_columns(table, new)


def _reason(table: pa.Table, has_donor: np.ndarray) -> pa.Array:
    """Return ``reason`` without reasons for another action or, except where ``has_donor`` (n,), another donor."""
    reason, dropped = one_array(table["reason"]), acted(table, ["drop"])
    of_drop, of_donor = (pc.is_in(reason, pa.array(words, pa.string())) for words in (REASONS, KINDS))
    of_donor = pc.or_kleene(of_donor, pc.starts_with(reason, DISPLACED))
    of_model = _true(pc.starts_with(reason, CAPTIONED)) & ~acted(table, ["recaption"])
    stale = (_true(of_drop) & ~dropped) | (_true(of_donor) & ~has_donor) | of_model
    reason = pc.if_else(pa.array(stale), None, reason)
    return pc.if_else(pa.array(dropped), pc.fill_null(reason, "by hand"), reason)


def _true(values: pa.Array) -> np.ndarray:
    """Return ``values`` (n,) with null as False."""
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)


def donor_use(donor: np.ndarray, takes_text: np.ndarray, takes_image: np.ndarray) -> np.ndarray:
    """Return how many repaired rows carry the part that each row takes, (N,) int32, 0 where it takes none."""
    n = len(donor)
    texts = np.bincount(donor[takes_text], minlength=n) + takes_image  # the row whose image goes keeps its caption
    images = np.bincount(donor[takes_image], minlength=n) + takes_text
    return np.where(takes_text, texts[donor], takes_image * images[donor]).astype(np.int32)
