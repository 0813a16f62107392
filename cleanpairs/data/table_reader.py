"""What the readers of tables have in common: rows in batches become pairs, in bounded memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.columns import check_truth, find_columns, score_columns
from cleanpairs.data.images import ImageSource, encoded_bytes, image_cells, vector_groups
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.rows import RowBatch, Shape, convert, vector_shape
from cleanpairs.data.source import Source, cache_folder, fingerprint_of
from cleanpairs.data.text import NOT_FINITE_TEXT, text_groups
from cleanpairs.ops.columns import is_list
from cleanpairs.ops.scratch import Scratch, release

IN_MEMORY = 256 * 2**20  # bytes of vectors; more are mapped from a file in the cache directory
BATCH = 512
VECTORS = ("features", "text_features")  # roles
NOT_FINITE = ("its vector is not finite", NOT_FINITE_TEXT)  # what cleanpairs.data.rows says


@dataclass(frozen=True)
class Rows:
    """Input rows in a batch, the file that they are from, and why some are unusable: row of the batch -> reason."""

    path: str
    batch: pa.RecordBatch
    faults: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadRequest:
    """What is to be read of an input: a split, columns by role (None: to be found), where images lie, how many rows."""

    split: str | None
    columns: dict[str, str | None]
    image_root: str | None
    limit: int | None


def chosen_split(asked: str | None, known: Sequence[str], where: str) -> str:
    """The split that was asked for, else the only one, else ``train``; DataError where there is no such one."""
    name = asked or (known[0] if len(known) == 1 else "train")
    if name not in known:
        raise DataError(f"{where} has no split {name!r} (splits: {', '.join(known)}); name one with --split")
    return name


class TableReader(ABC):
    """A reader whose input is a table: it says what the columns are and gives the rows, in order.

    A subclass has ``kind``, ``recognises(data)``, ``open(data, request)`` as
    :class:`cleanpairs.data.parquet.ParquetReader` has them, and the methods below.
    """

    kind: ClassVar[str]
    splits: ClassVar[bool] = False  # whether some inputs have several
    streams: ClassVar[bool] = False  # whether there is an ``iter_range``, of a part of the rows

    @abstractmethod
    def schema(self, source: Source) -> pa.Schema:
        """Of the table."""

    @abstractmethod
    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """The first ``n_rows`` rows, in order, at most ``batch_rows`` at once and fewer where rows are large.

        Only ``columns``, all when None.
        """

    def roles(self, source: Source) -> set[str]:
        """What ``iter_range`` gives of each row: the roles of the columns; none where there is no such thing."""
        return set(source.columns) if self.streams else set()

    def encoded(self, source: Source) -> ImageSource | None:
        """The encoded images, by row; None where there are none."""
        if "image" not in source.columns:
            return None

        def stream(batch_size: int) -> Iterator[tuple[int, list[bytes | None]]]:
            first = 0
            for rows in self.batches(source, batch_size, [source.columns["image"]]):
                cells = image_cells(rows.batch.column(0))
                yield first, [encoded_bytes(cell, rows.path, source.image_root) for cell in cells]
                first += len(cells)

        return ImageSource(source.n_rows, partial(self.images_at, source), stream)

    def images_at(self, source: Source, rows: Sequence[int]) -> list[bytes | None]:
        """Encoded images (k,) at ``rows`` (k,), in any order; what lies before them is passed over."""
        wanted, column = np.unique(np.asarray(rows, np.int64)), source.columns["image"]
        found: dict[int, bytes | None] = {}
        for first, parts in self._around(source, wanted, [column]):
            for part in parts:
                last = first + len(part.batch)
                for row in wanted[(wanted >= first) & (wanted < last)].tolist():
                    cell = image_cells(part.batch.column(0).slice(row - first, 1))[0]
                    found[row] = encoded_bytes(cell, part.path, source.image_root)
                if (first := last) > wanted[-1]:
                    break
        return [found.get(int(row)) for row in rows]

    def _around(self, source: Source, wanted: np.ndarray, columns: list[str]) -> Iterator[tuple[int, Iterator[Rows]]]:
        """First row and batches of the parts in which the rows ``wanted`` (k,), rising, are."""
        if len(wanted):
            yield 0, self.batches(source, BATCH, columns)

    def mapped(self, source: Source) -> list[np.ndarray]:
        """Vectors (n_rows, R, D), and those of captions (n_rows, D), that may stay where they are; none by default."""
        return []

    def some(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """As :meth:`batches`; one empty batch where there are no rows."""
        rows = None
        for rows in self.batches(source, batch_rows, columns):
            yield rows
        if rows is None:
            schema = self.schema(source)
            schema = schema if columns is None else pa.schema([schema.field(c) for c in columns], schema.metadata)
            yield Rows("", pa.RecordBatch.from_pylist([], schema=schema))

    def _wanted(self, source: Source) -> list[str]:
        """The columns that become pairs."""
        needed = dict.fromkeys(source.columns.values())
        if "features" in source.columns:
            needed.pop(source.columns.get("image", ""), None)
        names = set(self.schema(source).names)
        return [*needed, *(c for c in ("true_mismatch", "true_key") if c in names)]

    def iter_rows(
        self, source: Source, batches: Iterator[Rows] | None = None, first: int = 0, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """Rows of ``source``, converted, batch by batch: consecutive ones from row ``first`` on, or all of them, one
        empty batch where there are none; ``hash_vectors`` as in :func:`cleanpairs.data.rows.convert`.
        """
        shapes = {role: self._vector_shape(source, role) for role in VECTORS if role in source.columns}
        for rows in batches or self.some(source, BATCH, self._wanted(source)):
            yield convert(
                rows.batch,
                source.columns,
                shapes,
                path=rows.path,
                image_root=source.image_root,
                first_row=first,
                faults=rows.faults,
                hash_vectors=hash_vectors,
            )
            first += len(rows.batch)

    def load(self, source: Source) -> Pairs:
        """All pairs; vectors above 256 MiB are mapped from a file in the cache directory."""
        encoded, mapped = self.encoded(source), self.mapped(source)
        if mapped:
            pairs = load_rows(self.iter_rows(source), source, encoded, *mapped)
            if not set(NOT_FINITE) & set(pairs.reasons.values()):  # such rows become zeros, which takes a copy
                return pairs
        return load_rows(self.iter_rows(source), source, encoded)

    def _vector_shape(self, source: Source, role: str) -> Shape | None:
        """Of a column of vectors, by its type or the first batch that tells; None where there are no usable ones."""
        name = source.columns[role]
        none = pa.array([], self.schema(source).field(name).type)
        columns = chain([none], (rows.batch.column(0) for rows in self.batches(source, BATCH, [name])))
        return next((shape for shape in map(vector_shape, columns) if shape is not None), None)

    def described(
        self,
        data: str,
        paths: Sequence[str],
        schema: pa.Schema,
        n_rows: int,
        request: ReadRequest,
        options: Mapping[str, str] | None = None,
    ) -> Source:
        """The source of a table that is known: its columns found, its files hashed."""
        found = find_columns(schema, request.columns, data)
        check_truth(schema, data)
        source = Source(
            kind=self.kind,
            paths=tuple(paths),
            columns=found,
            fingerprint="",
            n_rows=n_rows if request.limit is None else min(request.limit, n_rows),
            image_root=None if request.image_root is None else str(Path(request.image_root).absolute()),
            explicit_lists="text" in found and is_list(schema.field(found["text"]).type),
            options=dict(options or {}),
        )
        return replace(source, fingerprint=fingerprint_of(source))


def load_rows(
    batches: Iterator[RowBatch],
    source: Source,
    encoded: ImageSource | None,
    vectors: np.ndarray | None = None,
    text_vectors: np.ndarray | None = None,
) -> Pairs:
    """Pairs out of converted batches of rows.

    ``vectors`` (n_rows, R, D), ``text_vectors`` (n_rows, D): those of the columns of vectors, where they lie in one
    array already and need no copy.
    """
    given = {"features": vectors, "text_features": text_vectors}
    arrays = dict(given)
    found = [RowBatch(0)]
    captions: list[str] = []
    keys: list[str] = []
    reasons: dict[int, str] = {}
    first = 0
    for batch in batches:
        for role, block in (("features", batch.vectors), ("text_features", batch.text_vectors)):
            if block is not None and given[role] is None:
                held = arrays[role]
                arrays[role] = whole = _room(source.n_rows, block) if held is None else held
                whole[first : first + len(block)] = block
                release(whole)
        first += batch.n_rows
        reasons.update({len(captions) + pair: why for pair, why in batch.faults.items()})
        captions += batch.captions.to_pylist()
        keys += batch.keys.to_pylist()
        none = RowBatch(0)
        found.append(replace(batch, captions=none.captions, keys=none.keys, vectors=None, text_vectors=None))
    images, texts = encoded or ImageSource(source.n_rows), arrays["text_features"]
    images = images if arrays["features"] is None else images.with_vectors(arrays["features"])
    starts = np.cumsum([batch.n_rows for batch in found])  # of the batch that follows
    rows = np.concatenate([found[0].row, *(a + b.row for a, b in zip(starts, found[1:], strict=False))])
    truth = any(batch.true_mismatch is not None for batch in found)
    none_known = np.empty(0, np.float32)
    return Pairs(
        captions=captions,
        image_index=rows.copy(),
        row=rows,
        position=np.concatenate([batch.position for batch in found]),
        keys=keys,
        images=images,
        image_group=np.concatenate([batch.image_group for batch in found]),
        text_group=text_groups(captions) if "text" in source.columns or texts is None else vector_groups(texts),
        reasons=reasons,
        source=source,
        true_mismatch=np.array([m for b in found for m in b.true_mismatch or ()], bool) if truth else None,
        true_key=[key for b in found for key in b.true_key or ()] if truth else None,
        text_vectors=texts,
        precomputed_scores={
            name: np.concatenate([batch.precomputed_scores.get(name, none_known) for batch in found])
            for name in score_columns(source.columns)
        },
    )


def _room(n: int, block: np.ndarray) -> np.ndarray:
    """An array for n rows like those of ``block``: in a file of the cache directory, where it is large."""
    large = n * block[:1].nbytes > IN_MEMORY
    return Scratch(cache_folder("vectors") if large else None).empty((n, *block.shape[1:]), block.dtype)
