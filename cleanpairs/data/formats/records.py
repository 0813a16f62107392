"""Lines of CSV, TSV and JSON Lines as records, with the number of their line and what is wrong with them.

One bad line costs one row: it is set aside with its reason. What makes the rest of the file doubtful, as a quote that
is never closed, is an error that names file and line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular, read_json, reading
from cleanpairs.data.text import likely_encoding

MAX_FIELD = 16 * 2**20  # characters of a field of CSV, bytes of a line of JSON
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_IMAGE_NAME = re.compile(rf"({'|'.join(map(re.escape, IMAGES))})\b", re.IGNORECASE)
DELIMITERS = ",\t;|"
Record = tuple[int, dict[str, Any], str | None]  # its number from 1 on, values by column, and why it cannot be used


def csv_header(path: str, encoding: str | None = None) -> tuple[list[str], str]:
    """The names of the columns and the delimiter: the tab of a ``.tsv``, else the commonest one of the header.

    Raises DataError: the file has no header, or not one that can be used.
    """
    try:
        with reading(path), _opened(path, encoding) as file:
            line = file.readline(MAX_FIELD)
    except UnicodeError as error:
        raise undecodable(f"{path}, line 1,", path, encoding, error) from error
    if line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise DataError(f"{path} is UTF-16; say so with --encoding utf-16, or save it as UTF-8")
    delimiter = "\t" if path.endswith(".tsv") else max(DELIMITERS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    if not any(names) or not _is_text(line) or "\0" in line:
        raise DataError(f"{path} has no header of column names in line 1; found {line[:100]!r}")
    if any(map(_IMAGE_NAME.search, names)):
        raise DataError(
            f"{path} has no header: line 1 is a pair already ({line[:100].strip()!r}); put names of the columns above "
            f"it, such as {delimiter.join(['file_name', 'caption'])!r}"
        )
    names = [name or ("unnamed" if i == 0 else f"unnamed_{i + 1}") for i, name in enumerate(names)]
    twice = [name for name, k in Counter(names).items() if k > 1]
    if twice:
        raise DataError(f"{path} has the column {twice[0]!r} more than once in its header")
    return names, delimiter


def iter_csv(path: str, encoding: str | None = None) -> Iterator[Record]:
    """The rows below the header; empty lines are none."""
    names, delimiter = csv_header(path, encoding)
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD))  # the module's own is 128 KiB for all of the process
    with _opened(path, encoding) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        next(reader)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error) or "field limit" in str(error):
                    raise DataError(
                        f"{path}, line {line}: a quoted field is not closed, or is longer than {MAX_FIELD} characters"
                    ) from error
                yield line, {}, f"line {line} cannot be read: {error}"
                continue
            except UnicodeError as error:  # what no byte can be passed over in, as UTF-16
                raise undecodable(f"{path}, line {line} or soon after,", path, encoding, error) from error
            if fields is None:
                return
            if not fields:
                continue
            fault = None
            if len(fields) != len(names):
                fault = f"line {line} has {len(fields)} fields, the header {len(names)}"
            if not all(map(_is_text, fields)):
                fault = fault or f"line {line} is not {encoding or f'UTF-8; the file may be {likely_encoding(path)}'}"
                fields = [f.encode("utf-8", "replace").decode() for f in fields]
            yield line, dict(zip(names, fields, strict=False)), fault


def undecodable(where: str, path: str, encoding: str | None, error: UnicodeError) -> DataError:
    """The error of a file, or a line of it, that is not in its ``encoding``, UTF-8 when None."""
    why = "UTF-8" if encoding is None else f"{encoding} ({error})"
    return DataError(f"{where} is not {why}; it may be {likely_encoding(path)}")


def _opened(path: str, encoding: str | None = None) -> TextIO:
    return TextIOWrapper(open_regular(path), encoding=encoding or "utf-8-sig", errors="surrogateescape", newline="")


def _is_text(value: str) -> bool:
    """Whether it holds no bytes that were not UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def begins_with(path: str | Path, mark: bytes) -> bool:
    """Whether the value of a JSON file begins so."""
    with open_regular(path) as file:
        return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(mark)


def iter_json(path: str) -> Iterator[Record]:
    """The objects of JSON Lines, or of a ``.json`` file that is one list of objects.

    Raises DataError: the file cannot be read, or does not begin with an object.
    """
    if path.endswith(".json"):
        yield from _listed(path)
        return
    with reading(path), open_regular(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_FIELD + 1), b""), 1):
            if len(raw) > MAX_FIELD:
                raise DataError(f"{path}, line {number}: it is longer than {MAX_FIELD} bytes")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not raw.strip():
                continue
            record = _parsed(raw, number)
            if number == 1 and record[2]:
                raise DataError(f"{path}, {record[2]}: it is no JSON Lines")
            yield record


def _parsed(raw: bytes, number: int) -> Record:
    try:
        value = json.loads(raw)
    except UnicodeDecodeError:
        return number, {}, f"line {number} is not UTF-8"
    except (ValueError, RecursionError) as error:
        return number, {}, f"line {number} is no JSON: {error}"
    if not isinstance(value, dict):
        return number, {}, f"line {number} is no JSON object"
    return number, _clean(value) if b"\\u" in raw else value, None


def _listed(path: str) -> Iterator[Record]:
    with reading(path, "read as JSON", ValueError):
        values = read_json(path)
    if not isinstance(values, list):
        raise DataError(f"{path} must be a list of objects, found {type(values).__name__}")
    for number, value in enumerate(values, 1):
        known = isinstance(value, dict)
        yield number, _clean(value) if known else {}, None if known else f"entry {number} is no JSON object"


def _clean(value: Any) -> Any:
    """Without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_clean(v) for v in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value
