"""Parquet input: a file, a glob or a directory, read in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.data.atomic import staged_file
from cleanpairs.data.columns import check_truth, find_columns, is_list, score_columns
from cleanpairs.data.images import FeatureImages, ImageSource, ParquetImages
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.parquet_io import common_schema, count_rows, expand, iter_batches
from cleanpairs.data.rows import RowBatch, convert, vector_shape
from cleanpairs.data.source import Source, cache_dir, fingerprint_files, settings_text
from cleanpairs.data.text import text_groups
from cleanpairs.errors import DataError

__all__ = ["ParquetReader"]

IN_MEMORY = 256 * 2**20  # bytes of vectors; more are mapped from a file in the cache directory
BATCH = 512


class ParquetReader:
    """Reads Parquet; see :func:`cleanpairs.data.readers.load_pairs`."""

    kind = "parquet"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` looks like Parquet: a file or glob, or a directory with ``*.parquet``."""
        path = Path(data)
        if path.is_dir():
            return any(path.glob("[!.]*.parquet")) and not any(path.glob("*_ims.npy"))  # beside those lies their truth
        return path.is_file() or any(c in data for c in "*?[")

    def open(
        self, data: str, *, split: str | None, columns: dict[str, str | None], image_root: str | None, limit: int | None
    ) -> Source:
        """Where the data is, what its columns are; nothing but schemas and hashes is read."""
        if split is not None:
            raise DataError(f"{data} has no splits: 'split' is for directories in the research layout")
        paths = expand(data)
        schema = common_schema(paths)
        found = find_columns(schema, columns, data)
        check_truth(schema, data)
        total = sum(count_rows(paths))
        source = Source(
            kind=self.kind,
            paths=tuple(paths),
            columns=found,
            fingerprint="",
            n_rows=total if limit is None else min(limit, total),
            image_root=None if image_root is None else str(Path(image_root).absolute()),
            explicit_lists=is_list(schema.field(found["text"]).type),
        )
        return replace(source, fingerprint=fingerprint_files(paths, settings_text(source)))

    def iter_tables(
        self, source: Source, batch_rows: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All rows of ``source`` in order; one empty batch where there are none."""
        any_row = False
        for _, batch in iter_batches(source.paths, columns, batch_rows, source.n_rows):
            any_row = True
            yield batch
        if not any_row:
            schema = common_schema(source.paths)
            schema = schema if columns is None else pa.schema([schema.field(c) for c in columns], schema.metadata)
            yield pa.RecordBatch.from_pylist([], schema=schema)

    def iter_rows(self, source: Source, batch_rows: int = BATCH) -> Iterator[RowBatch]:
        """The rows of ``source``, converted, batch by batch."""
        needed = dict.fromkeys(source.columns.values())
        if "features" in source.columns:
            needed.pop(source.columns.get("image", ""), None)
        names = set(common_schema(source.paths).names)
        wanted = [*needed, *(c for c in ("true_mismatch", "true_key") if c in names)]
        first, shape = 0, self._vector_shape(source)
        for path, batch in iter_batches(source.paths, wanted, batch_rows, source.n_rows):
            yield convert(batch, source.columns, path=path, image_root=source.image_root, first_row=first, shape=shape)
            first += len(batch)

    @staticmethod
    def _vector_shape(source: Source) -> tuple[int, int, np.dtype[Any]] | None:
        """Of the features column, by the first batch that tells; None where there are no usable vectors."""
        if "features" not in source.columns:
            return None
        name = source.columns["features"]
        shape = vector_shape(common_schema(source.paths).field(name).type, None)
        for _, batch in iter_batches(source.paths, [name], BATCH, source.n_rows) if shape is None else ():
            shape = vector_shape(batch.column(0).type, batch.column(0))
            if shape is not None:
                break
        return shape

    def load(self, source: Source) -> Pairs:
        """All pairs; vectors above 256 MiB are mapped from a file in the cache directory."""
        pairs = load_rows(self.iter_rows(source), source, self._encoded(source))
        shape = self._vector_shape(source) if not source.n_rows else None
        if shape is None:
            return pairs
        return replace(pairs, images=FeatureImages(np.empty((0, *shape[:2]), shape[2]), self._encoded(source)))

    def _encoded(self, source: Source) -> ImageSource | None:
        if "image" not in source.columns:
            return None
        return ParquetImages(source.paths, source.columns["image"], source.n_rows, source.image_root)


def load_rows(batches: Iterator[RowBatch], source: Source, encoded: ImageSource | None) -> Pairs:
    """Pairs out of converted batches of rows."""
    captions: list[str] = []
    keys: list[str] = []
    row: list[int] = []
    position: list[int] = []
    groups: list[np.ndarray] = []
    blocks: list[np.ndarray] = []
    reasons: dict[int, str] = {}
    mismatch: list[bool] = []
    true_key: list[str] = []
    scores: dict[str, list[np.ndarray]] = {name: [] for name in score_columns(source.columns)}
    truth = False
    first = 0
    cached = cache_dir() / "vectors" / f"{source.fingerprint[:32]}.npy"
    writer: Any = None
    with ExitStack() as stack:
        for batch in batches:
            reasons.update({len(captions) + pair: why for pair, why in batch.faults.items()})
            captions += batch.captions
            keys += batch.keys
            row += [first + r for r in batch.row]
            position += batch.position
            groups.append(batch.image_group)
            if batch.true_mismatch is not None and batch.true_key is not None:
                truth = True
                mismatch += batch.true_mismatch
                true_key += batch.true_key
            for name, values in batch.given_scores.items():
                scores[name].append(values)
            if batch.vectors is not None:
                size = source.n_rows * batch.vectors[0].nbytes if len(batch.vectors) else 0
                if writer is None and size > IN_MEMORY:
                    # written, not mapped: pages of a map that are dirty count as this process's memory
                    writer = stack.enter_context(open(stack.enter_context(staged_file(cached, overwrite=True)), "wb"))
                    header = np.lib.format.header_data_from_array_1_0(batch.vectors)
                    header["shape"] = (source.n_rows, *batch.vectors.shape[1:])
                    np.lib.format.write_array_header_1_0(writer, header)
                if writer is not None:
                    writer.write(np.ascontiguousarray(batch.vectors).data)
                else:
                    blocks.append(batch.vectors)
            first += batch.n_rows
    array: np.ndarray | None = None
    if writer is not None:
        array = np.load(cached, mmap_mode="r", allow_pickle=False)
    elif "features" in source.columns:
        array = _stack(blocks)
    images: ImageSource | None = encoded if array is None else FeatureImages(array, encoded)
    if images is None:
        raise DataError(f"{', '.join(source.paths)} holds no images")
    rows = np.asarray(row, dtype=np.int64)
    return Pairs(
        captions=captions,
        image_index=rows.copy(),
        row=rows,
        position=np.asarray(position, dtype=np.int64),
        keys=keys,
        images=images,
        image_group=np.concatenate(groups) if groups else np.empty(0, np.int64),
        text_group=text_groups(captions),
        reasons=reasons,
        source=source,
        true_mismatch=np.asarray(mismatch, dtype=bool) if truth else None,
        true_key=true_key if truth else None,
        given_scores={name: np.concatenate([np.empty(0, np.float32), *parts]) for name, parts in scores.items()},
    )


def _stack(blocks: list[np.ndarray]) -> np.ndarray:
    blocks = [b for b in blocks if len(b)]
    return np.concatenate(blocks) if blocks else np.empty((0, 1, 1), np.float32)
