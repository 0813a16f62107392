"""Parquet read to its last page, column by column, so that what is damaged has a name."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.commands.run import SCORES_SCHEMA
from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import error_text
from cleanpairs.data.parquet_io import open_parquet, read_table
from cleanpairs.verification.findings import Verification

_ROWS = 64  # of a column at once: a page of a compression bomb is not held whole, and images may be large


def read_pages(path: Path, findings: Verification) -> int | None:
    """Read every column of every row group, its page checksums verified; the rows, or None if it is no Parquet."""
    try:
        with open_parquet(str(path)) as file:
            return _read_pages(path, file, findings)
    except DataError as error:
        findings.wrong(path, str(error).removeprefix(f"{path} "), "footer")
        return None


def _read_pages(path: Path, file: pq.ParquetFile, findings: Verification) -> int:
    metadata = file.metadata
    for group in range(metadata.num_row_groups):
        expected = metadata.row_group(group).num_rows
        for name in dict.fromkeys(file.schema_arrow.names):
            place = f"row group {group}, column {name!r}"
            row = 0
            try:
                for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=[name]):
                    batch.validate(full=True)
                    row += len(batch)
            except (pa.ArrowException, OSError) as error:
                findings.wrong(path, f"damaged after row {row} of it: {error_text(error)}", place)
                continue
            if row != expected:
                findings.wrong(path, f"has {row:,} rows, and its row group {expected:,}", place)
    if sum(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)) != metadata.num_rows:
        findings.wrong(path, f"the row groups' rows do not add up to its {metadata.num_rows:,}", "footer")
    return int(metadata.num_rows)


def check_schema(path: Path, found: pa.Schema, wanted: pa.Schema, findings: Verification) -> bool:
    """Whether ``found`` has the columns of ``wanted``, with their types; what is missing or other is noted."""
    right = True
    for column in wanted:
        at = found.get_field_index(column.name)
        if at < 0:
            findings.wrong(path, "is missing", f"column {column.name!r}")
        elif found.field(at).type != column.type:
            findings.wrong(path, f"is {found.field(at).type}, not {column.type}", f"column {column.name!r}")
        else:
            continue
        right = False
    return right


def check_scores(path: Path, findings: Verification, pairs: int | None = None, threshold: float | None = None) -> int:
    """A scores table: one row a pair in order, correspondence in [0, 1] or null with a reason; the flagged, counted."""
    table = read_table(path)
    if not check_schema(path, table.schema, SCORES_SCHEMA, findings):
        return 0
    if pairs is not None and len(table) != pairs:
        findings.wrong(path, f"has {len(table):,} rows, and the run {pairs:,} pairs")
    ids = table["pair_id"]
    if ids.null_count or not np.array_equal(ids.to_numpy(), np.arange(len(table))):
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    score = table["correspondence"]
    known = np.array(score.is_valid(), bool)
    value = score.fill_null(0.5).to_numpy()
    findings.wrong_rows(path, "correspondence", ~((value >= 0) & (value <= 1)), "is not in [0, 1]")
    there = "has to be there exactly where the correspondence is"
    findings.wrong_rows(path, "reason", known == np.array(table["reason"].is_valid(), bool), f"{there} not")
    flags = table["is_mismatch"]
    findings.wrong_rows(path, "is_mismatch", known != np.array(flags.is_valid(), bool), there)
    flagged = np.array(flags.fill_null(False), bool)
    if threshold is not None:
        # As the table was made: scores of one precision against the threshold as Python has it.
        other = known & (flagged != (value.astype(np.float32) < threshold))
        findings.wrong_rows(path, "is_mismatch", other, f"is not whether the correspondence is below {threshold:g}")
    return int(flagged.sum())
