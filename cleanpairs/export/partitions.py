"""An export partition by partition: a pure function of input rows and their decisions, by whatever engine.

A partition's rows of the cleaned file, of the ledger and of the dropped pairs stand one after another in one file, as
Arrow streams, which need no decoding; :meth:`ExportWork.join` writes those of all partitions as Parquet. In one process
the same row groups go straight to their files.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import writing
from cleanpairs.data import ParquetSink, Source, iter_tables
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.data.writing import Sink
from cleanpairs.engine import Partition
from cleanpairs.export.decisions import Decisions
from cleanpairs.export.donors import StoredRows
from cleanpairs.export.files import BATCH_ROWS
from cleanpairs.export.layout import Decided, Layout
from cleanpairs.export.ledger import Ledger
from cleanpairs.ops.columns import as_schema
from cleanpairs.repair.plan import counted

ROWS = 2048  # of a batch at most: larger ones leave the processor's cache


@dataclass(frozen=True)
class Written:
    """Rows of each output, and of the files of a directory; pairs of each action."""

    rows: dict[str, int]
    actions: Counter[str]
    parts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportWork:
    """The files of a partition; see :class:`cleanpairs.engine.Work`.

    ``texts``: captions and keys that donors lend, by pair, unless the plan has them; ``donor_values``: input columns
    that they lend, by row; ``out_first``: by partition, the rows of the cleaned file before it; ``roles``: out, ledger
    and perhaps dropped; ``output``: what writes the cleaned file.
    """

    source: Source
    plan: Decisions
    layout: Layout
    texts: StoredRows | None
    donor_values: Mapping[str, StoredRows]
    out_first: tuple[int, ...]
    roles: tuple[str, ...]
    output: Callable[[Path, Layout], Sink]

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        with tempfile.TemporaryDirectory(prefix=".roles-", dir=path.parent) as folder:
            # The cleaned rows, which are the most, are written where they are to be.
            at = {role: path if role == "out" else Path(folder) / role for role in self.roles}
            with ExitStack() as files:
                sinks = {role: files.enter_context(_ArrowSink(at[role], self.schema(role))) for role in self.roles}
                written = self._write([partition], sinks)
            with open(path, "ab") as whole:
                for role in self.roles[1:]:
                    with at[role].open("rb") as part:
                        shutil.copyfileobj(part, whole, 1 << 20)
        return {"rows": written.rows, "actions": dict(written.actions)}

    def schema(self, role: str) -> pa.Schema:
        """Of an output."""
        if role == "ledger":
            return Ledger(self.layout).schema
        return self.layout.out_schema if role == "out" else self.layout.dropped_schema

    def write(self, partitions: Sequence[Partition], paths: Mapping[str, Path]) -> Written:
        """Write consecutive partitions into one file a role."""
        with self._sinks(paths) as sinks:
            total = self._write(partitions, sinks)
        return replace(total, parts=sinks["out"].parts)

    def join(self, parts: Sequence[tuple[Path, Mapping[str, Any]]], paths: Mapping[str, Path]) -> Written:
        """Write what lies in the parts of all partitions, by their paths and facts, into one Parquet file a role."""
        total = Written(dict.fromkeys(self.roles, 0), Counter())
        with self._sinks(paths) as sinks:
            for path, facts in parts:
                try:
                    with pa.memory_map(str(path)) as part:
                        for role in self.roles:
                            for batch in pa.ipc.open_stream(part):
                                sinks[role].write(batch)
                            sinks[role].end_group()
                except pa.ArrowException as error:
                    raise DataError(f"{path} is damaged ({error}): remove its folder, and run again") from error
                for role in self.roles:
                    total.rows[role] += facts["rows"][role]
                total.actions.update(facts["actions"])
        return replace(total, parts=sinks["out"].parts)

    @contextmanager
    def _sinks(self, paths: Mapping[str, Path]) -> Iterator[dict[str, Sink]]:
        with ExitStack() as files:
            made = (
                self.output(paths[role], self.layout) if role == "out" else ParquetSink(paths[role], self.schema(role))
                for role in self.roles
            )
            yield {role: files.enter_context(sink) for role, sink in zip(self.roles, made, strict=True)}

    def _write(self, partitions: Sequence[Partition], sinks: Mapping[str, Sink]) -> Written:
        """Write consecutive partitions."""
        total = Written(dict.fromkeys(self.roles, 0), Counter())
        ledger = Ledger(self.layout)
        for partition in partitions:
            before = self.out_first[partition.number]
            for table, decided in self._batches(partition):
                batch = self.layout.out(table, decided, self.donor_values)
                parts = {"out": batch.table, "ledger": ledger.lines(table, decided, batch, before)}
                if "dropped" in sinks:
                    parts["dropped"] = self.layout.dropped(table, decided)
                for role, part in parts.items():
                    # in one chunk: through parts or not, the same batches give the same pages
                    sinks[role].write(part.combine_chunks())
                    total.rows[role] += len(part)
                total.actions.update(counted(decided.pairs["action"]))
                before += len(batch.table)
            for sink in sinks.values():
                sink.end_group()  # where partitions end, however many a file holds
        return total

    def _batches(self, partition: Partition) -> Iterator[tuple[pa.RecordBatch, Decided]]:
        """Input rows, and the decisions about them."""
        decided = self.plan.reader(self.source, partition, self.texts)
        # Of an input that is no Parquet the whole is one partition.
        batches: Iterator[pa.RecordBatch] = iter_tables(self.source, batch_rows=BATCH_ROWS)
        if self.source.kind == "parquet":
            read = iter_batches(self.source.paths, None, ROWS, partition.rows, partition.first)
            batches = (batch for _, batch in read)
        for batch in batches:
            columns = [batch.column(name) for name in self.layout.schema.names]
            table = pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)  # the next file has another order
            yield table, decided(table)


class _ArrowSink(Sink):
    """One role's rows of a partition, as an Arrow stream of the batches that are written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema = path, schema
        with writing(path):
            self._writer = pa.ipc.new_stream(str(path), schema)

    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Add rows: one batch, where they are in one chunk."""
        with writing(self._path):
            self._writer.write_table(as_schema(data, self._schema))

    def _finish(self) -> None:
        with writing(self._path):
            self._writer.close()

    _abandon = _finish
