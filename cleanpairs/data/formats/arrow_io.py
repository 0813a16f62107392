"""Arrow IPC files, memory-mapped, in small batches, with errors that name the file.

Batches are validated in full before they are used: a damaged file would otherwise end in a signal. An IPC stream that
was cut between two batches reads back short without an error, so its end is looked for.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular, reading
from cleanpairs.ops.columns import plain_batch, plain_schema

_MAGIC = b"ARROW1"  # of the file format; streams begin with the length of their first message
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BATCH_BYTES = 32 * 2**20


def _named(path: str) -> AbstractContextManager[None]:
    return reading(path, "read as Arrow", pa.ArrowException, UnicodeDecodeError)


def _mapped(path: str) -> pa.Table:
    """The rows of a file or a stream, of which only the headers are read."""
    with _named(path):
        with open_regular(path) as file:
            begin = file.read(len(_MAGIC))
            file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
            end = file.read()
        if begin != _MAGIC and end != _END:
            raise DataError(f"{path} is cut short, or no Arrow file: it lacks the mark of its end; write it again")
        opened = pa.ipc.open_file if begin == _MAGIC else pa.ipc.open_stream
        table = opened(pa.memory_map(path)).read_all()
        _check_names(table.schema)
    if len(set(table.column_names)) != len(table.column_names):
        raise DataError(f"{path} has a column more than once: {', '.join(table.column_names)}")
    return table


def _check_names(kind: pa.Schema | pa.DataType) -> None:
    """UnicodeDecodeError where the name of a column, or of a part of one, is not UTF-8."""
    fields = kind if isinstance(kind, pa.Schema) else [kind.field(i) for i in range(kind.num_fields)]
    for field in fields:
        _ = field.name
        _check_names(field.type)


def arrow_schema(paths: Sequence[str]) -> pa.Schema:
    """The schema that all files share. Raises DataError: one cannot be read, or they differ."""
    first, *others = (plain_schema(_mapped(path).schema) for path in paths)
    for path, schema in zip(paths[1:], others, strict=True):
        if not first.equals(schema):
            raise DataError(f"{path} has other columns than {paths[0]}: {schema.names} and {first.names}")
    return first


def count_arrow_rows(path: str) -> int:
    """Rows of a file; its batches are mapped, not read."""
    return len(_mapped(path))


def iter_arrow(path: str, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, at most ``batch_rows`` at once and fewer where rows are large; all columns when None."""
    table = _mapped(path)
    for whole in (table if columns is None else table.select(list(columns))).to_batches():
        with _named(path):
            whole.validate(full=True)
            batch = plain_batch(whole)
        step = max(1, min(batch_rows, int(_BATCH_BYTES * len(batch) / max(batch.nbytes, 1))))
        for start in range(0, len(batch), step):
            yield batch.slice(start, step)
