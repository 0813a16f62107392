"""Which `datasets` features a table has, and how a dataset card says so."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import ConfigError
from cleanpairs.data.writing import with_image_feature


def features_of(schema: pa.Schema) -> Any:
    """The :class:`datasets.Features` of a schema, those noted in its metadata first.

    Raises ConfigError: a column has a type that `datasets` does not know; it names the column.
    """
    from datasets import Features

    try:
        return Features.from_arrow_schema(with_image_feature(schema))
    except (ValueError, NotImplementedError) as error:
        for field in schema:
            try:
                Features.from_arrow_schema(pa.schema([field]))
            except (ValueError, NotImplementedError):
                raise ConfigError(
                    f"column {field.name!r} is {field.type}, which `datasets` cannot hold: leave it out of the input, "
                    "or export Parquet"
                ) from error
        raise ConfigError(f"`datasets` cannot hold these columns: {error}") from error


def card_features(schema: pa.Schema, rows: int) -> dict[str, object]:
    """``dataset_info`` for a card's header; empty where `datasets` does not know the types."""
    from datasets import DatasetInfo, SplitDict, SplitInfo
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    try:
        features = features_of(schema)
    except ConfigError:
        return {}
    splits = SplitDict({"train": SplitInfo(name="train", num_examples=rows)})
    data = DatasetCardData()
    DatasetInfosDict({"default": DatasetInfo(features=features, splits=splits)}).to_dataset_card_data(data)
    found: dict[str, object] = data.to_dict()
    return found
