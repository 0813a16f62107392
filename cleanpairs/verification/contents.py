"""An export compared with its input, value by value, by what the ledger says became of each pair.

What must be in the outputs is worked out here from the input and the ledger, column by column, as codes of 64 bits a
cell (:mod:`cleanpairs.ops.cells`); nothing is used of what wrote them. Neither the input nor the other outputs tell why
a pair was dropped, what was written by a model, and the truth after a repair: of these there are the checksums.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular
from cleanpairs.data import Source, fingerprint_of, iter_tables
from cleanpairs.data.columns import is_bytes, score_columns
from cleanpairs.data.formats.datasets_directory import iter_arrow
from cleanpairs.data.formats.webdataset import member_bytes, read_index
from cleanpairs.data.parquet_io import common_schema, iter_batches, read_table
from cleanpairs.export.datasets_format import stored_files
from cleanpairs.export.donors import IMAGE_ROLES, TEXT_ROLES
from cleanpairs.export.ledger import LedgerNote
from cleanpairs.export.uids_format import UID_COLUMN, uid_array
from cleanpairs.export.webdataset_format import KEY, json_lines
from cleanpairs.ops.cells import NONE, NULL, codes, list_codes, list_lengths, readable
from cleanpairs.ops.columns import fresh_names, is_list, taken
from cleanpairs.repair.actions import REMATCHED, WRITTEN
from cleanpairs.verification.findings import Verification

Codes = Callable[[pa.Array], np.ndarray]

_ROWS = 2048
_ADDED = ("correspondence", "action", "original_caption", "source_key", "repair_score")
_OF_DROPPED = ("pair_id", "correspondence", "action", "reason")
_TRUTH = ("true_mismatch", "true_key")


def noted_source(out: Path, noted: Mapping[str, Any], data: str | Path | None, findings: Verification) -> Source | None:
    """The input of an export, where it is there and as it was; a note where it is not.

    A manifest may be a stranger's: a path in it is followed only to a regular file in the folder of the export, or
    below; elsewhere the user names the input, by ``data``.
    """
    told = noted.get("input")
    if not isinstance(told, dict):
        findings.notes.append("the values were not compared: the manifest does not name the input")
        return None
    try:
        named = [out.parent / str(path) for path in told["paths"]]
        if data is not None:
            given = Path(data)
            named = [given / path.name for path in named] if given.is_dir() else [given]
        home = out.parent.resolve()
        beside = all(path.resolve().is_relative_to(home) for path in named)
        if data is None and not beside:
            where = named[0] if len(named) == 1 else named[0].parent
            findings.notes.append(f"the values were not compared: the input is elsewhere; name it by --data {where}")
            return None
        if told["kind"] == "memory" or not all(path.is_file() for path in named):
            findings.notes.append("the values were not compared: the input is not there any more")
            return None
        source = Source(
            str(told["kind"]), tuple(str(path.absolute()) for path in named), dict(told["columns"]),
            str(noted["fingerprint"]), int(told["rows"]), told["image_root"], bool(told["explicit_lists"]),
            dict(told["options"]),
        )  # fmt: skip
        if fingerprint_of(source) != source.fingerprint:
            findings.notes.append("the values were not compared: the input has changed since the export")
            return None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the manifest's note of the input is not as export writes it: {error}") from error
    return source


def compare_contents(
    out: Path, kind: str, ledger: Path, dropped: Path | None, source: Source, findings: Verification
) -> None:
    """Compare all values of the cleaned data, of the ledger and of the dropped pairs with the input ``source``."""
    contents = _Contents(out, kind, ledger, source, findings)
    if not contents.names_what_is_there():
        return
    contents.check_ledger()
    contents.check_columns(dropped)
    if kind == "webdataset":
        contents.check_tars()
    elif kind == "uids":
        contents.check_uids()


def _all_codes(batches: Iterator[pa.RecordBatch], of: Codes = codes) -> np.ndarray:
    return np.concatenate([NONE, *(of(batch.column(0)) for batch in batches)])


def _of_parquet(files: list[str], name: str, of: Codes = codes, rows: int = _ROWS) -> np.ndarray:
    return _all_codes((batch for _, batch in iter_batches(files, [name], rows)), of)


def _text_codes(array: pa.Array) -> np.ndarray:
    """Of captions, or of lists of them, as a plan has them."""
    return (
        list_codes(_text_codes(array.flatten()), list_lengths(array)) if is_list(array.type) else codes(readable(array))
    )


def _cells(kind: pa.DataType, array: pa.Array) -> np.ndarray:
    """Of cells that were of type ``kind``, also where `datasets` keeps bytes as the struct of an image."""
    if pa.types.is_struct(array.type) and not pa.types.is_struct(kind):
        return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, codes(array.field("bytes")))
    return codes(array)


class _Contents:
    """``P`` pairs of the ledger; ``first``: the first pair of each row of the cleaned data."""

    def __init__(self, out: Path, kind: str, ledger: Path, source: Source, findings: Verification) -> None:
        self.out, self.kind, self.ledger, self.source, self.findings = out, kind, ledger, source, findings
        self.seen: dict[str, np.ndarray] = {}  # columns of the ledger
        table = read_table(self.ledger, ["row", "position", "source_pair_id", "out_row"])
        self.row, self.position, self.lender, self.out_row = (
            np.asarray(table[name].fill_null(-1).to_numpy(), np.int64) for name in table.column_names
        )
        self.action = np.array(read_table(self.ledger, ["action"])["action"].to_pylist(), object)
        self.written = np.isin(self.action, WRITTEN)
        self.first = np.flatnonzero(self.written)[np.unique(self.out_row[self.written], return_index=True)[1]]
        self.note = LedgerNote.read(self.ledger)
        self.new_text = np.isin(self.action, ("rematch_text", "recaption"))
        self.donor_row = np.where(self.lender >= 0, self.row[np.clip(self.lender, 0, None)], -1)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _line(self, name: str) -> np.ndarray:
        if name not in self.seen:
            self.seen[name] = _of_parquet([str(self.ledger)], name, rows=8192)
        return self.seen[name]

    def _input(self, name: str, of: Codes = codes) -> np.ndarray:
        return _all_codes(iter_tables(self.source, _ROWS, [name]), of)

    @cached_property
    def _files(self) -> list[str]:
        if self.kind == "datasets":
            return stored_files(self.out)
        return sorted(map(str, self.out.glob("*.parquet"))) if self.kind == "webdataset" else [str(self.out)]

    @cached_property
    def schema(self) -> pa.Schema:
        if self.kind == "datasets":
            return next(iter_arrow(self._files[0], None, 1)).schema if self._rows else pa.schema([])
        return common_schema(self._files)

    @property
    def _rows(self) -> int:
        return len(self.first)

    @cached_property
    def _counts(self) -> np.ndarray:
        """Pairs in each row of the cleaned data."""
        return np.bincount(self.out_row[self.written], minlength=self._rows)

    def _output(self, name: str, of: Codes) -> np.ndarray:
        if self.kind == "datasets":
            return _all_codes((b for file in self._files for b in iter_arrow(file, [name], _ROWS)), of)
        return _of_parquet(self._files, name, of)

    def _same(self, path: Path, name: str, found: np.ndarray, wanted: np.ndarray, what: str = "the input") -> None:
        if len(found) != len(wanted):
            self.findings.wrong(path, f"has {len(found):,} values, not {len(wanted):,}", f"column {name!r}")
            return
        self.findings.wrong_rows(path, name, found != wanted, f"is not what it has to be by {what}")

    def names_what_is_there(self) -> bool:
        """Whether rows, places and lenders are among those of the input; what is not is noted."""
        pairs, before = len(self.row), len(self.findings.problems)
        for name, value, least, end in (
            ("row", self.row, 0, self.source.n_rows),
            ("position", self.position, 0, pairs),
            ("source_pair_id", self.lender, -1, pairs),
        ):
            inside = (value >= least) & (value < end)
            self._same(self.ledger, name, inside, np.ones(pairs, bool))
        return len(self.findings.problems) == before

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def check_ledger(self) -> None:
        """Rows, keys, captions and what is lent, by the input."""
        columns, path = self.source.columns, self.ledger
        key = columns.get("key")
        names = codes(pa.array(np.arange(self.source.n_rows)).cast(pa.string()))
        if key is not None:
            own = self._input(key, _text_codes)
            names = np.where(own == NULL, names, own)
        keys = names[self.row]
        counts = np.ones(self.source.n_rows, np.int64)
        if self.source.explicit_lists:
            lengths = [list_lengths(b.column(0)) for b in iter_tables(self.source, _ROWS, [columns["text"]])]
            counts = np.maximum(np.concatenate(lengths), 1)
        row = np.repeat(np.arange(len(counts)), counts)
        if len(row) != len(self.row):
            self.findings.wrong(path, f"has {len(self.row):,} pairs, and the input {len(row):,}")
            return
        self._same(path, "row", self.row, row)
        self._same(path, "position", self.position, np.arange(len(row)) - np.searchsorted(row, row))
        self._same(path, "key", self._line("key"), keys)
        self._same(path, "original_caption", self._line("original_caption"), self._captions())
        takes = self.lender >= 0
        at = np.clip(self.lender, 0, None)
        repaired = np.isin(self.action, REMATCHED)
        self._same(path, "source_pair_id", takes, repaired, "its actions")
        self._same(path, "source_key", self._line("source_key"), np.where(takes, keys[at], NULL))
        new = self._line("new_caption")
        wanted = np.where(self.action == "rematch_text", self._line("original_caption")[at], NULL)
        self._same(path, "new_caption", new, np.where(self.action == "recaption", new, wanted))
        self._same(path, "new_caption", new != NULL, self.new_text, "its actions")
        has = self._line("repair_score") != NULL
        self._same(path, "repair_score", has & ~takes, np.zeros(len(takes), bool), "its actions")

    def _captions(self) -> np.ndarray:
        """The captions (P,) of the input; empty text where one is missing."""
        own = (self._along if self.source.explicit_lists else self._input)(self.source.columns["text"], _text_codes)
        return np.where(own == NULL, codes(pa.array([""]))[0], own)

    def _along(self, name: str, of: Codes) -> np.ndarray:
        """Of a column of lists along the captions each pair's value, (P,); null where a list is short."""
        cells = [batch.column(0) for batch in iter_tables(self.source, _ROWS, [name])]
        lengths = np.concatenate([list_lengths(cell) for cell in cells])
        values = np.append(np.concatenate([of(cell.flatten()) for cell in cells]), NULL)
        starts = np.cumsum(lengths) - lengths
        there = self.position < lengths[self.row]
        return np.asarray(values[np.where(there, starts[self.row] + self.position, len(values) - 1)])

    # -- the columns of the input -------------------------------------------------------------------------------------

    def check_columns(self, dropped: Path | None) -> None:
        """Every column of the input in the cleaned data, in the ledger and in the dropped file; and those added."""
        columns = self.source.columns
        gone = np.flatnonzero(~self.written)
        images = [columns[role] for role in IMAGE_ROLES if role in columns]
        vectors = [columns[role] for role in TEXT_ROLES if role in columns]
        away = fresh_names(self.note.schema.names, list(_OF_DROPPED))
        tells = self.kind != "uids" and bool(self._rows)
        together = tells and is_list(self.schema.field(self._named(columns["text"])).type)
        for column in self.note.schema:
            name = column.name
            text, score = name == columns["text"], name in score_columns(columns)
            along = self.source.explicit_lists and score and is_list(column.type)
            plain = self._input(name, _text_codes if text else codes)
            own = plain[self.row]
            if text and self.source.explicit_lists:
                own = self._line("original_caption")
            elif along:
                own = self._along(name, codes)
            if name in _TRUTH:
                self._check_originals(name, plain, None)
                continue
            new = own
            if text:
                new = np.where(self.new_text, self._line("new_caption"), own)
            elif name in images:
                new = np.where(self.action == "rematch_image", plain[self.donor_row], own)
            elif name in vectors:
                new = np.where(self.new_text, np.where(self.lender >= 0, plain[self.donor_row], NULL), own)
            elif score:
                new = np.where(self.action == "keep", own, NULL)
            wanted = self._together(new, plain, text or along, score) if together else new[self.first]
            self._check_originals(name, plain, wanted)
            if tells and not (self.kind == "webdataset" and name == columns["image"]):  # which is in the tars
                self._check_output(self._named(name), wanted, _text_codes if text else partial(_cells, column.type))
            if dropped is not None:
                found = _of_parquet([str(dropped)], away.get(name, name), _text_codes if text else codes)
                self._same(dropped, away.get(name, name), found, own[gone])
        for name in _ADDED if tells else ():
            added = np.where(self.new_text | (name != "original_caption"), self._line(name), NULL)[self.written]
            self._check_output(name, list_codes(added, self._counts) if together else added, codes, "the ledger")
        if dropped is not None:
            for name in _OF_DROPPED:
                self._same(dropped, name, _of_parquet([str(dropped)], name), self._line(name)[gone], "the ledger")

    def _named(self, name: str) -> str:
        name = self.note.renamed.get(name, name)
        return f"{KEY}_input" if self.kind == "webdataset" and name == KEY else name

    def _check_output(self, name: str, wanted: np.ndarray, of: Codes, what: str = "the input") -> None:
        if name in self.schema.names:
            self._same(self.out, name, self._output(name, of), wanted, what)
        else:
            self.findings.wrong(self.out, "is missing", f"column {name!r}")

    def _together(self, new: np.ndarray, plain: np.ndarray, along: bool, score: bool) -> np.ndarray:
        """The cells of rows that keep their lists of captions."""
        if along:
            return list_codes(new[self.written], self._counts)
        repaired = np.zeros(self._rows, bool)
        repaired[self.out_row[self.written & (self.action != "keep")]] = True
        return np.where(repaired & score, NULL, plain[self.row[self.first]])

    def _check_originals(self, name: str, plain: np.ndarray, wanted: np.ndarray | None) -> None:
        """Of each row the ledger's original value, or the cleaned data has the same."""
        found, noted = [], []
        of = _text_codes if name == self.source.columns["text"] else codes
        for _, batch in iter_batches([str(self.ledger)], ["original_columns", "original_row"], 512):
            lists = batch.column(batch.schema.get_field_index("original_columns"))
            rows = batch.column(batch.schema.get_field_index("original_row"))
            has = np.zeros(len(batch), bool)
            lengths = list_lengths(lists)
            has[np.repeat(np.arange(len(batch)), lengths)[codes(lists.flatten()) == codes(pa.array([name]))[0]]] = True
            found.append(np.where(rows.is_null().to_numpy(zero_copy_only=False), NULL, of(rows.field(name))))
            noted.append(has)
        has, value = np.concatenate([np.zeros(0, bool), *noted]), np.concatenate([NONE, *found])
        self._same(self.ledger, f"original_row.{name}", value, np.where(has, plain[self.row], NULL))
        kept = np.zeros(self.source.n_rows, bool)
        kept[self.row[has]] = True
        if wanted is not None and self.kind in ("parquet", "datasets"):
            row = self.row[self.first][::-1]  # of several rows of the cleaned data the first is the one restored
            same = np.zeros(self.source.n_rows, bool)
            same[row] = (wanted == plain[self.row[self.first]])[::-1]
            kept |= same
            self._same(self.ledger, f"original_row.{name}", kept, np.ones(len(kept), bool), "what the cleaned data has")

    # -- what is in tars, and uids ------------------------------------------------------------------------------------

    def check_tars(self) -> None:
        """The members of every sample by the Parquet file beside the tar, and the images by the input."""
        columns, at = self.source.columns, 0
        image = self._input(columns["image"], _image_codes)
        pair = self.first
        wanted = np.where(self.action[pair] == "rematch_image", image[self.donor_row[pair]], image[self.row[pair]])
        for file in self._files:
            tar = Path(file).with_suffix(".tar")
            table = read_table(file)
            told = [name for name in table.column_names if name != self._named(columns.get("features", ""))]
            text = _text_codes(
                pa.concat_arrays(table[self._named(columns["text"])].chunks or [pa.array([], pa.string())])
            )
            lines = json_lines(table.select(told))
            samples = read_index(str(tar))
            with open_regular(tar) as stream:
                for i, (key, sample) in enumerate(zip_longest(table[KEY].to_pylist(), samples)):
                    place = f"sample {key!r}"
                    if sample is None or sample.key != key or len(sample.members) != 3:
                        self.findings.wrong(tar, f"has other members than {Path(file).name} has rows", place)
                        return
                    data = {suffix: member_bytes(stream, member) for suffix, member in sample.members.items()}
                    if codes(pa.array([data.get("txt")], pa.binary()))[0] != text[i]:
                        self.findings.wrong(tar, "is not the caption that the Parquet file has", f"{place}, .txt")
                    if data.get("json") != lines[i]:
                        self.findings.wrong(tar, "is not what the Parquet file has", f"{place}, .json")
                    (suffix,) = data.keys() - {"txt", "json"}
                    if wanted[at] not in (NULL, codes(pa.array([data[suffix]], pa.binary()))[0]):
                        self.findings.wrong(tar, "is not what it has to be by the input", f"{place}, .{suffix}")
                    at += 1

    def check_uids(self) -> None:
        batches = iter_tables(self.source, _ROWS, [UID_COLUMN])
        uids = pa.chunked_array([readable(batch.column(0)) for batch in batches], pa.string())
        wanted = uid_array(taken(uids, self.row[self.first]).to_pylist())
        found = np.load(self.out, allow_pickle=False)
        if not np.array_equal(np.sort(wanted), found):
            self.findings.wrong(self.out, "does not hold the uids of the pairs that the ledger keeps")


def _image_codes(column: pa.Array) -> np.ndarray:
    """Of encoded images; null where a cell is a path."""
    column = (
        column.field("bytes")
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0
        else column
    )
    return codes(column) if is_bytes(column.type) else np.full(len(column), NULL)
