"""What the readers of tables have in common: rows in batches become pairs, in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.columns import check_truth, find_columns, score_columns
from cleanpairs.data.images import FeatureImages, ImageSource, StoredImages, encoded_bytes, image_cells, vector_groups
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.rows import RowBatch, convert, vector_shape
from cleanpairs.data.source import Source, cache_dir, cache_folder, fingerprint_files, settings_text
from cleanpairs.data.text import NOT_FINITE_TEXT, text_groups
from cleanpairs.ops.columns import is_list

IN_MEMORY = 256 * 2**20  # bytes of vectors; more are mapped from a file in the cache directory
BATCH = 512
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


class TableReader(ABC):
    """A reader whose input is a table: it says what the columns are and gives the rows, in order.

    A subclass has ``kind``, ``recognises(data)``, ``open(data, request)`` as
    :class:`cleanpairs.data.parquet.ParquetReader` has them, and the methods below.
    """

    kind: ClassVar[str]
    splits: ClassVar[bool] = False  # whether some inputs have several

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
        return set()

    def encoded(self, source: Source) -> ImageSource | None:
        """The encoded images, by row; None where there are none."""
        return None

    def stored_images(self, source: Source, read: Callable[[Sequence[int]], list[bytes | None]]) -> StoredImages:
        """The image column, fetched by ``read(rows)``, or read from the first row to the last."""

        def stream(batch_size: int) -> Iterator[tuple[int, list[bytes | None]]]:
            first = 0
            for rows in self.batches(source, batch_size, [source.columns["image"]]):
                cells = image_cells(rows.batch.column(0))
                yield first, [encoded_bytes(cell, rows.path, source.image_root) for cell in cells]
                first += len(cells)

        return StoredImages(source.n_rows, read, stream)

    def mapped(self, source: Source) -> list[np.ndarray]:
        """Vectors (n_rows, R, D), and those of captions (n_rows, D), that may stay where they are; none by default."""
        return []

    def iter_tables(
        self, source: Source, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows of ``source`` in order; one empty batch where there are none."""
        any_row = False
        for rows in self.batches(source, batch_rows, columns):
            any_row = True
            yield rows.batch
        if not any_row:
            schema = self.schema(source)
            schema = schema if columns is None else pa.schema([schema.field(c) for c in columns], schema.metadata)
            yield pa.RecordBatch.from_pylist([], schema=schema)

    def iter_rows(self, source: Source, batch_rows: int = BATCH) -> Iterator[RowBatch]:
        """The rows of ``source``, converted, batch by batch."""
        return self._converted(source, self.batches(source, batch_rows, self._wanted(source)), 0)

    def _wanted(self, source: Source) -> list[str]:
        """The columns that become pairs."""
        needed = dict.fromkeys(source.columns.values())
        if "features" in source.columns:
            needed.pop(source.columns.get("image", ""), None)
        names = set(self.schema(source).names)
        return [*needed, *(c for c in ("true_mismatch", "true_key") if c in names)]

    def _converted(
        self, source: Source, batches: Iterator[Rows], first: int, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """Consecutive rows of ``source``, converted; the first of them is row ``first``."""
        shape, text_shape = self._vector_shape(source), self._vector_shape(source, "text_features")
        for rows in batches:
            yield convert(
                rows.batch,
                source.columns,
                path=rows.path,
                image_root=source.image_root,
                first_row=first,
                shape=shape,
                text_shape=text_shape,
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
        pairs = load_rows(self.iter_rows(source), source, encoded)
        if source.n_rows:
            return pairs
        text_shape = self._vector_shape(source, "text_features")
        if text_shape is not None:
            pairs = replace(pairs, text_vectors=np.empty((0, text_shape[1]), text_shape[2]))
        shape = self._vector_shape(source)
        if shape is None:
            return pairs
        return replace(pairs, images=FeatureImages(np.empty((0, *shape[:2]), shape[2]), encoded))

    def _vector_shape(self, source: Source, role: str = "features") -> tuple[int, int, np.dtype[Any]] | None:
        """Of a column of vectors, by the first batch that tells; None where there are no usable vectors."""
        if role not in source.columns:
            return None
        name = source.columns[role]
        shape = vector_shape(self.schema(source).field(name).type, None)
        for rows in self.batches(source, BATCH, [name]) if shape is None else ():
            shape = vector_shape(rows.batch.column(0).type, rows.batch.column(0))
            if shape is not None:
                break
        return shape

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
        return replace(source, fingerprint=fingerprint_files(paths, settings_text(source)))


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
    cached = cache_dir() / "vectors" / source.fingerprint[:32]
    images_kept = _Kept(cached.with_name(f"{cached.name}.npy"), source.n_rows)
    texts_kept = _Kept(cached.with_name(f"{cached.name}-texts.npy"), source.n_rows)
    columns = _Columns({name: [] for name in score_columns(source.columns)})
    with ExitStack() as stack:
        for batch in batches:
            columns.add(batch)
            if batch.vectors is not None and vectors is None:
                images_kept.add(batch.vectors, stack)
            if batch.text_vectors is not None and text_vectors is None:
                texts_kept.add(batch.text_vectors, stack)
    array = vectors
    if "features" in source.columns and array is None:
        array = images_kept.array((1, 1))
    images: ImageSource | None = encoded if array is None else FeatureImages(array, encoded)
    if images is None:
        raise DataError(f"{', '.join(source.paths)} holds no images")
    texts = texts_kept.array((1,)) if text_vectors is None and "text_features" in source.columns else text_vectors
    return columns.pairs(images, texts, source)


@dataclass
class _Columns:
    """What converted batches hold of their pairs, one batch after the other; ``scores``: column -> its parts."""

    scores: dict[str, list[np.ndarray]]
    captions: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    row: list[np.ndarray] = field(default_factory=lambda: [np.empty(0, np.int64)])
    position: list[np.ndarray] = field(default_factory=lambda: [np.empty(0, np.int64)])
    groups: list[np.ndarray] = field(default_factory=lambda: [np.empty(0, np.int64)])
    reasons: dict[int, str] = field(default_factory=dict)
    truth: bool = False  # whether they have one
    mismatch: list[bool] = field(default_factory=list)
    true_key: list[str] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: RowBatch) -> None:
        """The next rows."""
        self.reasons.update({len(self.captions) + pair: why for pair, why in batch.faults.items()})
        self.captions += batch.captions.to_pylist()
        self.keys += batch.keys.to_pylist()
        self.row.append(self.rows + batch.row)
        self.position.append(batch.position)
        self.groups.append(batch.image_group)
        if batch.true_mismatch is not None and batch.true_key is not None:
            self.truth = True
            self.mismatch += batch.true_mismatch
            self.true_key += batch.true_key
        for name, values in batch.precomputed_scores.items():
            self.scores[name].append(values)
        self.rows += batch.n_rows

    def pairs(self, images: ImageSource, texts: np.ndarray | None, source: Source) -> Pairs:
        """All of them."""
        captioned = "text" in source.columns or texts is None
        rows = np.concatenate(self.row)
        return Pairs(
            captions=self.captions,
            image_index=rows.copy(),
            row=rows,
            position=np.concatenate(self.position),
            keys=self.keys,
            images=images,
            image_group=np.concatenate(self.groups),
            text_group=text_groups(self.captions) if captioned or texts is None else vector_groups(texts),
            reasons=self.reasons,
            source=source,
            true_mismatch=np.asarray(self.mismatch, dtype=bool) if self.truth else None,
            true_key=self.true_key if self.truth else None,
            text_vectors=texts,
            precomputed_scores={n: np.concatenate([np.empty(0, np.float32), *v]) for n, v in self.scores.items()},
        )


class _Kept:
    """Blocks of vectors, in memory, or in a file of the cache where all together are large."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        self.blocks: list[np.ndarray] = []
        self.file: Any = None

    def add(self, block: np.ndarray, stack: ExitStack) -> None:
        """The next rows; those in a file may be had when the stack is closed."""
        size = self.rows * block[0].nbytes if len(block) else 0
        if self.file is None and size > IN_MEMORY:
            # written, not mapped: pages of a map that are dirty count as this process's memory
            cache_folder("vectors")
            staged = stack.enter_context(staged_file(self.path, overwrite=True))
            self.file = stack.enter_context(open(staged, "wb"))  # noqa: SIM115 - the stack closes it
            header = np.lib.format.header_data_from_array_1_0(np.empty((0, *block.shape[1:]), block.dtype))
            np.lib.format.write_array_header_1_0(self.file, header | {"shape": (self.rows, *block.shape[1:])})
        if self.file is not None:
            self.file.write(np.ascontiguousarray(block).data)
        else:
            self.blocks.append(block)

    def array(self, empty: tuple[int, ...]) -> np.ndarray:
        """All rows; of shape (0, *empty) where there are none."""
        if self.file is not None:
            mapped: np.ndarray = np.load(self.path, mmap_mode="r", allow_pickle=False)
            return mapped
        blocks = [b for b in self.blocks if len(b)]
        return np.concatenate(blocks) if blocks else np.empty((0, *empty), np.float32)
