"""An export partition by partition: a pure function of input rows and their decisions, by whatever engine.

A partition's rows of the cleaned file, of the ledger and of the dropped pairs stand one after another in one file, as
Arrow streams, which need no decoding; :meth:`ExportWork.join` writes those of all partitions as Parquet. In one process
the same row groups go straight to their files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.data import ParquetSink, Source
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.data.prefetch import read_ahead
from cleanpairs.engine import Partition
from cleanpairs.export.decisions import Decisions, PlanFile
from cleanpairs.export.donors import LentColumns, StoredRows
from cleanpairs.export.layout import Layout
from cleanpairs.export.ledger import Ledger
from cleanpairs.ops.columns import as_schema, one_array
from cleanpairs.repair.plan import counted

__all__ = ["ExportWork", "Written"]

ROWS = 2048  # of a batch at most: larger ones leave the processor's cache


@dataclass(frozen=True)
class Written:
    """Rows of each output, pairs of each action, and the SHA-256 of the outputs where it is known."""

    rows: dict[str, int]
    actions: Counter[str]
    sha256: dict[str, str]


@dataclass(frozen=True)
class ExportWork:
    """The files of a partition; see :class:`cleanpairs.engine.Work`.

    ``texts``: captions and keys that donors lend, by pair; ``donor_values``: input columns that they lend, by row;
    ``out_first``: by partition, the rows of the cleaned file before it; ``roles``: out, ledger and perhaps dropped.
    """

    source: Source
    plan: PlanFile
    layout: Layout
    texts: StoredRows | None
    donor_values: LentColumns
    out_first: tuple[int, ...]
    roles: tuple[str, ...]

    def open(self, threads: int | None) -> Callable[[Partition, Path], dict[str, Any]]:
        """Nothing is to be made ready but the threads."""
        if threads is not None:
            pa.set_cpu_count(threads)

        def export(partition: Partition, path: Path) -> dict[str, Any]:
            with tempfile.TemporaryDirectory(prefix=".roles-", dir=path.parent) as folder:
                # The cleaned rows, which are the most, are written where they are to be.
                at = {role: path if role == "out" else Path(folder) / role for role in self.roles}
                with ExitStack() as files:
                    sinks = {role: files.enter_context(_ArrowSink(at[role], self.schema(role))) for role in self.roles}
                    written = self._write([partition], sinks, ahead=False)
                with open(path, "ab") as whole:
                    for role in self.roles[1:]:
                        with at[role].open("rb") as part:
                            shutil.copyfileobj(part, whole, 1 << 20)
            return {"rows": written.rows, "actions": dict(written.actions)}

        return export

    def schema(self, role: str) -> pa.Schema:
        """Of an output."""
        if role == "ledger":
            return Ledger(self.source, self.layout).schema
        return self.layout.out_schema if role == "out" else self.layout.dropped_schema

    def write(self, partitions: Sequence[Partition], paths: Mapping[str, Path]) -> Written:
        """Write consecutive partitions into one Parquet file a role."""
        with self._sinks(paths) as sinks:
            total = self._write(partitions, sinks, ahead=True)
        total.sha256.update({role: sink.sha256 for role, sink in sinks.items()})
        return total

    def join(self, parts: Sequence[tuple[Path, Mapping[str, Any]]], paths: Mapping[str, Path]) -> Written:
        """Write what lies in the parts of all partitions, by their paths and facts, into one Parquet file a role."""
        total = Written(dict.fromkeys(self.roles, 0), Counter(), {})
        with self._sinks(paths) as sinks:
            for path, facts in parts:
                try:
                    with pa.memory_map(str(path)) as part:
                        for role in self.roles:
                            for batch in pa.ipc.open_stream(part):
                                sinks[role].write(batch)
                            sinks[role].flush()
                except pa.ArrowException as error:
                    raise DataError(f"{path} is damaged ({error}): remove its folder, and run again") from error
                for role in self.roles:
                    total.rows[role] += facts["rows"][role]
                total.actions.update(facts["actions"])
        total.sha256.update({role: sink.sha256 for role, sink in sinks.items()})
        return total

    @contextmanager
    def _sinks(self, paths: Mapping[str, Path]) -> Iterator[dict[str, ParquetSink]]:
        with ExitStack() as files:
            yield {role: files.enter_context(ParquetSink(paths[role], self.schema(role))) for role in self.roles}

    def _write(
        self, partitions: Sequence[Partition], sinks: Mapping[str, ParquetSink | _ArrowSink], *, ahead: bool
    ) -> Written:
        """Write consecutive partitions; ``ahead``: read in a thread."""
        total = Written(dict.fromkeys(self.roles, 0), Counter(), {})
        ledger = Ledger(self.source, self.layout)
        with ExitStack() as files:
            for partition in partitions:
                batches = self._batches(partition)
                before = self.out_first[partition.number]
                for table, decided, first in files.enter_context(read_ahead(batches)) if ahead else batches:
                    before += self._write_batch(sinks, ledger, table, decided, first, before, total)
                for sink in sinks.values():
                    sink.flush()  # row groups end where partitions do, however many a file holds
        return total

    def _batches(self, partition: Partition) -> Iterator[tuple[pa.RecordBatch, pa.Table, int]]:
        """Input rows, the decisions about them, and the number of the first."""
        decisions = Decisions(self.plan, partition.first, partition.rows, self.texts)
        first = partition.first
        for _, batch in iter_batches(self.source.paths, None, ROWS, partition.rows, partition.first):
            decided = decisions.next(len(batch))
            columns = [batch.column(name) for name in self.layout.schema.names]
            table = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)  # the next file has another order
            self._check_keys(table, decided, first)
            yield table, decided, first
            first += len(batch)

    def _check_keys(self, table: pa.RecordBatch, decided: pa.Table, first: int) -> None:
        name = self.source.columns.get("key")
        told = one_array(decided["key"])
        found = pa.nulls(len(table), pa.string()) if name is None else table.column(name)
        if pa.types.is_string(found.type) or pa.types.is_large_string(found.type):
            found = pc.coalesce(
                found, pa.array(np.arange(first, first + len(table))).cast(pa.string()).cast(found.type)
            )
            same = np.asarray(pc.equal(told, found).fill_null(False).to_numpy(zero_copy_only=False), bool)
        else:
            same = np.zeros(len(table), bool)
        for i in np.flatnonzero(~same).tolist():  # keys of other types, and texts that are not UTF-8
            key = str(first + i) if name is None else _key(table.column(name), i, first + i)
            if key != told[i].as_py():
                raise DataError(f"pair {first + i} has key {told[i].as_py()!r} in the plan and {key!r} in the data")

    def _write_batch(
        self,
        sinks: Mapping[str, ParquetSink | _ArrowSink],
        ledger: Ledger,
        table: pa.RecordBatch,
        decided: pa.Table,
        first: int,
        before: int,
        total: Written,
    ) -> int:
        """Write what becomes of a batch; how many rows of the cleaned file that is."""
        n = len(table)
        row, none = np.arange(n), pa.table({})
        donor_row = np.array(decided["donor_pair_id"].fill_null(-1), np.int64)
        batch = self.layout.out(table, decided, none, none, row, self.donor_values, donor_row)
        lines = ledger.lines(table, decided, batch, row, np.zeros(n, np.int64), first_row=first, rows_before=before)
        parts = {"out": batch.table, "ledger": lines}
        if "dropped" in sinks:
            parts["dropped"] = self.layout.dropped(table, decided, none, row)
        for role, part in parts.items():
            sinks[role].write(part.combine_chunks())  # through parts or not, the same batches give the same pages
            total.rows[role] += len(part)
        total.actions.update(counted(decided["action"]))
        return len(batch.table)


def _key(column: pa.Array, at: int, row: int) -> str:
    """A row's key as :func:`cleanpairs.load_pairs` has it: of any type, its number where there is none."""
    try:
        value = column[at].as_py()
    except UnicodeDecodeError:
        value = column.slice(at, 1).cast(pa.binary())[0].as_py().decode("utf-8", "replace")
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return str(row if value is None else value)


class _ArrowSink:
    """One role's rows of a partition, as an Arrow stream of the batches that are written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        with self._guard():
            self._writer = pa.ipc.new_stream(str(path), schema)

    def write(self, table: pa.Table) -> None:
        """Add rows: one batch, where they are in one chunk."""
        with self._guard():
            self._writer.write_table(as_schema(table, self._schema))

    def flush(self) -> None:
        """End nothing: a stream has no row groups."""

    def __enter__(self) -> _ArrowSink:
        return self

    def __exit__(self, *ended: object) -> None:
        with self._guard():
            self._writer.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"{self._path} cannot be written: {error}") from error
