"""The one way in which Parquet is written: zstd, page checksums, row groups of bounded size.

Vectors are written as they are: zstd takes 4 to 7 % off the floats of embeddings, for half as much time again, and a
dictionary of numbers that do not repeat only costs; nor is there a use for the smallest and largest of their numbers.
Single floats have no dictionary either: with four columns of them beside captions it took two fifths of the time.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.core.regular import sha256_of, writing
from cleanpairs.data.atomic import ScratchDirectory, staged_file
from cleanpairs.data.source import TABLES, cache_folder
from cleanpairs.ops.columns import as_schema, is_list

GROUP_BYTES = 64 * 2**20
GROUP_ROWS = 65_536


def with_image_feature(schema: pa.Schema) -> pa.Schema:
    """``schema`` with the `datasets` features noted: Image for struct<bytes, path>; those noted already are kept.

    A path that was always null becomes one of text: `datasets` takes no other struct for an image.
    """
    metadata = dict(schema.metadata or {})
    images = [
        f.name
        for f in schema
        if pa.types.is_struct(f.type) and {f.type.field(i).name for i in range(f.type.num_fields)} == {"bytes", "path"}
    ]
    known = _noted(metadata)
    if not images and not known:
        return schema
    from datasets import Features, Image

    for name in images:
        at = schema.get_field_index(name)
        kind = schema.field(at).type
        if pa.types.is_null(kind.field("path").type):
            parts = [f.with_type(pa.string()) if f.name == "path" else f for f in kind]
            schema = schema.set(at, schema.field(at).with_type(pa.struct(parts)))
    try:
        found = Features.from_arrow_schema(schema.remove_metadata())
    except (ValueError, NotImplementedError):  # a type that `datasets` cannot open whatever we note: a map, a view
        return schema
    for name in schema.names:
        if name in images:
            found[name] = Image()
        elif name in known:
            try:
                feature = Features.from_dict({name: known[name]})
            except (KeyError, TypeError, ValueError):  # of another version: what the Arrow type tells is enough
                continue
            if feature.arrow_schema.field(0).type == schema.field(name).type:
                found[name] = feature[name]
    metadata[b"huggingface"] = json.dumps({"info": {"features": found.to_dict()}}).encode()
    return schema.with_metadata(metadata)


def _noted(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """The `datasets` features in a schema's metadata; none where they cannot be read: they are a convenience."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _encoding(schema: pa.Schema) -> dict[str, Any]:
    """How ``ParquetWriter`` stores the columns: zstd, but floats in lists plainly; no float by number."""
    leaves = [leaf for field in schema for leaf in _leaves(field.type)]
    if not any(leaves):
        return {"compression": "zstd"}
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)  # Parquet has names of its own for what is inside of a column
    columns = pq.ParquetFile(pa.BufferReader(empty.getvalue())).schema
    if len(columns) != len(leaves):  # a type that is stored in a way of its own
        return {"compression": "zstd"}
    paths = [columns.column(i).path for i in range(len(columns))]
    encoding: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": [path for path, leaf in zip(paths, leaves, strict=True) if not leaf],
    }
    if "vector" in leaves:
        vectors = {path for path, leaf in zip(paths, leaves, strict=True) if leaf == "vector"}
        encoding["compression"] = {path: "none" if path in vectors else "zstd" for path in paths}
        encoding["write_statistics"] = [path for path in paths if path not in vectors]
    return encoding


def _leaves(kind: pa.DataType, listed: bool = False) -> list[str]:
    """Of each column that Parquet makes of this type: "vector" for floats in lists, "float" for others, else ""."""
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(field.type, listed)]
    if pa.types.is_map(kind):
        return [*_leaves(kind.key_type), *_leaves(kind.item_type)]
    if is_list(kind):
        return _leaves(kind.value_type, True)
    return [("vector" if listed else "float") if pa.types.is_floating(kind) else ""]


class Sink(ABC):
    """Takes tables until its ``with`` block ends; an exception in the block leaves nothing that passes for whole.

    ``rows``: written so far; ``parts``: of a directory, file name -> rows, those that hold rows; empty for a file.
    """

    rows: int
    parts: Mapping[str, int] = {}

    @abstractmethod
    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Add rows."""

    @abstractmethod
    def _finish(self) -> None:
        """Write and close what is still open."""

    def _abandon(self) -> None:  # noqa: B027 - not every one has something to close
        """Close what is open: the staging around it throws the files away."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
            return
        with suppress(OSError, pa.ArrowException):
            self._abandon()


class ParquetSink(Sink):
    """Writes one Parquet file, batch by batch; used inside :func:`cleanpairs.data.atomic.staged_file`.

    - ``image_feature``: note the `datasets` features in the schema's metadata; else the file has ``schema`` as it is
      given
    - ``note``: a key in the metadata of the file, not of its schema: gone when another program writes it again

    Raises OutputError: the file cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], schema: pa.Schema, *, image_feature: bool = True, note: str | None = None
    ) -> None:
        self.path, self.schema = Path(path), with_image_feature(schema) if image_feature else schema
        self.rows = 0
        self._pending: list[pa.Table] = []
        self._bytes = self._count = 0
        self._sha256: str | None = None
        encoding = _encoding(self.schema)
        with writing(self.path):
            self._writer = pq.ParquetWriter(
                self.path, self.schema, write_page_checksum=True, use_content_defined_chunking=False, **encoding
            )
            if note is not None:
                self._writer.add_key_value_metadata({note: ""})

    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Add rows; a row group is written when 64 MiB or 65,536 rows have come together."""
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        table = as_schema(table, self.schema)
        self.rows += len(table)
        step = max(1, min(GROUP_ROWS, int(GROUP_BYTES * len(table) / max(table.nbytes, 1))))
        for start in range(0, len(table), step):
            part = table.slice(start, step)
            if self._bytes + part.nbytes > GROUP_BYTES:
                self.flush()
            self._pending.append(part)
            self._bytes += part.nbytes
            self._count += len(part)
            if self._bytes >= GROUP_BYTES or self._count >= GROUP_ROWS:
                self.flush()

    def flush(self) -> None:
        """End a row group here."""
        if self._pending:
            with writing(self.path):
                self._writer.write_table(pa.concat_tables(self._pending), row_group_size=GROUP_ROWS)
        self._pending, self._bytes, self._count = [], 0, 0

    @property
    def sha256(self) -> str:
        """Of the closed file."""
        if self._sha256 is None:
            self._sha256 = sha256_of(self.path)
        return self._sha256

    def _finish(self) -> None:
        self.flush()
        with writing(self.path):
            self._writer.close()

    def _abandon(self) -> None:
        self._writer.close()


def write_tables(path: Path, tables: Iterable[pa.Table]) -> ParquetSink | None:
    """Tables of one schema as one Parquet file: what wrote it, closed; None, and no file, where there are none."""
    sink: ParquetSink | None = None
    with ExitStack() as files:
        for table in tables:
            sink = sink or files.enter_context(ParquetSink(path, table.schema))
            sink.write(table)
    return sink


def cached_tables(tables: Iterable[pa.Table]) -> Path | None:
    """Tables of one schema as a Parquet file in the cache directory, named by its content; None of none."""
    folder = cache_folder(TABLES)
    with ScratchDirectory("dataset", folder) as scratch:
        sink = write_tables(scratch / "rows.parquet", tables)
        if sink is None:
            return None
        path = folder / f"{sink.sha256[:32]}.parquet"
        if not path.exists():
            with staged_file(path, overwrite=True) as staged:
                try:
                    os.link(scratch / "rows.parquet", staged)
                except OSError:  # a file system without hard links
                    shutil.copyfile(scratch / "rows.parquet", staged)
    return path


def cached_table(table: pa.Table) -> Path:
    """As :func:`cached_tables`, of one."""
    path = cached_tables([table])
    assert path is not None
    return path
