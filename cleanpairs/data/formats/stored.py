"""What the readers of files with images in them share: images by row, the image column, batches of bounded size."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.images import encoded_bytes
from cleanpairs.data.parquet_io import BATCH_BYTES
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import Rows, TableReader
from cleanpairs.ops.columns import taken

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # the storage of `datasets`' Image
SUBFOLDERS = ("", "images", "Images", "image", "img", "imgs")
LOOK_AT = 100  # images of which one at least must be there

T = TypeVar("T")


def bounded(items: Iterator[T], batch_rows: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in lists of at most ``batch_rows``, and of some 32 MiB by ``size``."""
    batch: list[T] = []
    total = 0
    for item in items:
        more = size(item)
        if batch and (len(batch) >= batch_rows or total + more > BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += more
    if batch:
        yield batch


def record_batch(schema: pa.Schema, columns: Mapping[str, Any], wanted: Sequence[str] | None) -> pa.RecordBatch:
    """A batch out of name -> values, with the types of ``schema``: its columns, or those ``wanted``."""
    fields = [schema.field(name) for name in (schema.names if wanted is None else wanted)]
    arrays = [v if isinstance(v := columns[f.name], pa.Array) else pa.array(v, f.type) for f in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, schema.metadata))


@dataclass(frozen=True)
class Listing:
    """Rows that are held, of which a column of text names image files; row -> why it is unusable."""

    table: pa.Table
    faults: Mapping[int, str] = field(default_factory=dict)


class ListingReader(TableReader):
    """Reads an input that is a :class:`Listing`, and the images that it names."""

    @abstractmethod
    def listing(self, source: Source) -> Listing:
        """The rows, without their images."""

    def schema(self, source: Source) -> pa.Schema:
        """The columns of the listing; that of the images holds their bytes."""
        schema = self.listing(source).table.schema
        name = _named_images(schema, source)
        return schema if name is None else schema.set(schema.get_field_index(name), pa.field(name, IMAGE_TYPE))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        listing, schema = self.listing(source), self.schema(source)
        name = _named_images(listing.table.schema, source)
        name = name if columns is None or name in columns else None
        table = listing.table.slice(0, source.n_rows)
        paths = [None] * len(table) if name is None else [path or None for path in table[name].to_pylist()]
        root = str(source.image_root or Path(source.paths[0]).parent)
        cells = ({"bytes": path and encoded_bytes(path, "", root), "path": path} for path in paths)
        first = 0
        for found in bounded(cells, batch_rows, lambda cell: len(cell["bytes"] or b"")):
            part = table.slice(first, len(found)).combine_chunks().to_batches()[0]
            values = dict(zip(part.schema.names, part.columns, strict=True)) | ({} if name is None else {name: found})
            faults = {i: listing.faults[first + i] for i in range(len(found)) if first + i in listing.faults}
            yield Rows(source.paths[0], record_batch(schema, values, columns), faults)
            first += len(found)

    def images_at(self, source: Source, rows: Sequence[int]) -> list[bytes | None]:
        """See :class:`TableReader`."""
        root = str(source.image_root or Path(source.paths[0]).parent)
        cells = taken(self.listing(source).table[source.columns["image"]], np.asarray(rows, np.int64)).to_pylist()
        return [encoded_bytes(cell or None, "", root) for cell in cells]


def _named_images(schema: pa.Schema, source: Source) -> str | None:
    name = source.columns.get("image")
    return name if name is not None and pa.types.is_string(schema.field(name).type) else None


def find_root(paths: pa.ChunkedArray, file: Path, given: str | None, also: Sequence[Path] = ()) -> str:
    """The folder that image ``paths`` are relative to: the one given, the file's own, or one of the usual names in it.

    ``also`` are more folders to look into, in this order, after those.

    Raises DataError: None of the first images is there: it is the wrong folder.
    """
    if given is not None:
        candidates = [Path(given).absolute()]
    else:
        candidates = [p for p in [*(file.parent / name for name in SUBFOLDERS), *also] if p.is_dir()]
    first = [path for path in paths.slice(0, LOOK_AT).to_pylist() if path]
    for folder in candidates if first else candidates[:1]:
        if not first or any(encoded_bytes(path, "", str(folder)) is not None for path in first):
            return str(folder)
    remedy = (
        "they are URLs: download them by img2dataset" if "://" in first[0] else "name their folder with --image-root"
    )
    raise DataError(
        f"none of the first {len(first)} images that {file} names is in {candidates[0]} (the first: "
        f"{first[0][:200]!r}); {remedy}"
    )
