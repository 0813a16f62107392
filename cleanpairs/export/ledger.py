"""The ledger: one line for each pair. It holds the values of the input that the cleaned file does not hold.

To restore a row of the input, its columns are taken from its first row in the cleaned file. The columns that
``original_columns`` names are the exception. Their values are in ``original_row``, in the line of the row's first pair.
``original_columns`` names

- all columns, if none of the row's captions was written
- else the images, if one was replaced
- the captions and their vectors, if one was replaced or left out
- the given similarities, if any of these was
- always the truth
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError
from cleanpairs.data.parquet_io import common_schema
from cleanpairs.data.readers import reader_of
from cleanpairs.export.layout import IMAGE_ROLES, TEXT_ROLES, Decided, Layout
from cleanpairs.ops.columns import list_lengths, nullable_type, plain_type, recast, taken
from cleanpairs.repair.actions import NEW_CAPTION, WRITTEN, acted

LEDGER_SCHEMA = pa.schema(
    [
        ("pair_id", pa.int64()),
        ("key", pa.string()),
        ("row", pa.int64()),
        ("position", pa.int64()),
        ("action", pa.string()),
        ("correspondence", pa.float32()),
        ("repair_score", pa.float32()),
        ("source_pair_id", pa.int64()),
        ("source_key", pa.string()),
        ("original_caption", pa.string()),
        ("new_caption", pa.string()),
        ("reason", pa.string()),
        ("out_row", pa.int64()),
    ]
)

REVERSIBLE = ("parquet", "datasets")  # the formats of output that hold the rows which the ledger does not


@dataclass(frozen=True)
class LedgerNote:
    """The note of the input in a ledger: its ``rows``, its ``schema``, and columns ``renamed`` for added ones."""

    rows: int
    renamed: Mapping[str, str]
    schema: pa.Schema
    key, version = b"cleanpairs.ledger", 1

    def metadata(self) -> dict[bytes, bytes]:
        """The note as metadata of a Parquet schema. :meth:`read` reads it."""
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        note = {"version": self.version, "rows": self.rows, "renamed": dict(self.renamed)}
        return {self.key: json.dumps({**note, "schema": schema}).encode()}

    @classmethod
    def read(cls, path: str | Path) -> "LedgerNote":
        """The note of a ledger. Raises DataError: ``path`` cannot be read as Parquet, or holds no such note."""
        schema, name = common_schema([str(path)]), cls.key.decode()
        if cls.key not in (schema.metadata or {}) or "original_columns" not in schema.names:
            raise DataError(
                f"{path} is no ledger that can undo an export: it lacks {name!r} or the column 'original_columns' "
                "(ledgers before version 1 do): export again; the input is still where it was"
            )
        try:
            note = json.loads(schema.metadata[cls.key])
            if (version := note["version"]) == cls.version:
                schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(note["schema"], validate=True)))
                return cls(int(note["rows"]), dict(note["renamed"]), schema)
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise DataError(f"{path} is a damaged ledger: its note {name!r} is not as written") from error
        raise DataError(f"{path} is a ledger of version {version}, and this cleanpairs reads version {cls.version}")


@dataclass(frozen=True)
class Ledger:
    """Makes the lines of a ledger, batch by batch."""

    layout: Layout

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the ledger."""
        schema = LEDGER_SCHEMA.append(pa.field("why", pa.string()))
        schema = schema.append(pa.field("original_columns", pa.list_(pa.string())))
        schema = schema.append(pa.field("original_row", pa.struct(self._stored)))
        source, read = self.layout.source, self.layout.schema
        if source.original is not None and source.joined is not None:  # which has added this column, and maybe a key
            names = reader_of(source := source.original).schema(source).names
            read = pa.schema([f for f in read if f.name in names], read.metadata)
        plain = (f for f in reader_of(source).stored_schema(source) if "run_end_encoded" not in str(f.type))
        stored = {field.name: field.type for field in plain}  # Parquet has no runs
        kinds = [kind if plain_type(kind := stored.get(f.name, f.type)) == f.type else f.type for f in read]
        whole = pa.schema([f.with_type(kind) for f, kind in zip(read, kinds, strict=True)], read.metadata)
        note = LedgerNote(source.n_rows, self.layout.renamed, whole)
        return schema.with_metadata(note.metadata())

    @cached_property
    def _stored(self) -> list[pa.Field]:
        return [pa.field(f.name, nullable_type(f.type)) for f in self.layout.schema]  # null where not needed

    def lines(self, decided: Decided, out_row: np.ndarray) -> pa.Table:
        """One line a pair of input rows. ``out_row`` (P,): in the cleaned rows of the batch, -1 where not written."""
        pairs, row = decided.pairs, decided.row
        replaced = pa.array(acted(pairs, NEW_CAPTION), pa.bool_())
        columns = {
            "row": pa.array(row + decided.first),
            "position": pa.array(decided.position),
            "source_pair_id": pairs["donor_pair_id"],
            "source_key": pairs["donor_key"],
            "new_caption": pc.if_else(replaced, pairs["caption"], None),
            "out_row": pa.array(out_row, mask=out_row < 0),
        }
        columns |= self._originals(decided)
        columns = {**{name: pairs[name] for name in pairs.column_names}, **columns}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _originals(self, decided: Decided) -> dict[str, pa.Array]:
        """``original_columns`` and ``original_row``, at the first pair of each row that needs them."""
        needed, row, names = self._needed(decided), decided.row, self.layout.schema.names
        first = np.ones(len(row), bool)
        first[1:] = row[1:] != row[:-1]
        wanted = needed[:, row] & first  # (columns, P)
        children = [  # to take nothing from a column of vectors is slow
            recast(taken(decided.rows.column(i), pa.array(row, mask=~mask)), stored.type)
            if mask.any()
            else pa.nulls(len(row), stored.type)
            for i, (mask, stored) in enumerate(zip(wanted, self._stored, strict=True))
        ]
        has_originals = np.asarray(np.any(wanted, axis=0), bool)
        noted = taken(pa.array(names, pa.string()), np.nonzero(wanted.T)[1])
        ends = np.cumsum(wanted.sum(axis=0), dtype=np.int32)
        offsets = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
        return {
            "original_columns": pa.ListArray.from_arrays(offsets, noted, mask=pa.array(~has_originals)),
            "original_row": pa.StructArray.from_arrays(children, fields=self._stored, mask=pa.array(~has_originals)),
        }

    def _needed(self, decided: Decided) -> np.ndarray:
        """(columns, rows of the batch) bool: which values of the input the cleaned file does not hold."""
        layout, pairs, row = self.layout, decided.pairs, decided.row
        n, written = int(row[-1]) + 1 if len(row) else 0, acted(pairs, WRITTEN)
        rows, first = np.unique(row[written], return_index=True)
        kept = np.zeros(n, bool)
        kept[rows] = True
        new_image = np.zeros(n, bool)  # of the first row in the cleaned file, which is the one that restoring reads
        new_image[rows] = acted(pairs, ["rematch_image"])[written][first]
        same = acted(pairs, ["keep", "rematch_image"])
        if layout.source.explicit_lists:
            same &= np.array(pc.equal(pairs["caption"], pairs["original_caption"]).fill_null(False), bool)
        new_text = np.zeros(n, bool)
        new_text[row[~same]] = True
        new_score = new_text | new_image
        if layout.one_row_a_pair and layout.source.explicit_lists:
            new_text[:] = True  # the cleaned file has no lists
        needed = np.repeat(~kept[None], len(layout.schema), axis=0)
        needed[layout.places(["text"])] |= new_text
        needed[layout.places(IMAGE_ROLES)] |= new_image
        needed[layout.places(TEXT_ROLES)] |= new_text
        needed[layout.scores] |= new_score
        for i in layout.score_lists:  # lists of other lengths than those of captions are made that long
            needed[i] |= new_text | (list_lengths(decided.rows.column(i))[:n] != np.bincount(row))
        needed[[layout.schema.get_field_index(name) for name in layout.truth]] = True
        return needed
