"""Parquet with the very schema that it is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data import ParquetSink
from cleanpairs.errors import OutputError

__all__ = ["ExactSink"]


class ExactSink(ParquetSink):
    """As :class:`cleanpairs.data.ParquetSink`, but nothing is noted for `datasets`: a restored file has its old notes.

    Raises
    ------
    OutputError
        The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], schema: pa.Schema) -> None:
        self.path, self.schema = Path(path), schema
        self.rows = 0
        self._pending: list[pa.Table] = []
        self._bytes = self._count = 0
        self._sha256: str | None = None
        try:
            self._writer: Any = pq.ParquetWriter(
                self.path, schema, compression="zstd", write_page_checksum=True, use_content_defined_chunking=False
            )
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error}") from error
