"""Lance datasets (the extra ``lance``): directories with ``_versions``, read in batches and by row, latest version."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core import reading
from cleanpairs.core.errors import needing
from cleanpairs.core.recipe import DataOptions
from cleanpairs.data.images import encoded_bytes, image_cells
from cleanpairs.data.rows import Rows
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import TableReader
from cleanpairs.ops.columns import plain_batch, plain_schema
from cleanpairs.ops.mapped import blocks

_ERRORS = "read as Lance", ValueError, RuntimeError, pa.ArrowException


def lance_module() -> Any:
    """Import the package. Raises ConfigError: it is not installed."""
    os.environ.setdefault("LANCE_LOG", "error")  # it warns of each new dataset
    with needing("a Lance dataset", 'pip install "cleanpairs[lance]"'):
        import lance
    return lance


class LanceReader(TableReader):
    """Reads the latest version of a Lance dataset. A later version is another input."""

    kind = "lance"
    parses_lists = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is the directory of a Lance dataset."""
        return Path(data, "_versions").is_dir()

    def open(self, data: str, request: DataOptions) -> Source:
        """Find all files below the directory, the rows and the columns."""
        folder = Path(data).absolute()
        with reading(folder, *_ERRORS):
            dataset = lance_module().dataset(str(folder))
            rows, version = dataset.count_rows(), str(dataset.version)
        paths = [str(p) for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix in (".lance", ".manifest")]
        return self.described(data, paths, rows, request, folder=str(folder), version=version)

    def schema(self, source: Source) -> pa.Schema:
        """See :class:`TableReader`."""
        with reading(source.options["folder"], *_ERRORS):
            return self.with_lists(source, plain_schema(self.stored_schema(source)))

    def stored_schema(self, source: Source) -> pa.Schema:
        """See :class:`TableReader`."""
        return _dataset(source).schema

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        folder, wanted = source.options["folder"], None if columns is None else list(columns)
        with reading(folder, *_ERRORS):
            for batch in _dataset(source).to_batches(columns=wanted, batch_size=batch_rows, limit=source.n_rows):
                yield self.rows_of(source, folder, plain_batch(batch), {})

    def picked_images(self, source: Source, rows: np.ndarray) -> Iterator[bytes | None]:
        """See :class:`TableReader`."""
        name, folder = source.columns["image"], source.options["folder"]
        with reading(folder, *_ERRORS):
            dataset = _dataset(source)
            for some in blocks(len(rows), 64):
                table = dataset.take(rows[some].tolist(), columns=[name])
                yield from (encoded_bytes(cell, folder, source.image_root) for cell in image_cells(table.column(0)))


def _dataset(source: Source) -> Any:
    return lance_module().dataset(source.options["folder"], version=int(source.options["version"]))
