"""The labels that a person gave, read back from the CSV as spreadsheets leave it."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Row:
    line: int
    fields: dict[str, str]


def read_labels(path: str | Path, *, keys: Sequence[str], correspondence: ArrayLike) -> AuditSample:
    """The sample that was drawn, with labels, out of the CSV (or of the page's).

    Rows may be in any order, and some missing. Commas, semicolons and tabs separate; columns beyond :data:`NEEDED` are
    not needed, and ``matched`` holds one of :data:`MATCHED`, :data:`MISMATCHED` or :data:`LEFT_OUT`. What each row
    stands for is computed anew, out of the strata, and ``keys`` and ``correspondence`` (N,) of all pairs of the run.

    Raises DataError: not readable, a value that is none of its column's (with line and column), or labels of other
    pairs.
    """
    path, y = Path(path), np.asarray(correspondence, dtype=np.float64).ravel()
    ids: list[int] = []
    matched: list[float] = []
    strata: list[tuple[float, float]] = []
    seen: dict[int, int] = {}
    for row in _rows(path):
        i = _pair_id(path, row, keys, y)
        if i in seen:
            raise DataError(f"{path}, line {row.line}, column pair_id: the pair {i} is in line {seen[i]} already")
        seen[i] = row.line
        ids.append(i)
        strata.append(_stratum(path, row, float(y[i])))
        matched.append(_label(path, row))
    if not ids:
        raise DataError(f"{path} holds no row below its header")
    edges = _edges(path, strata)
    return AuditSample.of(np.array(ids, dtype=np.int64), edges, y, np.array(matched))


def _rows(path: Path) -> Iterator[_Row]:
    with reading(f"the labels {path}"):
        raw = read_bytes(path)
    try:
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8; save it as 'CSV UTF-8' from the spreadsheet") from error
    lines = list(io.StringIO(text, newline=""))
    if lines and lines[0].lower().startswith("sep="):  # a spreadsheet's note to itself
        lines[0] = "\n"
    head = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(lines, delimiter=delimiter)
    names: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            start, line = line, reader.line_num + 1
            if not any(f.strip() for f in fields):
                continue
            if names is None:
                names = [f.strip().lower() for f in fields]
                missing = [n for n in NEEDED if n not in names]
                if missing:
                    raise DataError(
                        f"{path}, line {start}: an audit has the columns {', '.join(NEEDED)}; {missing[0]} is missing "
                        f"(found: {', '.join(names)[:200]})"
                    )
                continue
            yield _Row(start, dict(zip(names, [f.strip() for f in fields] + [""] * len(names), strict=False)))
    except csv.Error as error:
        raise DataError(f"{path}, line {line} cannot be read as CSV: {error}") from error


def _pair_id(path: Path, row: _Row, keys: Sequence[str], y: np.ndarray) -> int:
    value = row.fields["pair_id"].replace(",", ".")
    try:
        number = float(value)
        i = int(number) if number == int(number) else -1
    except (ValueError, OverflowError):
        i = -1
    if not 0 <= i < len(y) or i >= len(keys):
        raise DataError(
            f"{path}, line {row.line}, column pair_id: a whole number from 0 to {len(y) - 1} is needed, found "
            f"{row.fields['pair_id'][:40]!r}; are these the labels of another run?"
        )
    if not _same_key(row.fields["key"], keys[i]):
        raise DataError(
            f"{path}, line {row.line}, column key: pair {i} of the run has the key {keys[i][:60]!r}, found "
            f"{row.fields['key'][:60]!r}; these labels are of another run, or the spreadsheet has rewritten the key "
            "(import that column as text, or label in the page)"
        )
    if not np.isfinite(y[i]):
        raise DataError(f"{path}, line {row.line}: pair {i} is quarantined in this run; it was drawn from other scores")
    return i


def _same_key(told: str, key: str) -> bool:
    shown = visible(key, KEY_LENGTH)
    return told == "'" + shown or same_key(told, shown)


def _stratum(path: Path, row: _Row, score: float) -> tuple[float, float]:
    low, _, high = row.fields["stratum"].partition(" to ")
    try:
        edges = float(low), float(high)
    except ValueError:
        edges = (math.nan, math.nan)
    if not 0 <= edges[0] < edges[1] <= 1:
        raise DataError(
            f"{path}, line {row.line}, column stratum: two edges such as '0.05 to 0.2' are needed, found "
            f"{row.fields['stratum'][:40]!r}"
        )
    if not edges[0] - ROUNDING <= score <= edges[1] + ROUNDING:
        raise DataError(
            f"{path}, line {row.line}, column stratum: the pair was drawn from {row.fields['stratum']}, and its "
            f"correspondence in this run is {score:.6g}: the scores are others than those of the audit; draw another"
        )
    return edges


def _edges(path: Path, strata: list[tuple[float, float]]) -> np.ndarray:
    """(H + 1,): the strata that are left, and those between them, of which no row is."""
    edges = np.unique([0.0, 1.0, *(e for pair in strata for e in pair)])
    for low, high in set(strata):
        if ((edges > low) & (edges < high)).any():
            raise DataError(f"{path}: the strata overlap ({low:g} to {high:g}); are these rows of two audits?")
    return edges


def _label(path: Path, row: _Row) -> float:
    value = row.fields["matched"].lower()
    if value in MATCHED:
        return 1.0
    if value in MISMATCHED:
        return 0.0
    if value in LEFT_OUT:
        return math.nan
    raise DataError(
        f"{path}, line {row.line}, column matched: 1 or 0, yes or no, true or false, matched or mismatched are "
        f"understood, nothing and ? leave the pair out; found {row.fields['matched'][:40]!r}"
    )
