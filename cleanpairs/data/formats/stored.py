"""What the readers of files with images in them share: images by row, the image column, batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.images import cell_bytes

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # the storage of `datasets`' Image
BATCH_BYTES = 32 * 2**20

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


def image_array(contents: Sequence[bytes | None], paths: Sequence[str | None]) -> pa.Array:
    """The image column struct<bytes, path> (n,)."""
    names = pa.array([None if p is None else p.encode("utf-8", "replace").decode() for p in paths], pa.string())
    return pa.StructArray.from_arrays([pa.array(contents, pa.binary()), names], fields=list(IMAGE_TYPE))


def read_files(paths: Sequence[str | None], root: Path) -> tuple[list[bytes | None], dict[int, str]]:
    """The files (n,) under ``root``, None where they cannot be read or lie elsewhere, and place -> why."""
    contents: list[bytes | None] = []
    faults: dict[int, str] = {}
    for i, path in enumerate(paths):
        try:
            contents.append(cell_bytes(path or None, root))
        except DataError as error:
            contents.append(None)
            faults[i] = str(error)
    return contents, faults


def with_images(
    items: Iterable[T],
    path_of: Callable[[T], str | None],
    root: Path | None,
    batch_rows: int,
    fault_of: Callable[[T], str | None] = lambda item: None,
) -> Iterator[tuple[list[T], pa.Array, dict[int, str]]]:
    """Items in batches, with the image column of the files that they name, and place -> why there is none.

    The files are read under ``root``; none is where that is None, nor that of an item with a fault of its own.
    """

    def read() -> Iterator[tuple[T, bytes | None, str | None]]:
        for item in items:
            fault = fault_of(item)
            contents, faults = ([None], {}) if root is None or fault else read_files([path_of(item)], root)
            yield item, contents[0], fault or faults.get(0)

    for batch in bounded(read(), batch_rows, lambda each: len(each[1] or b"")):
        some = [item for item, _, _ in batch]
        images = image_array([content for _, content, _ in batch], [path_of(item) for item in some])
        yield some, images, {i: why for i, (_, _, why) in enumerate(batch) if why}


def record_batch(schema: pa.Schema, columns: Mapping[str, Any], wanted: Sequence[str] | None) -> pa.RecordBatch:
    """A batch out of name -> values, with the types of ``schema``: its columns, or those ``wanted``."""
    names = schema.names if wanted is None else list(wanted)
    chosen = pa.schema([schema.field(name) for name in names], schema.metadata)
    arrays = [
        columns[f.name] if isinstance(columns[f.name], pa.Array) else pa.array(columns[f.name], f.type) for f in chosen
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=chosen)
