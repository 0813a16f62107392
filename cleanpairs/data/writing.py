"""Writes all Parquet: zstd except for bytes, page checksums, a page index, bounded row groups, no
dictionary of floats. A store that has a file of almost the same rows needs few new bytes.
"""

import io
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.core import sha256_of, writing
from cleanpairs.data.atomic import scratch_directory, staged_file
from cleanpairs.data.source import TABLES, cache_folder
from cleanpairs.ops.columns import as_schema, is_image_struct, nullable_type, plain_type


def with_image_feature(schema: pa.Schema) -> pa.Schema:
    """``schema`` with the `datasets` features noted: Image for struct<bytes, path>. Those noted already are kept."""
    metadata = dict(schema.metadata or {})
    images = [field.name for field in schema if is_image_struct(field.type)]
    if not images and b"huggingface" not in metadata:
        return schema
    from datasets import Image

    for name in images:
        at = schema.get_field_index(name)
        kind = schema.field(at).type
        if pa.types.is_null(kind.field("path").type):
            parts = [f.with_type(pa.string()) if f.name == "path" else f for f in kind]
            schema = schema.set(at, schema.field(at).with_type(pa.struct(parts)))
    for noted in (schema, schema.remove_metadata()):  # notes of another version, which cannot be read, are left out
        with suppress(KeyError, TypeError, AttributeError, ValueError, NotImplementedError):
            features = noted_features(noted)
            features |= {name: Image() for name in images if isinstance(features[name], dict)}  # it may be Audio
            metadata[b"huggingface"] = json.dumps({"info": {"features": features.to_dict()}}).encode()
            return schema.with_metadata(metadata)
    return schema  # `datasets` cannot open one of its types with any note: a map, a view


def noted_features(schema: pa.Schema) -> Any:
    """The :class:`datasets.Features` of a schema: of a column the one that its metadata notes, where that is stored so.

    `datasets` itself forgets the note of a column that may not be null, or of a type of its own, such as Array2D.
    """
    from datasets import Features

    features = Features.from_arrow_schema(schema)
    note = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    noted = Features.from_dict(note.get("info", {}).get("features") or {})
    for field in noted.arrow_schema:
        at = schema.get_field_index(field.name)
        if at >= 0 and nullable_type(plain_type(schema.field(at).type)) == nullable_type(plain_type(field.type)):
            features[field.name] = noted[field.name]
    return features


class Sink(ABC):
    """Takes tables until its ``with`` block ends. Raises OutputError: ``path`` cannot be written. ``rows``: number of
    rows so far. ``parts``: of a directory, file name -> rows, of files that hold rows.
    """

    path: Path
    rows = 0
    parts: Mapping[str, int] = {}

    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Add rows."""
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        with writing(self.path):
            self._write(table)
        self.rows += len(table)

    @staticmethod
    @abstractmethod
    def count(path: Path) -> int:
        """The number of rows on disk, counted without what wrote them."""

    @abstractmethod
    def _write(self, table: pa.Table) -> None:
        """Add rows. :meth:`write` counts them."""

    @abstractmethod
    def _finish(self) -> None:
        """Write and close what is still open."""

    def abandon(self) -> None:  # noqa: B027 - not every one has something to close
        """Close what is open. The staging directory removes the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with writing(self.path):
                self._finish()
            return
        with suppress(OSError, pa.ArrowException):
            self.abandon()


class ParquetSink(Sink):
    """Writes one Parquet file, in row groups of 64 MiB or 65,536 rows. Raises OutputError: it cannot be written.

    With ``image_feature`` its schema has the `datasets` features. The key ``note`` is in the file's metadata. It is
    gone when another program writes the file again.
    """

    group_rows, group_bytes = 65_536, 64 * 2**20  # of a row group at most

    def __init__(
        self, path: str | os.PathLike[str], schema: pa.Schema, *, image_feature: bool = True, note: str | None = None
    ) -> None:
        self.path, self.schema = Path(path), with_image_feature(schema) if image_feature else schema
        self._pending: list[pa.Table] = []
        self._bytes = self._count = 0
        repeats = [f.name for f in self.schema if not pa.types.is_nested(f.type) and not pa.types.is_floating(f.type)]
        with writing(self.path):
            self._writer = pq.ParquetWriter(
                self.path, self.schema, use_dictionary=repeats, write_page_checksum=True, write_page_index=True,
                compression=_compression(self.schema),
            )  # fmt: skip
            if note is not None:
                self._writer.add_key_value_metadata({note: ""})

    @staticmethod
    def count(path: Path) -> int:
        """Rows on disk, by the footer."""
        return int(pq.read_metadata(path).num_rows)

    def _write(self, table: pa.Table) -> None:
        table = as_schema(table, self.schema)
        step = max(1, min(self.group_rows, int(self.group_bytes * len(table) / max(table.nbytes, 1))))
        for start in range(0, len(table), step):
            part = table.slice(start, step)
            if self._bytes + part.nbytes > self.group_bytes:
                self.end_group()
            self._pending.append(part)
            self._bytes += part.nbytes
            self._count += len(part)
            if self._bytes >= self.group_bytes or self._count >= self.group_rows:
                self.end_group()

    def end_group(self) -> None:
        """End a row group here."""
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending), row_group_size=self.group_rows)
        self._pending, self._bytes, self._count = [], 0, 0

    def _finish(self) -> None:
        self.end_group()
        self._writer.close()

    def abandon(self) -> None:
        """See :class:`cleanpairs.data.writing.Sink`."""
        with suppress(OSError):  # a full disk: nobody reads the file
            self._writer.close()


def _compression(schema: pa.Schema) -> dict[str, str]:
    """The compression of each column. Bytes have none: images are packed already, and equal ones stay equal bytes.

    Pages are not cut by their content: where a disk is full, that ends the process (pyarrow 24, a column of floats).
    """
    empty = io.BytesIO()
    pq.ParquetWriter(empty, schema).close()
    stored = pq.read_metadata(empty).schema
    columns = [stored.column(k) for k in range(len(stored))]
    plain = {c.path for c in columns if c.physical_type == "BYTE_ARRAY" and c.logical_type.type == "NONE"}
    return {c.path: "none" if c.path in plain else "zstd" for c in columns}


def write_tables(path: Path, tables: Iterable[pa.Table | pa.RecordBatch]) -> bool:
    """Write tables of one schema as one Parquet file. Return whether there are any: without rows there is no file."""
    sink: ParquetSink | None = None
    with ExitStack() as files:
        for table in tables:
            sink = sink or files.enter_context(ParquetSink(path, table.schema))
            sink.write(table)
    return sink is not None


def cached_tables(tables: Iterable[pa.Table]) -> Path | None:
    """Write tables of one schema as Parquet in the cache directory, named by its content. None without tables."""
    folder = cache_folder(TABLES)
    with scratch_directory("dataset", folder) as scratch:
        rows = scratch / "rows.parquet"
        if not write_tables(rows, tables):
            return None
        digest = sha256_of(rows)
        path = folder / f"{digest[:32]}.parquet"
        if not path.exists() or sha256_of(path) != digest:  # it is new, or damaged
            with staged_file(path, overwrite=True) as staged:
                shutil.copyfile(rows, staged)
    return path
