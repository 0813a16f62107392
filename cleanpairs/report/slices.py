"""How the pairs of each value of a column fared: the table that shows where a corpus is bad."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

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


def slice_tables(pairs: Pairs, outcome: Outcome, columns: Sequence[str]) -> list[dict[str, Any]]:
    """One table a column of the input, with a row a value; ``note`` says what is summed up.

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
        kind = _values(schema.field(name).type)
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise ConfigError(
                f"slice by {name!r}: it holds {kind}, and a slice needs text, numbers, dates or booleans, one a row"
            )
    table = pa.Table.from_batches(iter_tables(pairs.source, READ_ROWS, columns))
    return [_table(name, table[name], pairs, outcome) for name in columns]


def caption_lengths(pairs: Pairs, outcome: Outcome) -> list[dict[str, Any]]:
    """By the number of words of the caption (of characters, where hardly any has a space); none without a pair."""
    if not len(pairs):
        return []
    unit, sizes = "words", np.array([len((c or "").split()) for c in pairs.captions], np.float64)
    if np.median(sizes) <= 1:
        unit, sizes = "characters", np.array([len(c or "") for c in pairs.captions], np.float64)
    return [_aggregate(f"{unit} in the caption", *_ranges(sizes), outcome)]


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _table(name: str, column: pa.ChunkedArray, pairs: Pairs, outcome: Outcome) -> dict[str, Any]:
    column = column.cast(_values(column.type))
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        values = column.cast(pa.float64()).fill_null(np.nan).to_numpy()
        if len(np.unique(values[np.isfinite(values)])) > MANY:
            codes, names = _ranges(values)
            return _aggregate(name, codes[pairs.row], names, outcome)
    codes, found = pd.factorize(np.array(column.to_pylist(), dtype=object))
    of_pair = codes[pairs.row]
    top = np.argsort(-np.bincount(of_pair[of_pair >= 0], minlength=len(found)), kind="stable")[:TOP]
    place = np.full(len(found) + 1, len(top))
    place[top], place[-1] = np.arange(len(top)), -1
    names = [visible(found[i], 60) or "(empty)" for i in top]
    note = f"the {len(top)} most frequent of {len(found):,} values" if len(found) > len(top) else ""
    return _aggregate(name, place[of_pair], [*names, OTHERS] if note else names, outcome, note)


def _ranges(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Codes and names of ranges that hold about as many values each; NaN and infinities have the code -1."""
    known = np.isfinite(values)
    if not known.any():
        return np.full(len(values), -1), []
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, RANGES + 1), method="nearest"))
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, max(len(edges) - 2, 0))
    inside = pd.Series(values[known]).groupby(codes[known])
    ends = zip(inside.min(), inside.max(), strict=True)
    names = [f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}" for low, high in ends]
    return np.where(known, codes, -1), names


def _aggregate(column: str, codes: np.ndarray, names: list[str], outcome: Outcome, note: str = "") -> dict[str, Any]:
    """Of each value, in the order of ``names``, the pairs; of those with a score the share flagged and the mean; of all
    the share that is truly mismatched, NaN where that is not known.

    ``codes`` (N,): of the pairs, -1 for none.
    """
    y = outcome.correspondence
    pairs = pd.DataFrame({"y": y, "flagged": np.where(outcome.scored, y < outcome.threshold, np.nan)})
    pairs["wrong"] = np.nan if outcome.truth is None else outcome.truth
    values = pairs.groupby(np.where(codes < 0, len(names), codes))
    found = values.agg(pairs=("y", "size"), flagged=("flagged", "mean"), mean=("y", "mean"), wrong=("wrong", "mean"))
    found["value"] = [[*names, NONE][k] for k in found.index]
    return {"column": visible(column, 60), "rows": found.to_dict("records"), "note": note}
