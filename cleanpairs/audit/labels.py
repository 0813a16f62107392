"""The labels that a person gave, read back from the CSV as spreadsheets leave it."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_bytes, reading
from cleanpairs.data.display import visible
from cleanpairs.repair.editing import same_key

MATCHED = {"1", "1.0", "1,0", "yes", "true", "y", "t", "matched", "match", "✓"}
MISMATCHED = {"0", "0.0", "0,0", "no", "false", "n", "f", "mismatched", "mismatch", "✗"}
LEFT_OUT = {"", "?", "unsure", "-"}
NEEDED = ("pair_id", "key", "stratum", "matched")
KEY_LENGTH = 200  # characters of a key in the form
ROUNDING = 1e-6  # of an edge in the form


def read_labels(path: str | Path, *, keys: Sequence[str], correspondence: ArrayLike) -> AuditSample:
    """The sample that was drawn, with labels, out of the CSV (or of the page's).

    Rows may be in any order, and some missing. Commas, semicolons and tabs separate; columns beyond :data:`NEEDED` are
    not needed, and ``matched`` holds one of :data:`MATCHED`, :data:`MISMATCHED` or :data:`LEFT_OUT`. What each row
    stands for is computed anew, out of the strata, and ``keys`` and ``correspondence`` (N,) of all pairs of the run.

    Raises DataError: not readable, a value that is none of its column's (with line and column), or labels of other
    pairs.
    """
    path, y = Path(path), np.asarray(correspondence, dtype=np.float64).ravel()
    lines: dict[int, int] = {}  # of each pair
    matched: list[float] = []
    strata: set[tuple[float, float]] = set()
    for line, row in _rows(path):
        where = f"{path}, line {line}, column"
        i = _pair_id(where, row, keys, y)
        if i in lines:
            raise DataError(f"{where} pair_id: the pair {i} is in line {lines[i]} already")
        lines[i] = line
        strata.add(_stratum(where, row["stratum"], float(y[i])))
        matched.append(_label(where, row["matched"]))
    if not lines:
        raise DataError(f"{path} holds no row below its header")
    edges = np.unique([0.0, 1.0, *(e for pair in strata for e in pair)])  # also of those of which no row is left
    for low, high in strata:
        if ((edges > low) & (edges < high)).any():
            raise DataError(f"{path}: the strata overlap ({low:g} to {high:g}); are these rows of two audits?")
    return AuditSample.of(np.array(list(lines), dtype=np.int64), edges, y, np.array(matched))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The line and the :data:`NEEDED` fields of each row."""
    with reading(f"the labels {path}"):
        raw = read_bytes(path)
    try:
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save it as 'CSV UTF-8' from the spreadsheet") from error
    lines = list(io.StringIO(text, newline=""))
    # a spreadsheet's note to itself, and empty lines
    first = next((k for k, one in enumerate(lines) if one.strip() and not one.lower().startswith("sep=")), len(lines))
    head = lines[first] if lines[first:] else ""
    reader = csv.DictReader(lines[first:], delimiter=max(",;\t", key=head.count), restval="")
    try:
        reader.fieldnames = names = [name.strip().lower() for name in reader.fieldnames or NEEDED]
        if missing := [name for name in NEEDED if name not in names]:
            raise DataError(
                f"{path}, line {first + 1}: an audit has the columns {', '.join(NEEDED)}; {missing[0]} is missing "
                f"(found: {', '.join(names)[:200]})"
            )
        for fields in reader:
            row = {name: fields[name].strip() for name in NEEDED}
            if any(row.values()):
                yield first + reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {first + reader.line_num} cannot be read as CSV: {error}") from error


def _pair_id(where: str, row: dict[str, str], keys: Sequence[str], y: np.ndarray) -> int:
    try:
        number = float(row["pair_id"].replace(",", "."))
        i = int(number) if number == int(number) else -1
    except (ValueError, OverflowError):
        i = -1
    if not 0 <= i < len(y) or i >= len(keys):
        raise DataError(
            f"{where} pair_id: a whole number from 0 to {len(y) - 1} is needed, found {row['pair_id'][:40]!r}; "
            "are these the labels of another run?"
        )
    shown = visible(keys[i], KEY_LENGTH)
    if row["key"] != "'" + shown and not same_key(row["key"], shown):
        raise DataError(
            f"{where} key: pair {i} of the run has the key {keys[i][:60]!r}, found {row['key'][:60]!r}; these labels "
            "are of another run, or the spreadsheet has rewritten the key (import that column as text, or label in "
            "the page)"
        )
    if not np.isfinite(y[i]):
        raise DataError(f"{where} pair_id: pair {i} is quarantined in this run; it was drawn from other scores")
    return i


def _stratum(where: str, told: str, score: float) -> tuple[float, float]:
    low, _, high = told.partition(" to ")
    try:
        edges = float(low), float(high)
    except ValueError:
        edges = (math.nan, math.nan)
    if not 0 <= edges[0] < edges[1] <= 1:
        raise DataError(f"{where} stratum: two edges such as '0.05 to 0.2' are needed, found {told[:40]!r}")
    if not edges[0] - ROUNDING <= score <= edges[1] + ROUNDING:
        raise DataError(
            f"{where} stratum: the pair was drawn from {told}, and its correspondence in this run is {score:.6g}: the "
            "scores are others than those of the audit; draw another"
        )
    return edges


def _label(where: str, told: str) -> float:
    for values, label in ((MATCHED, 1.0), (MISMATCHED, 0.0), (LEFT_OUT, math.nan)):
        if told.lower() in values:
            return label
    raise DataError(
        f"{where} matched: 1 or 0, yes or no, true or false, matched or mismatched are understood, nothing and ? leave "
        f"the pair out; found {told[:40]!r}"
    )
