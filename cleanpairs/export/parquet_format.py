"""One Parquet file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data import ParquetSink
from cleanpairs.data.writing import with_image_feature
from cleanpairs.export.card import card_features
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout


class ParquetOutput(ParquetSink, Output):
    """See :class:`cleanpairs.data.ParquetSink`."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(path, layout.out_schema)

    @staticmethod
    def count(path: Path) -> int:
        """By the footer."""
        return int(pq.read_metadata(path).num_rows)

    @staticmethod
    def card(schema: pa.Schema, rows: int) -> dict[str, object]:
        """One split, ``train``; the hub's place of the file is ``data/``."""
        files = {"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}
        return {"configs": [files], **card_features(with_image_feature(schema), rows)}
