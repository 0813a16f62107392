"""Arrow IPC files, memory-mapped, as streams of small batches, with errors that name the file.

Batches are validated in full before they are used: a damaged file would otherwise end in a signal. An IPC stream that
was cut between two batches reads back short without an error, so its end is looked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, open_regular, reading
from cleanpairs.data.views import plain_batch, plain_schema

_MAGIC = b"ARROW1"  # of the file format; streams begin with the length of their first message
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_BATCH_BYTES = 32 * 2**20


def _named(path: str) -> AbstractContextManager[None]:
    return reading(path, "read as Arrow", pa.ArrowException, UnicodeDecodeError)


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the batches of a file or a stream."""
    with ExitStack() as stack:
        with _named(path):
            with open_regular(path) as file:
                begin = file.read(len(_MAGIC))
                file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
                end = file.read()
            if begin != _MAGIC and end != _END:
                raise DataError(f"{path} is cut short, or no Arrow file: it lacks the mark of its end; write it again")
            mapped = stack.enter_context(pa.memory_map(path))
            if begin == _MAGIC:
                reader = stack.enter_context(pa.ipc.open_file(mapped))
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                reader = stack.enter_context(pa.ipc.open_stream(mapped))
                batches = iter(reader)
            _check_names(reader.schema)
            schema = plain_schema(reader.schema)
            if len(set(schema.names)) != len(schema.names):
                raise DataError(f"{path} has a column more than once: {', '.join(schema.names)}")
        yield schema, batches


def _check_names(kind: pa.Schema | pa.DataType) -> None:
    """UnicodeDecodeError where the name of a column, or of a part of one, is not UTF-8."""
    fields = kind if isinstance(kind, pa.Schema) else [kind.field(i) for i in range(kind.num_fields)]
    for field in fields:
        _ = field.name
        _check_names(field.type)


def arrow_schema(paths: Sequence[str]) -> pa.Schema:
    """The schema that all files share. Raises DataError: one cannot be read, or they differ."""
    first: pa.Schema | None = None
    for path in paths:
        with _opened(path) as (schema, _):
            if first is not None and not first.equals(schema):
                raise DataError(f"{path} has other columns than {paths[0]}: {schema.names} and {first.names}")
            first = schema if first is None else first
    assert first is not None
    return first


@cached_by_file(4096)
def count_arrow_rows(path: str) -> int:
    """Rows of a file; its batches are mapped, not read."""
    with _opened(path) as (_, batches), _named(path):
        return sum(map(len, batches))


def iter_arrow(path: str, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, at most ``batch_rows`` at once and fewer where rows are large; all columns when None."""
    with _opened(path) as (schema, batches):
        names = schema.names if columns is None else list(columns)
        chosen = pa.schema([schema.field(n) for n in names], schema.metadata)
        while True:
            with _named(path):
                batch = next(batches, None)
                if batch is None:
                    return
                batch = batch.select(names)
                batch.validate(full=True)
                whole = pa.RecordBatch.from_arrays(plain_batch(batch).columns, schema=chosen)
            step = max(1, min(batch_rows, int(_BATCH_BYTES * len(whole) / max(whole.nbytes, 1))))
            for start in range(0, len(whole), step):
                yield whole.slice(start, step)
