"""A folder of images, each with its caption in a file of the same name. Also the ``files`` format of img2dataset.

The caption is the .txt, .caption or .text, else a field of the .json. Sub-folders are read as well. An image without a
caption is a row, as is a caption without an image: both are quarantined.

img2dataset leaves ``00000.parquet`` beside the folder ``00000``. Then the rows are those of the Parquet file, and the
images are found by their keys.
"""

import os
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, cached_by_file, limit, open_regular, plain_text, read_json, reading
from cleanpairs.core.recipe import DataOptions
from cleanpairs.data.captions import caption_column, caption_field
from cleanpairs.data.columns import is_bytes
from cleanpairs.data.formats.file_names import IMAGES, files_below
from cleanpairs.data.formats.folder import ListingReader, annotation_files
from cleanpairs.data.formats.records import Listing, undecodable
from cleanpairs.data.formats.webdataset import CAPTIONS, keys_of_names, sidecar_keys, sidecar_rows
from cleanpairs.data.parquet_io import common_schema, input_table, parquet_files
from cleanpairs.data.rows import texts_of
from cleanpairs.data.source import Source, with_original
from cleanpairs.data.table_reader import FAULT
from cleanpairs.data.text import NO_CAPTION_FILE, text_of
from cleanpairs.data.writing import cached_tables
from cleanpairs.ops.columns import fresh_names


class _Named(NamedTuple):
    """The files of one name: images, files of captions, the first that is used before the others, and a .json."""

    images: list[Path]
    captions: list[Path]
    notes: list[Path]


def _named_alike(folder: Path) -> dict[str, _Named]:
    """The files below a folder, by their path without ending. Names in NFC and NFD, as of macOS, are one."""
    by_key: dict[str, _Named] = {}
    for path in files_below(folder):
        ending = path.suffix.lower()
        kind = 0 if ending in IMAGES else 1 if ending[1:] in CAPTIONS else 2 if ending == ".json" else None
        if kind is not None:
            name = unicodedata.normalize("NFC", path.relative_to(folder).with_suffix("").as_posix())
            by_key.setdefault(name, _Named([], [], []))[kind].append(path)
    for name, named in by_key.items():  # a.jpg.txt beside a.jpg
        stem, _, ending = name.rpartition(".")
        if not named.images and stem in by_key and not by_key[stem].captions:
            named.images.extend(image for image in by_key[stem].images if image.suffix == f".{ending}")
            by_key[stem].images[:] = [image for image in by_key[stem].images if image not in named.images]
    return {name: by_key[name] for name in sorted(by_key)}


def _shards(path: Path) -> list[Path]:
    """img2dataset's Parquet files, of a folder or the one given, next to which are folders with their images."""
    files = [Path(p) for p in parquet_files(path)] if path.is_dir() else [path] if path.suffix == ".parquet" else []
    if not any(_is_image(p) for file in files if file.with_suffix("").is_dir() for p in file.with_suffix("").iterdir()):
        return []
    schema = common_schema([str(file) for file in files])
    has_images = any(is_bytes(field.type) or pa.types.is_struct(field.type) for field in schema)
    return files if "key" in schema.names and not has_images else []


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGES and not path.name.startswith(".")


class ImageFolderReader(ListingReader):
    """Reads a folder of images, each with its caption, as a table in the cache directory that names the images."""

    kind = "images"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a folder with an image and its caption, and without a table, or one of img2dataset."""
        path = Path(data)
        if _shards(path):
            return True
        if not path.is_dir() or annotation_files(path) or any(files_below(path, ".parquet", depth=0)):
            return False
        return any(named.images and (named.captions or named.notes) for named in _named_alike(path).values())

    def open(self, data: str, request: DataOptions) -> Source:
        """Make the table of the folder's images and captions."""
        path = Path(data).absolute()
        folder = path if path.is_dir() else path.parent
        if files := _shards(path):
            table, name = _of_shards(files)
            request = replace(request, image_column=request.image_column or name)
        else:
            table, files = _of_names(folder, request.encoding)
            name = "file_name"
        root = folder if request.image_root is None else Path(request.image_root).absolute()
        if not folder.is_relative_to(root):
            raise DataError(f"{folder} does not lie in the image root {root}; leave --image-root out")
        if root != folder:
            at, prefix = table.schema.get_field_index(name), f"{folder.relative_to(root).as_posix()}/"
            table = table.set_column(at, name, pc.binary_join_element_wise(prefix, table[name], ""))
        cached = cached_tables([table])
        source = self.described(data, [str(cached)], len(table), replace(request, image_root=str(root)))
        return with_original(source, [str(file) for file in files])

    def listing(self, source: Source) -> Listing:
        """The rows of the table."""
        return _listing(source.paths[0])


@cached_by_file(2)
def _listing(path: str) -> Listing:
    table = input_table(path)
    faults = {i: fault for i, fault in enumerate(table[FAULT].to_pylist()) if fault is not None}
    return Listing(table.drop_columns([FAULT]), faults)


def _of_names(folder: Path, encoding: str | None) -> tuple[pa.Table, list[Path]]:
    """The rows of a folder, ``key``, ``file_name``, ``caption`` and faults, and the files of its captions."""
    rows: list[tuple[str, str | None, Any, str | None]] = []
    files: list[Path] = []
    for name, (images, captions, notes) in _named_alike(folder).items():
        if not images and not captions:
            continue  # a .json about something else
        caption, fault = _caption(captions, notes, encoding)
        files += [file for file in captions or notes if file.is_file() and os.access(file, os.R_OK)]
        if not images:
            rows.append((name, None, caption, f"there is no image next to {captions[0].name!r}"))
        elif not captions and not notes:
            fault = f"{NO_CAPTION_FILE} next to {images[0].name!r}"
        for image in images:
            key = name if len(images) == 1 else f"{name}{image.suffix}"
            path = image.relative_to(folder).as_posix()
            plain = plain_text(path)
            name_fault = None if plain == path else f"the name of its file is not UTF-8: {plain!r}; rename it"
            rows.append((key, path, caption, name_fault or fault))
    keys, names, values, faults = map(list, zip(*rows, strict=True))
    column, bad = caption_column(values)
    for (i, k), why in bad.items():  # one unusable caption makes the row unusable
        faults[i] = faults[i] or (f"caption {k + 1}: {why}" if k else why)
    table = {"key": keys, "file_name": names, FAULT: faults}
    texts = {name: [None if t is None else plain_text(t) for t in cells] for name, cells in table.items()}
    return pa.table({name: pa.array(cells, pa.string()) for name, cells in texts.items()} | {"caption": column}), files


def _caption(captions: list[Path], notes: list[Path], encoding: str | None) -> tuple[Any, str | None]:
    """The caption of the first file that has one, and its fault."""
    try:
        for file in sorted(captions, key=lambda path: CAPTIONS.index(path.suffix[1:].lower())):
            with reading(file), open_regular(file) as opened:
                raw = opened.read(4 * (most := limit("caption_bytes")) + 1)
            if len(raw) > 4 * most:
                return None, f"the caption is longer than {most} bytes"
            try:
                if text := text_of(raw, encoding).strip():
                    return text, None
            except UnicodeError as error:
                raise undecodable(file.name, str(file), encoding, error) from error
        for file in notes:
            with reading(file, "read as JSON", ValueError):
                record = read_json(file)
            if isinstance(record, dict) and (caption := caption_field(record)) is not None:
                return caption, None
    except DataError as error:  # one file, one row
        return None, str(error)
    return ("" if captions else None), None


def _of_shards(files: list[Path]) -> tuple[pa.Table, str]:
    """The rows of img2dataset's Parquet files with the images' paths, and the name of the column of these."""
    tables = []
    name = fresh_names(["file_name"], common_schema([str(file) for file in files]).names).get("file_name", "file_name")
    for file in files:
        table, folder = input_table(str(file)), file.with_suffix("")
        keys = sidecar_keys(table)
        table = table.set_column(table.column_names.index("key"), "key", keys)
        images = {p.stem: f"{folder.name}/{p.name}" for p in sorted(folder.glob("*")) if _is_image(p)}
        paths: list[str | None] = [None] * len(table)
        unknown: dict[str, str] = {}
        for (key, path), row in zip(images.items(), sidecar_rows(list(images), table).to_pylist(), strict=True):
            if row is None or paths[row] is not None:
                unknown[key] = path
            else:
                paths[row] = path
        named = ("a null key" if key is None else f"the key {str(key)!r}" for key in texts_of(keys))
        faults = [None if p else f"{folder.name} has no image of {key}" for key, p in zip(named, paths, strict=True)]
        added = pa.table({"key": keys_of_names(unknown, keys.type)})
        rows = pa.concat_tables([table, added], promote_options="default")
        paths += unknown.values()
        faults += [f"{file.name} has no row of the key {key!r}" for key in unknown]
        rows = rows.append_column(name, pa.array(paths, pa.string()))
        tables.append(rows.append_column(FAULT, pa.array(faults, pa.string())))
    return pa.concat_tables(tables, promote_options="permissive"), name
