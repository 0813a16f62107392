"""Captions in a file beside the images that it names: CSV, TSV, JSON (Lines), COCO.

The input is the file, or a folder with just one such file. ``metadata.csv`` and ``metadata.jsonl`` (image folders of
`datasets`) and ``captions.txt`` (Flickr8k) are looked for first. Image paths are relative to the file's folder, or to
``image_root``, and never leave it. One bad line costs one row: it is quarantined with its number and the reason. If a
fault makes the rest of the file doubtful, as a quote that is never closed, an error names file and line.

COCO's ``captions_*.json`` has ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``, ``caption``).
Karpathy's ``dataset_*.json`` has ``images`` alone, each with ``filename``, ``split``, and ``sentences`` (``raw``).
Either way a row is an image with its list of captions.
"""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, plain_text
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import begins_with, cached_by_file, read_json, reading
from cleanpairs.data.captions import captions_of
from cleanpairs.data.formats.file_names import files_below
from cleanpairs.data.formats.records import ENDINGS, Listing, file_kind, read_records
from cleanpairs.data.image_paths import find_root, with_images
from cleanpairs.data.images import ambiguous_paths, encoded_bytes, named_file
from cleanpairs.data.rows import Rows, faults_at
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import IMAGE_TYPE, TableReader, bounded, chosen_split, record_batch
from cleanpairs.ops.columns import taken

FIRST = ("metadata.csv", "metadata.jsonl", "captions.txt")


def annotation_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold its captions: one where it is clear which."""
    first = [folder / name for name in FIRST if (folder / name).is_file()]
    if first:
        return first if first[-1].stem == "metadata" else first[:1]  # two files of metadata each hold some rows
    return sorted(p for p in folder.glob("[!.]*") if file_kind(p) in ENDINGS and p.is_file())


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folders below that each hold a split of an image folder of `datasets`, by their names."""
    below = (p for p in sorted(folder.glob("[!.]*")) if p.is_dir())
    return {p.name: p for p in below if any((p / name).is_file() for name in FIRST[:2])}


class ListingReader(TableReader):
    """Reads rows in memory, of which a column of text names image files. The column then holds their bytes."""

    names_images = True

    @abstractmethod
    def listing(self, source: Source) -> Listing:
        """The rows, without their images, and why some are unusable."""

    def schema(self, source: Source) -> pa.Schema:
        """The columns of the listing. That of the images holds their bytes."""
        schema = self.listing(source).table.schema
        name = _named_images(schema, source)
        return schema if name is None else schema.set(schema.get_field_index(name), pa.field(name, IMAGE_TYPE))

    def names(self, source: Source, first: int, n: int) -> pa.Array:
        """See :class:`TableReader`: the names of the image files."""
        keys, numbers = self.listing(source).keys, super().names(source, first, n)
        return numbers if keys is None else pc.coalesce(pa.array(keys[first : first + n], pa.string()), numbers)

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        listing, schema, table = self.listing(source), self.schema(source), self._table(source)
        name = _named_images(table.schema, source)
        name = name if columns is None or name in columns else None
        paths = [None] * len(table) if name is None else [path or None for path in table[name].to_pylist()]
        file, root = source.paths[0], source.image_root
        at = enumerate(map(named_file, paths if columns != [name] else []))  # not where only images are wanted
        named = {i: (path, os.path.dirname(file)) for i, path in at if path}
        faults = {**ambiguous_paths(named, root), **listing.faults}
        cells = ({"bytes": path and encoded_bytes(path, file, root), "path": path} for path in paths)
        first = 0
        for images in bounded(cells, batch_rows, lambda cell: len(cell["bytes"] or b"")):
            last = first + len(images)
            part = table.slice(first, len(images)).combine_chunks().to_batches()[0]
            values = dict(zip(part.schema.names, part.columns, strict=True)) | ({} if name is None else {name: images})
            both = faults_at(np.arange(first, last), faults, listing.caption_faults)
            yield Rows(file, record_batch(schema, values, columns), *both)
            first = last

    def picked_images(self, source: Source, rows: np.ndarray) -> Iterator[bytes | None]:
        """See :class:`TableReader`."""
        cells = taken(self._table(source)[source.columns["image"]], rows).to_pylist()
        yield from (encoded_bytes(cell or None, source.paths[0], source.image_root) for cell in cells)

    def _table(self, source: Source) -> pa.Table:
        table = self.listing(source).table
        if len(table) < source.n_rows:
            raise DataError(f"{source.paths[0]} has changed: it holds {len(table):,} rows, and held {source.n_rows:,}")
        return table.slice(0, source.n_rows)


def _named_images(schema: pa.Schema, source: Source) -> str | None:
    name = source.columns.get("image")
    return name if name is not None and pa.types.is_string(schema.field(name).type) else None


class FolderReader(ListingReader):
    """Reads a file of records, and the images that it names. ``image`` holds their bytes."""

    kind = "folder"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is such a file, or a folder with just one and no Parquet."""
        path = Path(data)
        if path.is_dir():
            count = len(annotation_files(path)) or bool(_split_folders(path))
            return count == 1 and not any(files_below(path, ".parquet", depth=0))
        kind = file_kind(path)
        return path.is_file() and (kind in (*ENDINGS, ".txt") or (path.suffix == ".json" and begins_with(path, b"[")))

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the file, its columns, the folder of the images, and the split, where the file has a column of them."""
        path, encoding = Path(data).absolute(), request.encoding
        options = {} if encoding is None else {"encoding": encoding}
        if path.is_dir() and not annotation_files(path):
            options["folder"] = chosen_split(request.split, list(_split_folders(path)), str(path))
            path, request = path / options["folder"], replace(request, split=None)
        path = annotation_files(path)[0] if path.is_dir() else path
        whole = read_records(str(path), encoding, request.text_column)
        column = whole.table["split"] if "split" in whole.table.column_names else None
        splits = column.unique().to_pylist() if column is not None and pa.types.is_string(column.type) else []
        usual = "train" if "train" in splits and len(list(filter(None, splits))) > 1 else None
        if (split := _checked_split(request.split or usual, splits, str(path))) is not None:
            options["split"] = split
        table = _of_split(whole, split).table
        request = with_images(table.schema, lambda name: table[name].slice(0, 1000).to_pylist(), path, request)
        return self.described(str(path), [str(path)], len(table), request, **options)

    def listing(self, source: Source) -> Listing:
        """The records of the file, or of a split of it."""
        path, columns, options = source.paths[0], source.columns, source.options
        return _listing(path, options.get("encoding"), options.get("split"), columns.get("text"), columns.get("image"))


@cached_by_file(2)
def _listing(path: str, encoding: str | None, split: str | None, text: str | None, image: str | None) -> Listing:
    listing = _of_split(read_records(path, encoding, text), split)
    table = listing.table
    kind = pa.null() if image is None else table.schema.field(image).type
    has_path = pa.types.is_struct(kind) and kind.get_field_index("path") >= 0
    if not (has_path or pa.types.is_string(kind)):
        return listing
    cells = (cell.get("path") if isinstance(cell, dict) else cell for cell in table[image].to_pylist())
    return listing._replace(keys=_file_keys([named_file(cell) for cell in cells]))


def _file_keys(paths: Sequence[str | None]) -> list[str | None]:
    """The names of rows by their images. Rows of one image are ``a.jpg#0``, ``a.jpg#1``, as in Flickr30k."""
    counts, seen = Counter(paths), Counter[str | None]()
    keys: list[str | None] = []
    for path in paths:
        keys.append(path if path is None or counts[path] == 1 else f"{path}#{seen[path]}")
        seen[path] += 1
    return keys


def _checked_split(split: str | None, splits: Sequence[str | None], data: str) -> str | None:
    """``split``, or several with a plus between them. None for all rows. DataError: there is no such one."""
    for part in split.split("+") if split else ():
        chosen_split(part, list(filter(None, splits)), data)
    return split


class CaptionJsonReader(ListingReader):
    """Reads COCO's and Karpathy's JSON. Images lie under ``image_root``, or where these corpora usually have them."""

    kind = "coco"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.json`` file that holds no list."""
        path = Path(data)
        return path.suffix == ".json" and path.is_file() and not begins_with(path, b"[")

    def open(self, data: str, request: DataOptions) -> Source:
        """The images of one split (``train`` by default, several with a plus), or all where there are no splits.

        An object that holds records in another way is read by :class:`FolderReader`.
        """
        path = Path(data).absolute()
        if (whole := _captioned(str(path))) is None:
            return FolderReader().open(data, request)
        splits = whole.table["split"].drop_null().unique().to_pylist()
        usual = "train" if "train" in splits else next(iter(splits), None)
        split = _checked_split(request.split or usual, splits, str(path))
        table = _of_split(whole, split).table
        stem, above = path.stem.removeprefix("captions_"), path.parent.parent  # captions_train2017, dataset_coco
        places = [path.parent / f"{path.stem.removeprefix('dataset_')}{end}" for end in ("-images", "_images")]
        places += [above / stem, above / "images" / stem, path.parent / stem, above, above / "images"]
        images = table["image"].slice(0, 1000).to_pylist()
        request = replace(request, image_root=find_root(images, path, request.image_root, places))
        options = {} if split is None else {"split": split}
        return self.described(str(path), [str(path)], len(table), request, **options)

    def listing(self, source: Source) -> Listing:
        """``key``, ``image``, ``captions``."""
        return _captioned_split(source.paths[0], source.options.get("split"))


@cached_by_file(2)
def _captioned_split(path: str, split: str | None) -> Listing:
    if (whole := _captioned(path)) is None:
        raise DataError(f"{path} is not the file of captions that it was")
    listing = _of_split(whole, split)
    return listing._replace(table=listing.table.drop_columns("split"))


@cached_by_file(2)
def _captioned(path: str) -> Listing | None:
    """All images of COCO's or Karpathy's JSON, a row each. None where a file is neither."""
    try:
        with reading(path):
            content = read_json(path)
    except ValueError:  # the reader of records raises its error
        return None
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        return None
    faults: dict[int, str] = {}
    if "annotations" in content:
        rows, faults = _coco(path, images, content["annotations"])
    elif not images or any("sentences" in image for image in images):
        rows = [_karpathy(image, i) for i, image in enumerate(images)]
    else:
        return None
    captions = [[pair for caption in row["captions"] for pair in captions_of(caption)] for row in rows]
    bad = {(i, k): why for i, cell in enumerate(captions) for k, (_, why) in enumerate(cell) if why}
    rows = [row | {"captions": [text for text, _ in cell]} for row, cell in zip(rows, captions, strict=True)]
    text = pa.string()
    schema = pa.schema({"key": text, "image": text, "captions": pa.list_(text), "split": text})
    return Listing(pa.Table.from_pylist(rows, schema), faults, bad)


def _coco(path: str, images: list[Any], annotations: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """A row for each image, and one for each caption of an image that is not there, and why rows are unusable."""
    rows: list[dict[str, Any]] = []
    faults: dict[int, str] = {}
    row_of: dict[str, dict[str, Any]] = {}
    for image in images:
        key, name = _identity(image.get("id")), _text(image.get("file_name"))
        rows.append({"key": key, "image": name, "captions": []})
        if key is not None and row_of.setdefault(key, rows[-1]) is rows[-1]:
            continue
        if key is not None and (name is None or row_of[key]["image"] != name):
            raise DataError(f"{path} has several images with the id {key}: its captions belong to an unknown one")
        twice = f"the image with the id {key} is listed twice: its captions are with the first"
        faults[len(rows) - 1] = "the image has no id: its captions cannot be found" if key is None else twice
    if images and not row_of:
        raise DataError(f"{path} has no image with an id: their captions cannot be found")
    numbers = {key.lstrip("0"): row for key, row in row_of.items() if key.isdecimal()}  # 000139 and 139 are one
    numbers = numbers if len(numbers) == sum(key.isdecimal() for key in row_of) else {}
    problems: list[str] = []
    annotations = annotations if isinstance(annotations, list) else [annotations]
    for i, annotation in enumerate(annotations):
        fields = annotation if isinstance(annotation, dict) else {}
        key = _identity(fields.get("image_id"))
        row = row_of.get(key or "") or (numbers.get(key.lstrip("0")) if key and key.isdecimal() else None)
        if row is None:
            row = {"key": key, "image": None, "captions": []}
            faults[len(rows)] = f"annotation {i}: there is no image with the id {fields.get('image_id')!r}"
            problems.append(faults[len(rows)])
            rows.append(row)
        elif "caption" not in fields:
            problems.append(f"annotation {i}: it has no caption; COCO's captions are in captions_*.json")
        row["captions"].append(fields.get("caption"))
    if problems and len(problems) == len(annotations):
        raise DataError(f"{path}, {problems[0]}")
    return rows, faults


def _identity(value: Any) -> str | None:
    """An id as text, whether it is written as text or as a number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) else _text(value)


def _karpathy(image: dict[str, Any], i: int) -> dict[str, Any]:
    name, folder = _text(image.get("filename")), _text(image.get("filepath"))
    key = next((str(image[k]) for k in ("cocoid", "imgid") if k in image), str(i))
    path = f"{folder}/{name}" if folder and name else name
    captions = image.get("sentences")
    captions = captions if isinstance(captions, list) else [captions]
    return {"key": key, "image": path, "captions": captions, "split": _text(image.get("split"))}


def _of_split(whole: Listing, split: str | None) -> Listing:
    """The rows of a split, or of several with a plus between them."""
    if split is None:
        return whole
    rows = np.flatnonzero(pc.is_in(whole.table["split"], pa.array(split.split("+"))))
    return Listing(taken(whole.table, rows), *faults_at(rows, whole.faults, whole.caption_faults))


def _text(value: Any) -> str | None:
    return plain_text(value) if isinstance(value, str) else None
