"""A repair plan that is not held in memory: its rows as they are asked for, and what the donors among them lend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.data.parquet_io import count_rows, iter_batches, open_parquet
from cleanpairs.engine import Partition
from cleanpairs.export.donors import StoredRows
from cleanpairs.export.layout import WRITTEN, acted
from cleanpairs.repair.editing import DonorRows, followed
from cleanpairs.repair.plan import METADATA_KEY, PLAN_SCHEMA, RepairPlan, check_decisions

__all__ = ["Decisions", "PlanFile", "Scan"]

_STEP = 65_536  # rows of a plan that are read at once
_DONOR_VALUES = ("key", "original_caption", "action")


@dataclass(frozen=True)
class Scan:
    """What the whole of a plan says: ``written`` (p,) rows of the cleaned file of each partition; the pairs that lend
    captions and those that lend images, ``text_donors`` and ``image_donors``, rising, each once.
    """

    written: tuple[int, ...]
    text_donors: np.ndarray
    image_donors: np.ndarray


@dataclass(frozen=True)
class PlanFile:
    """A plan in Parquet: where it is, its ``rows``, and what it notes about itself."""

    path: str
    rows: int
    note: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> PlanFile | None:
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
        if any(name not in schema.names for name in PLAN_SCHEMA.names):
            return None
        return cls(str(Path(path).absolute()), count_rows([str(path)])[0], note)

    @property
    def head(self) -> RepairPlan:
        """The plan without its rows."""
        return RepairPlan(PLAN_SCHEMA.empty_table(), **self.note)

    def scan(self, partitions: Sequence[Partition]) -> Scan:
        """Read actions and donors; DataError where the rows are not numbered from 0 without a gap."""
        ends = np.array([p.first + p.rows for p in partitions], np.int64)
        written = np.zeros(len(partitions), np.int64)
        texts, images = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        first = 0
        for _, batch in iter_batches([self.path], ["pair_id", "action", "donor_pair_id"], _STEP):
            if not np.array_equal(batch.column("pair_id").fill_null(-1), np.arange(first, first + len(batch))):
                raise DataError("the repair plan must have one row per pair, in order of pair_id from 0, without a gap")
            table = pa.Table.from_batches([batch])
            rows = first + np.flatnonzero(acted(table, WRITTEN))
            np.add.at(written, np.searchsorted(ends, rows, side="right"), 1)
            donor = np.array(_whole(batch.column("donor_pair_id")).fill_null(-1), np.int64)
            for action, found in (("rematch_text", texts), ("rematch_image", images)):
                donors = np.unique(donor[acted(table, [action])])
                found.append(donors[(donors >= 0) & (donors < self.rows)])
            first += len(batch)
        return Scan(tuple(written.tolist()), np.unique(np.concatenate(texts)), np.unique(np.concatenate(images)))

    def store(self, path: Path, donors: np.ndarray) -> StoredRows | None:
        """What the pairs ``donors`` (k,) lend, in a file of its own; None where there are none."""
        if not len(donors):
            return None
        batches = (batch for _, batch in iter_batches([self.path], list(_DONOR_VALUES), _STEP))
        return StoredRows.collect(path, batches, donors)


class Decisions:
    """The rows of a plan from ``first`` on, so many as the input's batches ask for.

    ``donor_values``: what donors lend, of all that are named in these rows.
    """

    def __init__(self, plan: PlanFile, first: int, rows: int, donor_values: StoredRows | None) -> None:
        self._plan, self._donor_values = plan, donor_values
        self._batches: Iterator[Any] = iter_batches([plan.path], list(PLAN_SCHEMA.names), _STEP, rows, first)
        self._left: pa.Table | None = None

    def next(self, rows: int) -> pa.Table:
        """The next ``rows`` rows, checked, with what follows from their actions and donors."""
        pieces: list[pa.Table] = []
        while rows:
            if self._left is None or not len(self._left):
                batch = next(self._batches, None)
                if batch is None:
                    raise DataError(f"the plan {self._plan.path} has fewer rows than the input")
                self._left = self._followed(pa.Table.from_batches([batch[1]]))
            pieces.append(self._left.slice(0, rows))
            rows -= len(pieces[-1])
            self._left = self._left.slice(len(pieces[-1]))
        return pa.concat_tables(pieces).combine_chunks() if pieces else PLAN_SCHEMA.empty_table()

    def _followed(self, table: pa.Table) -> pa.Table:
        donor = np.array(_whole(table["donor_pair_id"]).fill_null(-1), np.int64)
        repaired = acted(table, ["rematch_text", "rematch_image"])
        known = repaired & (donor >= 0) & (donor < self._plan.rows)
        lenders = np.unique(donor[known])
        if self._donor_values is not None and len(lenders):
            donor_values = self._donor_values.table(_DONOR_VALUES, lenders)
        else:
            donor_values = pa.table({name: pa.array([], pa.string()) for name in _DONOR_VALUES})
        donors = DonorRows(lenders, donor_values, self._plan.rows)
        try:
            table = followed(table, donors).select(PLAN_SCHEMA.names).cast(PLAN_SCHEMA)
        except pa.ArrowException as error:
            raise DataError(f"a column of the repair plan has the wrong type: {error}") from error
        banned = pc.equal(donors.of("action", np.where(known, donor, -1)), "quarantine")
        check_decisions(table, self._plan.rows, np.array(banned.fill_null(False), bool))
        return table


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Whole numbers out of a column that somebody's tool may have made floats."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowException as error:
        raise DataError(f"donor_pair_id of the repair plan must be whole numbers: {error}") from error
