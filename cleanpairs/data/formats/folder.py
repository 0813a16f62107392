"""A file of captions beside the images that it names: CSV, TSV, JSON Lines or a JSON list; or a .txt beside each image.

Given is the file, or a folder that holds just one such; ``metadata.csv`` and ``metadata.jsonl`` (the image folders of
`datasets`) and ``captions.txt`` (Flickr8k) are looked for first. Image paths are relative to the file's folder, or to
``image_root``, and never leave it. One bad line costs one row: it is set aside with its number and the reason. What
makes the rest of the file doubtful, as a quote that is never closed, is an error that names file and line.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, open_regular, read_bytes, read_json, reading
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.columns import find_columns, is_score
from cleanpairs.data.formats.stored import Listing, ListingReader, find_root
from cleanpairs.data.source import TABLES, Source, cache_folder, fingerprint_of
from cleanpairs.data.table_reader import ReadRequest
from cleanpairs.data.text import likely_encoding

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
FIRST = ("metadata.csv", "metadata.jsonl", "captions.txt")
MAX_FIELD = 16 * 2**20  # characters of a field of CSV, bytes of a line of JSON
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_IMAGE_NAME = re.compile(rf"({'|'.join(map(re.escape, IMAGES))})\b", re.IGNORECASE)
DELIMITERS = ",\t;|"
Record = tuple[dict[str, Any], str | None]  # values by column, and why it cannot be used


def captioned_images(folder: Path) -> Iterator[Path]:
    """The images of a folder beside which lies a .txt of the same name."""
    images = (p for p in sorted(folder.iterdir()) if p.suffix.lower() in IMAGES and not p.name.startswith("."))
    return (p for p in images if p.with_suffix(".txt").is_file())


def _listed(folder: Path, encoding: str | None) -> Path:
    """JSON Lines about :func:`captioned_images`, in the cache directory, named by what they say."""
    lines = []
    for image in captioned_images(folder):
        path = str(image.with_suffix(".txt"))
        try:
            text = read_bytes(path).decode(encoding or "utf-8-sig").strip()
        except UnicodeError as error:
            raise _undecodable(path, path, encoding, error) from error
        lines.append(json.dumps({"key": image.stem, "file_name": image.name, "caption": text}) + "\n")
    whole = "".join(lines)
    file = cache_folder(TABLES) / f"{sha256(whole.encode()).hexdigest()[:32]}.jsonl"
    if not file.exists():
        write_whole(file, whole)
    return file


def annotation_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold its captions: one where it is clear which."""
    for name in FIRST:
        if (folder / name).is_file():
            return [folder / name]
    return sorted(p for p in folder.glob("[!.]*") if p.suffix in ENDINGS and p.is_file())


class FolderReader(ListingReader):
    """Reads a file of records, and the images that it names; ``image`` holds their bytes."""

    kind = "folder"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is such a file, or a folder with just one and no Parquet."""
        path = Path(data)
        if path.is_dir():
            found = len(annotation_files(path))
            return (found == 1 or (not found and any(captioned_images(path)))) and not any(path.glob("[!.]*.parquet"))
        return path.is_file() and (
            path.suffix in ENDINGS or path.name in FIRST or (path.suffix in JSON_ENDINGS and begins_with(path, b"["))
        )

    def open(self, data: str, request: ReadRequest) -> Source:
        """The file, its columns, and the folder of the images."""
        path, encoding, original = Path(data).absolute(), request.columns.get("encoding"), None
        if path.is_dir() and not annotation_files(path):
            texts = tuple(str(image.with_suffix(".txt")) for image in captioned_images(path))
            original = Source(self.kind, texts, {}, "", len(texts), None, False)
            original = replace(original, fingerprint=fingerprint_of(original))
            request = replace(request, image_root=request.image_root or str(path))
            path, encoding = _listed(path, encoding), None
        path = annotation_files(path)[0] if path.is_dir() else path
        table = _records(str(path), encoding).table
        name = find_columns(table.schema, request.columns, str(path)).get("image")
        if name is not None and pa.types.is_string(table.schema.field(name).type):
            request = replace(request, image_root=find_root(table[name], path, request.image_root))
        options = {} if encoding is None else {"encoding": encoding}
        source = self.described(str(path), [str(path)], table.schema, len(table), request, options)
        return replace(source, original=original)

    def listing(self, source: Source) -> Listing:
        """The records of the file."""
        return _records(source.paths[0], source.options.get("encoding"))


@cached_by_file(2)
def _records(path: str, encoding: str | None) -> Listing:
    """The records of a file, by its ending: of CSV texts, but for given similarities and ``true_mismatch``; of JSON a
    column whose values do not go together becomes their JSON, as text.
    """
    is_json = path.endswith(JSON_ENDINGS)
    columns: dict[str, list[Any]] = {} if is_json else {name: [] for name in _header(path, encoding)[0]}
    faults: dict[int, str] = {}
    for n, (record, fault) in enumerate(_iter_json(path) if is_json else _iter_csv(path, encoding)):
        if fault:
            faults[n] = fault
        for name in [name for name in record if name not in columns]:
            columns[name] = [None] * n
        for name, values in columns.items():
            values.append(record.get(name))
    if is_json:
        return Listing(pa.table({name: _typed(values) for name, values in columns.items()}), faults)
    typed = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    for name, texts in typed.items():
        if is_score(name, pa.float64()):
            typed[name] = pa.array(map(_number, columns[name]), pa.float64())
        elif name == "true_mismatch":
            texts = pc.utf8_trim_whitespace(texts)
            try:
                typed[name] = pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.bool_())
            except pa.ArrowInvalid as error:
                raise DataError(f"{path}: true_mismatch must be true or false: {error}") from error
    return Listing(pa.table(typed), faults)


def _typed(values: Sequence[Any]) -> pa.Array:
    try:
        found = pa.array(values)
        if not (pa.types.is_null(found.type) or found.type == pa.struct([])):
            return found
    except (pa.ArrowException, OverflowError, UnicodeError):
        pass
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())


def _number(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _header(path: str, encoding: str | None = None) -> tuple[list[str], str]:
    """The names of the columns and the delimiter: the tab of a ``.tsv``, else the commonest one of the header.

    Raises DataError: the file has no header, or not one that can be used.
    """
    try:
        with reading(path), _opened(path, encoding) as file:
            line = file.readline(MAX_FIELD)
    except UnicodeError as error:
        raise _undecodable(f"{path}, line 1,", path, encoding, error) from error
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


def _iter_csv(path: str, encoding: str | None = None) -> Iterator[Record]:
    """The rows below the header; empty lines are none."""
    names, delimiter = _header(path, encoding)
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
                yield {}, f"line {line} cannot be read: {error}"
                continue
            except UnicodeError as error:  # what no byte can be passed over in, as UTF-16
                raise _undecodable(f"{path}, line {line} or soon after,", path, encoding, error) from error
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
            yield dict(zip(names, fields, strict=False)), fault


def _undecodable(where: str, path: str, encoding: str | None, error: UnicodeError) -> DataError:
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


def _iter_json(path: str) -> Iterator[Record]:
    """The objects of JSON Lines, or of a ``.json`` file that is one list of objects.

    Raises DataError: the file cannot be read, or does not begin with an object.
    """
    if path.endswith(".json"):
        yield from _entries(path)
        return
    with reading(path), open_regular(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_FIELD + 1), b""), 1):
            if len(raw) > MAX_FIELD:
                raise DataError(f"{path}, line {number}: it is longer than {MAX_FIELD} bytes")
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not raw.strip():
                continue
            record = _parsed(raw, number)
            if number == 1 and record[1]:
                raise DataError(f"{path}, {record[1]}: it is no JSON Lines")
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
    with reading(path, "read as JSON", ValueError):
        values = read_json(path)
    if not isinstance(values, list):
        raise DataError(f"{path} must be a list of objects, found {type(values).__name__}")
    for number, value in enumerate(_clean(values), 1):
        yield (value, None) if isinstance(value, dict) else ({}, f"entry {number} is no JSON object")


def _clean(value: Any) -> Any:
    """Without halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
