"""An export undone: the input's table written again, from the cleaned file and what the ledger keeps of the rest."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import ConfigError, DataError, OutputExistsError, plural
from cleanpairs.data import ParquetSink, staged_file
from cleanpairs.data.formats.datasets_directory import iter_arrow, stored_files
from cleanpairs.data.guard import same_file
from cleanpairs.data.parquet_io import count_rows, iter_batches
from cleanpairs.export.ledger import REVERSIBLE, LedgerNote
from cleanpairs.export.manifest import BATCH_ROWS, Exported, open_export
from cleanpairs.ops.columns import filtered, nullable_type, one_array, plain_schema, recast, taken


@dataclass(frozen=True)
class RestoreSummary:
    """The counts of the table that was written to ``path``.

    The export had left some rows ``unchanged``. Others it had repaired, or had removed captions from them (``undone``).
    The rest it had dropped or quarantined (``returned``).
    """

    path: Path
    rows: int
    columns: int
    unchanged: int
    undone: int
    returned: int

    def __str__(self) -> str:
        return (
            f"{plural(self.rows, 'row')} of {plural(self.columns, 'column')} restored: {self.unchanged:,} unchanged, "
            f"{self.undone:,} changed back, {self.returned:,} dropped before and now back\n"
            f"restored: {self.path}"
        )


def restore_export(
    out: str | Path, to: str | Path, *, ledger: str | Path | None = None, overwrite: bool = False
) -> RestoreSummary:
    """Write the table again that :func:`cleanpairs.export.export_pairs` read.

    Parameters
    ----------
    out : str or Path
        The cleaned Parquet file, or `datasets` directory, its manifest beside it.
    to : str or Path
        Parquet to write.
    ledger : str or Path, optional
        Path of the ledger. The default is the manifest's.
    overwrite : bool
        Whether ``to`` is replaced.

    Returns
    -------
    RestoreSummary
        The counts and the file.

    Raises
    ------
    ConfigError
        The export is of another format, or ``to`` has a name of one.
    DataError
        A file is missing, is not as it was exported (SHA-256), or cannot be read.
    OutputExistsError, OutputError
        ``to`` exists, is a file of the export or an input of other rows, or cannot be written.

    Notes
    -----
    The tables are equal (``pyarrow.Table.equals``, metadata too), not their bytes. Captions in texts that spell lists
    come back as lists, and several files, tars, or a CSV with its images as one Parquet file. Rows beyond a ``limit``
    with which the input was read do not come back.
    """
    export = open_export(out, ledger)
    if export.format not in REVERSIBLE:
        message = f"{export.out} is an export as {export.format}: only {' and '.join(REVERSIBLE)} can be restored. "
        raise ConfigError(f"{message}The input is still where it was, and {export.ledger.path} says what was changed")
    export.check(export.ledger)
    note = LedgerNote.read(export.ledger.path)
    export.check(*export.parts)
    _refuse_other_input(export, Path(to), note.rows)
    if Path(to).suffix.lower() in (".csv", ".tsv", ".jsonl", ".tar"):
        raise ConfigError(f"restore writes Parquet, and {to} is named like another format: name a .parquet file")
    unchanged = undone = returned = 0
    with (
        staged_file(to, overwrite=overwrite, inputs=[export.out, export.ledger.path, export.manifest]) as staged,
        ParquetSink(staged, note.schema, image_feature=False) as sink,
    ):
        for table, kept, changed in _restored(export, note):
            sink.write(table)
            unchanged += int((kept & ~changed).sum())
            undone += int((kept & changed).sum())
            returned += int((~kept).sum())
        if open_export(out, ledger) != export:
            raise DataError(f"{export.out} was exported again meanwhile: restore it anew")
    return RestoreSummary(Path(to), sink.rows, len(note.schema), unchanged, undone, returned)


def _refuse_other_input(export: Exported, to: Path, rows: int) -> None:
    """OutputExistsError where ``to`` is an input of the export, and not a Parquet file of so many ``rows``."""
    if not any(same_file(to, path) for path in export.inputs):
        return
    with suppress(DataError):
        if count_rows([str(to)]) == [rows]:
            return
    raise OutputExistsError(f"{to} is an input of the export, with other rows than come back: name another output")


def _restored(export: Exported, note: LedgerNote) -> Iterator[tuple[pa.Table, np.ndarray, np.ndarray]]:
    """The input's table in pieces, and which rows of each the cleaned data has, and which the export changed."""
    cleaned, first, schema = _Cleaned(export), 0, plain_schema(note.schema)
    for lines in _lines(export.ledger.path):
        rows, at, place = np.unique(lines["row"], return_index=True, return_inverse=True)
        last = first + len(rows)
        if not np.array_equal(rows, np.arange(first, last)) or last > note.rows:
            raise DataError(f"{export.ledger.path} is damaged: it has row {rows[-1]} of an input of {note.rows} rows")
        changed = np.zeros(len(rows), bool)
        changed[place[np.array(pc.not_equal(lines["action"], "keep"), bool)]] = True
        out_row = np.full(len(rows), -1)
        written = np.flatnonzero(lines["out_row"].is_valid())[::-1]  # of several rows the first one stays
        out_row[place[written]] = lines["out_row"].fill_null(-1).to_numpy()[written]
        kept = out_row >= 0
        table = cleaned.rows_at(out_row[kept])
        stored = taken(lines.select(["original_columns", "original_row"]), at)
        names, originals = stored["original_columns"].to_pylist(), one_array(stored["original_row"])
        columns = []
        for field in schema:
            in_ledger = np.array([field.name in (noted or ()) for noted in names], bool)
            if not (in_ledger | kept).all():
                where = f"column {field.name!r}, rows {first} to {last - 1} of the input"
                raise DataError(f"{export.ledger.path} is damaged: it lacks the values of {where}")
            pieces = [_as_type(filtered(originals.field(field.name), in_ledger), field.type)]
            if not in_ledger.all():
                remaining = filtered(table[note.renamed.get(field.name, field.name)], ~in_ledger[kept])
                pieces.append(_as_type(one_array(remaining), field.type))
            back = np.argsort(np.argsort(~in_ledger, kind="stable"))
            columns.append(taken(pa.concat_arrays(pieces), back))
        yield pa.Table.from_arrays(columns, schema=schema), kept, changed
        first = last
    if first != note.rows:
        raise DataError(f"{export.ledger.path} is damaged: it ends at row {first} of an input of {note.rows} rows")


def _lines(ledger: Path) -> Iterator[pa.Table]:
    """The ledger in pieces, in which all pairs of a row are together."""
    left: list[pa.RecordBatch] = []
    last = -1
    for _, batch in iter_batches([str(ledger)], None, BATCH_ROWS):
        row = batch.column("row").to_numpy()
        cut = int(np.searchsorted(row, row[-1]))
        if cut or (left and row[0] != last):
            yield pa.Table.from_batches([*left, batch.slice(0, cut)])
            left = []
        left.append(batch.slice(cut))
        last = row[-1]
    if left:
        yield pa.Table.from_batches(left)


class _Cleaned:
    """The rows of the cleaned data, read in order."""

    def __init__(self, export: Exported) -> None:
        if export.format == "datasets":
            files = stored_files(export.out)
            self._batches = (batch for file in files for batch in iter_arrow(file, None, BATCH_ROWS))
        else:
            self._batches = (batch for _, batch in iter_batches([str(export.out)], None, BATCH_ROWS))
        self._batch = next(self._batches, None)
        self._first = 0  # the first row of the batch

    def rows_at(self, rows: np.ndarray) -> pa.Table:
        """The rows numbered ``rows`` (k,), rising, beyond those of the call before."""
        pieces = []
        while self._batch is not None and len(rows):
            lo, hi = self._first, self._first + len(self._batch)
            pieces.append(taken(self._batch, rows[rows < hi] - lo))
            rows = rows[rows >= hi]
            if len(rows):
                self._first, self._batch = hi, next(self._batches, None)
        return pa.Table.from_batches(pieces) if pieces else pa.table({})


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """``array`` in the input's type: an export makes lists and paths a little more general than they were."""
    if array.type.equals(kind):
        return array
    if pa.types.is_null(kind):  # of paths that were never there
        return pa.nulls(len(array))
    if pa.types.is_struct(array.type) and not pa.types.is_struct(kind):  # bytes that `datasets` keeps as an Image
        return _as_type(array.field("bytes"), kind)
    if pa.types.is_struct(kind):
        names = [part.name for part in kind]
        # By place where it can be, as names may repeat.
        parts = range(len(names)) if names == [part.name for part in array.type] else names
        children = [_part(_as_type(array.field(name), part.type), part) for name, part in zip(parts, kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_nested(kind) and not nullable_type(kind).equals(kind):
        return pa.array(array.to_pylist(), kind)
    return recast(array, kind)


def _part(values: pa.Array, part: pa.Field) -> pa.Array:
    """The values of a part of a struct. Where the struct is null, any value if the part may not be null."""
    if part.nullable or not values.null_count:
        return values
    other = pa.array([None], pa.struct([part])).field(0)
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return taken(pa.concat_arrays([values, other]), np.where(valid, np.arange(len(values)), len(values)))
