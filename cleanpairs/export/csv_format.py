"""A CSV with the names of the images' files, as a folder of images and its CSV has it. It holds nothing else of an
image.
"""

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from cleanpairs.core import ConfigError, DataError, writing
from cleanpairs.data.columns import is_text
from cleanpairs.data.writing import Sink
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout
from cleanpairs.ops.columns import decoded_type, is_image_struct, is_list, one_array, readable
from cleanpairs.repair.editing import without_formulas


class CsvSink(Sink):
    """One CSV of rows of ``schema``, in which an image is the name of its file. What is not UTF-8 is replaced.

    Text that spreadsheets take for a formula gets an apostrophe.

    Raises ConfigError: a column holds lists, vectors or bytes. DataError: an image has no name.
    """

    for_people = True  # and their spreadsheets

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        schema = pa.schema([field.with_type(decoded_type(field.type)) for field in schema])
        self._images = [i for i, field in enumerate(schema) if is_image_struct(field.type)]
        for i in self._images:
            schema = schema.set(i, pa.field(schema.field(i).name, pa.string()))
        for field in schema:
            if pa.types.is_nested(field.type) or "binary" in str(field.type):
                texts = is_list(field.type) and is_text(field.type.value_type)
                split = ", or one row a pair of lists of captions (--captions split)" if texts else ""
                remedy = f"write Parquet ({path.with_suffix('.parquet').name}){split}"
                raise ConfigError(f"a CSV cannot hold the column {field.name!r} of type {field.type}: {remedy}")
        self.path, self._schema = path, schema
        with writing(path):
            self._writer = pa_csv.CSVWriter(str(path), self._schema)

    @staticmethod
    def count(path: Path) -> int:
        """The number of records, without the header."""
        limit = csv.field_size_limit(2**31 - 1)  # it holds for the process, and inputs have another
        try:
            with path.open(encoding="utf-8", newline="") as file:
                return sum(1 for _ in csv.reader(file)) - 1
        finally:
            csv.field_size_limit(limit)

    def _write(self, table: pa.Table) -> None:
        columns = list(table.columns)
        for i in self._images:
            cells = columns[i].to_pylist()
            nameless = [k for k, cell in enumerate(cells) if cell and cell["bytes"] and not cell["path"]]
            if nameless:
                row = self.rows + nameless[0]
                raise DataError(f"the image of row {row} of {self.path.name} has no file name: export Parquet")
            columns[i] = pa.array([cell and cell["path"] for cell in cells], pa.string())
        for i, field in enumerate(self._schema):
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                columns[i] = readable(one_array(columns[i]))
        table = pa.Table.from_arrays(columns, names=self._schema.names)
        table = (without_formulas(table) if self.for_people else table).cast(self._schema)
        self._writer.write_table(table)

    def _finish(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        """See :class:`cleanpairs.data.writing.Sink`."""
        self._writer.close()


class CsvOutput(CsvSink, Output):
    """See :class:`CsvSink`. Programs read it: text stays as it is. ConfigError also where the images are in tars."""

    for_people = False

    def __init__(self, path: Path, layout: Layout) -> None:
        if layout.source.kind == "webdataset":
            raise ConfigError("a CSV names image files, and these images are in tars: write --format webdataset")
        super().__init__(path, layout.out_schema)
