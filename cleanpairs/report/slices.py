"""How the pairs of each value of a column fared: the table that shows where a corpus is bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import nearest
from cleanpairs.data import iter_tables
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import Outcome

TOP = 20  # values shown; the rest is summed up
MANY = 20  # distinct numbers; more are put into ranges
RANGES = 6
READ_ROWS = 8_192
NONE, OTHERS = "(none)", "all others"


@dataclass(frozen=True)
class SliceRow:
    """Of one value: ``pairs``; ``flagged``, a share of those with a score, as ``mean``; NaN where there is none."""

    value: str
    pairs: int
    flagged: float
    mean: float
    wrong: float | None  # share that is truly mismatched, where the truth is known


@dataclass(frozen=True)
class SliceTable:
    """Rows by value; ``note`` says what is summed up."""

    column: str
    rows: list[SliceRow]
    note: str


def slice_tables(pairs: Pairs, outcome: Outcome, columns: Sequence[str]) -> list[SliceTable]:
    """One table a column of the input.

    Text, numbers, dates and booleans can be sliced by. Of many different numbers there are ranges that hold about as
    many rows each.

    Raises ConfigError: the input has no such column, or it holds lists, structs or bytes; DataError: the pairs were
    only ever in memory, so there are no columns.
    """
    if not columns:
        return []
    schema = next(iter(iter_tables(pairs.source, 1))).schema
    for name in columns:
        if name not in schema.names:
            raise ConfigError(
                f"slice by {name!r}: the input has no such column{nearest(name, schema.names)} "
                f"(it has: {', '.join(schema.names)})"
            )
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise ConfigError(
                f"slice by {name!r}: it holds {kind}, and a slice needs text, numbers, dates or booleans, one a row"
            )
    parts: dict[str, list[Any]] = {name: [] for name in columns}
    for batch in iter_tables(pairs.source, READ_ROWS, columns):
        for name in columns:
            parts[name].append(batch.column(batch.schema.get_field_index(name)))
    return [_table(name, _values(pa.chunked_array(parts[name])), pairs, outcome) for name in columns]


def caption_lengths(pairs: Pairs, outcome: Outcome) -> SliceTable | None:
    """By the number of words of the caption (of characters, where hardly any has a space); None without a pair."""
    if not len(pairs):
        return None
    words = np.array([len((c or "").split()) for c in pairs.captions], dtype=np.int64)
    unit = "words"
    if np.median(words) <= 1:
        words, unit = np.array([len(c or "") for c in pairs.captions], dtype=np.int64), "characters"
    codes, names = _ranges(words.astype(np.float64))
    return _aggregate(f"{unit} in the caption", codes, names, outcome)


def _values(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str], bool]:
    """Code (rows,) of each row, -1 for none; the names of the codes; whether their order is one of numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if number:
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy()
        known = values[np.isfinite(values)]
        if len(np.unique(known)) > MANY:
            return *_ranges(values), True
    coded = pc.dictionary_encode(column)
    coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
    if isinstance(coded, pa.ChunkedArray):  # no chunk at all
        return np.empty(0, np.int64), [], False
    names = [visible(v, 60) or "(empty)" for v in coded.dictionary.to_pylist()]
    return coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), names, False


def _ranges(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Codes and names of ranges that hold about as many values each; NaN and infinities have the code -1."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64), []
    edges = np.unique(np.quantile(known, np.linspace(0, 1, RANGES + 1), method="nearest"))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(len(edges) - 2, 0))
    names = []
    for k in range(max(len(edges) - 1, 1)):
        inside = known[np.clip(np.searchsorted(edges, known, side="right") - 1, 0, max(len(edges) - 2, 0)) == k]
        low, high = (inside.min(), inside.max()) if len(inside) else (edges[k], edges[k])
        names.append(f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}")
    return np.where(np.isfinite(values), codes, -1).astype(np.int64), names


def _table(name: str, values: tuple[np.ndarray, list[str], bool], pairs: Pairs, outcome: Outcome) -> SliceTable:
    codes, names, ordered = values
    of_pair = codes[pairs.row] if len(codes) else np.empty(0, np.int64)
    if ordered:
        return _aggregate(name, of_pair, names, outcome)
    count = np.bincount(of_pair[of_pair >= 0], minlength=len(names))
    top = np.argsort(-count, kind="stable")[:TOP]
    place = np.full(len(names) + 1, len(top), dtype=np.int64)
    place[top] = np.arange(len(top))
    place[-1] = -1
    shown = [names[i] for i in top] + ([OTHERS] if len(names) > len(top) else [])
    rest = f"the {len(top)} most frequent of {len(names):,} values" if len(names) > len(top) else ""
    return _aggregate(name, place[of_pair], shown, outcome, rest)


def _aggregate(column: str, codes: np.ndarray, names: list[str], outcome: Outcome, note: str = "") -> SliceTable:
    """Codes (N,) of the pairs, -1 for none; rows in the order of ``names``."""
    n = len(names)
    at = np.where(codes < 0, n, codes)
    y, scored = outcome.correspondence, outcome.scored
    total = np.bincount(at, minlength=n + 1)
    known = np.bincount(at[scored], minlength=n + 1)
    flagged = np.bincount(at[scored & (np.nan_to_num(y, nan=1.0) < outcome.threshold)], minlength=n + 1)
    sums = np.bincount(at[scored], weights=y[scored], minlength=n + 1)
    wrong = None if outcome.truth is None else np.bincount(at[outcome.truth], minlength=n + 1)
    rows = [
        SliceRow(
            value,
            int(total[k]),
            float(flagged[k] / known[k]) if known[k] else float("nan"),
            float(sums[k] / known[k]) if known[k] else float("nan"),
            None if wrong is None else float(wrong[k] / total[k]),
        )
        for k, value in enumerate([*names, NONE])
        if total[k]
    ]
    return SliceTable(visible(column, 60), rows, note)
