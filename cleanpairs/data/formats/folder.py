"""A file of captions beside the images that it names: CSV, TSV, JSON Lines or a JSON list; or a .txt beside each image.

Given is the file, or a folder that holds just one such; ``metadata.csv`` and ``metadata.jsonl`` (the image folders of
`datasets`) and ``captions.txt`` (Flickr8k) are looked for first. Image paths are relative to the file's folder, or to
``image_root``, and never leave it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, read_bytes
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.columns import find_columns, is_score
from cleanpairs.data.formats.records import IMAGES, begins_with, csv_header, iter_csv, iter_json, undecodable
from cleanpairs.data.formats.stored import Listing, ListingReader, find_root
from cleanpairs.data.source import TABLES, Source, cache_folder, fingerprint_of
from cleanpairs.data.table_reader import ReadRequest

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
FIRST = ("metadata.csv", "metadata.jsonl", "captions.txt")
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


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
            raise undecodable(path, path, encoding, error) from error
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
    columns: dict[str, list[Any]] = {} if is_json else {name: [] for name in csv_header(path, encoding)[0]}
    faults: dict[int, str] = {}
    lines: list[int] = []
    for line, record, fault in iter_json(path) if is_json else iter_csv(path, encoding):
        if fault:
            faults[len(lines)] = fault
        for name in [n for n in record if n not in columns]:
            columns[name] = [None] * len(lines)
        for name, values in columns.items():
            values.append(record.get(name))
        lines.append(line)
    if is_json:
        return Listing(pa.table({name: _typed(values) for name, values in columns.items()}), faults)
    kinds: dict[str, pa.DataType] = {}
    for name, values in columns.items():
        kinds[name] = pa.string()
        if is_score(name, pa.float64()):
            columns[name], kinds[name] = list(map(_number, values)), pa.float64()
        elif name == "true_mismatch":
            columns[name] = [_true(value, path, line) for value, line in zip(values, lines, strict=True)]
            kinds[name] = pa.bool_()
    return Listing(pa.table(columns, schema=pa.schema(list(kinds.items()))), faults)


def _typed(values: Sequence[Any]) -> pa.Array:
    try:
        found = pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):
        found = None
    if found is not None and not (pa.types.is_null(found.type) or found.type == pa.struct([])):
        return found
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())


def _true(value: str | None, path: str, line: int) -> bool | None:
    if value is None or not value.strip():
        return None
    if value.strip().lower() not in _TRUTH:
        raise DataError(f"{path}, line {line}: true_mismatch must be true or false, found {value[:50]!r}")
    return _TRUTH[value.strip().lower()]


def _number(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
