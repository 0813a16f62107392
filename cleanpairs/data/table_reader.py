"""Readers of tables: rows in batches become pairs, in bounded memory. Of Parquet, and the base of all readers."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from cleanpairs.core import DataError
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import begins_with
from cleanpairs.data.captions import are_lists, caption_column
from cleanpairs.data.columns import check_truth, find_columns, is_text, score_columns
from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.formats.records import ENDINGS, file_kind
from cleanpairs.data.image_paths import LOOK_AT, with_images
from cleanpairs.data.images import ImageSource, ambiguous_paths, encoded_bytes, image_cells, rows_by_file, vector_groups
from cleanpairs.data.pairs import Pairs, known_truth
from cleanpairs.data.parquet_io import (
    BATCH_BYTES,
    common_schema,
    count_rows,
    footer,
    group_sizes,
    iter_batches,
    parquet_files,
)
from cleanpairs.data.rows import RowBatch, Rows, Shape, convert, row_numbers, texts_of, vector_shape, with_row_faults
from cleanpairs.data.source import Source, cache_folder, fingerprint_of
from cleanpairs.data.text import text_groups
from cleanpairs.ops.columns import is_list, numbered, taken
from cleanpairs.ops.mapped import mapped_array, release

IN_MEMORY = 256 * 2**20  # bytes of vectors. More are mapped from a file in the cache directory
BATCH = 512
FAULT = "cleanpairs_fault"  # column of a table in the cache: the fault of a row
IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # the storage of `datasets`' Image

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


def chosen_split(split: str | None, splits: Sequence[str], data: str) -> str:
    """The wanted split, else the only one, else ``train``. DataError where there is no such one."""
    if not splits:
        raise DataError(f"{data} has no splits; leave --split (split) out")
    name = split or (splits[0] if len(splits) == 1 else "train")
    if name not in splits:
        raise DataError(f"{data} has no split {name!r} (splits: {', '.join(splits)}); name one with --split (split)")
    return name


class TableReader(ABC):
    """A reader whose input is a table. A subclass has ``kind``, ``recognises``, ``open``, and the methods below."""

    kind: ClassVar[str]
    splits: ClassVar[bool] = False  # whether some inputs have several
    streams: ClassVar[bool] = False  # whether there is an ``iter_range``, of a part of the rows
    names_images: ClassVar[bool] = False  # whether the names of the images are keys, and need no column of keys
    parses_lists: ClassVar[bool] = False  # whether texts that spell lists of captions are read as lists

    @abstractmethod
    def schema(self, source: Source) -> pa.Schema:
        """The schema of the table."""

    def stored_schema(self, source: Source) -> pa.Schema:
        """The schema of the first file, with views and extensions, which :meth:`schema` has not."""
        return self.schema(source)

    def with_lists(self, source: Source, schema: pa.Schema) -> pa.Schema:
        """The ``schema`` with lists in the place of texts that spell lists of captions."""
        at = schema.get_field_index(source.columns.get("text", "")) if "captions" in source.options else -1
        return schema if at < 0 else schema.set(at, schema.field(at).with_type(pa.list_(pa.string())))

    def rows_of(self, source: Source, path: str, batch: pa.RecordBatch, faults: dict[int, str]) -> Rows:
        """The rows of a ``batch`` of a file, with lists in the place of texts that spell them."""
        schema, text = self.with_lists(source, batch.schema), source.columns.get("text", "")
        if schema.equals(batch.schema):
            return Rows(path, batch, faults)
        column, bad = caption_column(texts_of(batch[text]), lists=True)
        return Rows(path, batch.set_column(schema.get_field_index(text), schema.field(text), column), faults, bad)

    @abstractmethod
    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """The first ``n_rows`` rows, in order, at most ``batch_rows`` at once. Only ``columns``, all when None."""

    def encoded(self, source: Source) -> ImageSource | None:
        """The encoded images, by row. None where there are none."""
        if "image" not in source.columns:
            return None
        return ImageSource(source.n_rows, partial(self.picked_images, source))

    def picked_images(self, source: Source, rows: np.ndarray) -> Iterator[bytes | None]:
        """Encoded images at ``rows`` (k,), rising, one after the other. No part of the input is read twice."""
        for first, parts in self._parts_of(source, rows, [source.columns["image"]]):
            for number, part in numbered(parts, first):
                at = rows[slice(*np.searchsorted(rows, [number, number + len(part)]))] - number
                for cell in image_cells(taken(part.batch.column(0), at)):
                    yield encoded_bytes(cell, part.path, source.image_root)
                if number + len(part) > rows[-1]:
                    break

    def _parts_of(self, source: Source, wanted: np.ndarray, columns: list[str]) -> Iterator[tuple[int, Iterator[Rows]]]:
        """First row and batches of the parts that hold the rows ``wanted`` (k,), rising."""
        if len(wanted):
            yield 0, self.batches(source, BATCH, columns)

    def mapped(self, source: Source) -> list[np.ndarray]:
        """Vectors (n_rows, R, D), and those of captions (n_rows, D), that stay in their files. Empty by default."""
        return []

    def batches_or_empty(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """As :meth:`batches`. One empty batch where there are no rows."""
        rows = None
        for rows in self.batches(source, batch_rows, columns):
            yield rows
        if rows is None:
            schema = self.schema(source)
            schema = schema if columns is None else pa.schema([schema.field(c) for c in columns], schema.metadata)
            yield Rows("", pa.RecordBatch.from_pylist([], schema=schema))

    def names(self, source: Source, first: int, n: int) -> pa.Array:
        """The names (n,) of the rows from ``first`` on where they have no key: their numbers."""
        return row_numbers(first, n)

    def _wanted(self, source: Source) -> list[str]:
        needed = dict.fromkeys(source.columns.values())
        if "features" in source.columns:
            needed.pop(source.columns.get("image", ""), None)
        names = set(self.schema(source).names)
        also = ("true_mismatch", "true_key", "status", "error_message")  # the last two are img2dataset's
        return list(dict.fromkeys([*needed, *(name for name in also if name in names)]))

    def iter_rows(
        self, source: Source, batches: Iterator[Rows] | None = None, first: int = 0, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """Rows of ``source``, converted: ``batches`` of them from row ``first`` on, or all, at least an empty batch."""
        roles = [role for role in ("features", "text_features") if role in source.columns]
        shapes = {role: self._vector_shape(source, role) for role in roles}
        batches = batches or self.batches_or_empty(source, BATCH, self._wanted(source))
        for number, rows in numbered(batches, first):
            about = {"image_root": source.image_root, "names": self.names(source, number, len(rows))}
            yield convert(rows, source.columns, shapes, first_row=number, hash_vectors=hash_vectors, **about)

    def load(self, source: Source) -> Pairs:
        """All pairs. Vectors above 256 MiB are mapped from a file in the cache directory."""
        encoded, mapped = self.encoded(source), self.mapped(source)
        if mapped:
            pairs = load_rows(self.iter_rows(source), source, encoded, *mapped)
            # Rows that are not finite become zeros, which takes a copy. Their reason may be another one.
            if all((abs(array[pairs.row[list(pairs.reasons)]]) <= np.finfo(np.float32).max).all() for array in mapped):
                return pairs
        return load_rows(self.iter_rows(source), source, encoded)

    def _vector_shape(self, source: Source, role: str) -> Shape | None:
        name = source.columns[role]
        none = pa.array([], self.schema(source).field(name).type)
        columns = chain([none], (rows.batch.column(0) for rows in self.batches(source, BATCH, [name])))
        return next((shape for shape in map(vector_shape, columns) if shape is not None), None)

    def described(self, data: str, paths: Sequence[str], n_rows: int, request: DataOptions, **options: str) -> Source:
        """The source of these files: find its columns, and hash its files."""
        root = None if request.image_root is None else str(Path(request.image_root).absolute())
        given = {} if request.text_column is None else {"text": request.text_column}
        source = Source(self.kind, tuple(paths), given, "", n_rows, root, False, options)
        columns = find_columns(schema := self.schema(source), vars(request), data)
        text = columns.get("text")
        if self.parses_lists and text is not None and is_text(schema.field(text).type):
            read = chain.from_iterable(texts_of(rows.batch[0]) for rows in self.batches(source, LOOK_AT, [text]))
            if are_lists(list(islice(read, LOOK_AT))):
                request = replace(request, text_column=text)
                return self.described(data, paths, n_rows, request, **options, captions="lists")
        check_truth(schema, data)
        if self.names_images and columns.get("key") == columns.get("image"):
            columns.pop("key", None)
        lists = "text" in columns and is_list(schema.field(columns["text"]).type)
        n_rows = n_rows if request.limit is None else min(request.limit, n_rows)
        source = replace(source, columns=columns, explicit_lists=lists, n_rows=n_rows)
        return replace(source, fingerprint=fingerprint_of(source))


class ParquetReader(TableReader):
    """Reads Parquet. See :func:`cleanpairs.data.readers.load_pairs`."""

    kind = "parquet"
    splits = streams = parses_lists = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` looks like Parquet: a file or glob, or a directory with ``*.parquet`` in it or below."""
        path = Path(data)
        if path.is_dir():
            return bool(parquet_files(path)) and not any(path.glob("*_ims.npy"))  # a truth in Parquet goes with those
        return path.is_file() or any(c in data for c in "*?[")

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the files and their columns. Only schemas are read, and files are hashed."""
        folder = Path(data).absolute()
        if folder.is_file() and folder.suffix not in (".parquet", ".pq") and not begins_with(folder, b"PAR1"):
            if folder.suffix.lower() in (".gz", ".zst", ".bz2", ".xz", ".zip"):
                raise DataError(f"{data} is packed: unpack it; only .csv, .tsv and .jsonl are read as .gz or .zst")
            raise DataError(f"{data} is no Parquet, CSV, TSV, JSON, .npy, .arrow or .tar: see docs/inputs.md")
        paths = parquet_files(folder) if folder.is_dir() else expand_files(data, ".parquet")
        if not folder.exists() and file_kind(paths[0]) in (*ENDINGS, ".json"):
            raise DataError(f"{data} names {len(paths)} tables of text: give one file, or write them as Parquet")
        matches = {path: re.fullmatch(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?", Path(path).stem) for path in paths}
        splits = list(dict.fromkeys("" if match is None else match[1] for match in matches.values()))
        options, named = {}, [split for split in splits if split]  # as the hub names them
        if request.split is None and "train" in named and named != splits:
            other = next(Path(path).name for path, match in matches.items() if match is None)
            raise DataError(f"{data}: {other} is in no split, and others are: name one with --split (split), or a glob")
        if request.split is not None or (len(splits) > 1 and "train" in splits):
            options["split"] = chosen_split(request.split, named, data)
            paths = [path for path, match in matches.items() if match is not None and match[1] == options["split"]]
        return self.described(data, paths, sum(count_rows(paths)), _complete_request(paths, request), **options)

    def schema(self, source: Source) -> pa.Schema:
        """The schema that the files share."""
        schema = common_schema(source.paths)
        schema = schema.remove(schema.get_field_index(FAULT)) if FAULT in schema.names else schema
        return self.with_lists(source, schema)

    def stored_schema(self, source: Source) -> pa.Schema:
        """See :class:`TableReader`."""
        return self.schema(source) if source.paths[0].endswith(".npy") else footer(source.paths[0])[2]

    def batches(
        self, source: Source, batch_rows: int, columns: Sequence[str] | None, first: int = 0, rows: int | None = None
    ) -> Iterator[Rows]:
        """See :class:`TableReader`. Reads ``rows`` rows from ``first`` on, and not the row groups before them."""
        rows = source.n_rows if rows is None else rows
        has_faults = FAULT in common_schema(source.paths[:1]).names  # all files have the same columns
        wanted = columns if columns is None or not has_faults else [*columns, FAULT]
        for path, read in iter_batches(source.paths, wanted, batch_rows, rows, first):
            batch, faults = read, dict[int, str]()
            if has_faults:
                faults = {i: why for i, why in enumerate(read[FAULT].to_pylist()) if why is not None}
                batch = read.drop_columns([FAULT])
            yield self.rows_of(source, path, batch, faults)

    def iter_range(
        self, source: Source, first: int, rows: int, batch_rows: int, *, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """The rows ``first`` to ``first + rows`` of ``source``, as of :meth:`iter_rows`."""
        rows = max(0, min(rows, source.n_rows - first))
        read = self.batches(source, batch_rows, self._wanted(source), first, rows)
        return self.iter_rows(source, read, first, hash_vectors)

    def row_groups(self, source: Source) -> list[int]:
        """Rows of each row group, in order over all files."""
        return [rows for path in source.paths if not path.endswith(".npy") for rows in group_sizes(path)]

    def _parts_of(self, source: Source, wanted: np.ndarray, columns: list[str]) -> Iterator[tuple[int, Iterator[Rows]]]:
        paths = [path for path in source.paths if not path.endswith(".npy")]
        for number, before, in_file in rows_by_file(count_rows(paths), wanted):
            path = paths[number]  # alone: for several files the schema of each is read
            group = np.searchsorted(np.cumsum(group_sizes(path)), in_file, side="right")
            for rows in np.split(in_file, np.flatnonzero(np.diff(group) > 1) + 1):  # of row groups side by side
                first, last = int(rows[0]), int(rows[-1])
                read = iter_batches([path], columns, BATCH, last + 1 - first, first)
                yield before + first, (Rows(path, batch) for path, batch in read)


def _complete_request(paths: Sequence[str], request: DataOptions) -> DataOptions:
    """The request with the column of images that are there, by the first rows."""
    schema, file = common_schema(paths), Path(paths[0])

    def column(name: str) -> list[Any]:
        return [cell for _, b in iter_batches(paths, [name], LOOK_AT, LOOK_AT) for cell in image_cells(b.column(0))]

    with suppress(DataError):  # each row without its image gets a reason later
        located = with_images(schema, column, file, request)
        # Tables in other folders do not name the images of the first one's folder.
        alone = request.image_root is not None or len({Path(path).parent for path in paths}) == 1
        root = located.image_root if alone else None
        if located.image_column != request.image_column or root != str(file.parent):
            request = replace(located, image_root=root)
    return request


def load_rows(
    batches: Iterator[RowBatch],
    source: Source,
    encoded: ImageSource | None,
    vectors: np.ndarray | None = None,
    text_vectors: np.ndarray | None = None,
) -> Pairs:
    """Pairs of converted batches. ``vectors`` (n_rows, R, D), ``text_vectors`` (n_rows, D): of one array each."""
    given = {"features": vectors, "text_features": text_vectors}
    arrays, first = dict(given), 0
    captions, keys, true_key = list[str](), list[str](), list[str]()
    mismatch: list[bool | None] = []
    reasons: dict[int, str] = {}
    named: dict[int, tuple[str, str]] = {}
    indices = {name: [np.empty(0, np.int64)] for name in ("row", "position", "image_group")}
    scores = {name: [np.empty(0, np.float32)] for name in score_columns(source.columns)}
    for batch in batches:
        for role, block in (("features", batch.vectors), ("text_features", batch.text_vectors)):
            if block is not None and given[role] is None:
                if (whole := arrays[role]) is None:
                    shape, large = (source.n_rows, *block.shape[1:]), source.n_rows * block[:1].nbytes > IN_MEMORY
                    folder = cache_folder("vectors") if large else None
                    whole = np.empty(shape, block.dtype) if folder is None else mapped_array(shape, block.dtype, folder)
                    arrays[role] = whole
                whole[first : first + len(block)] = block
                release(whole)
        reasons |= {len(captions) + pair: why for pair, why in batch.faults.items()}
        named |= {first + row: each for row, each in batch.named.items()}
        captions += batch.captions.to_pylist()
        keys += batch.keys.to_pylist()
        mismatch += batch.true_mismatch or []
        true_key += batch.true_key or []
        for name, parts in indices.items():
            parts.append(getattr(batch, name) + (first if name == "row" else 0))
        for name, values in scores.items():
            values.append(batch.precomputed_scores[name])
        first += batch.n_rows
    unknown = [wrong is None for wrong in mismatch]
    truth = known_truth(np.ma.array(mismatch, bool, mask=unknown)) if mismatch else None
    images, texts = encoded or ImageSource(source.n_rows), arrays["text_features"]
    rows, position, groups = map(np.concatenate, indices.values())
    return Pairs(
        captions=captions,
        image_index=rows.copy(),
        row=rows,
        position=position,
        keys=keys,
        images=images if arrays["features"] is None else images.with_vectors(arrays["features"]),
        image_group=groups,
        text_group=text_groups(captions) if "text" in source.columns or texts is None else vector_groups(texts),
        reasons=with_row_faults(reasons, rows, ambiguous_paths(named, source.image_root)),
        source=source,
        true_mismatch=truth,
        true_key=None if truth is None else true_key or None,
        text_vectors=texts,
        precomputed_scores={name: np.concatenate(parts) for name, parts in scores.items()},
    )
