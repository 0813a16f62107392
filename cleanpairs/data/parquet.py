"""Parquet input: a file, a glob or a directory, read in bounded memory."""

from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.images import rows_by_file
from cleanpairs.data.parquet_io import (
    common_schema,
    count_rows,
    group_sizes,
    iter_batches,
    open_parquet,
    parquet_files,
)
from cleanpairs.data.rows import RowBatch
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import BATCH, ReadRequest, Rows, TableReader


class ParquetReader(TableReader):
    """Reads Parquet; see :func:`cleanpairs.data.readers.load_pairs`."""

    kind = "parquet"
    streams = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` looks like Parquet: a file or glob, or a directory with ``*.parquet``."""
        path = Path(data)
        if path.is_dir():
            return bool(parquet_files(path)) and not any(path.glob("*_ims.npy"))  # beside those lies their truth
        return path.is_file() or any(c in data for c in "*?[")

    def open(self, data: str, request: ReadRequest) -> Source:
        """Where the data is, what its columns are; nothing but schemas and hashes is read."""
        folder = Path(data).absolute()
        paths = parquet_files(folder) if folder.is_dir() else expand_files(data, ".parquet")
        return self.described(data, paths, common_schema(paths), sum(count_rows(paths)), request)

    def schema(self, source: Source) -> pa.Schema:
        """The one that the files share."""
        return common_schema(source.paths)

    def tables(self, source: Source) -> Sequence[str]:
        """The Parquet files that hold the rows, in order."""
        return source.paths

    def batches(
        self,
        source: Source,
        batch_rows: int,
        columns: Sequence[str] | None,
        first: int = 0,
        rows: int | None = None,
    ) -> Iterator[Rows]:
        """See :class:`TableReader`; of ``rows`` rows from ``first`` on: the row groups before them are not read."""
        rows = source.n_rows if rows is None else rows
        return starmap(Rows, iter_batches(source.paths, columns, batch_rows, rows, first))

    def iter_range(
        self, source: Source, first: int, rows: int, batch_rows: int, *, hash_vectors: bool = True
    ) -> Iterator[RowBatch]:
        """The rows ``first`` to ``first + rows`` of ``source``, as of :meth:`iter_rows`."""
        rows = max(0, min(rows, source.n_rows - first))
        read = self.batches(source, batch_rows, self._wanted(source), first, rows)
        return self.iter_rows(source, read, first, hash_vectors)

    def row_groups(self, source: Source) -> list[int]:
        """Rows of each row group, in order over all files."""
        sizes: list[int] = []
        for path in self.tables(source):
            with open_parquet(path) as file:
                sizes += group_sizes(file)
        return sizes

    def _around(self, source: Source, wanted: np.ndarray, columns: list[str]) -> Iterator[tuple[int, Iterator[Rows]]]:
        for _, first, rows in rows_by_file(self.row_groups(source), wanted):
            yield first, self.batches(source, BATCH, columns, first, int(rows[-1]) + 1)
