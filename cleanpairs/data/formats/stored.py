"""What the readers of files with images in them share: images by row, the image column, batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.images import cell_bytes

__all__ = ["IMAGE_TYPE", "StoredImages", "bounded", "image_array", "read_files", "record_batch"]

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # the storage of `datasets`' Image
BATCH_BYTES = 32 * 2**20

T = TypeVar("T")


class StoredImages:
    """n encoded images that ``read(rows)`` fetches when they are needed; see :class:`cleanpairs.data.ImageSource`."""

    kind = "bytes"

    def __init__(self, n: int, read: Callable[[Sequence[int]], list[bytes | None]]) -> None:
        self._n, self._read = n, read

    def __len__(self) -> int:
        return self._n

    def iter_encoded(self, batch_size: int) -> Iterator[tuple[int, list[bytes | None]]]:
        """(First index, encoded images), in order."""
        for start in range(0, self._n, batch_size):
            yield start, self._read(range(start, min(start + batch_size, self._n)))

    def read(self, indices: Sequence[int]) -> list[bytes | None]:
        """Encoded images at ``indices``; None where there is none."""
        return self._read(indices)

    def array(self) -> None:
        """None: these are no vectors."""
        return None


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


def record_batch(schema: pa.Schema, columns: Mapping[str, Any], wanted: Sequence[str] | None) -> pa.RecordBatch:
    """A batch out of name -> values, with the types of ``schema``: its columns, or those ``wanted``."""
    names = schema.names if wanted is None else list(wanted)
    chosen = pa.schema([schema.field(name) for name in names], schema.metadata)
    arrays = [
        columns[f.name] if isinstance(columns[f.name], pa.Array) else pa.array(columns[f.name], f.type) for f in chosen
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=chosen)
