"""Some rows of a table in a temporary memory-mapped file, to be looked up by their number, here and in other processes.

What donors lend (images, captions) is collected in one pass over the input and the plan, and then read at random:
memory is bounded, whatever the number of donors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import OutputError
from cleanpairs.ops.columns import taken

_ROW = "row of the stored rows"  # no column of an input
_STEP = 4096  # rows of a batch in the file: a look-up maps the batches that it needs


@dataclass(frozen=True)
class StoredRows:
    """Rows (k,) of a table, by their numbers ``rows`` (k,) int64, rising; what is sent to a process is the path."""

    path: Path

    @classmethod
    def collect(cls, path: Path, batches: Iterator[pa.RecordBatch], rows: np.ndarray) -> StoredRows:
        """Keep of consecutive ``batches``, numbered from 0, the ``rows`` (k,) int64, rising, without repetition."""
        first = 0
        writer: pa.RecordBatchFileWriter | None = None
        try:
            for batch in batches:
                lo, hi = np.searchsorted(rows, [first, first + len(batch)])
                if writer is None:
                    schema = batch.schema.append(pa.field(_ROW, pa.int64()))
                    writer = pa.ipc.new_file(path, schema)
                for start in range(lo, hi, _STEP):
                    some = rows[start : min(hi, start + _STEP)]
                    values = taken(batch, some - first).columns
                    writer.write_batch(pa.RecordBatch.from_arrays([*values, pa.array(some)], schema=schema))
                first += len(batch)
            if writer is not None:
                writer.close()
        except OSError as error:
            with suppress(OSError):  # it is closed, whatever more it says
                if writer is not None:
                    writer.close()
            raise OutputError(
                f"the temporary file {path} cannot be written: {error.strerror or error}; make room in "
                f"{path.parent.parent}, or set TMPDIR to another disk"
            ) from error
        return cls(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}  # not the map

    @cached_property
    def _file(self) -> pa.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self.path)))

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers (k,), and where each batch begins among them."""
        parts = [self._file.get_batch(i).column(_ROW).to_numpy() for i in range(self._file.num_record_batches)]
        rows = np.concatenate([np.empty(0, np.int64), *parts])
        return rows, np.cumsum([0, *(len(part) for part in parts)])

    def values(self, column: str, rows: np.ndarray) -> pa.Array:
        """Values (k,) of ``column`` at the ``rows`` (k,), each of them among those stored, in any order."""
        return self.table([column], rows)[column].combine_chunks()

    def table(self, columns: Sequence[str], rows: np.ndarray) -> pa.Table:
        """The stored ``rows`` (k,), in any order, each of them among those stored."""
        stored, starts = self._rows
        at = np.searchsorted(stored, rows)
        order = np.argsort(at, kind="stable")
        number = np.searchsorted(starts, at[order], side="right") - 1
        schema = pa.schema([self._file.schema.field(name) for name in columns])
        cuts = np.flatnonzero(np.diff(number, prepend=-1))
        pieces = []
        for begin, end in zip(cuts, [*cuts[1:], len(order)], strict=True):
            batch = self._file.get_batch(int(number[begin]))
            local = at[order[begin:end]] - starts[number[begin]]
            pieces.append(taken(batch.select(columns), local))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        whole = pa.Table.from_batches(pieces, schema).combine_chunks()
        return taken(whole, back)
