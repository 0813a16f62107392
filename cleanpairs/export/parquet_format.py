"""One Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data import ParquetSink
from cleanpairs.data.writing import with_image_feature
from cleanpairs.export.card import card_features
from cleanpairs.export.formats import OutTable, Sink


class ParquetFormat:
    """See :class:`cleanpairs.data.ParquetSink`."""

    directory: ClassVar[bool] = False
    selection: ClassVar[bool] = False

    def open(self, path: Path, table: OutTable) -> Sink:
        """Of any table."""
        return ParquetSink(path, table.schema)

    def count(self, path: Path) -> int:
        """By the footer."""
        return int(pq.read_metadata(path).num_rows)

    def card(self, schema: pa.Schema, rows: int) -> dict[str, object]:
        """One split, ``train``; the hub's place of the file is ``data/``."""
        files = {"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}
        return {"configs": [files], **card_features(with_image_feature(schema), rows)}
