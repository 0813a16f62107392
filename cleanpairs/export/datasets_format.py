"""A directory that ``datasets.load_from_disk`` opens: Arrow streams, the features, the list of files."""

import hashlib
import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import ConfigError, reading, sha256_of
from cleanpairs.data.columns import is_bytes
from cleanpairs.data.formats.datasets_directory import count_arrow_rows, stored_files
from cleanpairs.data.table_reader import IMAGE_TYPE
from cleanpairs.data.writing import noted_features, with_image_feature
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout
from cleanpairs.ops.columns import as_schema, one_array, repeats_names


class DatasetsOutput(Output):
    """Files ``data-00000.arrow``, ``dataset_info.json``, ``state.json``. Encoded images (bytes) become struct<bytes,
    path>, as `datasets` keeps an Image. Raises ConfigError: a column has a type that `datasets` does not know.
    """

    directory: ClassVar[bool] = True
    loads: ClassVar[str | None] = "data-*.arrow"
    shard_bytes = 500 * 2**20  # of a file in memory, as `datasets` has it

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.path, self._image = folder, layout.out_columns.get("image")
        schema, image = layout.out_schema, self._image
        if image is not None and is_bytes(schema.field(image).type):
            schema = schema.set(schema.get_field_index(image), pa.field(image, IMAGE_TYPE))
        self._features = features_of(with_image_feature(schema))
        self._schema = self._features.arrow_schema
        self._bytes = 0
        self.parts: dict[str, int] = {}
        self._stack = ExitStack()
        self._stream: Any = None

    @staticmethod
    def count(path: Path) -> int:
        """The number of rows of the streams, to their ends."""
        return sum(count_arrow_rows(name) for name in stored_files(path))

    def _write(self, table: pa.Table) -> None:
        if self._image is not None and is_bytes(table.schema.field(self._image).type):
            column = one_array(table[self._image])
            parts = [column.cast(pa.binary()), pa.nulls(len(column), pa.string())]
            struct = pa.StructArray.from_arrays(parts, fields=list(IMAGE_TYPE), mask=pc.is_null(column))
            table = table.set_column(table.schema.get_field_index(self._image), self._image, struct)
        table = as_schema(table, self._schema)
        for name, column in zip(table.column_names, table.columns, strict=True):
            with reading(f"column {name!r}", "held by `datasets` (export Parquet)", pa.ArrowInvalid):
                column.validate(full=True)  # text that is not UTF-8
        if self._stream is None or self._bytes >= self.shard_bytes:
            self._next()
        self._stream.write_table(table)
        self._bytes += table.nbytes
        self.parts[next(reversed(self.parts))] += len(table)

    def _next(self) -> None:
        name = f"data-{len(self.parts):05d}.arrow"
        self._stack.close()
        stream = self._stack.enter_context(pa.OSFile(str(self.path / name), "wb"))
        self._stream = self._stack.enter_context(pa.ipc.new_stream(stream, self._schema))
        self.parts[name], self._bytes = 0, 0

    def _finish(self) -> None:
        if self._stream is None:
            self._next()  # `datasets` wants a file, if an empty one
        self._stack.close()
        from datasets import DatasetInfo

        digest = hashlib.sha256("".join(sha256_of(self.path / name) for name in self.parts).encode())
        state: dict[str, Any] = {
            "_data_files": [{"filename": name} for name in self.parts],
            "_fingerprint": digest.hexdigest()[:16],  # `datasets` names its caches by it
            "_format_kwargs": {},
            "_output_all_columns": False,
            **dict.fromkeys(("_format_columns", "_format_type", "_split")),
        }
        (self.path / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        DatasetInfo(features=self._features).write_to_directory(str(self.path), pretty_print=True)

    def abandon(self) -> None:
        """See :class:`cleanpairs.data.writing.Sink`."""
        self._stack.close()


def features_of(schema: pa.Schema) -> Any:
    """The :class:`datasets.Features` of a schema. Raises ConfigError: `datasets` cannot hold a column."""
    for field in schema:
        what = f"column {field.name!r} is {field.type}"
        if "\0" in f"{field.name} {field.type}":
            what = f"the name of column {field.name!r}, or of a part of it, has a NUL"
        elif repeats_names(field.type):
            what = f"column {field.name!r} has two parts of one name ({field.type})"
        else:
            with suppress(ValueError, NotImplementedError):
                _ = noted_features(pa.schema([field])).arrow_schema
                continue
        raise ConfigError(f"{what}, which `datasets` cannot hold: leave it out of the input, or export Parquet")
    return noted_features(schema)
