"""An export partition by partition: a pure function of input rows and their decisions, by whatever engine."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import cleanpairs
from cleanpairs.core.regular import reading, writing
from cleanpairs.data import Source, iter_tables
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.data.table_reader import ParquetReader
from cleanpairs.engine import Engine, Partition, plan_partitions, run_partitions
from cleanpairs.export.decisions import Decisions
from cleanpairs.export.donors import StoredRows
from cleanpairs.export.layout import Layout
from cleanpairs.export.ledger import Ledger
from cleanpairs.export.manifest import BATCH_ROWS

ROWS = 2048  # of a batch of Parquet at most: larger ones leave the processor's cache
PARTITION = 65_536  # rows of a partition, about


@dataclass(frozen=True)
class ExportWork:
    """The rows of a partition's outputs; see :class:`cleanpairs.engine.Work`.

    A part has an Arrow stream for each batch of input rows and each of the ``roles`` (out, ledger and perhaps dropped),
    one after the other. ``lent``: what donors lend of the input's columns.
    """

    source: Source
    plan: Decisions
    layout: Layout
    lent: Mapping[str, StoredRows]
    roles: tuple[str, ...]

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        with writing(path), path.open("wb") as part:
            for tables in self.tables(partition):
                for role in self.roles:
                    with pa.ipc.new_stream(part, tables[role].schema) as stream:
                        stream.write_table(tables[role])
        return {}

    def tables(self, partition: Partition) -> Iterator[dict[str, pa.Table]]:
        """By role the rows that each batch becomes; the ledger's ``out_row`` counts from the batch's first."""
        layout, ledger = self.layout, Ledger(self.layout)
        for rows, decided in self.plan.decided(self._batches(partition), partition):
            out = layout.out(rows, decided, self.lent)
            tables = {"out": out.table, "ledger": ledger.lines(rows, decided, out)}
            if "dropped" in self.roles:
                tables["dropped"] = layout.dropped(rows, decided)
            yield tables

    def by(self, engine: Engine, folder: Path, overwrite: bool) -> Iterator[dict[str, pa.Table]]:
        """The same of the whole input, out of parts in ``folder`` that the engine's workers have written."""
        cut = [Partition(0, 0, self.source.n_rows)]  # what is no Parquet is read from its beginning
        if self.source.kind == "parquet":
            cut = plan_partitions(ParquetReader().row_groups(self.source), self.source.n_rows, target=PARTITION)
        kind = [self.layout.one_row_a_pair, self.layout.weighted, self.roles]
        job = json.dumps([cleanpairs.__version__, self.source.fingerprint, self.plan.digest, kind])
        run_partitions(self, cut, folder, job=job, engine=engine, overwrite=overwrite)
        for partition in cut:
            with reading(folder / partition.name, "read again", pa.ArrowException):
                part = pa.memory_map(str(folder / partition.name))
                while part.tell() < part.size():
                    yield {role: pa.ipc.open_stream(part).read_all() for role in self.roles}

    def _batches(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        """The input's rows; the columns of all files in the order of the first."""
        batches: Iterator[pa.RecordBatch] = iter_tables(self.source, BATCH_ROWS)
        if self.source.kind == "parquet":
            read = iter_batches(self.source.paths, None, ROWS, partition.rows, partition.first)
            batches = (batch for _, batch in read)
        schema = self.layout.schema
        for batch in batches:
            yield pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
