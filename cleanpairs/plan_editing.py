"""A plan in a person's hands: as CSV for a spreadsheet, and what follows from the edits.

To be edited are ``action`` and ``donor_pair_id``; everything else is derived from them again when the plan is read. A
caption of one's own goes into ``caption``, with the action ``recaption``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.errors import DataError

__all__ = ["donor_use", "followed", "read_csv", "write_csv"]

# What a spreadsheet takes for a formula; and the apostrophe itself, so that reading undoes writing.
FORMULA = r"^[=+\-@\t\r']"
JUDGED = ("repair_score", "margin", "confidence")  # belong to one donor
BOM = b"\xef\xbb\xbf"  # without it spreadsheets take UTF-8 for something else


def write_csv(table: pa.Table, path: str | Path) -> None:
    """UTF-8 with a byte order mark; null is an empty field, and text that looks like a formula gets an apostrophe."""
    from pyarrow import csv

    for i, name in enumerate(table.column_names):
        if pa.types.is_string(table.schema.field(name).type):
            safe = pc.replace_substring_regex(table[name], FORMULA, r"'\0")
            table = table.set_column(i, name, safe)
    with open(path, "wb") as file:
        file.write(BOM)
        csv.write_csv(table, file)


def read_csv(path: str | Path, schema: pa.Schema) -> pa.Table:
    """What :func:`write_csv` wrote, perhaps edited; columns by ``schema``, in any order.

    Raises
    ------
    DataError
        Not readable as CSV, or a value that is none of its column's.
    """
    from pyarrow import csv

    try:
        table = csv.read_csv(
            path,
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                # pandas writes whole numbers beside empty cells as 12.0
                column_types={f.name: pa.float64() if pa.types.is_integer(f.type) else f.type for f in schema},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        for field in schema:
            if pa.types.is_integer(field.type) and field.name in table.column_names:
                i = table.column_names.index(field.name)
                table = table.set_column(i, field.name, table[field.name].cast(field.type))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a plan in CSV: {error}") from error
    for i, name in enumerate(table.column_names):
        if pa.types.is_string(table.schema.field(name).type):
            table = table.set_column(i, name, pc.replace_substring_regex(table[name], "^'", ""))
    return table


def followed(table: pa.Table) -> pa.Table:
    """``caption``, ``donor_key``, ``donor_use`` and the scores as they follow from ``action`` and ``donor_pair_id``.

    A donor that was changed is known by its key, which still is the old one's: the scores that were computed for the
    old one are null then. Tables that are no plan are left for :class:`cleanpairs.plan.RepairPlan` to refuse.

    Raises
    ------
    DataError
        A caption was edited while action and donor say whose it is.
    """
    needed = ("action", "donor_pair_id", "donor_key", "key", "caption", "original_caption", "donor_use", *JUDGED)
    if any(name not in table.column_names for name in needed):
        return table
    n = len(table)
    action = np.array(table["action"].to_pylist(), object)
    try:
        donor = np.array(table["donor_pair_id"].cast(pa.int64()).fill_null(-1), np.int64)
    except pa.ArrowException as error:
        raise DataError(f"donor_pair_id of the repair plan must be whole numbers: {error}") from error
    takes_text, takes_image = action == "rematch_text", action == "rematch_image"
    repaired = takes_text | takes_image
    left = np.isin(action, ("keep", "drop", "quarantine", "recaption")) | repaired
    if not left.all() or (repaired & ((donor < 0) | (donor >= n))).any():
        return table
    donor = np.where(repaired, donor, -1)
    keys, original = table["key"].to_pylist(), table["original_caption"].fill_null("").to_pylist()
    told_key, told = table["donor_key"].to_pylist(), table["caption"].to_pylist()
    caption: list[str | None] = []
    same = np.ones(n, bool)
    for i in range(n):
        if action[i] in ("drop", "quarantine"):
            caption.append(None)
            continue
        if action[i] == "recaption":  # a model's caption, or a person's
            caption.append(told[i])
            continue
        caption.append(original[donor[i] if takes_text[i] else i])
        if repaired[i]:
            same[i] = told_key[i] is None or told_key[i] == keys[donor[i]]
        taken_back = action[i] == "keep" and told_key[i] is not None  # it still has that donor's caption
        if same[i] and not taken_back and told[i] is not None and told[i] != caption[i]:
            raise DataError(
                f"pair {i} of the repair plan has the caption {told[i][:60]!r}, and its action {action[i]!r} gives it "
                f"{(caption[i] or '')[:60]!r}: captions follow from action and donor_pair_id; for one of your own "
                f"write the action 'recaption'"
            )
    use = donor_use(donor, takes_text, takes_image)
    judged = pa.array((repaired & same) | (action == "recaption"))
    new = {
        "original_caption": pa.array(original, pa.string()),
        "caption": pa.array(caption, pa.string()),
        "donor_pair_id": pa.array(donor, mask=~repaired),
        "donor_key": pa.array([keys[d] if d >= 0 else None for d in donor.tolist()], pa.string()),
        "donor_use": pa.array(use, mask=~repaired),
        **{name: pc.if_else(judged, table[name], None) for name in JUDGED},
    }
    for name, column in new.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def donor_use(donor: np.ndarray, takes_text: np.ndarray, takes_image: np.ndarray) -> np.ndarray:
    """How many repaired rows carry the part that each row takes: (N,) int32, 0 where it takes none."""
    n = len(donor)
    texts = np.bincount(donor[takes_text], minlength=n) + takes_image  # the row whose image goes keeps its caption
    images = np.bincount(donor[takes_image], minlength=n) + takes_text
    use = np.zeros(n, np.int32)
    use[takes_text] = texts[donor[takes_text]]
    use[takes_image] = images[donor[takes_image]]
    return use
