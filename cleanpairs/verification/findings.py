"""The findings of a verification, and the checks of tables: all pages of Parquet are read, column by column."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.commands.run import SCORES_SCHEMA
from cleanpairs.core import CleanpairsError, DataError, error_text, plural
from cleanpairs.data.parquet_io import open_parquet, read_table

_ROWS = 64  # of a column at once: a compression bomb's page is not unpacked whole, and images may be large


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``place``: the part of the file, such as ``row group 2, column 'caption'``, or ""."""

    file: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.what}"


@dataclass
class Verification:
    """The checks, one line each, the problems, and notes on what is unusual but not wrong."""

    path: Path
    kind: str
    checked: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.kind}"]
        lines += [f"  ok     {line}" for line in self.checked]
        lines += [f"  note   {line}" for line in self.notes]
        lines += [f"  WRONG  {problem}" for problem in self.problems]
        return "\n".join(" ".join(line.splitlines()) for line in lines)  # a file's name may have several lines

    def wrong(self, file: str | Path, what: str, place: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem(str(file), place, what))

    def wrong_rows(self, file: str | Path, column: str, bad: np.ndarray, what: str) -> None:
        """Note the first of the rows ``bad`` (n,) bool of a column, and how many more there are."""
        rows = np.flatnonzero(bad)
        if len(rows):
            more = f" (and in {plural(len(rows) - 1, 'more row')})" if len(rows) > 1 else ""
            self.wrong(file, what + more, f"row {rows[0]}, column {column!r}")

    @contextmanager
    def section(self, line: str, file: str | Path) -> Iterator[None]:
        """Note ``line`` as checked if the block finds nothing wrong. A CleanpairsError in it becomes a problem."""
        before = len(self.problems)
        try:
            yield
        except CleanpairsError as error:
            text = str(error)
            self.wrong(file, text.removeprefix(f"{file} ").removeprefix(f"{file}: "))
        if len(self.problems) == before:
            self.checked.append(line)


def read_pages(path: Path, findings: Verification) -> int | None:
    """Read every column of every row group, and verify page checksums. Return the rows, or None if it is no Parquet."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_parquet(str(path)))
        except DataError as error:
            findings.wrong(path, str(error).removeprefix(f"{path} "), "footer")
            return None
        metadata = file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        odd: set[str] = set()
        for group, expected in enumerate(sizes):
            for name in dict.fromkeys(file.schema_arrow.names):
                place, row = f"row group {group}, column {name!r}", 0
                try:
                    for batch in file.iter_batches(batch_size=_ROWS, row_groups=[group], columns=[name]):
                        try:
                            batch.validate(full=True)
                        except pa.ArrowInvalid as error:
                            if "Invalid UTF8" not in str(error):
                                raise
                            odd.add(name)  # the input had it, unless the file is damaged
                        row += len(batch)
                except (pa.ArrowException, OSError) as error:
                    findings.wrong(path, f"damaged after row {row} of it: {error_text(error)}", place)
                    continue
                if row != expected:
                    findings.wrong(path, f"has {plural(row, 'row')}, and its row group {expected:,}", place)
        if sum(sizes) != metadata.num_rows:
            findings.wrong(path, f"the row groups' rows do not add up to its {metadata.num_rows:,}", "footer")
        findings.notes += [f"{path.name}: column {name!r} holds text that is not UTF-8" for name in sorted(odd)]
        return int(metadata.num_rows)


def check_schema(path: Path, schema: pa.Schema, wanted: pa.Schema, findings: Verification) -> bool:
    """Whether ``schema`` has the columns of ``wanted``, with their types. Missing and other columns are noted."""
    before = len(findings.problems)
    for column in wanted:
        at = schema.get_field_index(column.name)
        if at < 0:
            findings.wrong(path, "is missing", f"column {column.name!r}")
        elif schema.field(at).type != column.type:
            findings.wrong(path, f"is {schema.field(at).type}, not {column.type}", f"column {column.name!r}")
    return len(findings.problems) == before


def check_scores(path: Path, findings: Verification, pairs: int | None = None, threshold: float | None = None) -> int:
    """Check a scores table: one row a pair in order, scores in [0, 1] or null with a reason. Return the flagged."""
    table = read_table(path)
    if not check_schema(path, table.schema, SCORES_SCHEMA, findings):
        return 0
    if pairs is not None and len(table) != pairs:
        findings.wrong(path, f"has {plural(len(table), 'row')}, and the run {plural(pairs, 'pair')}")
    ids = table["pair_id"]
    if ids.null_count or not np.array_equal(ids.to_numpy(), np.arange(len(table))):
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    score = table["correspondence"]
    valid = np.array(score.is_valid(), bool)
    value = score.fill_null(0.5).to_numpy()
    findings.wrong_rows(path, "correspondence", ~((value >= 0) & (value <= 1)), "is not in [0, 1]")
    present = "has to be there exactly where the correspondence is"
    findings.wrong_rows(path, "reason", valid == np.array(table["reason"].is_valid(), bool), f"{present} not")
    flags = table["is_mismatch"]
    findings.wrong_rows(path, "is_mismatch", valid != np.array(flags.is_valid(), bool), present)
    flagged = np.array(flags.fill_null(False), bool)
    if threshold is not None:
        # As the table was made: scores of one precision against the threshold as Python has it.
        other = valid & (flagged != (value.astype(np.float32) < threshold))
        findings.wrong_rows(path, "is_mismatch", other, f"is not whether the correspondence is below {threshold:g}")
    return int(flagged.sum())
