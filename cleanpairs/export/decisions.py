"""What a plan decides about the rows of an input, batch by batch: out of a file that is not held, or out of memory.

PlanFile      Parquet, for an input with one caption a row: input and plan are read side by side
PlanInMemory  any plan, for pairs that are in memory: rows with lists of captions, a truth that follows the repairs
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.data import Pairs, Source
from cleanpairs.data.parquet_io import count_rows, iter_batches, open_parquet
from cleanpairs.engine import Partition
from cleanpairs.export.donors import StoredRows
from cleanpairs.export.layout import Decided
from cleanpairs.ops.cells import readable
from cleanpairs.ops.columns import one_array
from cleanpairs.repair.actions import REMATCHED, REPAIRED, WRITTEN, acted
from cleanpairs.repair.editing import DonorRows, followed, same_key
from cleanpairs.repair.plan import (
    METADATA_KEY,
    PLAN_SCHEMA,
    RepairPlan,
    check_data,
    check_decisions,
    part_sources,
    truth_of,
    with_why,
)

_STEP = 65_536  # rows of a plan that are read at once
_DONOR_VALUES = ("key", "original_caption", "action")


class RewrittenKeysError(DataError):
    """A program has rewritten the plan's keys, as 7 for 007: those of the data follow where all pairs are held."""


def _feasible(table: pa.Table, one_row_a_pair: bool, selection: bool) -> pa.Table:
    """Rows of a plan as they are carried out: what cannot be done is dropped. A row that keeps its list of captions has
    one image for all of them; a ``selection`` holds no captions or images.
    """
    actions: tuple[str, ...] = ("rematch_image",)
    reason = "the image of a row with a list of captions cannot be replaced: export with explode"
    if selection:
        actions, reason = REPAIRED, "a uid list names samples as they are: a repair cannot be expressed in it"
    elif one_row_a_pair:
        return table
    impossible = pc.is_in(table["action"], pa.array(actions))
    changes = {"action": "drop", "reason": reason}
    nulls = ("donor_pair_id", "donor_key", "caption", "repair_score", "margin", "confidence", "donor_use")
    for name in (*changes, *nulls):
        value = pa.scalar(changes.get(name), table.schema.field(name).type)
        column = pc.if_else(impossible, value, table[name])
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@dataclass(frozen=True)
class Scan:
    """What the whole of a plan says: ``written`` (p,) rows of the cleaned file of each partition; the rows that lend
    captions and those that lend images, ``text_donors`` and ``image_donors``, rising, each once.
    """

    written: tuple[int, ...]
    text_donors: np.ndarray
    image_donors: np.ndarray


def _scan(
    tables: Iterator[pa.Table], pairs: int, partitions: Sequence[Partition], row: np.ndarray | None, lists: bool
) -> Scan:
    """Of consecutive rows of a plan; ``row`` (N,) of each pair, where that is not its number.

    ``lists``: a row of the cleaned file may hold several pairs; there is one table then.
    """
    ends = np.array([p.first + p.rows for p in partitions], np.int64)
    written = np.zeros(len(partitions), np.int64)
    donors: dict[str, list[np.ndarray]] = {name: [np.empty(0, np.int64)] for name in REMATCHED}
    first = 0
    for table in tables:
        at = first + np.flatnonzero(acted(table, WRITTEN))
        at = at if row is None else row[at]
        np.add.at(written, np.searchsorted(ends, np.unique(at) if lists else at, side="right"), 1)
        donor = np.array(_whole(table["donor_pair_id"]).fill_null(-1), np.int64)
        for action, found in donors.items():
            some = np.unique(donor[acted(table, [action])])
            some = some[(some >= 0) & (some < pairs)]
            found.append(some if row is None else row[some])
        first += len(table)
    return Scan(tuple(written.tolist()), *(np.unique(np.concatenate(found)) for found in donors.values()))


class PlanInMemory:
    """A plan, and the N pairs that it is for."""

    def __init__(self, plan: RepairPlan, pairs: Pairs, one_row_a_pair: bool, selection: bool):
        self.head, self.pairs = replace(plan, table=PLAN_SCHEMA.empty_table()), len(pairs)
        self.table, self._of = _feasible(plan.check_for(pairs).table, one_row_a_pair, selection), pairs
        self._lists = not one_row_a_pair
        text_from, image_from = part_sources(self.table)
        self._donor_row = pairs.row[np.where(image_from != pairs.pair_id, image_from, text_from)]
        after = truth_of(pairs, self.table)
        self.truth = pa.table({} if after is None else {"true_mismatch": after.mismatch, "true_key": after.key})

    def scan(self, partitions: Sequence[Partition]) -> Scan:
        """Go through the whole."""
        return _scan(iter([self.table]), self.pairs, partitions, self._of.row, self._lists)

    def store(self, path: Path, donors: np.ndarray) -> None:
        """The plan has it."""

    def reader(
        self, source: Source, partition: Partition, texts: StoredRows | None
    ) -> Callable[[pa.RecordBatch], Decided]:
        """A function of consecutive rows of a partition: the decisions about them."""
        first = partition.first

        def decided(rows: pa.RecordBatch) -> Decided:
            nonlocal first
            lo, hi = np.searchsorted(self._of.row, [first, first + len(rows)])
            pairs, truth = (t.slice(lo, hi - lo) for t in (self.table, self.truth))
            row, position, donor_row = (x[lo:hi] for x in (self._of.row, self._of.position, self._donor_row))
            found = Decided(pairs, row - first, position, donor_row, first, truth)
            first += len(rows)
            return found

        return decided


@dataclass(frozen=True)
class PlanFile:
    """A plan in Parquet: where it is, the number of its ``pairs``, and what it notes about itself."""

    path: str
    pairs: int
    note: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "PlanFile | None":
        """The plan in a file; None where it is not Parquet as ``RepairPlan.save`` writes it, for that to read it."""
        if Path(path).suffix == ".csv":
            return None
        with open_parquet(str(path)) as file:
            schema = file.schema_arrow
        try:
            note = json.loads((schema.metadata or {})[METADATA_KEY])
            RepairPlan(PLAN_SCHEMA.empty_table(), **note)
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        if {*PLAN_SCHEMA.names} - {*schema.names, "why"}:
            return None
        return cls(str(Path(path).absolute()), count_rows([str(path)])[0], note)

    @cached_property
    def head(self) -> RepairPlan:
        """The plan without its rows."""
        return RepairPlan(PLAN_SCHEMA.empty_table(), **self.note)

    def check_for(self, source: Source) -> None:
        """Raise :class:`DataError` unless this is a plan for ``source``; the keys are compared when they are read."""
        check_data(self.pairs, self.head.fingerprint, source.n_rows, source.fingerprint)

    def scan(self, partitions: Sequence[Partition]) -> Scan:
        """Go through the whole; DataError where the rows are not numbered from 0 without a gap."""
        return _scan(self._actions(), self.pairs, partitions, None, False)

    def _actions(self) -> Iterator[pa.Table]:
        first = 0
        for _, batch in iter_batches([self.path], ["pair_id", "action", "donor_pair_id"], _STEP):
            if not np.array_equal(batch.column("pair_id").fill_null(-1), np.arange(first, first + len(batch))):
                raise DataError("the repair plan must have one row per pair, in order of pair_id from 0, without a gap")
            first += len(batch)
            yield pa.Table.from_batches([batch])

    def store(self, path: Path, donors: np.ndarray) -> StoredRows | None:
        """What the pairs ``donors`` (k,) lend, in a file; None where there are none."""
        if not len(donors):
            return None
        batches = (batch for _, batch in iter_batches([self.path], list(_DONOR_VALUES), _STEP))
        return StoredRows.collect(path, batches, donors)

    def reader(
        self, source: Source, partition: Partition, texts: StoredRows | None
    ) -> Callable[[pa.RecordBatch], Decided]:
        """A function of consecutive rows of a partition: the decisions about them, checked, with what follows from
        actions and donors made anew. ``texts``: of :meth:`store`.
        """
        first, left = partition.first, PLAN_SCHEMA.empty_table()
        with open_parquet(self.path) as file:
            names = [name for name in PLAN_SCHEMA.names if name in file.schema_arrow.names]
        batches = iter_batches([self.path], names, _STEP, partition.rows, partition.first)

        def decided(rows: pa.RecordBatch) -> Decided:
            nonlocal first, left
            n = len(rows)
            while len(left) < n:
                batch = next(batches, None)
                if batch is None:
                    raise DataError(f"the plan {self.path} has fewer rows than the input")
                left = pa.concat_tables([left, self._followed(pa.Table.from_batches([batch[1]]), texts)])
            pairs, left = left.slice(0, n).combine_chunks(), left.slice(n)
            _check_keys(source, rows, pairs, first)
            donor = np.array(pairs["donor_pair_id"].fill_null(-1), np.int64)
            found = Decided(pairs, np.arange(n), np.zeros(n, np.int64), donor, first)
            first += n
            return found

        return decided

    def _followed(self, table: pa.Table, texts: StoredRows | None) -> pa.Table:
        donor = np.array(_whole(table["donor_pair_id"]).fill_null(-1), np.int64)
        known = acted(table, REMATCHED) & (donor >= 0) & (donor < self.pairs)
        lenders = np.unique(donor[known])
        if texts is not None and len(lenders):
            held = texts.table(_DONOR_VALUES, lenders)
        else:
            lenders = lenders[:0]
            held = pa.table({name: pa.array([], pa.string()) for name in _DONOR_VALUES})
        donors = DonorRows(lenders, held, self.pairs)
        try:
            table = with_why(followed(table, donors)).select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA)
        except pa.ArrowException as error:
            raise DataError(f"a column of the repair plan has the wrong type: {error}") from error
        banned = pc.equal(donors.of("action", np.where(known, donor, -1)), "quarantine")
        check_decisions(table, self.pairs, np.array(banned.fill_null(False), bool))
        return table


def _check_keys(source: Source, rows: pa.RecordBatch, pairs: pa.Table, first: int) -> None:
    """The keys as :func:`cleanpairs.load_pairs` has them: of any type, the row's number where there is none."""
    name, told = source.columns.get("key"), one_array(pairs["key"])
    keys = pa.array(np.arange(first, first + len(rows))).cast(pa.string())
    keys = keys if name is None else pc.coalesce(readable(rows.column(name)), keys)
    for i in np.flatnonzero(~np.array(pc.equal(told, keys).fill_null(False), bool)).tolist():
        in_plan, key = told[i].as_py(), keys[i].as_py()
        if same_key(in_plan, key):
            raise RewrittenKeysError(
                f"the keys of the plan are not written as those of the data, {in_plan!r} for {key!r} of pair "
                f"{first + i}: such a plan is carried out in memory, by cleanpairs.export.export_pairs"
            )
        raise DataError(f"pair {first + i} has key {in_plan!r} in the plan and {key!r} in the data")


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Whole numbers out of a column that somebody's tool may have made floats."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise DataError(f"donor_pair_id of the repair plan must be whole numbers: {error}") from error


Decisions = PlanFile | PlanInMemory
"""A plan about the pairs of an input."""
