"""A Lance dataset (the extra ``lance``), one version, for random access to rows."""

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from cleanpairs.core import ConfigError
from cleanpairs.data.formats.lance_dataset import lance_module
from cleanpairs.data.writing import with_image_feature
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout
from cleanpairs.ops.columns import as_schema


class LanceOutput(Output):
    """A directory of Lance. Batches become fragments of some 256 MiB, and one commit makes the dataset of them.

    Raises ConfigError: Lance cannot hold a column.
    """

    directory: ClassVar[bool] = True

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path, self._schema = path, with_image_feature(layout.out_schema)
        self._lance, self._fragments = lance_module(), list[Any]()
        self._pending: list[pa.Table] = []
        for field in self._schema:
            try:
                self._lance.schema.LanceSchema.from_pyarrow(pa.schema([field]))
            except ValueError as error:
                what = "has a dot in its name" if "." in field.name else f"is {field.type}"
                raise ConfigError(f"column {field.name!r} {what}, which Lance cannot hold: export Parquet") from error

    @staticmethod
    def count(path: Path) -> int:
        """The number of rows of the latest version."""
        return int(lance_module().dataset(str(path)).count_rows())

    def _write(self, table: pa.Table) -> None:
        # Lance wants decimals aligned to 16 bytes, as copies are, and what is mapped from a file may not be.
        columns = as_schema(table, self._schema).columns
        copies = [pa.chunked_array([pa.concat_arrays([c]) for c in column.chunks], column.type) for column in columns]
        self._pending.append(pa.Table.from_arrays(copies, schema=self._schema))
        if sum(part.nbytes for part in self._pending) >= 256 * 2**20:
            self._write_fragment()

    def _write_fragment(self) -> None:
        table, self._pending = pa.concat_tables(self._pending), []
        self._fragments += self._lance.fragment.write_fragments(table, str(self.path), schema=self._schema)

    def _finish(self) -> None:
        if self._pending:
            self._write_fragment()
        made = self._lance.LanceOperation.Overwrite(self._schema, self._fragments)
        dataset = self._lance.LanceDataset.commit(str(self.path), made)
        written = ((file.path, each.count_rows()) for each in dataset.get_fragments() for file in each.metadata.files)
        self.parts = {Path(path).name: rows for path, rows in written}
