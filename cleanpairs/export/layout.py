"""From a batch of input rows and the decisions about their pairs to the rows of the three output files."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import ConfigError, OutputError
from cleanpairs.data import Source, iter_tables
from cleanpairs.data.columns import is_text, score_columns
from cleanpairs.data.image_paths import image_exists
from cleanpairs.data.images import image_cells, named_file, rows_by_file
from cleanpairs.ops.columns import (
    decoded_type,
    flat_type,
    fresh_names,
    grouped,
    is_image_struct,
    is_list,
    list_lengths,
    numbered,
    one_array,
    recast,
    replace_values,
    taken,
)
from cleanpairs.repair.actions import NEW_CAPTION, REPAIRED, WRITTEN, acted
from cleanpairs.repair.plan import CAPTIONS

IMAGE_ROLES = ("image", "features")  # of the columns that a pair with a new image takes from its donor
TEXT_ROLES = ("text_features",)  # and with a new caption, besides the caption itself

_DROPPED = {"pair_id": pa.int64(), "correspondence": pa.float32(), "action": pa.string(), "reason": pa.string()}


@dataclass(frozen=True)
class StoredRows:
    """Values (k,) of a column in a file, by the numbers ``rows`` (k,) int64 of their rows, rising."""

    path: Path
    rows: np.ndarray

    @cached_property
    def _batches(self) -> list[pa.RecordBatch]:
        file = pa.ipc.open_file(pa.memory_map(str(self.path)))
        return [file.get_batch(i) for i in range(file.num_record_batches)]

    def values(self, rows: np.ndarray) -> pa.Array:
        """Values (k,) at the ``rows`` (k,), each of them among those stored, in any order."""
        wanted, back = np.unique(np.searchsorted(self.rows, rows), return_inverse=True)
        pieces = [  # batch by batch: of all at once Arrow would make one array
            taken(self._batches[number].column(0), local)
            for number, _, local in rows_by_file(list(map(len, self._batches)), wanted)
        ]
        return taken(pa.concat_arrays(pieces), back)


def donor_columns(source: Source, folder: Path, *, images: np.ndarray, texts: np.ndarray) -> dict[str, StoredRows]:
    """Store the donors' values by column, in mapped files in ``folder``. The input is read once.

    The rows ``images`` (k,) int64, rising, give their images and the vectors of these. The rows ``texts`` (k,) give the
    captions' vectors.
    """
    donors, files = (*zip(IMAGE_ROLES, repeat(images)), *zip(TEXT_ROLES, repeat(texts))), dict[str, Any]()
    wanted = {source.columns[role]: rows for role, rows in donors if role in source.columns and len(rows)}
    stored = {name: StoredRows(folder / f"{k}.arrow", rows) for k, (name, rows) in enumerate(wanted.items())}
    batches = iter_tables(source, batch_rows=2048, columns=list(wanted)) if wanted else ()  # fewer where rows are large
    try:
        with ExitStack() as closing:
            for first, batch in numbered(batches):
                for name, part in stored.items():
                    at = part.rows[slice(*np.searchsorted(part.rows, [first, first + len(batch)]))] - first
                    # A file takes one dictionary a column, and batches have their own.
                    values = recast(taken(batch.column(name), at), decoded_type(batch.schema.field(name).type))
                    table = pa.table({name: values})
                    if name not in files:
                        files[name] = closing.enter_context(pa.ipc.new_file(part.path, table.schema))
                    files[name].write_table(table, max_chunksize=4096)  # a look-up maps the batches that it needs
    except OSError as error:
        raise OutputError(
            f"the temporary folder {folder} cannot be written: {error.strerror or error}; make room in "
            f"{folder.parent}, or set TMPDIR to another disk"
        ) from error
    return stored


@dataclass(frozen=True)
class Decided:
    """Some consecutive input ``rows``, from number ``first`` on, and the decisions about their P pairs.

    - ``pairs``: rows of the repair plan
    - ``row`` (P,), rising: the input row of each pair, counted from ``first``
    - ``position`` (P,): its place in that row's captions
    - ``donor_row`` (P,): the input row that holds its new image or caption
    - ``truth``: after the repair, P rows
    """

    rows: pa.RecordBatch
    first: int
    pairs: pa.Table
    row: np.ndarray
    position: np.ndarray
    donor_row: np.ndarray
    truth: pa.Table = field(default_factory=lambda: pa.table({}))


@dataclass(frozen=True)
class Layout:
    """Column names and types of the outputs for one input schema.

    - ``one_row_a_pair``: the text column becomes a string. Else rows keep their list of captions, and added columns are
      lists along it
    - ``truth``: columns of the input that follow the repair
    - ``weighted``: with a column ``sample_weight``
    - ``all_captions``: with a column of that name. It has a row's captions before and after the repair, each with its
      source (original, rematched or written) and the probability that it belongs to the image
    - ``repeats``: see :class:`cleanpairs.export.uids_format.UidsOutput`
    """

    source: Source
    schema: pa.Schema
    one_row_a_pair: bool
    truth: tuple[str, ...] = ()
    weighted: bool = False
    all_captions: bool = False
    repeats: int = 1

    @cached_property
    def renamed(self) -> dict[str, str]:
        """Columns of the input that give way to an added one -> their new names."""
        return fresh_names(self.schema.names, list(self._added))

    @cached_property
    def _added(self) -> dict[str, pa.DataType]:
        added = {"correspondence": pa.float32(), "action": pa.string(), "original_caption": pa.string()}
        added |= {"source_key": pa.string(), "repair_score": pa.float32()}
        added |= {"sample_weight": pa.float32()} if self.weighted else {}
        return added | ({"all_captions": CAPTIONS} if self.all_captions else {})

    @cached_property
    def scores(self) -> list[int]:
        """Places of the given similarities, each of which belongs to an image with its caption."""
        return [self.schema.get_field_index(name) for name in score_columns(self.source.columns)]

    @cached_property
    def score_lists(self) -> list[int]:
        """Places of the given similarities that are lists along a row's captions."""
        return [i for i in self.scores if self.source.explicit_lists and is_list(self.schema.field(i).type)]

    def places(self, roles: Sequence[str]) -> list[int]:
        """Places of the input's columns of these roles. Roles without a column have none."""
        columns = self.source.columns
        return [self.schema.get_field_index(columns[role]) for role in roles if columns.get(role) in self.schema.names]

    @cached_property
    def out_schema(self) -> pa.Schema:
        """The schema of the cleaned file."""
        whole = {name for name in self._added if self.one_row_a_pair or name == "all_captions"}  # one value a row
        added = {name: kind if name in whole else pa.list_(kind) for name, kind in self._added.items()}
        return self._with_input(self.renamed, added, self.one_row_a_pair)

    @cached_property
    def out_columns(self) -> dict[str, str]:
        """Role -> column of the cleaned file."""
        return {role: self.renamed.get(name, name) for role, name in self.source.columns.items()}

    @cached_property
    def image_root(self) -> Path | None:
        """The folder that image paths are relative to. None where it is not one."""
        folders = {Path(path).parent for path in self.source.paths}
        root = self.source.image_root or (folders.pop() if len(folders) == 1 else None)
        return None if root is None else Path(root)

    def names_files(self, out: pa.Table) -> bool:
        """Whether cleaned rows hold the path of an image without its bytes.

        Raises ConfigError: such paths are relative to several folders, so that one of them may mean several images.
        """
        if (name := self.out_columns.get("image")) not in out.column_names:
            return False
        if "features" not in self.source.columns and len({Path(path).parent for path in self.source.paths}) > 1:
            named = filter(None, map(named_file, image_cells(one_array(out[name]))))
            if not all(self.image_root and image_exists(path, self.image_root) for path in named):
                raise ConfigError(
                    "the input's files lie in several folders, and each names images in its own: export one folder "
                    "after another, or write the paths relative to one folder, and name that with --image-root"
                )
        if not is_image_struct(out.schema.field(name).type):
            return is_text(out.schema.field(name).type)
        encoded, path = (pc.is_valid(pc.struct_field(out[name], part)) for part in ("bytes", "path"))
        return bool(pc.any(pc.and_not(path, encoded)).as_py())

    def paths_from(self, format: str, folder: Path, named: bool) -> Path | None:
        """The root of the images' paths, where an output of the ``format`` in ``folder`` holds these alone. None also
        where that is ``folder``. ``named``: as of :meth:`names_files`.
        """
        if "image" not in self.source.columns or format in ("webdataset", "uids"):
            return None
        user_root = None if self.source.image_root is None else Path(self.source.image_root)
        root = self.image_root if named else user_root if format == "csv" else None
        if format == "csv" and not named and root is None:
            warnings.warn("the CSV names images that are inside the input: to keep them, export Parquet", stacklevel=2)
        return None if root is None or root.resolve() == folder.resolve() else root

    @cached_property
    def dropped_schema(self) -> pa.Schema:
        """The schema of the file of dropped pairs: always one pair a row."""
        return self._with_input(fresh_names(self.schema.names, list(_DROPPED)), _DROPPED, True)

    def out(self, decided: Decided, donor_values: Mapping[str, StoredRows]) -> tuple[pa.Table, np.ndarray]:
        """The cleaned rows of a batch, and the row (P,) of each of its pairs, or -1. ``donor_values``: by column."""
        cleaned = _CleanedRows(self, decided, donor_values)
        columns = [one_array(column) for column in taken(decided.rows, cleaned.rows).columns]
        truth = [self.schema.get_field_index(name) for name in self.truth]
        for places, made in (
            (self.places(["text"]), cleaned.text),
            (truth, cleaned.truth),
            (self.places(IMAGE_ROLES), cleaned.image),
            (self.places(TEXT_ROLES), cleaned.text_vectors),
            (self.scores, cleaned.score),
        ):
            for i in places:
                columns[i] = made(i, columns[i])
        columns += map(cleaned.in_rows, cleaned.added())
        if self.all_captions:
            columns.append(cleaned.all_captions())
        return pa.Table.from_arrays(columns, schema=self.out_schema), cleaned.row_of_pair()

    def dropped(self, decided: Decided) -> pa.Table:
        """The dropped and quarantined pairs of a batch, one a row."""
        row, truth = decided.row, decided.truth
        gone = np.flatnonzero(~acted(decided.pairs, WRITTEN))
        pairs = taken(decided.pairs, gone)
        columns = [one_array(c) for c in taken(decided.rows, row[gone]).columns]
        for i in self.places(["text"]):
            text = pairs["original_caption"] if self.source.explicit_lists else columns[i]
            columns[i] = one_array(text).cast(self.flat_text)
        for i in self.score_lists:
            columns[i] = _of_pairs(decided.rows.column(i), row[gone], decided.position[gone], np.zeros(len(gone), bool))
        for name in self.truth:
            values = one_array(taken(truth[name], gone))
            columns[self.schema.get_field_index(name)] = values.cast(flat_type(self.schema.field(name).type))
        columns += [one_array(pairs[name]) for name in _DROPPED]
        return pa.Table.from_arrays(columns, schema=self.dropped_schema)

    @cached_property
    def flat_text(self) -> pa.DataType:
        """The type of one caption."""
        return flat_type(self.schema.field(self.source.columns["text"]).type)

    def _with_input(self, renamed: dict[str, str], added: Mapping[str, pa.DataType], one_row_a_pair: bool) -> pa.Schema:
        """The input's fields under their new names, and those added. Pandas's metadata of its index is left out."""
        fields = [f.with_name(renamed.get(f.name, f.name)) for f in self.schema]
        truth = [self.schema.get_field_index(name) for name in self.truth]
        for i in (*self.places(["text"]), *truth, *self.score_lists):
            list_of = pa.large_list if pa.types.is_large_list(fields[i].type) and i not in truth else pa.list_
            flat = flat_type(fields[i].type)
            fields[i] = fields[i].with_type(flat if one_row_a_pair else list_of(flat))
        for i in (*self.places(["text", *TEXT_ROLES]), *truth, *self.scores):
            fields[i] = fields[i].with_nullable(True)  # whatever the input says: a repair leaves them unknown
        metadata = {k: v for k, v in (self.schema.metadata or {}).items() if k != b"pandas"}
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in added.items())], metadata or None)


class _CleanedRows:
    """The R rows that the k written pairs of a batch make. The methods make their columns."""

    def __init__(self, layout: Layout, decided: Decided, donor_values: Mapping[str, StoredRows]) -> None:
        self.layout, self._decided, self._donor_values = layout, decided, donor_values
        self._left = np.flatnonzero(acted(decided.pairs, WRITTEN))  # (k,): the written ones among the pairs
        self._pairs = taken(decided.pairs, self._left)
        self._row, self._donor_row = decided.row[self._left], decided.donor_row[self._left]
        self.rows, self._counts = self._row, np.ones(len(self._left), np.int64)  # (R,): input rows, pairs in each
        if not layout.one_row_a_pair:
            self.rows, self._counts = np.unique(self._row, return_counts=True)

    def in_rows(self, values: pa.ChunkedArray | pa.Array, i: int | None = None) -> pa.Array:
        """Values (k,) of pairs as lists of each row, of the kind that the input's column ``i`` has."""
        if self.layout.one_row_a_pair:
            return one_array(values)
        large = i is not None and pa.types.is_large_list(self.layout.schema.field(i).type)
        return grouped(values, self._counts, large=large)

    def text(self, i: int, column: pa.Array) -> pa.Array:
        """The captions, those of repaired pairs replaced."""
        captions, kind = one_array(self._pairs["caption"]).cast(self.layout.flat_text), self.layout.flat_text
        if self.layout.source.explicit_lists:
            return self.in_rows(captions, i)
        replaced = self._where(NEW_CAPTION)
        return replace_values(column.cast(kind), replaced, taken(captions, replaced))

    def truth(self, i: int, column: pa.Array) -> pa.Array:
        """The truth of the pairs, after the repair."""
        field = self.layout.schema.field(i)
        values = one_array(taken(self._decided.truth[field.name], self._left))
        return self.in_rows(values.cast(flat_type(field.type)))

    def image(self, i: int, column: pa.Array) -> pa.Array:
        """The images, or their vectors, rematched ones of another row."""
        rematched = self._where(["rematch_image"])
        return replace_values(column, rematched, self._donated(i, rematched)) if len(rematched) else column

    def text_vectors(self, i: int, column: pa.Array) -> pa.Array:
        """The vectors of captions: another row's with its caption, null with a caption that was written."""
        rematched, written = (self._where([action]) for action in NEW_CAPTION)
        values = pa.nulls(len(written), column.type)
        if len(rematched):  # at once: each replacement copies the column
            values = pa.concat_arrays([self._donated(i, rematched), values])
        return replace_values(column, np.concatenate([rematched, written]), values)

    def score(self, i: int, column: pa.Array) -> pa.Array:
        """Given similarities, null where a pair, or one of the row's, was repaired."""
        repaired = acted(self._pairs, REPAIRED)
        if i in self.layout.score_lists:
            position = self._decided.position[self._left]
            return self.in_rows(_of_pairs(self._decided.rows.column(i), self._row, position, repaired), i)
        rows = np.unique(np.repeat(np.arange(len(self.rows)), self._counts)[repaired])
        return replace_values(column, rows, pa.nulls(len(rows), column.type))

    def added(self) -> list[pa.Array]:
        """The values (k,) of the columns that the input has not."""
        pairs = self._pairs
        replaced = pa.array(acted(pairs, NEW_CAPTION), pa.bool_())
        originals = pc.if_else(replaced, one_array(pairs["original_caption"]), None)
        added = [pairs["correspondence"], pairs["action"], originals, pairs["donor_key"], pairs["repair_score"]]
        if self.layout.weighted:
            added.append(pc.if_else(pc.equal(pairs["action"], "keep"), pa.scalar(1, pa.float32()), pairs["confidence"]))
        return added

    def all_captions(self) -> pa.Array:
        """The captions (R,) of each row, see :class:`Layout`: of a pair those that it has now, then the old one."""
        cells: list[list[dict[str, Any]]] = [[] for _ in self.rows]
        rows = np.repeat(np.arange(len(self.rows)), self._counts).tolist()
        columns = ["action", "caption", "captions", "original_caption", "correspondence", "repair_score"]
        sources = {"recaption": "written", "rematch_text": "rematched"}
        for row, pair in zip(rows, self._pairs.select(columns).to_pylist(), strict=True):
            action, before = pair["action"], pair["correspondence"]
            weight = pair["repair_score"] if action in REPAIRED else before
            now = {"text": pair["caption"], "source": sources.get(action, "original"), "weight": weight}
            cells[row] += [now] if pair["captions"] is None else pair["captions"]
            if action in NEW_CAPTION:
                cells[row].append({"text": pair["original_caption"], "source": "original", "weight": before})
        return pa.array(cells, CAPTIONS)

    def row_of_pair(self) -> np.ndarray:
        """The row (P,) of each pair of the batch, -1 where it is not written."""
        rows = np.full(len(self._decided.row), -1, np.int64)
        rows[self._left] = np.repeat(np.arange(len(self.rows)), self._counts)
        return rows

    def _where(self, actions: Sequence[str]) -> np.ndarray:
        return np.flatnonzero(acted(self._pairs, actions))

    def _donated(self, i: int, pairs: np.ndarray) -> pa.Array:
        name = self.layout.schema.names[i]
        values = self._donor_values[name].values(self._donor_row[pairs])
        return recast(values, self.layout.schema.field(i).type)


def _of_pairs(column: pa.Array, row: np.ndarray, position: np.ndarray, hidden: np.ndarray) -> pa.Array:
    """One score a pair (k,) out of a ``column`` (n,) of lists. Null where that is short, or at ``hidden`` (k,)."""
    lengths = list_lengths(column)
    starts = np.cumsum(lengths) - lengths
    missing = hidden | (position >= lengths[row])
    at = pa.array(np.where(missing, 0, starts[row] + position), mask=missing)
    return taken(column.flatten(), at).cast(flat_type(column.type))
