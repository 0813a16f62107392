"""The types of the columns of records, and records as columns of these types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file
from cleanpairs.data.columns import is_score
from cleanpairs.data.formats.records import Record, csv_header, iter_csv, iter_json

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_AT_ONCE = 1000


def iter_records(path: str, encoding: str | None = None) -> Iterator[Record]:
    """The records of a file, by its ending."""
    return iter_json(path) if path.endswith(JSON_ENDINGS) else iter_csv(path, encoding)


@cached_by_file(64)
def table_of(path: str, encoding: str | None = None) -> tuple[pa.Schema, int]:
    """The schema of a file of records, and how many they are; it is read through for that, once.

    The columns of CSV are text, but for given similarities (numbers) and ``true_mismatch`` (bool). In JSON a column
    whose values do not go together becomes their JSON, as text.
    """
    if not path.endswith(JSON_ENDINGS):
        kinds = {
            name: pa.float64() if is_score(name, pa.float64()) else pa.string()
            for name in csv_header(path, encoding)[0]
        }
        if "true_mismatch" in kinds:
            kinds["true_mismatch"] = pa.bool_()
        return pa.schema(list(kinds.items())), sum(1 for _ in iter_csv(path, encoding))
    found: dict[str, pa.DataType] = {}
    n = 0
    records = iter_json(path)
    while chunk := list(islice(records, _AT_ONCE)):
        n += len(chunk)
        for name in dict.fromkeys(name for record in chunk for name in record.values):
            kind = _inferred([record.values.get(name) for record in chunk])
            found[name] = _united(found.get(name, pa.null()), kind)
    return pa.schema([(name, pa.string() if pa.types.is_null(kind) else kind) for name, kind in found.items()]), n


def _inferred(values: Sequence[Any]) -> pa.DataType:
    try:
        kind = pa.infer_type(values)
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return pa.string()
    return pa.string() if pa.types.is_struct(kind) and not kind.num_fields else kind


def _united(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    try:
        return pa.unify_schemas([pa.schema([("x", a)]), pa.schema([("x", b)])], promote_options="permissive").types[0]
    except pa.ArrowException:
        return pa.string()


def column(name: str, kind: pa.DataType, records: Sequence[Record], path: str) -> pa.Array:
    """The values (n,) of one column; null where a record has none.

    Raises DataError: ``true_mismatch`` of a CSV holds something else than true and false.
    """
    values = [record.values.get(name) for record in records]
    if pa.types.is_string(kind):
        return pa.array([v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values])
    if not path.endswith(JSON_ENDINGS):
        if pa.types.is_boolean(kind):
            return pa.array([_true(v, record, path) for v, record in zip(values, records, strict=True)], kind)
        return pa.array([_number(v) for v in values], kind)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        lines = f"lines {records[0].line} to {records[-1].line}"
        raise DataError(f"{path}, {lines}: column {name!r} cannot be read as {kind}: {error}") from error


def _true(value: str | None, record: Record, path: str) -> bool | None:
    if value is None or not value.strip():
        return None
    if value.strip().lower() not in _TRUTH:
        raise DataError(f"{path}, line {record.line}: true_mismatch must be true or false, found {value[:50]!r}")
    return _TRUTH[value.strip().lower()]


def _number(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
