"""What an export holds itself to: outputs with names of their own, an unchanged input, counts that add up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.core.regular import read_json
from cleanpairs.data import Source, fingerprint_of
from cleanpairs.data.guard import refuse_foreign, refuse_unless
from cleanpairs.export.files import CARD, manifest_of
from cleanpairs.repair.actions import ActionCounts

# What the formats that are directories put into them.
OURS = re.compile(rf"\d{{5,}}\.(tar|parquet)|data-\d{{5,}}\.arrow|dataset_info\.json|state\.json|{re.escape(CARD)}")


def refuse_changed_input(source: Source) -> None:
    """Raise :class:`DataError` if the input is not as it was read."""
    if fingerprint_of(source) != source.fingerprint:
        raise DataError(
            f"the input {', '.join(source.files)} has changed since it was read: read it, score it and plan again"
        )
    if source.original is not None:
        refuse_changed_input(source.original)


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

    Raises ConfigError: two have one path, or one lies in the directory ``out``, which is renamed as a whole;
    OutputExistsError: where the manifest or the ledger goes by default, there is something else.
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
    refuse_unless(lambda path: {"files", "counts"} <= read_json(path).keys(), targets["manifest"], "export's")
    if ledger is None:
        refuse_unless(lambda p: {"pair_id", "action"} <= set(pq.read_schema(p).names), targets["ledger"], "export's")
    return targets


@dataclass(frozen=True)
class ExportSummary(ActionCounts):
    """What an export wrote: ``rows`` of cleaned data; ``files``: role -> path, of out, manifest, ledger, dropped and
    card; ``renamed``: columns of the input that gave way to an added one -> their new names.
    """

    rows: int
    files: Mapping[str, Path]
    renamed: Mapping[str, str]
    format: str = "parquet"

    def __str__(self) -> str:
        written = f"{self.recaptioned:,} with a caption written for it, " if self.recaptioned else ""
        lines = [
            f"{self.pairs:,} pairs in: {self.kept:,} kept, {self.rematched_text:,} with a new caption, "
            f"{self.rematched_image:,} with a new image, {written}{self.dropped:,} dropped, "
            f"{self.quarantined:,} quarantined",
            f"{self.rows:,} rows out: {self.files['out']}",
            *(f"{name}: {path}" for name, path in self.files.items() if name != "out"),
            *(f"column {old!r} of the input is now {new!r}" for old, new in self.renamed.items()),
        ]
        return "\n".join(lines)
