"""What an export tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExportSummary:
    """What an export wrote: the counts add up to ``pairs``; ``rows`` are those of the cleaned data.

    ``files`` maps out, manifest, ledger, dropped and card (if written) to their paths; ``format`` is that of out;
    ``renamed`` maps columns of the input that gave way to an added column to their new names.
    """

    pairs: int
    kept: int
    rematched_text: int
    rematched_image: int
    recaptioned: int
    dropped: int
    quarantined: int
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
