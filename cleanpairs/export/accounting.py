"""What an export holds itself to: outputs with names of their own, an unchanged input, counts that add up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputExistsError
from cleanpairs.core.regular import read_json
from cleanpairs.data import Pairs, Source, fingerprint_of
from cleanpairs.data.guard import refuse_foreign
from cleanpairs.export.files import CARD, manifest_of
from cleanpairs.export.formats import ExportFormat
from cleanpairs.export.layout import WRITTEN, acted

__all__ = [
    "check_counts",
    "counts_by",
    "counts_of",
    "extra_column",
    "feasible",
    "output_paths",
    "refuse_changed_input",
    "refuse_foreign_directory",
]

NO_IMAGE_IN_LIST = "the image of a row with a list of captions cannot be replaced: export with explode"
NO_REPAIR_IN_LIST = "a uid list names samples as they are: a repair cannot be expressed in it"

# What the formats that are directories put into them.
OURS = re.compile(rf"\d{{5,}}\.(tar|parquet)|data-\d{{5,}}\.arrow|dataset_info\.json|state\.json|{re.escape(CARD)}")

_REPAIRS = ("rematch_text", "rematch_image", "recaption")


def feasible(table: pa.Table, one_row_a_pair: bool, selection: bool) -> pa.Table:
    """The plan's table as it can be carried out; what cannot be is dropped, with the reason.

    A row that keeps its list of captions has one image for all of them; a ``selection`` holds no captions or images.
    """
    if selection:
        return _dropped(table, _REPAIRS, NO_REPAIR_IN_LIST)
    return table if one_row_a_pair else _dropped(table, ("rematch_image",), NO_IMAGE_IN_LIST)


def _dropped(table: pa.Table, actions: tuple[str, ...], reason: str) -> pa.Table:
    impossible = pc.is_in(table["action"], pa.array(actions))
    changes = {"action": "drop", "reason": reason}
    nulls = ("donor_pair_id", "donor_key", "caption", "repair_score", "margin", "confidence", "donor_use")
    for name in (*changes, *nulls):
        kind = table.schema.field(name).type
        value = pa.scalar(changes.get(name), kind)
        table = table.set_column(table.schema.get_field_index(name), name, pc.if_else(impossible, value, table[name]))
    return table


def counts_of(pairs: Pairs, actions: Counter[str]) -> dict[str, int]:
    """Pairs of the input, and those of each action."""
    return counts_by(len(pairs), actions)


def counts_by(pairs: int, actions: Counter[str]) -> dict[str, int]:
    """As :func:`counts_of`, of so many pairs."""
    return {
        "pairs": pairs,
        "kept": actions["keep"],
        "rematched_text": actions["rematch_text"],
        "rematched_image": actions["rematch_image"],
        "recaptioned": actions["recaption"],
        "dropped": actions["drop"],
        "quarantined": actions["quarantine"],
    }


def check_counts(
    pairs: Pairs,
    decided: pa.Table,
    counts: Mapping[str, int],
    one_row_a_pair: bool,
    rows: Mapping[str, int],
    staged: Mapping[str, Path],
    chosen: ExportFormat,
) -> None:
    """Raise :class:`CleanpairsError` if a pair is missing or too many: in the counts, or in what is on disk."""
    left = acted(decided, WRITTEN)
    row = pairs.row[left]
    wanted = {
        "out": len(row) if one_row_a_pair else len(np.unique(row)),
        "dropped": counts["dropped"] + counts["quarantined"],
        "ledger": len(pairs),
    }
    found = sum(counts.values()) - counts["pairs"]
    if found != len(pairs):
        raise CleanpairsError(f"export accounted for {found} of {len(pairs)} pairs; nothing is published")
    for name, count in rows.items():
        on_disk = chosen.count(staged[name]) if name == "out" else int(pq.read_metadata(staged[name]).num_rows)
        if not count == on_disk == wanted[name]:
            raise CleanpairsError(
                f"export wrote {count} rows to {name}, the file has {on_disk}, there should be {wanted[name]}; "
                "nothing is published"
            )


def refuse_changed_input(source: Source) -> None:
    """Raise :class:`DataError` if the input is not as it was read."""
    if fingerprint_of(source) != source.fingerprint:
        raise DataError(
            f"the input {', '.join(source.paths)} has changed since it was read: read it, score it and plan again"
        )


def refuse_foreign_directory(out: Path) -> None:
    """Raise :class:`OutputExistsError` if ``out`` is there and no export: replacing it would delete what is in it.

    Names are compared, not the manifest's list: after a kill between two renames that may be of the other export.
    """
    if not out.is_dir() or out.is_symlink():
        return  # what else it may be is for the staging to refuse
    refuse_foreign(out, OURS)
    if any(out.iterdir()) and not manifest_of(out).is_file():
        raise OutputExistsError(
            f"{out} exists, and there is no {manifest_of(out).name} beside it: it is no export of cleanpairs and is "
            "not replaced; name another directory"
        )


def output_paths(
    out: Path, directory: bool, *, dropped: str | Path | None, ledger: str | Path | None, card: str | Path | None
) -> dict[str, Path]:
    """Role -> final path, in the reverse of the order in which they are published.

    Raises
    ------
    ConfigError
        Two have one path, or one lies in the directory ``out``, which is renamed as a whole.
    OutputExistsError
        Where the manifest or the ledger goes by default, there is something else.
    """
    targets = {"out": out, "manifest": manifest_of(out)}
    if dropped is not None:
        targets["dropped"] = Path(dropped)
    if card is not None:
        targets["card"] = Path(card)
    targets["ledger"] = out.with_name(out.name + ".ledger.parquet") if ledger is None else Path(ledger)
    seen: dict[Path, str] = {}
    for name, path in targets.items():
        whole = path.resolve()
        if whole in seen:
            raise ConfigError(f"{seen[whole]} and {name} would both be {path}: give each its own path")
        if directory and name != "out" and whole.is_relative_to(out.resolve()):
            raise ConfigError(f"{name} would be {path}, in the output {out}, which is written as a whole: name another")
        seen[whole] = name
    _refuse_others(targets["manifest"], targets["ledger"] if ledger is None else None)
    return targets


def _refuse_others(manifest: Path, ledger: Path | None) -> None:
    """OutputExistsError where files that nobody named would be replaced, and no export wrote them."""
    theirs = []
    if manifest.is_file():
        try:
            if not {"files", "counts"} <= read_json(manifest).keys():
                theirs.append(manifest)
        except (OSError, ValueError, AttributeError):
            theirs.append(manifest)
    if ledger is not None and ledger.is_file():
        try:
            if not {"pair_id", "action"} <= set(pq.read_schema(ledger).names):
                theirs.append(ledger)
        except (OSError, pa.ArrowException):
            theirs.append(ledger)
    if theirs:
        raise OutputExistsError(
            f"{theirs[0]} exists, and no export wrote it: it would be replaced by this one's; move it away, or "
            "name another output"
        )


def extra_column(values: np.ndarray | pa.Array, n: int, name: str) -> pa.Array:
    """An added column, one value a pair; :class:`ConfigError` where there are not ``n``."""
    column = values if isinstance(values, pa.Array) else pa.array(values)
    if len(column) != n:
        raise ConfigError(f"extra column {name!r} must have one value a pair ({n}), got {len(column)}")
    return column
