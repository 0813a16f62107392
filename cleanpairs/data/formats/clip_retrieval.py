"""Embedding folders of clip-retrieval (``clip-retrieval inference``).

``img_emb/img_emb_0.npy`` (n, D) holds the vectors of the images, ``text_emb/text_emb_0.npy`` those of the captions,
``metadata/metadata_0.parquet`` the rows they belong to; part 10 comes after part 9. The vectors of the images are the
column ``image_features``, those of the captions the column ``text_features``.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.arrays import read_vectors
from cleanpairs.data.images import ImageSource
from cleanpairs.data.parquet import ParquetReader
from cleanpairs.data.parquet_io import common_schema, count_rows, iter_batches
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, Rows
from cleanpairs.ops.scratch import release

VECTORS = ("image_features", "text_features")
_NUMBER = re.compile(r"(\d+)$")


class ClipRetrievalReader(ParquetReader):
    """Reads a folder with ``img_emb`` and ``metadata``, and ``text_emb`` where there is one."""

    kind = "clip-retrieval"
    regions: ClassVar[bool] = False  # whether an image may have several vectors

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a directory with ``img_emb/*.npy``."""
        return any((Path(data) / "img_emb").glob("*.npy"))

    def open(self, data: str, request: ReadRequest) -> Source:
        """The parts of the folder, which must fit each other."""
        folder = Path(data).absolute()
        images, notes = _parts(folder, "img_emb", ".npy"), _parts(folder, "metadata", ".parquet")
        texts = _parts(folder, "text_emb", ".npy") if (folder / "text_emb").is_dir() else []
        rows = count_rows(notes)
        _check(images, [len(read_vectors(p)) for p in images], notes, rows)
        if texts:
            _check(texts, [len(read_vectors(p)) for p in texts], notes, rows)
        schema = self._schema(images, texts, notes)
        source = self.described(data, [*images, *texts, *notes], schema, sum(rows), request)
        if source.explicit_lists and texts:
            raise DataError(f"{data} has one text vector a row; column {source.columns['text']!r} holds lists")
        return source

    def schema(self, source: Source) -> pa.Schema:
        """That of the metadata, and ``image_features``, ``text_features``."""
        return self._schema(*self._files(source))

    def _array(self, path: str) -> np.ndarray:
        """Vectors of one part, (n, D), or (n, R, D) where there may be regions."""
        array = read_vectors(path, self.regions)
        return array[:, 0] if array.ndim == 3 and array.shape[1] == 1 else array

    def _schema(self, images: Sequence[str], texts: Sequence[str], notes: Sequence[str]) -> pa.Schema:
        schema = common_schema(notes)
        for name, parts in zip(VECTORS, (images, texts), strict=True):
            if not parts:
                continue
            kinds = {(*self._array(p).shape[1:], self._array(p).dtype.newbyteorder("=")) for p in parts}
            if len(kinds) > 1:
                found = ", ".join(sorted(map(str, kinds)))
                raise DataError(f"the parts of {Path(parts[0]).parent} differ: {found}")
            if name in schema.names:
                raise DataError(f"{notes[0]} has a column {name!r}, which vectors of the folder are called: rename it")
            *sizes, dtype = next(iter(kinds))
            kind = pa.from_numpy_dtype(dtype)
            for size in reversed(sizes):
                kind = pa.list_(kind, int(size))
            schema = schema.append(pa.field(name, kind))
        return schema

    def batches(
        self,
        source: Source,
        batch_rows: int,
        columns: Sequence[str] | None,
        first: int = 0,
        rows: int | None = None,
    ) -> Iterator[Rows]:
        """With their vectors."""
        rows = source.n_rows if rows is None else rows
        *sides, notes = self._files(source)
        schema = self.schema(source)
        names = schema.names if columns is None else list(columns)
        chosen = pa.schema([schema.field(n) for n in names], schema.metadata)
        arrays = {name: [self._array(p) for p in parts] for name, parts in zip(VECTORS, sides, strict=True)}
        for path, batch in iter_batches(notes, [n for n in names if n not in VECTORS], batch_rows, rows, first):
            values = {name: batch.column(name) for name in batch.schema.names}
            for name in set(VECTORS) & set(names):
                block = _rows(arrays[name], first, first + len(batch))
                values[name] = pa.array(block.reshape(-1))
                for size in reversed(block.shape[1:]):
                    values[name] = pa.FixedSizeListArray.from_arrays(values[name], size)
            yield Rows(path, pa.RecordBatch.from_arrays([values[n] for n in names], schema=chosen))
            first += len(batch)

    def encoded(self, source: Source) -> ImageSource | None:
        """The images that the metadata names, where an image root says where they are: for thumbnails."""
        return None if source.image_root is None else super().encoded(source)

    def tables(self, source: Source) -> Sequence[str]:
        """The metadata."""
        return self._files(source)[2]

    def _files(self, source: Source) -> tuple[list[str], list[str], list[str]]:
        """The files with vectors of images, with vectors of captions, and with rows."""
        of = {
            name: [p for p in source.paths if Path(p).parent.name == name]
            for name in ("img_emb", "text_emb", "metadata")
        }
        return of["img_emb"], of["text_emb"], of["metadata"]

    def mapped(self, source: Source) -> list[np.ndarray]:
        """Vectors that lie in one part."""
        images, texts, _ = self._files(source)
        arrays = [self._array(p)[: source.n_rows] for p in (*images, *texts)]
        if max(len(images), len(texts)) > 1 or not all(array.dtype.isnative for array in arrays):
            return []
        return [arrays[0][:, None] if arrays[0].ndim == 2 else arrays[0], *arrays[1:]]


def _parts(folder: Path, name: str, ending: str) -> list[str]:
    """The files of a subfolder, by the number at the end of their names."""
    found = [p for p in (folder / name).glob(f"[!.]*{ending}") if p.is_file()]
    if not found:
        raise DataError(f"{folder / name} has no *{ending}: it is not a whole embedding folder of clip-retrieval")
    return [str(p) for p in sorted(found, key=by_number)]


def by_number(path: Path) -> tuple[int, str]:
    """What files are sorted by: the number at the end of the name, then the name."""
    match = _NUMBER.search(path.stem)
    return (int(match[1]) if match else -1, path.name)


def _rows(arrays: Sequence[np.ndarray], first: int, last: int) -> np.ndarray:
    """Rows first to last of the arrays one after the other, in this machine's byte order."""
    starts = np.cumsum([0, *map(len, arrays)]).tolist()
    parts = [
        array[max(first - a, 0) : max(last - a, 0)]
        for array, (a, b) in zip(arrays, pairwise(starts), strict=True)
        if first < b and last > a
    ]
    block = np.concatenate(parts) if parts else arrays[0][:0]  # a copy
    release(*arrays)  # a mapped page that was read counts as memory
    return np.ascontiguousarray(block, block.dtype.newbyteorder("="))


def _check(paths: Sequence[str], counts: Sequence[int], notes: Sequence[str], rows: Sequence[int]) -> None:
    """DataError unless every part has as many vectors as its metadata has rows."""
    if len(paths) != len(notes):
        raise DataError(f"{Path(paths[0]).parent} has {len(paths)} parts, {Path(notes[0]).parent} has {len(notes)}")
    for path, count, note, n in zip(paths, counts, notes, rows, strict=True):
        if by_number(Path(path))[0] != by_number(Path(note))[0] or count != n:
            raise DataError(f"{path} with {count} vectors does not go with {note} with {n} rows")
