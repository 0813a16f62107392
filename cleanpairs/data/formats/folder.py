"""Captions in a file beside the images that it names: CSV, TSV, JSON (Lines), COCO.

Given is the file, or a folder that holds just one such; ``metadata.csv`` and ``metadata.jsonl`` (the image folders of
`datasets`) and ``captions.txt`` (Flickr8k) are looked for first. Image paths are relative to the file's folder, or to
``image_root``, and never leave it. One bad line costs one row: it is set aside with its number and the reason. What
makes the rest of the file doubtful, as a quote that is never closed, is an error that names file and line.

COCO's ``captions_*.json`` has ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``, ``caption``);
Karpathy's ``dataset_*.json`` has ``images`` alone, each with ``filename``, ``split``, and ``sentences`` (``raw``).
Either way a row is an image with its list of captions.
"""

import csv
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import begins_with, cached_by_file, open_regular, read_json, reading
from cleanpairs.data.columns import find_columns, is_score
from cleanpairs.data.images import IMAGES, encoded_bytes
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import IMAGE_TYPE, Rows, TableReader, bounded, chosen_split, record_batch
from cleanpairs.ops.columns import filtered, taken

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
FIRST = ("metadata.csv", "metadata.jsonl", "captions.txt")
MAX_FIELD = 16 * 2**20  # characters of a field of CSV, bytes of a line of JSON
_IMAGE_NAME = re.compile(rf"({'|'.join(map(re.escape, IMAGES))})\b", re.IGNORECASE)
_SPOILT = re.compile("[\ud800-\udfff]")  # bytes that were not UTF-8
DELIMITERS = ",\t;|"
SUBFOLDERS = ("", "images", "Images", "image", "img", "imgs")
LOOK_AT = 100  # images of which one at least must be there
_SCHEMA = pa.schema(
    [("key", pa.string()), ("image", pa.string()), ("captions", pa.list_(pa.string())), ("split", pa.string())]
)
Listing = tuple[pa.Table, dict[int, str]]  # rows, and why some are unusable
Record = tuple[dict[str, Any], str | None]  # values by column, and why it cannot be used


def annotation_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold its captions: one where it is clear which."""
    for name in FIRST:
        if (folder / name).is_file():
            return [folder / name]
    return sorted(p for p in folder.glob("[!.]*") if p.suffix in ENDINGS and p.is_file())


class ListingReader(TableReader):
    """Reads rows that are held, of which a column of text names image files; the column then holds their bytes."""

    @abstractmethod
    def listing(self, source: Source) -> Listing:
        """The rows, without their images, and row -> why it is unusable."""

    def schema(self, source: Source) -> pa.Schema:
        """The columns of the listing; that of the images holds their bytes."""
        schema = self.listing(source)[0].schema
        name = _named_images(schema, source)
        return schema if name is None else schema.set(schema.get_field_index(name), pa.field(name, IMAGE_TYPE))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        (table, faults), schema = self.listing(source), self.schema(source)
        name = _named_images(table.schema, source)
        name = name if columns is None or name in columns else None
        table = table.slice(0, source.n_rows)
        paths = [None] * len(table) if name is None else [path or None for path in table[name].to_pylist()]
        file, root = source.paths[0], source.image_root
        cells = ({"bytes": path and encoded_bytes(path, file, root), "path": path} for path in paths)
        first = 0
        for found in bounded(cells, batch_rows, lambda cell: len(cell["bytes"] or b"")):
            part = table.slice(first, len(found)).combine_chunks().to_batches()[0]
            values = dict(zip(part.schema.names, part.columns, strict=True)) | ({} if name is None else {name: found})
            why = {i: faults[first + i] for i in range(len(found)) if first + i in faults}
            yield Rows(file, record_batch(schema, values, columns), why)
            first += len(found)

    def images_at(self, source: Source, rows: Sequence[int]) -> list[bytes | None]:
        """See :class:`TableReader`."""
        cells = taken(self.listing(source)[0][source.columns["image"]], np.asarray(rows, np.int64)).to_pylist()
        return [encoded_bytes(cell or None, source.paths[0], source.image_root) for cell in cells]


def _named_images(schema: pa.Schema, source: Source) -> str | None:
    name = source.columns.get("image")
    return name if name is not None and pa.types.is_string(schema.field(name).type) else None


def _found_root(paths: pa.ChunkedArray, file: Path, given: str | None, also: Sequence[Path] = ()) -> str:
    """The folder that image ``paths`` are relative to: ``given``, or the first of the usual ones that has some."""
    if given is not None:
        candidates = [Path(given).absolute()]
    else:
        candidates = [p for p in [*(file.parent / name for name in SUBFOLDERS), *also] if p.is_dir()]
    first = [path for path in paths.slice(0, LOOK_AT).to_pylist() if path]
    for folder in candidates if first else candidates[:1]:
        if not first or any(encoded_bytes(path, "", str(folder)) is not None for path in first):
            return str(folder)
    urls = "://" in first[0]
    remedy = "they are URLs: download them by img2dataset" if urls else "name their folder with --image-root"
    raise DataError(
        f"none of the first {len(first)} images that {file} names is in {candidates[0]} (the first: "
        f"{first[0][:200]!r}); {remedy}"
    )


class FolderReader(ListingReader):
    """Reads a file of records, and the images that it names; ``image`` holds their bytes."""

    kind = "folder"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is such a file, or a folder with just one and no Parquet."""
        path = Path(data)
        if path.is_dir():
            found = len(annotation_files(path))
            return found == 1 and not any(path.glob("[!.]*.parquet"))
        return path.is_file() and (
            path.suffix in ENDINGS or path.name in FIRST or (path.suffix in JSON_ENDINGS and begins_with(path, b"["))
        )

    def open(self, data: str, request: DataOptions) -> Source:
        """The file, its columns, and the folder of the images."""
        path, encoding = Path(data).absolute(), request.encoding
        path = annotation_files(path)[0] if path.is_dir() else path
        table = _records(str(path), encoding)[0]
        name = find_columns(table.schema, vars(request), str(path)).get("image")
        if name is not None and pa.types.is_string(table.schema.field(name).type):
            request = replace(request, image_root=_found_root(table[name], path, request.image_root))
        options = {} if encoding is None else {"encoding": encoding}
        return self.described(str(path), [str(path)], len(table), request, **options)

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
    records = _entries(path) if path.endswith(".json") else _iter_json(path) if is_json else _iter_csv(path, encoding)
    for n, (record, fault) in enumerate(records):
        if fault:
            faults[n] = fault
        for name in [name for name in record if name not in columns]:
            columns[name] = [None] * n
        for name, values in columns.items():
            values.append(record.get(name))
    if is_json:
        return pa.table({name: _typed(values) for name, values in columns.items()}), faults
    typed = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    for name, texts in typed.items():
        if is_score(name, pa.float64()):
            typed[name] = pa.array(map(_number, columns[name]), pa.float64())
        elif name == "true_mismatch":
            texts = pc.utf8_trim_whitespace(texts)
            with reading(f"{path}: true_mismatch", "read as true or false", pa.ArrowInvalid):
                typed[name] = pc.if_else(pc.equal(texts, ""), None, texts).cast(pa.bool_())
    return pa.table(typed), faults


def _typed(values: Sequence[Any]) -> pa.Array:
    with suppress(pa.ArrowException, OverflowError, UnicodeError):
        found = pa.array(values)
        if not (pa.types.is_null(found.type) or found.type == pa.struct([])):
            return found
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pa.array(texts, pa.string())


def _number(value: Any) -> float | None:
    with suppress(ValueError, TypeError):
        return float(value)
    return None


def _header(path: str, encoding: str | None) -> tuple[list[str], str]:
    """The names of the columns and the delimiter: the tab of a ``.tsv``, else the commonest one of the header."""
    try:
        with reading(path), _opened(path, encoding) as file:
            line = file.readline(MAX_FIELD)
    except UnicodeError as error:
        raise undecodable(f"{path}, line 1,", path, encoding, error) from error
    if line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise DataError(f"{path} is UTF-16; say so with --encoding utf-16, or save it as UTF-8")
    delimiter = "\t" if path.endswith(".tsv") else max(DELIMITERS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
    if not any(names) or _SPOILT.search(line) or "\0" in line:
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


def _iter_csv(path: str, encoding: str | None) -> Iterator[Record]:
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
                raise undecodable(f"{path}, line {line} or soon after,", path, encoding, error) from error
            if fields is None:
                return
            if not fields:
                continue
            fault = None
            if len(fields) != len(names):
                fault = f"line {line} has {len(fields)} fields, the header {len(names)}"
            if any(not field.isascii() and _SPOILT.search(field) for field in fields):
                fault = fault or f"line {line} is not {encoding or f'UTF-8; the file may be {_likely_encoding(path)}'}"
                fields = [f.encode("utf-8", "replace").decode() for f in fields]
            yield dict(zip(names, fields, strict=False)), fault


def undecodable(where: str, path: str, encoding: str | None, error: UnicodeError) -> DataError:
    """The error of a file, or a line of it, that is not in its ``encoding``, UTF-8 when None."""
    why = "UTF-8" if encoding is None else f"{encoding} ({error})"
    return DataError(f"{where} is not {why}; it may be {_likely_encoding(path)}")


@cached_by_file(64)
def _likely_encoding(path: str) -> str:
    """What a file that is not UTF-8 is likely to be, and how to have it read; by its first 64 kB."""
    from charset_normalizer import from_bytes

    with open_regular(path) as file:
        found = from_bytes(file.read(65_536)).best()
    return "of any encoding" if found is None else f"{found.encoding} (--encoding {found.encoding})"


def _opened(path: str, encoding: str | None) -> TextIO:
    return TextIOWrapper(open_regular(path), encoding=encoding or "utf-8-sig", errors="surrogateescape", newline="")


def _iter_json(path: str) -> Iterator[Record]:
    """The objects of JSON Lines; DataError where it does not begin with one."""
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


class CaptionJsonReader(ListingReader):
    """Reads COCO's and Karpathy's JSON; images lie under ``image_root``, or where these corpora usually have them."""

    kind = "coco"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.json`` file that holds an object."""
        path = Path(data)
        return path.suffix == ".json" and path.is_file() and begins_with(path, b"{")

    def open(self, data: str, request: DataOptions) -> Source:
        """The images of one split (``train`` by default; several with a plus), or all where there are no splits."""
        path = Path(data).absolute()
        known = list(dict.fromkeys(_captioned(str(path))["split"].drop_null().to_pylist()))
        if request.split is not None and not known:
            raise DataError(f"{path} has no splits; leave --split (split) out")
        options = {"split": request.split or ("train" if "train" in known else known[0])} if known else {}
        for part in options["split"].split("+") if known else ():
            chosen_split(part, known, str(path))
        table = _of_split(str(path), options.get("split"))
        stem, above = path.stem.removeprefix("captions_"), path.parent.parent  # captions_train2017, dataset_coco
        usual = [path.parent / f"{path.stem.removeprefix('dataset_')}{end}" for end in ("-images", "_images")]
        usual += [above / stem, above / "images" / stem, path.parent / stem, above, above / "images"]
        request = replace(request, image_root=_found_root(table["image"], path, request.image_root, usual))
        return self.described(str(path), [str(path)], len(table), request, **options)

    def listing(self, source: Source) -> Listing:
        """``key``, ``image``, ``captions``."""
        return _of_split(source.paths[0], source.options.get("split")), {}


def _of_split(path: str, split: str | None) -> pa.Table:
    table = _captioned(path)
    if split is not None:
        table = filtered(table, pc.is_in(table["split"], pa.array(split.split("+"))).combine_chunks())
    return table.drop_columns("split")


@cached_by_file(2)
def _captioned(path: str) -> pa.Table:
    """All images of COCO's or Karpathy's JSON, a row each; see :data:`_SCHEMA`."""
    with reading(path, "read as JSON", ValueError):
        content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise DataError(f"{path} has no list 'images' of objects: it is neither COCO's captions nor Karpathy's splits")
    if "annotations" in content:
        rows = _coco(path, images, content["annotations"])
    elif images and not any("sentences" in image for image in images):
        raise DataError(
            f"{path} has neither 'annotations' (COCO) nor 'sentences' of its images (Karpathy): no captions"
        )
    else:
        rows = [_karpathy(image, i) for i, image in enumerate(images)]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _coco(path: str, images: list[Any], annotations: Any) -> list[dict[str, Any]]:
    captions: dict[Any, list[str | None]] = {m["id"]: [] for m in images if isinstance(m.get("id"), int | str)}
    if len(captions) != len(images):
        raise DataError(f"{path} has an image without an id of its own: its captions cannot be found")
    for i, annotation in enumerate(annotations if isinstance(annotations, list) else [annotations]):
        if not isinstance(annotation, dict) or "caption" not in annotation:
            raise DataError(f"{path}, annotation {i}: it has no caption; COCO's captions are in captions_*.json")
        image = annotation.get("image_id")
        if not isinstance(image, int | str) or image not in captions:
            raise DataError(f"{path}, annotation {i}: there is no image with the id {image!r}")
        captions[image].append(_text(annotation["caption"]))
    return [{"key": str(m["id"]), "image": _text(m.get("file_name")), "captions": captions[m["id"]]} for m in images]


def _karpathy(image: dict[str, Any], i: int) -> dict[str, Any]:
    name, folder = _text(image.get("filename")), _text(image.get("filepath"))
    sentences = image.get("sentences")
    raw = [s.get("raw") if isinstance(s, dict) else None for s in sentences] if isinstance(sentences, list) else []
    key = next((str(image[k]) for k in ("cocoid", "imgid") if k in image), str(i))
    path = f"{folder}/{name}" if folder and name else name
    return {"key": key, "image": path, "captions": list(map(_text, raw)), "split": _text(image.get("split"))}


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
