"""The benchmark's log: one JSON line a cell, appended and synced, so that a kill costs the cell that was running."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cleanpairs.core.errors import DataError
from cleanpairs.core.plain import plain
from cleanpairs.core.regular import read_bytes, reading


class BenchLog:
    """``bench.jsonl`` of a directory; rows are dicts of plain values.

    A line counts when its newline is there: what a kill cut off is left out when reading, and removed when writing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """All whole lines, in order; DataError for one that is no JSON object."""
        if not self.path.exists():
            return []
        with reading(self.path):
            raw = read_bytes(self.path)
        rows = []
        for number, line in enumerate(raw[: raw.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self.path}, line {number}, is no JSON: remove the line, or the file") from error
            if not isinstance(row, dict):
                raise DataError(f"{self.path}, line {number}, is no row of a benchmark: it holds {type(row).__name__}")
            rows.append(row)
        return rows

    def append(self, row: dict[str, Any]) -> None:
        """One row, on the disk when this returns; numbers that are not finite become null."""
        text = json.dumps(plain(row, repr), allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.truncate(read_bytes(self.path).rfind(b"\n") + 1)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
