"""The records of a file of text: CSV, TSV, JSON or JSON Lines, perhaps packed by gzip or zstd.

One bad line costs one row: it is quarantined with its number and the reason. A fault that makes the rest of the file
doubtful, as a quote that is never closed, is an error that names file and line.
"""

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from io import DEFAULT_BUFFER_SIZE, BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, cached_by_file, open_regular, plain_text, reading
from cleanpairs.data.captions import Faults, caption_column
from cleanpairs.data.columns import USUAL_NAMES, is_score, number_of
from cleanpairs.data.formats.file_names import IMAGES

ENDINGS = (".csv", ".tsv", ".token", ".jsonl", ".ndjson")
MAX_FIELD = 16 * 2**20  # characters of a field of CSV, bytes of a line of JSON
_IMAGE_NAME = re.compile(rf"({'|'.join(map(re.escape, IMAGES))})\b", re.IGNORECASE)
_NOT_UTF8 = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8
_BREAK = re.compile("\r\n|\r|\n")
Record = tuple[dict[str, Any], str | None]  # values by column, and why it cannot be used


class Listing(NamedTuple):
    """Rows, why some of them, or of their captions, are unusable, and their names where they have no key."""

    table: pa.Table
    faults: Mapping[int, str] = MappingProxyType({})
    caption_faults: Faults = MappingProxyType({})
    keys: Sequence[str | None] | None = None


class _Head(NamedTuple):
    """Names of the columns, the delimiter, whether a blank follows it, and the number of lines above the rows."""

    names: list[str]
    delimiter: str
    spaced: bool = False
    lines: int = 1


def file_kind(path: str | Path) -> str:
    """The ending of a file's name in small letters, without that of gzip or zstd."""
    return Path(str(path).lower().removesuffix(".gz").removesuffix(".zst")).suffix


@cached_by_file(2)
def read_records(path: str, encoding: str | None = None, text: str | None = None) -> Listing:
    """The records of a file, by its ending. ``text``: the column of captions, whose faults are noted.

    Columns of CSV are texts, but for given similarities and ``true_mismatch``. A column of JSON whose values have no
    common type becomes their JSON, as text. Captions are as :func:`cleanpairs.data.captions.captions_of` finds them.
    """
    kind, n = file_kind(path), -1
    with _opened(path, encoding) as file:
        if not any(map(bytes.strip, iter(lambda: file.read(DEFAULT_BUFFER_SIZE), b""))):
            raise DataError(f"{path} has no rows")
    head = None if kind in (".jsonl", ".ndjson", ".json") else _header(path, encoding)
    columns: dict[str, list[Any]] = {} if head is None else {name: [] for name in head.names}
    faults: dict[int, str] = {}
    records = _iter_csv(path, encoding, head) if head else _entries(path) if kind == ".json" else _iter_json(path)
    for n, (record, fault) in enumerate(records):
        if fault:
            faults[n] = fault
        for name in [name for name in record if name not in columns]:
            columns[name] = [None] * n
        for name, values in columns.items():
            values.append(None if fault and name == "true_mismatch" else record.get(name))
    if not columns and n < 0:  # [] in a .json
        raise DataError(f"{path} has no rows")
    caption_faults: Faults = {}
    typed: dict[str, pa.Array] = {}
    for name, values in columns.items():
        typed[name] = pa.array(values, pa.string()) if head else _typed(name, values)
        if name == text or name.lower() in USUAL_NAMES["text"]:
            typed[name], bad = _captions(typed[name], values)
            caption_faults = bad if name == text else caption_faults
        elif head and is_score(name, pa.float64()):
            typed[name] = pa.array(map(number_of, values), pa.float64())
        elif head and name == "true_mismatch":
            texts = pc.utf8_trim_whitespace(typed[name])
            with reading(f"{path}: true_mismatch", "read as true or false", pa.ArrowInvalid):
                typed[name] = pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.bool_())
    return Listing(pa.table(typed), faults, caption_faults)


def _captions(captions: pa.Array, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    """The captions in ``values``, and their faults. The column ``captions`` as it is where no value has a text."""
    if captions.type == pa.list_(pa.string()):
        return captions, {}
    column, faults = caption_column(values)
    texts = column.flatten() if pa.types.is_list(column.type) else column
    return (column, faults) if len(texts) - texts.null_count > len(faults) else (captions, {})


def _typed(name: str, values: Sequence[Any]) -> pa.Array:
    lists = any(isinstance(value, list) for value in values)
    if is_score(name, pa.float64()):
        cells = [[number_of(v) for v in cell] if isinstance(cell, list) else number_of(cell) for cell in values]
        if any(cell is not None for cell in cells):
            return pa.array([cell if isinstance(cell, list) else [cell] for cell in cells] if lists else cells)
    if lists and name.lower() in USUAL_NAMES["image"] and all(not isinstance(v, list) or len(v) < 2 for v in values):
        values = [(cell[0] if cell else None) if isinstance(cell, list) else cell for cell in values]
    whole = all(isinstance(value, int | None) for value in values)
    for kind in (None, pa.uint64()) if whole else (None,):  # which cuts fractions
        with suppress(pa.ArrowException, OverflowError, UnicodeError):
            array = pa.array(values, kind)
            if array.null_count < len(array) and array.type != pa.struct([]):
                return array
    texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string(), mask=[v is None or v != v for v in values])


@contextmanager
def _opened(path: str, encoding: str | None = None) -> Iterator["BufferedReader[Any] | BytesIO"]:
    """The bytes of a file, unpacked. Without an ``encoding``, a file with the mark of UTF-16 becomes UTF-8."""
    with (
        reading(path, "read", EOFError, zlib.error),
        open_regular(path) as plain,
        _unpacked(path.lower(), plain) as raw,
    ):
        file = BufferedReader(raw)
        if encoding is None and file.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):
            with reading(path, "read as UTF-16", UnicodeError):
                text = file.read().decode("utf-16")
            yield BytesIO(text.encode("utf-8", "replace"))
        else:
            yield file


def _unpacked(name: str, file: Any) -> Any:
    """What a file of that name holds, as a context."""
    if name.endswith(".zst"):
        return pa.CompressedInputStream(file, "zstd")
    return gzip.GzipFile(fileobj=file) if name.endswith(".gz") else nullcontext(file)


@contextmanager
def _opened_text(path: str, encoding: str | None) -> Iterator[TextIOWrapper]:
    with _opened(path, encoding) as file:
        yield TextIOWrapper(file, encoding=encoding or "utf-8-sig", errors="surrogateescape", newline="")


def _header(path: str, encoding: str | None) -> _Head:
    """Read the header. Its delimiter is that of a line ``sep=;``, the tab of a ``.tsv``, else the commonest one."""
    try:
        with _opened_text(path, encoding) as file:
            line = file.readline(MAX_FIELD)
            noted = re.match(r'"?sep=([,;|\t])"?\s*$', line, re.IGNORECASE)  # a spreadsheet's note
            line, lines = (file.readline(MAX_FIELD), 2) if noted else (line, 1)
    except UnicodeError as error:
        raise undecodable(f"{path}, line 1,", path, encoding, error) from error
    if re.match(rf"[^\t]*{_IMAGE_NAME.pattern}#\d+\t", line, re.IGNORECASE):
        return _Head(["image", "caption"], "\t", lines=0)  # Flickr's .token
    tabs = file_kind(path) == ".tsv" and "\t" in line
    delimiter = noted[1] if noted else "\t" if tabs else max(",\t;|", key=line.count)
    names = [name.strip().lstrip("\ufeff") for name in next(csv.reader([line], delimiter=delimiter), [])]
    strange = _NOT_UTF8.search(line) or "\0" in line
    if strange or not any(names):
        hint = f"; it may be {_likely_encoding(path)}" if strange else ""
        raise DataError(f"{path} has no header of column names in line {lines}; found {line[:100]!r}{hint}")
    if any(map(_IMAGE_NAME.search, names)):
        raise DataError(
            f"{path} has no header: line {lines} is a pair already ({line[:100].strip()!r}); put names of the columns "
            f"above it, such as {delimiter.join(['file_name', 'caption'])!r}"
        )
    names = [name or ("unnamed" if i == 0 else f"unnamed_{i + 1}") for i, name in enumerate(names)]
    if twice := [name for name, k in Counter(names).items() if k > 1]:
        raise DataError(f"{path} has the column {twice[0]!r} more than once in its header: rename one of them")
    return _Head(names, delimiter, line.count(delimiter) == line.count(f"{delimiter} ") > 0, lines)


def _iter_csv(path: str, encoding: str | None, head: _Head) -> Iterator[Record]:
    """The rows below the header. Empty lines are no rows."""
    names, delimiter, width = head.names, head.delimiter, len(head.names)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD))  # of the process. Its default is 128 KiB
    quoted = delimiter in ",;" or _is_quoted(path, encoding, head)
    with _opened_text(path, encoding) as file:
        quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        reader = csv.reader(file, delimiter=delimiter, strict=True, quoting=quoting, skipinitialspace=head.spaced)
        for _ in range(head.lines):
            next(reader)
        before: list[str] = []  # the last row of one line
        padded: bool | None = None  # whether the first row ends in more separators than the header
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error) or "field limit" in str(error):
                    what = f"a quoted field is not closed, or is longer than {MAX_FIELD} characters"
                    raise DataError(f"{path}, line {line}: {what}") from error
                if reader.line_num > line:
                    raise _run_on(path, line, reader.line_num) from error
                yield {}, f"line {line} cannot be read: {error}"
                continue
            except UnicodeError as error:  # an encoding in which no byte can be skipped, as UTF-16
                raise undecodable(f"{path}, line {line} or soon after,", path, encoding, error) from error
            if fields is None:
                return
            if not fields:
                continue
            padded = len(fields) > width if padded is None else padded
            while padded and len(fields) > width and not fields[-1]:
                fields.pop()  # separators at the end of each line. In one line alone a comma in a text is likelier
            fault = None if len(fields) == width else f"line {line} has {len(fields)} fields, the header {width}"
            if reader.line_num > line and _holds_rows(fields, before or fields[:width], delimiter):
                raise _run_on(path, line, reader.line_num)
            if any(not field.isascii() and _NOT_UTF8.search(field) for field in fields):
                fault = fault or f"line {line} is not {encoding or f'UTF-8; the file may be {_likely_encoding(path)}'}"
                fields = list(map(plain_text, fields))
            before = before if fault or reader.line_num > line else fields
            yield dict(zip(names, fields, strict=False)), fault


def _run_on(path: str, first: int, last: int) -> DataError:
    return DataError(f"{path}, line {first}: a quote opens here and is closed in line {last}, over rows: close it here")


def _is_quoted(path: str, encoding: str | None, head: _Head) -> bool:
    """Whether quotes mark the fields of a file, as in CSV, and are no characters.

    They do where every opened quote is closed at the end of a field, and no field holds lines that look like rows.
    """
    before: list[str] = []  # the last row of one line
    with suppress(csv.Error, UnicodeError), _opened_text(path, encoding) as file:
        reader = csv.reader(file, delimiter=head.delimiter, strict=True, skipinitialspace=head.spaced)
        for _ in range(head.lines):
            next(reader, None)
        for fields in reader:
            if not any(map(_BREAK.search, fields)):
                before = fields
            elif _holds_rows(fields, before or fields, head.delimiter):
                return False
        return True
    return False


def _holds_rows(fields: Sequence[str], row: Sequence[str], delimiter: str) -> bool:
    """Whether a field runs over lines that look like ``row``.

    These have no fewer fields. Where the row has the name of an image, an address or a long number, they have another.
    """

    def alike(a: str, b: str) -> bool:
        number = a.isdecimal() and b.isdecimal() and len(a) == len(b) > 2
        return number or ("://" in a and "://" in b) or bool(_IMAGE_NAME.search(a) and _IMAGE_NAME.search(b))

    for i, field in enumerate(fields):
        lines = _BREAK.split(field)
        for k, line in enumerate(lines[1:], 2):
            parts = line.split(delimiter) + (list(fields[i + 1 :]) if k == len(lines) else [])
            if len(parts) >= len(row) and any(map(alike, parts, row)):
                return True
    return False


def undecodable(where: str, path: str, encoding: str | None, error: UnicodeError) -> DataError:
    """The error of a file, or a line of it, that is not in its ``encoding``, UTF-8 when None."""
    why = "UTF-8" if encoding is None else f"{encoding} ({error})"
    return DataError(f"{where} is not {why}; it may be {_likely_encoding(path)}")


@cached_by_file(64)
def _likely_encoding(path: str) -> str:
    """The likely encoding of a file that is not UTF-8, by its first 64 kB, and the option for it."""
    from charset_normalizer import from_bytes

    with _opened(path, "unknown") as file:
        content = file.read(65_536)
    usual = (
        "cp1252 cp1250 cp1251 cp1253 cp1254 cp932 euc_jp gb18030 big5 euc_kr utf_16 utf_16_le utf_16_be utf_32".split()
    )
    guess = from_bytes(content, cp_isolation=usual).best()
    if guess is None:
        return "of any encoding"
    commonest = str(guess) == content.decode("cp1252", "replace")
    name = "cp1252" if commonest else guess.encoding
    return f"{name} (--set encoding={name})"


def _iter_json(path: str) -> Iterator[Record]:
    """The objects of JSON Lines. DataError where it does not begin with one."""
    with _opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_FIELD + 1), b""), 1):
            if len(raw) > MAX_FIELD:
                raise DataError(f"{path}, line {number}: it is longer than {MAX_FIELD} bytes")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not raw.strip():
                continue
            record = _parsed(raw, number)
            if number == 1 and record[1]:
                raise DataError(f"{path}, {record[1]}: it is no JSON Lines; name it .json where it holds one list")
            yield record


def _parsed(raw: bytes, number: int) -> Record:
    try:
        value = json.loads(raw)
        if not isinstance(value, dict):
            return {}, f"line {number} is no JSON object"
        return _clean(value) if b"\\u" in raw else value, None
    except UnicodeDecodeError:
        return {}, f"line {number} is not UTF-8"
    except (ValueError, RecursionError) as error:
        return {}, f"line {number} is no JSON: {error}"


def _entries(path: str) -> Iterator[Record]:
    """The objects of a JSON file. A file with several values, one a line, is JSON Lines."""
    with _opened(path) as file:
        raw = file.read()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if _parsed(raw.lstrip().partition(b"\n")[0], 1)[1]:
            raise DataError(f"{path} cannot be read as JSON: {error}") from error
        yield from _iter_json(path)
        return
    for number, entry in enumerate(_objects(_clean(value), path), 1):
        yield (entry, None) if isinstance(entry, dict) else ({}, f"entry {number} is no JSON object")


def _objects(value: Any, path: str) -> list[Any]:
    """The records in a value: itself, a list of objects in it, its columns as rows, or its values by names or keys."""

    def captioned(names: Any) -> bool:
        return isinstance(names, dict) and any(name.lower() in USUAL_NAMES["text"] for name in names)

    if isinstance(value, list):
        return value
    if isinstance(value, dict) and value:
        lists = [v for v in value.values() if isinstance(v, list) and v and all(isinstance(x, dict) for x in v)]
        lists = [v for v in lists if captioned(v[0])] or lists
        if len(lists) == 1:
            return lists[0]
        columns = list(value.values())
        if captioned(value) and all(isinstance(column, dict) for column in columns):  # of pandas, by the rows' names
            rows = dict.fromkeys(key for column in columns for key in column)
            return [{name: column.get(row) for name, column in value.items()} for row in rows]
        if captioned(value) and all(isinstance(column, list) for column in columns) and len(set(map(len, columns))) < 2:
            return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
        named = sum(bool(_IMAGE_NAME.search(name)) for name in value) > len(value) // 2
        if named or all(map(captioned, columns)):
            cells = ((name, v if isinstance(v, dict) else {"caption": v}) for name, v in value.items())
            return [{"file_name" if named else "key": name} | cell for name, cell in cells]
    raise DataError(f"{path} holds no list of objects, one a pair: see docs/inputs.md; found {json.dumps(value)[:100]}")


def _clean(value: Any) -> Any:
    """The value without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
