"""Objects of `datasets`, and what it makes of dicts and lists of dicts, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import ConfigError, DataError

BATCH = 256  # rows in memory


def as_dataset(data: Any, split: str | None = None) -> Any:
    """The ``datasets.Dataset`` or ``IterableDataset`` that ``data`` is, or can be made; None where it is neither.

    ``data`` Dataset, DatasetDict, IterableDataset, IterableDatasetDict, dict of columns, list of dicts; ``split``: of a
    DatasetDict; ``train``, or the first, when None.
    Raises DataError: `datasets` cannot make columns of it; ConfigError: there is no such split.
    """
    if not isinstance(data, Mapping | list) and not type(data).__module__.startswith("datasets"):
        return None
    import datasets

    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        name = split or ("train" if "train" in data else next(iter(data), ""))
        if name not in data:
            raise ConfigError(f"there is no split {name!r} (splits: {', '.join(data) or 'none'})")
        return data[name]
    if isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return data
    if isinstance(data, list) and (odd := [row for row in data if not isinstance(row, Mapping)]):
        raise DataError(
            "a list is to be a list of dicts, one for each pair, {'image': ..., 'caption': ...}, not of "
            f"{type(odd[0]).__name__}; two lists go as {{'image': images, 'caption': captions}}, files as a glob"
        )
    try:
        return datasets.Dataset.from_dict(dict(data)) if isinstance(data, Mapping) else datasets.Dataset.from_list(data)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        of = "; a dict holds columns, of one value a pair (in Dataset.map: batched=True)" * isinstance(data, Mapping)
        raise DataError(f"the {type(data).__name__} cannot be taken as a table: {error}{of}") from error


def dataset_tables(dataset: Any) -> Iterator[pa.Table]:
    """The rows of a dataset, some hundred at once, with the images in them where they are files here."""
    from datasets.table import embed_table_storage

    features = dataset.features
    if features is None:  # of a stream
        features = dataset._resolve_features().features
    schema = features.arrow_schema
    for batch in dataset.with_format("arrow").iter(BATCH):
        table = batch.cast(schema)
        remote = any(
            "://" in (path or "")
            for column in table.columns
            if pa.types.is_struct(column.type) and column.type.get_field_index("path") >= 0
            for path in column.combine_chunks().field("path").to_pylist()
        )
        yield table if remote else embed_table_storage(table)  # what is a URL is not fetched, and set aside
