"""From a batch of input rows and the decisions about their pairs to the rows of the three output files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.data import Source
from cleanpairs.data.columns import score_columns
from cleanpairs.export.donors import IMAGE_ROLES, TEXT_ROLES, StoredRows
from cleanpairs.ops.columns import flat_type, fresh_names, grouped, is_list, one_array, replace_values, taken
from cleanpairs.repair.actions import NEW_CAPTION, REPAIRED, WRITTEN, acted

_ADDED = {
    "correspondence": pa.float32(),
    "action": pa.string(),
    "original_caption": pa.string(),
    "source_key": pa.string(),
    "repair_score": pa.float32(),
}
_DROPPED = {"pair_id": pa.int64(), "correspondence": pa.float32(), "action": pa.string(), "reason": pa.string()}


@dataclass(frozen=True)
class Decided:
    """Decisions about the P pairs of some consecutive input rows.

    ``pairs``: rows of the repair plan; ``row`` (P,) int64, rising: of the input rows, counted from ``first``, the one
    that each pair is of; ``position`` (P,): its place in that row's list of captions; ``donor_row`` (P,): the input
    row that holds its new image or caption, where it is lent one; ``truth``: after the repair, of P rows.
    """

    pairs: pa.Table
    row: np.ndarray
    position: np.ndarray
    donor_row: np.ndarray
    first: int
    truth: pa.Table = field(default_factory=lambda: pa.table({}))


@dataclass(frozen=True)
class OutBatch:
    """Rows of the cleaned file, and of each of the batch's pairs its row among them (-1: not written)."""

    table: pa.Table
    row_of_pair: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Column names and types of the outputs for one input schema.

    ``one_row_a_pair``: the text column becomes a string; otherwise rows keep their list of captions and added columns
    are lists along it. ``truth``: columns of the input with one value a pair, which follow the repair: a stale truth
    would make every later evaluation wrong. ``weighted``: with a column ``sample_weight``.
    """

    source: Source
    schema: pa.Schema
    one_row_a_pair: bool
    truth: tuple[str, ...] = ()
    weighted: bool = False

    @cached_property
    def renamed(self) -> dict[str, str]:
        """Columns of the input that give way to an added one -> their new names."""
        return fresh_names(self.schema.names, list(self._added))

    @cached_property
    def _added(self) -> dict[str, pa.DataType]:
        return {**_ADDED, "sample_weight": pa.float32()} if self.weighted else _ADDED

    @cached_property
    def scores(self) -> list[int]:
        """Places of the given similarities, which hold of a caption and an image together."""
        return [self.schema.get_field_index(name) for name in score_columns(self.source.columns)]

    @cached_property
    def score_lists(self) -> list[int]:
        """Those of them that are lists along a row's captions."""
        return [i for i in self.scores if self.source.explicit_lists and is_list(self.schema.field(i).type)]

    def places(self, roles: Sequence[str]) -> list[int]:
        """Places of the input's columns of these roles, those of them that it has."""
        columns = self.source.columns
        return [self.schema.get_field_index(columns[role]) for role in roles if role in columns]

    @cached_property
    def out_schema(self) -> pa.Schema:
        """Of the cleaned file."""
        added = self._added.items()
        fields = [pa.field(name, kind if self.one_row_a_pair else pa.list_(kind)) for name, kind in added]
        return pa.schema([*self._input_fields(self.renamed, self.one_row_a_pair), *fields], self._metadata)

    @cached_property
    def out_columns(self) -> dict[str, str]:
        """Role -> column of the cleaned file."""
        return {role: self.renamed.get(name, name) for role, name in self.source.columns.items()}

    @cached_property
    def image_root(self) -> Path | None:
        """The folder that image paths are relative to; None where it is not one."""
        folders = {Path(path).parent for path in self.source.paths}
        root = self.source.image_root or (folders.pop() if len(folders) == 1 else None)
        return None if root is None else Path(root)

    @cached_property
    def dropped_schema(self) -> pa.Schema:
        """Of the file of dropped pairs: always one pair a row."""
        fields = [pa.field(name, kind) for name, kind in _DROPPED.items()]
        return pa.schema(
            [*self._input_fields(fresh_names(self.schema.names, list(_DROPPED)), True), *fields], self._metadata
        )

    def out(self, table: pa.RecordBatch, decided: Decided, donor_values: Mapping[str, StoredRows]) -> OutBatch:
        """The cleaned rows of a batch of input rows; ``donor_values``: what donors lend of the input's columns."""

        def lent(i: int, rows: np.ndarray) -> pa.Array:
            name = self.schema.names[i]
            return donor_values[name].values(name, rows)

        row, truth = decided.row, decided.truth
        left = np.flatnonzero(acted(decided.pairs, WRITTEN))
        pairs, lenders = taken(decided.pairs, left), decided.donor_row[left]
        rows, counts = row[left], np.ones(len(left), np.int64)
        if not self.one_row_a_pair:
            rows, counts = np.unique(rows, return_counts=True)
        columns = [one_array(c) for c in taken(table, rows).columns]
        replaces = acted(pairs, NEW_CAPTION)
        for i in self.places(["text"]):
            columns[i] = self._text_column(columns[i], pairs, replaces, counts)
        for name in self.truth:
            columns[self.schema.get_field_index(name)] = self._truth_column(name, taken(truth[name], left), counts)
        new_image = np.flatnonzero(acted(pairs, ["rematch_image"]))
        for i in self.places(IMAGE_ROLES) if len(new_image) else ():
            columns[i] = replace_values(columns[i], new_image, lent(i, lenders[new_image]))
        new_text, written = (np.flatnonzero(acted(pairs, [action])) for action in NEW_CAPTION)
        for i in self.places(TEXT_ROLES):
            values = pa.nulls(len(written), columns[i].type)
            if len(new_text):  # at once: each replacement copies the column
                values = pa.concat_arrays([lent(i, lenders[new_text]), values])
            columns[i] = replace_values(columns[i], np.concatenate([new_text, written]), values)
        bare = acted(pairs, REPAIRED)  # of the pairs, and of the rows written
        bare_rows = np.unique(np.repeat(np.arange(len(counts)), counts)[bare])
        for i in self.scores:
            if i in self.score_lists:
                own = _of_pairs(table.column(i), row[left], decided.position[left], bare)
                columns[i] = own if self.one_row_a_pair else self._lists(i, own, counts)
            else:
                columns[i] = replace_values(columns[i], bare_rows, pa.nulls(len(bare_rows), columns[i].type))

        originals = pc.if_else(
            pa.array(replaces, pa.bool_()), one_array(pairs["original_caption"]), pa.scalar(None, pa.string())
        )
        added = [pairs["correspondence"], pairs["action"], originals, pairs["donor_key"], pairs["repair_score"]]
        if self.weighted:
            added.append(pc.if_else(pc.equal(pairs["action"], "keep"), pa.scalar(1, pa.float32()), pairs["confidence"]))
        columns += [one_array(c) if self.one_row_a_pair else grouped(c, counts) for c in added]
        row_of_pair = np.full(len(row), -1, np.int64)
        row_of_pair[left] = np.repeat(np.arange(len(rows)), counts)
        return OutBatch(pa.Table.from_arrays(columns, schema=self.out_schema), row_of_pair)

    def dropped(self, table: pa.RecordBatch, decided: Decided) -> pa.Table:
        """The dropped and quarantined pairs of a batch, one a row."""
        row, truth = decided.row, decided.truth
        gone = np.flatnonzero(~acted(decided.pairs, WRITTEN))
        pairs = taken(decided.pairs, gone)
        columns = [one_array(c) for c in taken(table, row[gone]).columns]
        for i in self.places(["text"]):
            text = pairs["original_caption"] if self.source.explicit_lists else columns[i]
            columns[i] = one_array(text).cast(self._flat)
        for i in self.score_lists:
            columns[i] = _of_pairs(table.column(i), row[gone], decided.position[gone], np.zeros(len(gone), bool))
        for name in self.truth:
            values = one_array(taken(truth[name], gone))
            columns[self.schema.get_field_index(name)] = values.cast(flat_type(self.schema.field(name).type))
        columns += [one_array(pairs[name]) for name in _DROPPED]
        return pa.Table.from_arrays(columns, schema=self.dropped_schema)

    def _text_column(self, column: pa.Array, pairs: pa.Table, replaces: np.ndarray, counts: np.ndarray) -> pa.Array:
        captions = one_array(pairs["caption"]).cast(self._flat)
        if not self.one_row_a_pair:
            return self._lists(self._text, captions, counts)
        if self.source.explicit_lists:
            return captions
        where = np.flatnonzero(replaces)
        return replace_values(column.cast(self._flat), where, taken(captions, where))

    def _lists(self, column: int, values: pa.Array, counts: np.ndarray) -> pa.Array:
        """``counts`` (n,) consecutive ``values`` in each row, in lists of the kind that the input's ``column`` has."""
        return grouped(values, counts, large=pa.types.is_large_list(self.schema.field(column).type))

    def _truth_column(self, name: str, values: pa.ChunkedArray, counts: np.ndarray) -> pa.Array:
        flat = one_array(values).cast(flat_type(self.schema.field(name).type))
        return flat if self.one_row_a_pair else grouped(flat, counts)

    @property
    def _text(self) -> int:
        return self.schema.get_field_index(self.source.columns["text"])

    @cached_property
    def _flat(self) -> pa.DataType:
        return flat_type(self.schema.field(self._text).type)

    @cached_property
    def _metadata(self) -> dict[bytes, bytes] | None:
        """Metadata of the input but for pandas's, which describes an index that filtering has broken."""
        kept = {k: v for k, v in (self.schema.metadata or {}).items() if k != b"pandas"}
        return kept or None

    def _input_fields(self, renamed: dict[str, str], one_row_a_pair: bool) -> list[pa.Field]:
        """The input's fields under their new names, captions and truth with the type of an output row."""
        fields = [f.with_name(renamed.get(f.name, f.name)) for f in self.schema]
        for i in self.places(["text"]):
            fields[i] = pa.field(fields[i].name, self._flat if one_row_a_pair else _list_type(fields[i].type))
        for name in self.truth:
            i = self.schema.get_field_index(name)
            flat = flat_type(self.schema.field(i).type)
            fields[i] = pa.field(fields[i].name, flat if one_row_a_pair else pa.list_(flat))
        for i in self.score_lists:
            kind = fields[i].type
            fields[i] = pa.field(fields[i].name, flat_type(kind) if one_row_a_pair else _list_type(kind))
        for i in (*self.places(TEXT_ROLES), *self.scores):
            fields[i] = fields[i].with_nullable(True)  # whatever the input says: a repair leaves them unknown
        return fields


def _list_type(kind: pa.DataType) -> pa.DataType:
    """The type of a list in the cleaned file: of any number of values, of which some may have gone."""
    flat = flat_type(kind)
    return pa.large_list(flat) if pa.types.is_large_list(kind) else pa.list_(flat)


def _of_pairs(column: pa.Array, row: np.ndarray, position: np.ndarray, bare: np.ndarray) -> pa.Array:
    """One score a pair (k,) out of a ``column`` (n,) of lists: that in its ``row`` (k,) int64 at its ``position`` (k,);
    null where the list is short, or the pair has none any more, ``bare`` (k,) bool.
    """
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    starts = np.cumsum(lengths) - lengths
    missing = bare | (position >= lengths[row])
    at = pa.array(np.where(missing, 0, starts[row] + position), mask=missing)
    return taken(column.flatten(), at).cast(flat_type(column.type))
