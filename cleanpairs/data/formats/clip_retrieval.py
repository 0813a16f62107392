"""Embedding folders of clip-retrieval (``clip-retrieval inference``).

``img_emb/img_emb_0.npy`` (n, D) holds the vectors of the images, ``text_emb/text_emb_0.npy`` those of the captions,
``metadata/metadata_0.parquet`` the rows they belong to; part 10 comes after part 9. The vectors of the images are the
column ``image_features``, those of the captions :attr:`cleanpairs.data.Pairs.text_vectors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.data.images import ImageSource, ParquetImages
from cleanpairs.data.npy import read_npy
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.parquet_io import common_schema, count_rows, iter_batches, row_groups
from cleanpairs.data.rows import RowBatch, finite_rows
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import Rows, TableReader, load_rows
from cleanpairs.errors import DataError
from cleanpairs.ops.scratch import release

__all__ = ["ClipRetrievalReader"]

VECTORS = "image_features"
NOT_FINITE = "its vector is not finite"  # what cleanpairs.data.rows says
NOT_FINITE_TEXT = "its text vector is not finite"
_NUMBER = re.compile(r"(\d+)$")
_FLOATS = [np.dtype(f"{order}f{size}") for order in "<>" for size in (2, 4, 8)]


class ClipRetrievalReader(TableReader):
    """Reads a folder with ``img_emb`` and ``metadata``, and ``text_emb`` where there is one."""

    kind = "clip-retrieval"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a directory with ``img_emb/*.npy``."""
        return any((Path(data) / "img_emb").glob("*.npy"))

    def open(
        self, data: str, *, split: str | None, columns: dict[str, str | None], image_root: str | None, limit: int | None
    ) -> Source:
        """The parts of the folder, which must fit each other."""
        if split is not None:
            raise DataError(f"{data} has no splits: it is an embedding folder; leave --split (split) out")
        folder = Path(data).absolute()
        images, notes = _parts(folder, "img_emb", ".npy"), _parts(folder, "metadata", ".parquet")
        texts = _parts(folder, "text_emb", ".npy") if (folder / "text_emb").is_dir() else []
        rows = count_rows(notes)
        _check(images, [len(_vectors(p)) for p in images], notes, rows)
        if texts:
            _check(texts, [len(_vectors(p)) for p in texts], notes, rows)
        schema = self._schema(images, notes)
        source = self.described(
            data, [*images, *texts, *notes], schema, sum(rows), columns=columns, image_root=image_root, limit=limit
        )
        if source.explicit_lists and texts:
            raise DataError(f"{data} has one text vector a row; column {source.columns['text']!r} holds lists")
        return source

    def schema(self, source: Source) -> pa.Schema:
        """That of the metadata, and ``image_features``."""
        return self._schema(*_sorted(source)[::2])

    @staticmethod
    def _schema(images: Sequence[str], notes: Sequence[str]) -> pa.Schema:
        kinds = {(*_vectors(p).shape[1:], _vectors(p).dtype.newbyteorder("=")) for p in images}
        if len(kinds) > 1:
            raise DataError(
                f"the parts of {Path(images[0]).parent} differ: {', '.join(map(str, sorted(map(str, kinds))))}"
            )
        D, dtype = next(iter(kinds))
        schema = common_schema(notes)
        if VECTORS in schema.names:
            raise DataError(
                f"{notes[0]} has a column {VECTORS!r}, which the vectors of the folder are called: rename it"
            )
        return schema.append(pa.field(VECTORS, pa.list_(pa.from_numpy_dtype(dtype), int(D))))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        yield from self._rows(source, batch_rows, columns, 0, source.n_rows)

    def _rows(
        self, source: Source, batch_rows: int, columns: Sequence[str] | None, first: int, rows: int
    ) -> Iterator[Rows]:
        """The rows from ``first`` on, with their image vectors."""
        images, _, notes = _sorted(source)
        schema = self.schema(source)
        names = schema.names if columns is None else list(columns)
        chosen = pa.schema([schema.field(n) for n in names], schema.metadata)
        arrays = [_vectors(p) for p in images]
        for path, batch in iter_batches(notes, [n for n in names if n != VECTORS], batch_rows, rows, first):
            values = {name: batch.column(name) for name in batch.schema.names}
            if VECTORS in names:
                block = _rows(arrays, first, first + len(batch))
                values[VECTORS] = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), block.shape[1])
            yield Rows(path, pa.RecordBatch.from_arrays([values[n] for n in names], schema=chosen))
            first += len(batch)

    def iter_range(
        self, source: Source, first: int, rows: int, batch_rows: int, *, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """As :meth:`cleanpairs.data.parquet.ParquetReader.iter_range`, with the captions' vectors."""
        rows = max(0, min(rows, source.n_rows - first))
        arrays = [_vectors(p) for p in _sorted(source)[1]]
        read = self._rows(source, batch_rows, self._wanted(source), first, rows)
        for batch in self._converted(source, read, first, hash_vectors):
            if arrays:
                texts = _rows(arrays, first, first + batch.n_rows)
                bad = np.flatnonzero(~finite_rows(texts)).tolist()
                batch.faults = dict.fromkeys(bad, NOT_FINITE_TEXT) | batch.faults
                batch.text_vectors = np.where(finite_rows(texts)[:, None], texts, 0) if bad else texts
            yield batch
            first += batch.n_rows

    def roles(self, source: Source) -> set[str]:
        """What :meth:`iter_range` gives of each row: the roles of the columns, and the captions' vectors."""
        return {*source.columns, *(["text_features"] if _sorted(source)[1] else [])}

    def row_groups(self, source: Source) -> list[int]:
        """Rows of each row group of the metadata, in order over all parts."""
        return row_groups(_sorted(source)[2])

    def encoded(self, source: Source) -> ImageSource | None:
        """The images that the metadata names, where an image root says where they are: for thumbnails."""
        if "image" not in source.columns or source.image_root is None:
            return None
        return ParquetImages(_sorted(source)[2], source.columns["image"], source.n_rows, source.image_root)

    def load(self, source: Source) -> Pairs:
        """All pairs; vectors in one part stay memory-mapped where they are."""
        images, texts, _ = _sorted(source)
        array = _vectors(images[0])[: source.n_rows, None, :]
        if len(images) == 1 and array.dtype in (np.float16, np.float32):
            pairs = load_rows(self.iter_rows(source), source, self.encoded(source), array)
            if NOT_FINITE in pairs.reasons.values():  # such rows become zeros, which takes a copy
                pairs = super().load(source)
        else:
            pairs = super().load(source)
        if not texts:
            return pairs
        arrays = [_vectors(p) for p in texts]
        whole = (arrays[0] if len(arrays) == 1 else np.concatenate(arrays))[: source.n_rows]
        bad = {i: NOT_FINITE_TEXT for i in _not_finite(whole)}
        return replace(pairs, text_vectors=whole, reasons=bad | pairs.reasons)


def _not_finite(array: np.ndarray) -> list[int]:
    """Rows of (n, D) that hold a NaN or infinity, found block by block."""
    blocks = (array[start : start + 4096] for start in range(0, len(array), 4096))
    return [4096 * k + i for k, b in enumerate(blocks) for i in np.flatnonzero(~np.isfinite(b).all(axis=1)).tolist()]


def _parts(folder: Path, name: str, ending: str) -> list[str]:
    """The files of a subfolder, by the number at the end of their names."""
    found = [p for p in (folder / name).glob(f"[!.]*{ending}") if p.is_file()]
    if not found:
        raise DataError(f"{folder / name} has no *{ending}: it is not a whole embedding folder of clip-retrieval")
    return [str(p) for p in sorted(found, key=_number)]


def _number(path: Path) -> tuple[int, str]:
    match = _NUMBER.search(path.stem)
    return (int(match[1]) if match else -1, path.name)


def _sorted(source: Source) -> tuple[list[str], list[str], list[str]]:
    """The files with vectors of images, with vectors of captions, and with rows."""
    of = {
        name: [p for p in source.paths if Path(p).parent.name == name] for name in ("img_emb", "text_emb", "metadata")
    }
    return of["img_emb"], of["text_emb"], of["metadata"]


def _vectors(path: str) -> np.ndarray:
    """(n, D), memory-mapped."""
    array = read_npy(path)
    if array.ndim != 2 or array.dtype not in _FLOATS or not array.shape[1]:
        raise DataError(f"{path} must hold floats of 16, 32 or 64 bits, (n, D); found {array.dtype} {array.shape}")
    return array


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
        if _number(Path(path))[0] != _number(Path(note))[0] or count != n:
            raise DataError(f"{path} with {count} vectors does not go with {note} with {n} rows")
