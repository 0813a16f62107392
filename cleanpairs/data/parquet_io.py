"""Parquet files as streams of small batches, with errors that name the file."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.core import DataError
from cleanpairs.core.regular import cached_by_file, check_regular, read_json, reading
from cleanpairs.data.formats.file_names import files_below
from cleanpairs.data.formats.remote import location, open_remote
from cleanpairs.ops.columns import as_schema, plain_batch, plain_schema

BATCH_BYTES = 32 * 2**20  # of a batch of rows, about


def parquet_files(folder: Path) -> list[str]:
    """The Parquet files of a directory, sorted, or those below it where it has none itself. The ledger and the
    dropped pairs of an export are left out.
    """
    left_out: set[str] = set()
    for manifest in folder.glob("[!.]*.manifest.json"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # it is no manifest of an export
            files = read_json(manifest)["files"].items()
            left_out |= {os.path.realpath(folder / name) for name, f in files if f["role"] in ("ledger", "dropped")}
    paths = list(files_below(folder, ".parquet", depth=0))  # hidden files are still being written
    paths = paths or list(files_below(folder, ".parquet"))  # a clone from the hub, or partitions
    return [str(p) for p in paths if os.path.realpath(p) not in left_out]


def _named(path: str, what: str = "read as Parquet") -> AbstractContextManager[None]:
    """Name the file in errors. A damaged footer raises UnicodeDecodeError, an object store's file system anything."""
    name = location(path)
    return reading(name, what, *([pa.ArrowException, UnicodeDecodeError] if name == path else [Exception]))


class _ParquetFile(pq.ParquetFile):
    def __exit__(self, *_: object) -> None:
        self.close(force=True)  # what is remote, too


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file with page checksums verified and little read ahead, to be closed. DataError names the file."""
    with _named(path):
        check_regular(path)
        remote = open_remote(path)
        # Through a buffer, also where a column would fit into memory: without, Arrow trusts the footer's offsets,
        # and a damaged one ends the process. With a buffer no file of `make faults` does.
        return _ParquetFile(
            remote or path,
            pre_buffer=False,
            buffer_size=1 << 20 if remote is None else 4 << 20,  # bytes of one column that are read at once
            page_checksum_verification=True,
        )


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A whole file, or some of its columns, in memory. Raises DataError: it cannot be read, or is damaged."""
    with open_parquet(str(path)) as file, _named(str(path)):
        table = file.read(columns=None if columns is None else list(columns))
        table = table if columns is None else table.select(list(columns))  # see _batches
        table.validate(full=True)
        return table


def common_schema(paths: Sequence[str]) -> pa.Schema:
    """The Arrow schema that all Parquet files share. See :func:`shared_schema`."""
    return shared_schema(paths, lambda path: footer(path)[0])


@cached_by_file(1 << 14)
def footer(path: str) -> tuple[pa.Schema, list[int], pa.Schema]:
    """The plain schema of a file, the rows of each row group, and the schema as it is. Read again only where the file
    has changed.
    """
    with open_parquet(path) as file, _named(path):
        sizes = [int(file.metadata.row_group(g).num_rows) for g in range(file.metadata.num_row_groups)]
        return plain_schema(file.schema_arrow), sizes, file.schema_arrow


def shared_schema(paths: Sequence[str], schema_of: Callable[[str], pa.Schema]) -> pa.Schema:
    """The Arrow schema of all files, with the wider type where they differ, as float and double do. Raises DataError:
    a column is missing in one, has types that do not go together, or occurs twice.
    """
    first = schema_of(paths[0])
    whole = {field.name: field for field in first}
    for path in paths:
        schema = schema_of(path)
        if twice := sorted(n for n, k in Counter(schema.names).items() if k > 1):
            raise DataError(f"{path} has the column {twice[0]!r} more than once: rename one of them, or drop it")
        if missing := sorted(whole.keys() ^ set(schema.names)):
            a, b = (paths[0], path) if missing[0] in whole else (path, paths[0])
            where = f"it is in {a}, and missing in {b}"
            raise DataError(f"the files differ in column {missing[0]!r}: {where}; give alike ones by a glob")
        for name in schema.names if not schema.equals(first) else ():
            fields = [whole[name], schema.field(name)]
            if fields[0].type != fields[1].type:  # of categories their values
                fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in fields]
            try:
                whole[name] = pa.unify_schemas([pa.schema([f]) for f in fields], promote_options="permissive").field(0)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                kinds = f"{whole[name].type} in {paths[0]}, {schema.field(name).type} in {path}"
                raise DataError(f"the files differ in column {name!r}: {kinds}; write it with one type") from error
    return pa.schema(list(whole.values()), first.metadata)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema`` that a batch has, with its types. The batch itself where it has these."""
    names = set(batch.schema.names)
    target = pa.schema([field for field in schema if field.name in names], schema.metadata)
    return batch if batch.schema.equals(target) else as_schema(batch, target)


def group_sizes(path: str) -> list[int]:
    """Rows of each row group, by the file's footer."""
    return footer(path)[1]


def count_rows(paths: Sequence[str]) -> list[int]:
    """Rows of each file."""
    return [sum(group_sizes(path)) for path in paths]


def _fitting_rows(file: pq.ParquetFile, sizes: list[int], columns: Sequence[str] | None, at_most: int) -> int:
    """Rows of a batch of some 32 MiB: by the first rows and, as they may be small, by the footer."""
    group = next((g for g, rows in enumerate(sizes) if rows), None)
    if group is None:
        return at_most
    first = next(file.iter_batches(batch_size=8, columns=columns, row_groups=[group]), None)  # of one: see _batches
    if not first:  # None, or no rows
        raise pa.ArrowInvalid(f"row group {group} has no rows, and {sizes[group]} by the footer")
    a_row = first.nbytes / len(first)
    if columns is None:
        groups = (file.metadata.row_group(g) for g in range(file.metadata.num_row_groups))
        a_row = max(a_row, sum(g.total_byte_size for g in groups) / max(file.metadata.num_rows, 1))
    return max(1, min(at_most, int(BATCH_BYTES / max(a_row, 1))))


def iter_batches(
    paths: Sequence[str], columns: Sequence[str] | None, batch_size: int, limit: int | None = None, first: int = 0
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(File, batch) of ``limit`` rows from ``first`` on, ``batch_size`` at most, fewer where rows are large."""
    left, ahead = math.inf if limit is None else limit, first  # rows that are wanted, and to pass over before
    wanted = None if columns is None else list(columns)
    schema = common_schema(paths) if len(paths) > 1 else None
    for path in paths:
        if left <= 0:
            break
        sizes = group_sizes(path)
        if ahead and ahead >= sum(sizes):
            ahead -= sum(sizes)
            continue
        with open_parquet(path) as file:
            skipped = row = 0
            while ahead and sizes[skipped] <= ahead:
                ahead -= sizes[skipped]
                row += sizes[skipped]
                skipped += 1
            with _named(path, f"read from row {row}"):
                # no more than are wanted: a batch is read to its end, over the row groups that it takes
                rows = _fitting_rows(file, sizes, wanted, int(min(batch_size, ahead + left)))
            batches = _batches(file, rows, wanted, range(skipped, len(sizes)))
            while left > 0:
                with _named(path, f"read on from row {row}"):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    row += len(batch)
                    passed = min(ahead, len(batch))
                    batch = plain_batch(batch.slice(passed, None if limit is None else int(left)))
                    batch = batch if schema is None else conformed(batch, schema)
                ahead -= passed
                left -= len(batch)
                if len(batch):
                    yield path, batch


def input_table(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """As :func:`read_table`, of an input. Text that is not UTF-8 makes only its row unusable."""
    schema = common_schema([path])
    schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches((batch for _, batch in iter_batches([path], columns, 512)), schema)


def _batches(
    file: pq.ParquetFile, rows: int, columns: list[str] | None, groups: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Batches of ``groups``. Pyarrow cannot read dictionaries inside of lists over the end of a row group."""
    names = None if columns is None else set(columns)
    kinds = [field.type for field in file.schema_arrow if names is None or field.name in names]
    separately = any("dictionary" in str(kind) and not pa.types.is_dictionary(kind) for kind in kinds)
    for chosen_groups in [[group] for group in groups] if separately else [list(groups)]:
        for batch in file.iter_batches(batch_size=rows, columns=columns, row_groups=chosen_groups):
            # The name "image.bytes" stands for a part of the struct "image", too.
            yield batch if columns is None or batch.num_columns <= len(columns) else batch.select(columns)
