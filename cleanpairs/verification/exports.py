"""An export: the manifest against the files, the pages, every pair accounted for exactly once; and all values by the
input, by what the ledger says became of each pair.

What must be in the outputs is worked out from the input and the ledger, as codes of 64 bits a cell; nothing is used of
what wrote them. Why a pair was dropped, what a model wrote, and the truth after a repair are in the ledger alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular, reading, sha256_of
from cleanpairs.data import Source, fingerprint_of, iter_tables
from cleanpairs.data.columns import is_bytes, score_columns
from cleanpairs.data.formats.datasets_directory import iter_arrow
from cleanpairs.data.formats.webdataset import member_bytes, read_index
from cleanpairs.data.parquet_io import common_schema, iter_batches, read_table
from cleanpairs.data.readers import reader_of
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.datasets_format import stored_files
from cleanpairs.export.formats import FORMATS
from cleanpairs.export.layout import IMAGE_ROLES, TEXT_ROLES
from cleanpairs.export.ledger import LEDGER_SCHEMA, LedgerNote
from cleanpairs.export.manifest import Part, manifest_of, read_manifest
from cleanpairs.export.uids_format import UID_COLUMN, uid_array
from cleanpairs.export.webdataset_format import KEY, json_lines
from cleanpairs.ops.cells import NONE, NULL, codes, list_codes, list_lengths, readable
from cleanpairs.ops.columns import fresh_names, is_list, taken
from cleanpairs.repair.actions import ACTIONS, COUNTED, NEW_CAPTION, REMATCHED, WRITTEN
from cleanpairs.repair.plan import TRUTH, counted
from cleanpairs.verification.findings import Verification, check_schema, read_pages

Codes = Callable[[pa.Array], np.ndarray]

_ROWS = 2048
_ADDED = ("correspondence", "action", "original_caption", "source_key", "repair_score")
_OF_DROPPED = ("pair_id", "correspondence", "action", "reason")


def verify_export(out: Path, findings: Verification, data: str | Path | None = None) -> None:
    """Check the export whose cleaned data is ``out``, by the manifest beside it, and by its input ``data``."""
    manifest = manifest_of(out)
    noted, parts = read_manifest(out)
    kind, counts = noted["format"], noted["counts"]
    # The Parquet beside a tar holds the same rows again.
    beside_tars = any(part.path.suffix == ".tar" and part.rows is not None for part in parts)
    rows = Counter[str]()
    for part in parts:
        check_inside(part.path, (out.parent, out), manifest, "bring the files together, and export again")
        if not (part.role == "out" and part.path != out and beside_tars and part.path.suffix != ".tar"):
            rows[part.role] += part.rows or 0
        _check_file(part, manifest, findings)
    roles = {part.role: part.path for part in parts if part.role != "out" or part.path == out}
    known = {part.path for part in parts}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p not in known):
        findings.wrong(path, f"is in the directory, and not in {manifest.name}: it would be read as a part of it")
    _check_counts(out, manifest, kind, rows, counts, findings)
    if "ledger" not in roles:
        findings.wrong(manifest, "names no ledger: export again")
    elif roles["ledger"].is_file():
        checked = f"every pair exactly once in {roles['ledger'].name}"
        with findings.section(checked, roles["ledger"]), suppress(DataError):  # named already, page by page
            _check_ledger(out, roles["ledger"], rows, counts, findings)
        if findings.problems:
            return  # what is compared with the input has to be readable
        source = _input_of(out, noted, data, findings)
        if source is not None:
            with findings.section(f"the values, by {', '.join(Path(p).name for p in source.paths[:3])}", manifest):
                _Contents(out, kind, roles["ledger"], source, findings).check(roles.get("dropped"))


def _check_file(part: Part, manifest: Path, findings: Verification) -> None:
    path, name = part.path, os.path.relpath(part.path, manifest.parent)
    if not path.is_file():
        findings.wrong(path, f"is missing, and {manifest.name} lists it")
        return
    size = path.stat().st_size
    with findings.section(f"{name}: {size:,} bytes, SHA-256", path):
        if size != part.bytes:
            findings.wrong(path, f"has {size:,} bytes, not the {part.bytes:,} of {manifest.name}: cut or edited")
        elif sha256_of(path) != part.sha256:
            findings.wrong(path, f"has not the SHA-256 of {manifest.name}: damaged or edited")
    if path.suffix == ".parquet":
        with findings.section(f"{name}: pages", path):
            found = read_pages(path, findings)
            if found is not None and part.rows is not None and found != part.rows:
                findings.wrong(path, f"has {found:,} rows, not the {part.rows:,} of {manifest.name}")


def _check_counts(
    out: Path, manifest: Path, kind: str, rows: Mapping[str, int], counts: Mapping[str, int], findings: Verification
) -> None:
    with findings.section(f"rows add up: {counts.get('pairs', 0):,} pairs, {rows.get('out', 0):,} rows out", manifest):
        total = sum(counts.get(name, 0) for name in COUNTED)  # one that a manifest lacks is 0
        if total != counts.get("pairs"):
            findings.wrong(manifest, f"the counts add up to {total:,}, and the input had {counts.get('pairs')} pairs")
        if "ledger" in rows and rows["ledger"] != counts.get("pairs"):
            findings.wrong(manifest, f"the ledger has {rows['ledger']:,} lines for {counts.get('pairs')} pairs")
        gone = counts.get("dropped", 0) + counts.get("quarantined", 0)
        if "dropped" in rows and rows["dropped"] != gone:
            findings.wrong(manifest, f"the dropped file has {rows['dropped']:,} rows for {gone:,} pairs")
        if kind not in FORMATS:
            findings.wrong(manifest, f"the format {kind!r} is none of {', '.join(FORMATS)}")
        elif out.exists() and kind != "parquet":  # of a Parquet file the rows were read, page by page
            with reading(out, f"read as {kind}", ValueError, pa.ArrowException):
                found = FORMATS.load(kind).count(out)
            if found != rows.get("out"):
                findings.wrong(out, f"has {found:,} rows, not the {rows.get('out', 0):,} of {manifest.name}")


def _check_ledger(
    out: Path, path: Path, rows: Mapping[str, int], counts: Mapping[str, int], findings: Verification
) -> None:
    if not check_schema(path, common_schema([str(path)]), LEDGER_SCHEMA, findings):
        return
    table = read_table(path, ["pair_id", "action", "out_row"])
    if table["pair_id"].null_count or not np.array_equal(table["pair_id"].to_numpy(), np.arange(len(table))):
        findings.wrong(path, "is not 0, 1, 2 ... in order", "column 'pair_id'")
    by_action = counted(table["action"])
    for unknown in sorted(str(a) for a in by_action if a not in ACTIONS):
        findings.wrong(path, f"holds the action {unknown!r}, which is none", "column 'action'")
    for name, which in COUNTED.items():
        if by_action[which] != counts.get(name, 0):
            what = f"has {by_action[which]:,} pairs of {which!r}, and the manifest {counts.get(name, 0):,}"
            findings.wrong(path, what, "column 'action'")
    action = np.array(table["action"].to_pylist(), object)
    written = np.isin(action, WRITTEN)
    known = np.array(table["out_row"].is_valid(), bool)
    if (known != written).any():
        findings.wrong_rows(path, "out_row", known != written, "has to be there exactly for the pairs that are written")
        return
    at = table["out_row"].drop_null().to_numpy()
    n = rows.get("out", 0)
    steps = np.diff(at, prepend=-1)
    if ((steps < 0) | (steps > 1)).any() or (at[-1] + 1 if len(at) else 0) != n:
        findings.wrong(path, f"does not lead through the {n:,} rows of {out.name} in order", "column 'out_row'")
    elif out.is_file() and out.suffix != ".npy":
        _check_actions(out, action[written], findings)


def _check_actions(out: Path, wanted: np.ndarray, findings: Verification) -> None:
    """The actions in the cleaned file, in order, are those of the ledger's written pairs: no row has moved."""
    if "action" not in common_schema([str(out)]).names:
        findings.wrong(out, "is missing", "column 'action'")
        return
    column = read_table(out, ["action"])["action"].combine_chunks()
    have = np.array((column.flatten() if is_list(column.type) else column).to_pylist(), object)
    if len(have) != len(wanted):
        findings.wrong(out, f"holds {len(have):,} pairs, and the ledger wrote {len(wanted):,}", "column 'action'")
    elif (have != wanted).any():
        pair = np.flatnonzero(have != wanted)[0]
        findings.wrong(out, f"is {have[pair]!r}, and {wanted[pair]!r} in the ledger", f"pair {pair}, column 'action'")


def _input_of(out: Path, noted: Mapping[str, Any], data: str | Path | None, findings: Verification) -> Source | None:
    """The input of an export, where it is there and as it was; a note where it is not. A manifest may be a stranger's:
    a path in it is followed only into the export's folder; elsewhere ``data`` names the input.
    """
    stored = noted.get("input")
    if not isinstance(stored, dict):
        findings.notes.append("the values were not compared: the manifest does not name the input")
        return None
    try:
        named = [out.parent / str(path) for path in stored["paths"]]
        if data is not None:
            given = Path(data)
            named = [given / path.name for path in named] if given.is_dir() else [given]
        home = out.parent.resolve()
        beside = all(path.resolve().is_relative_to(home) for path in named)
        if data is None and not beside:
            where = named[0] if len(named) == 1 else named[0].parent
            findings.notes.append(f"the values were not compared: the input is elsewhere; name it by --data {where}")
            return None
        if stored["kind"] == "memory" or not all(path.is_file() for path in named):
            findings.notes.append("the values were not compared: the input is not there any more")
            return None
        source = Source(
            str(stored["kind"]), tuple(str(path.absolute()) for path in named), dict(stored["columns"]),
            str(noted["fingerprint"]), int(stored["rows"]), stored["image_root"], bool(stored["explicit_lists"]),
            dict(stored["options"]),
        )  # fmt: skip
        if fingerprint_of(source) != source.fingerprint:
            findings.notes.append("the values were not compared: the input has changed since the export")
            return None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the manifest's note of the input is not as export writes it: {error}") from error
    return source


def _all_codes(batches: Iterator[pa.RecordBatch], of: Codes = codes) -> np.ndarray:
    return np.concatenate([NONE, *(of(batch.column(0)) for batch in batches)])


def _of_parquet(files: list[str], name: str, of: Codes = codes, rows: int = _ROWS) -> np.ndarray:
    return _all_codes((batch for _, batch in iter_batches(files, [name], rows)), of)


def _text_codes(array: pa.Array) -> np.ndarray:
    """Of captions, or of lists of them, as a plan has them."""
    if is_list(array.type):
        return list_codes(_text_codes(array.flatten()), list_lengths(array))
    return codes(readable(array))


def _cells(kind: pa.DataType, array: pa.Array) -> np.ndarray:
    """Of cells that were of type ``kind``, also where `datasets` keeps bytes as the struct of an image."""
    if pa.types.is_struct(array.type) and not pa.types.is_struct(kind):
        return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, codes(array.field("bytes")))
    return codes(array)


class _Contents:
    """``P`` pairs of the ledger; of each row of the cleaned data ``first``, its first pair, and how many it has."""

    def __init__(self, out: Path, kind: str, ledger: Path, source: Source, findings: Verification) -> None:
        self.out, self.kind, self.ledger, self.source, self.findings = out, kind, ledger, source, findings
        self.seen: dict[str, np.ndarray] = {}  # columns of the ledger
        table = read_table(self.ledger, ["row", "position", "source_pair_id", "out_row"])
        self.row, self.position, self.lender, self.out_row = (
            np.asarray(table[name].fill_null(-1).to_numpy(), np.int64) for name in table.column_names
        )
        self.action = np.array(read_table(self.ledger, ["action"])["action"].to_pylist(), object)
        self.written = np.isin(self.action, WRITTEN)
        _, first, self._counts = np.unique(self.out_row[self.written], return_index=True, return_counts=True)
        self.first = np.flatnonzero(self.written)[first]
        self.note = LedgerNote.read(self.ledger)
        self.new_text = np.isin(self.action, NEW_CAPTION)
        self.donor_row = np.where(self.lender >= 0, self.row[np.clip(self.lender, 0, None)], -1)

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
            return next(iter_arrow(self._files[0], None, 1)).schema if len(self.first) else pa.schema([])
        return common_schema(self._files)

    def _output(self, name: str, of: Codes) -> np.ndarray:
        if self.kind == "datasets":
            return _all_codes((b for file in self._files for b in iter_arrow(file, [name], _ROWS)), of)
        return _of_parquet(self._files, name, of)

    def _same(self, path: Path, name: str, found: np.ndarray, wanted: np.ndarray, what: str = "the input") -> None:
        if len(found) != len(wanted):
            self.findings.wrong(path, f"has {len(found):,} values, not {len(wanted):,}", f"column {name!r}")
            return
        self.findings.wrong_rows(path, name, found != wanted, f"is not what it has to be by {what}")

    def check(self, dropped: Path | None) -> None:
        """Compare all values of the cleaned data, of the ledger and of the dropped pairs with the input."""
        if self._names_what_is_there():
            self._compare_ledger()
            self._compare_columns(dropped)
            if self.kind == "webdataset":
                self._compare_tars()
            elif self.kind == "uids":
                self._compare_uids()

    def _names_what_is_there(self) -> bool:
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

    def _compare_ledger(self) -> None:
        columns, path = self.source.columns, self.ledger
        key = columns.get("key")
        names = codes(reader_of(self.source).names(self.source, 0, self.source.n_rows))
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

    def _compare_columns(self, dropped: Path | None) -> None:
        """Every column of the input in the cleaned data, in the ledger and in the dropped file; and those added."""
        columns = self.source.columns
        gone = np.flatnonzero(~self.written)
        images = [columns[role] for role in IMAGE_ROLES if role in columns]
        vectors = [columns[role] for role in TEXT_ROLES if role in columns]
        away = fresh_names(self.note.schema.names, list(_OF_DROPPED))
        tells = self.kind != "uids" and bool(len(self.first))
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
            if name in TRUTH:
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
        repaired = np.zeros(len(self.first), bool)
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

    def _compare_tars(self) -> None:
        """The members of every sample by the Parquet file beside the tar, and the images by the input."""
        columns, at = self.source.columns, 0
        image = self._input(columns["image"], _image_codes)
        pair = self.first
        wanted = np.where(self.action[pair] == "rematch_image", image[self.donor_row[pair]], image[self.row[pair]])
        for file in self._files:
            tar = Path(file).with_suffix(".tar")
            table = read_table(file)
            named = [name for name in table.column_names if name != self._named(columns.get("features", ""))]
            text = _text_codes(
                pa.concat_arrays(table[self._named(columns["text"])].chunks or [pa.array([], pa.string())])
            )
            lines = json_lines(table.select(named))
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

    def _compare_uids(self) -> None:
        batches = iter_tables(self.source, _ROWS, [UID_COLUMN])
        uids = pa.chunked_array([readable(batch.column(0)) for batch in batches], pa.string())
        wanted = uid_array(taken(uids, self.row[self.first]).to_pylist())
        found = np.load(self.out, allow_pickle=False)
        if not np.array_equal(np.sort(wanted), found):
            self.findings.wrong(self.out, "does not hold the uids of the pairs that the ledger keeps")


def _image_codes(column: pa.Array) -> np.ndarray:
    """Of encoded images; null where a cell is a path."""
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = column.field("bytes")
    return codes(column) if is_bytes(column.type) else np.full(len(column), NULL)
