"""An export undone: the input's table written again, from the cleaned file and what the ledger keeps of the rest.

Two streams, the cleaned rows and the ledger's original rows, each rising in the row of the input that it is about, are
merged; a batch of each is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.data import ParquetSink, staged_file
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.export.datasets_format import iter_stored
from cleanpairs.export.files import BATCH_ROWS
from cleanpairs.export.ledger import REVERSIBLE, LedgerNote
from cleanpairs.export.opening import Exported, open_export
from cleanpairs.ops.columns import filtered, taken


@dataclass(frozen=True)
class RestoreSummary:
    """Of the file ``path``: ``rows`` are those that the export had left ``unchanged``, those that it had repaired, or
    taken captions from (``undone``), and those that it had dropped or quarantined (``returned``).
    """

    path: Path
    rows: int
    columns: int
    unchanged: int
    undone: int
    returned: int

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows of {self.columns:,} columns restored: {self.unchanged:,} had not been changed, "
            f"{self.undone:,} were changed back, {self.returned:,} had been dropped and are there again\n"
            f"restored: {self.path}"
        )


def restore_export(
    out: str | Path, to: str | Path, *, ledger: str | Path | None = None, overwrite: bool = False
) -> RestoreSummary:
    """Write the table back that :func:`cleanpairs.export.export_pairs` was given.

    The input's rows in their order, its columns with their names, types and metadata; of several input files, tars, or
    a CSV with its images, one Parquet file. It is equal to the input as a table (``pyarrow.Table.equals``, metadata
    too), not byte by byte: compression and row groups are our own. Rows beyond a ``limit`` with which the input was
    read were never exported and do not come back.

    - ``out``: the cleaned Parquet file, or `datasets` directory; its manifest is beside it
    - ``to``: Parquet to write
    - ``ledger``: where the ledger is now; where the manifest says when None

    Raises ConfigError: the export is neither Parquet nor a `datasets` directory; DataError: a file is missing, is not
    as it was exported (SHA-256), or cannot be read; OutputExistsError, also where ``to`` is a file of the export;
    OutputError.
    """
    export = open_export(out, ledger)
    if export.format not in REVERSIBLE:
        raise ConfigError(
            f"{export.out} is an export as {export.format}, which does not hold the rows as they were: only "
            f"{' and '.join(REVERSIBLE)} exports can be restored. The input is still where it was, for an export only "
            f"reads it, and what was changed is in {export.ledger}"
        )
    export.check_ledger()
    note = LedgerNote.read(export.ledger)
    export.check_out()
    rows = _Rows.read(export.ledger, note.rows)
    count = 0
    with (
        staged_file(to, overwrite=overwrite, inputs=[export.out, export.ledger, export.manifest]) as staged,
        ParquetSink(staged, note.schema, image_feature=False) as sink,
    ):
        for table in _merged(export, note, rows):
            sink.write(table)
        count = sink.rows
        if count != note.rows:
            raise CleanpairsError(f"{count} of {note.rows} rows were restored from {export.out}; nothing is published")
    held = rows.out_row >= 0
    return RestoreSummary(
        path=Path(to),
        rows=count,
        columns=len(note.schema),
        unchanged=int((held & ~rows.changed).sum()),
        undone=int((held & rows.changed).sum()),
        returned=int((~held).sum()),
    )


@dataclass(frozen=True)
class _Rows:
    """Of each input row the first row that the cleaned file has of it, (n,) int64, -1: none; and whether it changed."""

    out_row: np.ndarray
    changed: np.ndarray

    @classmethod
    def read(cls, ledger: Path, n: int) -> _Rows:
        out_row, changed = np.full(n, -1, np.int64), np.zeros(n, bool)
        for _, batch in iter_batches([str(ledger)], ["row", "action", "out_row"], 8192):
            row = batch.column("row").to_numpy()
            if len(row) and not 0 <= row.min() <= row.max() < n:
                raise DataError(f"{ledger} is damaged: it speaks of row {row.max()} of an input of {n} rows")
            changed[row[np.array(pc.not_equal(batch.column("action"), "keep"), bool)]] = True
            there = np.array(batch.column("out_row").is_valid(), bool)
            at, first = np.unique(row[there], return_index=True)
            found = filtered(batch.column("out_row"), there).to_numpy()[first]
            new = out_row[at] < 0  # a row's pairs may lie in two batches
            out_row[at[new]] = found[new]
        return cls(out_row, changed)


class _Feed:
    """A stream of batches about rising input rows, held one at a time."""

    def __init__(self, batches: Iterator[tuple[np.ndarray, pa.RecordBatch]], rows: int) -> None:
        self._batches = ((r, b) for r, b in batches if len(r))
        self._rows = rows
        self._held = next(self._batches, None)

    @property
    def told_below(self) -> int:
        """The batch held tells about all input rows below this one."""
        return self._rows if self._held is None else int(self._held[0][-1]) + 1

    def until(self, first: int, last: int) -> tuple[np.ndarray, pa.RecordBatch | None]:
        """Input rows in [first, last) less ``first``, (k,), and their batch (k); ``last`` is at most ``told_below``."""
        if self._held is None:
            return np.empty(0, np.int64), None
        rows, batch = self._held
        lo, hi = np.searchsorted(rows, [first, last])
        if hi == len(rows):
            self._held = next(self._batches, None)
        return rows[lo:hi] - first, batch.slice(lo, hi - lo)


def _merged(export: Exported, note: LedgerNote, rows: _Rows) -> Iterator[pa.Table]:
    """The input's table, in pieces."""
    cleaned = _Feed(_cleaned(export, rows), note.rows)
    originals = _Feed(_originals(export.ledger), note.rows)
    first = 0
    while first < note.rows:
        last = min(cleaned.told_below, originals.told_below)
        held, table = cleaned.until(first, last)
        aside, lines = originals.until(first, last)
        arrays = [
            _column(field, note.renamed.get(field.name, field.name), last - first, held, table, aside, lines)
            for field in note.schema
        ]
        for field, array in zip(note.schema, arrays, strict=True):
            if array is None:
                raise DataError(
                    f"{export.ledger} is damaged: it does not say what column {field.name!r} held in rows "
                    f"{first} to {last - 1} of the input"
                )
        yield pa.Table.from_arrays(arrays, schema=note.schema)
        first = last


def _cleaned(export: Exported, rows: _Rows) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Of each input row the first row of the cleaned file."""
    if export.format == "datasets":
        batches = iter_stored(export.out)
    else:
        batches = (batch for _, batch in iter_batches([str(export.out)], None, BATCH_ROWS))
    row = np.flatnonzero(rows.out_row >= 0)
    wanted = rows.out_row[row]
    first = 0
    for batch in batches:
        lo, hi = np.searchsorted(wanted, [first, first + len(batch)])
        yield row[lo:hi], taken(batch, wanted[lo:hi] - first)
        first += len(batch)


def _originals(ledger: Path) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """The ledger's lines with an original row."""
    for _, batch in iter_batches([str(ledger)], None, BATCH_ROWS):
        lines = filtered(batch, batch.column("original_columns").is_valid())
        yield lines.column("row").to_numpy(), lines


def _column(
    field: pa.Field,
    out_name: str,
    n: int,
    held: np.ndarray,
    table: pa.RecordBatch | None,
    aside: np.ndarray,
    lines: pa.RecordBatch | None,
) -> pa.Array | None:
    """A column (n,) as it was: the ledger's value where it has one, else the cleaned file's; None if one is missing."""
    index = np.full(n, -1, np.int64)
    pieces: list[pa.Array] = []
    total = 0
    if lines is not None:
        has = np.array([field.name in names for names in lines.column("original_columns").to_pylist()], bool)
        pieces.append(filtered(lines.column("original_row").field(field.name), has))
        index[aside[has]] = np.arange(has.sum())
        total = int(has.sum())
    left = np.flatnonzero(index[held] < 0)
    if table is not None and len(left):
        pieces.append(_as_type(taken(table.column(out_name), left), field.type))
        index[held[left]] = total + np.arange(len(left))
    if (index < 0).any():
        return None
    return taken(pa.concat_arrays(pieces), index)


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """``array`` in the input's type: an export makes lists and paths a little more general than they were."""
    if array.type.equals(kind):
        return array
    if pa.types.is_null(kind):  # of paths that were never there
        return pa.nulls(len(array))
    if pa.types.is_struct(array.type) and not pa.types.is_struct(kind):  # bytes that `datasets` keeps as an Image
        return _as_type(array.field("bytes"), kind)
    if pa.types.is_struct(kind):
        children = [_as_type(array.field(part.name), part.type) for part in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    return array.cast(kind)
