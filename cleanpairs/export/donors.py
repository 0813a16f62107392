"""Some rows of a table in a temporary memory-mapped file, to be looked up by their number.

What donors lend (images, vectors) is collected in one pass over the input, and then read at random: memory is bounded,
whatever the number of donors.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import OutputError
from cleanpairs.data import Source, iter_tables
from cleanpairs.data.images import rows_by_file
from cleanpairs.ops.columns import taken

IMAGE_ROLES = ("image", "features")  # of the columns that a pair with a new image is lent
TEXT_ROLES = ("text_features",)  # and with a new caption, besides the caption itself

_ROW = "row of the stored rows"  # no column of an input
_STEP = 4096  # rows of a batch in the file: a look-up maps the batches that it needs
_READ = 2048  # rows of images or vectors that are read at once; readers give fewer where they are large


@dataclass(frozen=True)
class StoredRows:
    """Rows (k,) of a table, by their numbers ``rows`` (k,) int64, rising."""

    path: Path

    @classmethod
    def collect(cls, path: Path, batches: Iterator[pa.RecordBatch], rows: np.ndarray) -> "StoredRows":
        """Keep of consecutive ``batches``, numbered from 0, the ``rows`` (k,) int64, rising, without repetition."""
        first, head = 0, next(batches)
        schema = head.schema.append(pa.field(_ROW, pa.int64()))
        try:
            with pa.ipc.new_file(path, schema) as writer:
                for batch in chain([head], batches):
                    some = rows[slice(*np.searchsorted(rows, [first, first + len(batch)]))]
                    values = [*taken(batch, some - first).columns, pa.array(some)]
                    writer.write_table(pa.Table.from_arrays(values, schema=schema), max_chunksize=_STEP)
                    first += len(batch)
        except OSError as error:
            raise OutputError(
                f"the temporary file {path} cannot be written: {error.strerror or error}; make room in "
                f"{path.parent.parent}, or set TMPDIR to another disk"
            ) from error
        return cls(path)

    @cached_property
    def _file(self) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self.path)))

    @cached_property
    def _rows(self) -> tuple[np.ndarray, list[int]]:
        """The numbers (k,), and how many of them are in each batch."""
        parts = [self._file.get_batch(i).column(_ROW).to_numpy() for i in range(self._file.num_record_batches)]
        return np.concatenate([np.empty(0, np.int64), *parts]), [len(part) for part in parts]

    def values(self, column: str, rows: np.ndarray) -> pa.Array:
        """Values (k,) of ``column`` at the ``rows`` (k,), each of them among those stored, in any order."""
        stored, counts = self._rows
        wanted, back = np.unique(np.searchsorted(stored, rows), return_inverse=True)
        pieces = [  # batch by batch: of all at once Arrow would make one array
            taken(self._file.get_batch(number).column(column), local)
            for number, _, local in rows_by_file(counts, wanted)
        ]
        return taken(pa.concat_arrays(pieces), back)


def donor_columns(source: Source, folder: Path, *, images: np.ndarray, texts: np.ndarray) -> dict[str, StoredRows]:
    """What some input rows lend to others, by column, in mapped files in ``folder``.

    ``images``, ``texts`` (k,) int64: input rows, rising, each once. Of the first the images and their vectors are kept,
    of the second the vectors of the captions; the input is read once for each, and not at all where there are no rows
    or no such columns.
    """
    stored: dict[str, StoredRows] = {}
    for name, rows, roles in (("images", images, IMAGE_ROLES), ("texts", texts, TEXT_ROLES)):
        columns = [source.columns[role] for role in roles if role in source.columns]
        if len(rows) and columns:
            batches = iter_tables(source, batch_rows=_READ, columns=columns)
            stored |= dict.fromkeys(columns, StoredRows.collect(folder / f"{name}.arrow", batches, rows))
    return stored
