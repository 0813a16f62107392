"""The decisions of a plan about the rows of an input, batch by batch. The plan is in a file or in memory."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, sha256_of
from cleanpairs.data import Pairs
from cleanpairs.data.parquet_io import count_rows, iter_batches
from cleanpairs.engine import Partition
from cleanpairs.export.layout import Decided
from cleanpairs.ops.columns import numbered, with_columns
from cleanpairs.repair.actions import NOT_IN_UIDS, REASONS, REMATCHED, REPAIRED, WRITTEN, acted
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan, as_written, checked, part_sources, truth_of

_STEP = 65_536  # rows of a plan that are read at once


def _feasible(table: pa.Table, one_row_a_pair: bool, selection: bool) -> pa.Table:
    """Rows of a plan as they are carried out: pairs that cannot be repaired are dropped."""
    actions: tuple[str, ...] = ("rematch_image",)
    reason = "the image of a row with a list of captions cannot be replaced: export with explode"
    if selection:
        actions, reason = REPAIRED, REASONS[NOT_IN_UIDS]
    elif one_row_a_pair:
        return table
    impossible = pc.is_in(table["action"], pa.array(actions))
    nulls = ("donor_pair_id", "donor_key", "caption", "repair_score", "margin", "confidence", "donor_use", "captions")
    changes = {"action": "drop", "reason": reason, **dict.fromkeys(nulls)}
    return with_columns(table, {name: pc.if_else(impossible, value, table[name]) for name, value in changes.items()})


class PlanInMemory:
    """A plan, and the N pairs that it is for."""

    def __init__(self, plan: RepairPlan, pairs: Pairs, one_row_a_pair: bool, selection: bool):
        self.head, self.pairs = replace(plan, table=PLAN_SCHEMA.empty_table()), len(pairs)
        self.table = _feasible(plan.check_for(pairs).table, one_row_a_pair, selection)
        self._row, self._position, self._lists = pairs.row, pairs.position, not one_row_a_pair
        text_from, image_from = part_sources(self.table)
        self._donor_row = pairs.row[np.where(image_from != pairs.pair_id, image_from, text_from)]
        self.truth = pa.table(truth_of(pairs, self.table))

    @property
    def digest(self) -> str:
        """SHA-256 of the rows."""
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self.table.schema) as stream:
            stream.write_table(self.table.combine_chunks())
        return hashlib.sha256(buffer.getvalue()).hexdigest()

    def scan(self) -> tuple[int, np.ndarray, np.ndarray]:
        """The number of cleaned rows, and the input rows, rising, that give captions, and that give images."""
        rows = self._row[acted(self.table, WRITTEN)]
        texts, images = (np.unique(self._donor_row[acted(self.table, [action])]) for action in REMATCHED)
        return len(np.unique(rows)) if self._lists else len(rows), texts, images

    def decided(self, batches: Iterable[pa.RecordBatch], partition: Partition) -> Iterator[Decided]:
        """The input rows of a partition with the decisions about them."""
        for first, rows in numbered(batches, partition.first):
            lo, hi = np.searchsorted(self._row, [first, first + len(rows)])
            pairs, truth = (t.slice(lo, hi - lo) for t in (self.table, self.truth))
            row, position, donor_row = (x[lo:hi] for x in (self._row, self._position, self._donor_row))
            yield Decided(rows, first, pairs, row - first, position, donor_row, truth)


@dataclass(frozen=True)
class PlanFile:
    """A plan in Parquet as it was written, the number of its ``pairs``, and the plan without its rows."""

    path: str
    pairs: int
    head: RepairPlan
    truth: ClassVar = pa.table({})  # whose data has none

    @classmethod
    def open(cls, path: str | Path) -> "PlanFile | None":
        """The plan in a file. None where ``RepairPlan.load`` has to read it, as ``save`` did not write it."""
        head = as_written(Path(path))
        return None if head is None else cls(str(Path(path).absolute()), count_rows([str(path)])[0], head)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return sha256_of(self.path)

    def scan(self) -> tuple[int, np.ndarray, np.ndarray]:
        """As :meth:`PlanInMemory.scan`."""
        written, donors = 0, {action: [np.empty(0, np.int64)] for action in REMATCHED}
        for _, batch in iter_batches([self.path], ["action", "donor_pair_id"], _STEP):
            table = pa.Table.from_batches([batch])
            written += int(acted(table, WRITTEN).sum())
            donor = np.array(table["donor_pair_id"].fill_null(-1), np.int64)
            for action, rows in donors.items():
                distinct = np.unique(donor[acted(table, [action])])
                rows.append(distinct[(distinct >= 0) & (distinct < self.pairs)])
        texts, images = (np.unique(np.concatenate(rows)) for rows in donors.values())
        return written, texts, images

    def decided(self, batches: Iterable[pa.RecordBatch], partition: Partition) -> Iterator[Decided]:
        """The input rows of a partition with the decisions about them, checked."""
        left = PLAN_SCHEMA.empty_table()
        plan = iter_batches([self.path], PLAN_SCHEMA.names, _STEP, partition.rows, partition.first)
        for first, rows in numbered(batches, partition.first):
            n = len(rows)
            while len(left) < n:
                batch = next(plan, None)
                if batch is None:
                    raise DataError(f"the plan {self.path} has fewer rows than the input")
                more = checked(pa.Table.from_batches([batch[1]]), first + len(left), self.pairs)
                left = pa.concat_tables([left, more])
            pairs, left = left.slice(0, n).combine_chunks(), left.slice(n)
            donor = np.array(pairs["donor_pair_id"].fill_null(-1), np.int64)
            yield Decided(rows, first, pairs, np.arange(n), np.zeros(n, np.int64), donor)


Decisions = PlanFile | PlanInMemory
