"""A file of captions beside the images that it names: CSV, TSV, JSON Lines or a JSON list; or a .txt beside each image.

Given is the file, or a folder that holds just one such; ``metadata.csv`` and ``metadata.jsonl`` (the image folders of
`datasets`) and ``captions.txt`` (Flickr8k) are looked for first. Image paths are relative to the file's folder, or to
``image_root``, and never leave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import open_regular, read_bytes
from cleanpairs.data.atomic import write_whole
from cleanpairs.data.formats.record_table import JSON_ENDINGS, column, iter_records, table_of
from cleanpairs.data.formats.records import IMAGES, Record, undecodable
from cleanpairs.data.formats.stored import IMAGE_TYPE, record_batch, with_images
from cleanpairs.data.images import ImageSource, StoredImages, encoded_bytes, resolve_path
from cleanpairs.data.source import Source, cache_folder, fingerprint_files, fingerprint_of, settings_text
from cleanpairs.data.table_reader import ReadRequest, Rows, TableReader

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
FIRST = ("metadata.csv", "metadata.jsonl", "captions.txt")
SUBFOLDERS = ("", "images", "Images", "image", "img", "imgs")
LOOK_AT = 100  # images of which one at least must be there


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
    file = cache_folder("tables") / f"{sha256(whole.encode()).hexdigest()[:32]}.jsonl"
    if not file.exists():
        write_whole(file, whole)
    return file


def annotation_files(folder: Path) -> list[Path]:
    """The files of a folder that may hold its captions: one where it is clear which."""
    for name in FIRST:
        if (folder / name).is_file():
            return [folder / name]
    return sorted(p for p in folder.glob("[!.]*") if p.suffix in ENDINGS and p.is_file())


class FolderReader(TableReader):
    """Reads a file of records, and the images that it names; ``image`` holds their bytes."""

    kind = "folder"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is such a file, or a folder with just one and no Parquet."""
        path = Path(data)
        if path.is_dir():
            found = len(annotation_files(path))
            return (found == 1 or (not found and any(captioned_images(path)))) and not any(path.glob("[!.]*.parquet"))
        return path.is_file() and (path.suffix in ENDINGS or path.name in FIRST or _is_list(path))

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
        schema, n_rows = table_of(str(path), encoding)
        options = {} if encoding is None else {"encoding": encoding}
        source = self.described(str(path), [str(path)], schema, n_rows, request, options)
        name = source.columns.get("image")
        if name is not None and pa.types.is_string(schema.field(name).type):
            first = [_path(r, name) for r in islice(iter_records(str(path), encoding), LOOK_AT)]
            root = find_root([p for p in first if p], path, request.image_root)
            source = replace(source, image_root=str(root))
            source = replace(source, fingerprint=fingerprint_files(source.paths, settings_text(source)))
        return replace(source, original=original)

    def schema(self, source: Source) -> pa.Schema:
        """The columns of the file; that of the images holds their bytes."""
        schema, _ = table_of(source.paths[0], source.options.get("encoding"))
        name = source.columns.get("image")
        if name is None or not pa.types.is_string(schema.field(name).type):
            return schema
        return schema.set(schema.get_field_index(name), pa.field(name, IMAGE_TYPE))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        path, schema = source.paths[0], self.schema(source)
        wanted = schema.names if columns is None else list(columns)
        name = source.columns.get("image")
        paths_only = name is not None and name in wanted and schema.field(name).type == IMAGE_TYPE
        root = Path(source.image_root or Path(path).parent)

        images = with_images(
            _records(source), lambda r: _path(r, str(name)), root if paths_only else None, batch_rows, lambda r: r.fault
        )
        for records, contents, faults in images:
            values = {
                n: column(n, schema.field(n).type, records, path) for n in wanted if not (paths_only and n == name)
            }
            if paths_only:
                values[str(name)] = contents
            yield Rows(path, record_batch(schema, values, columns), faults)

    def encoded(self, source: Source) -> ImageSource | None:
        """The image files."""
        name = source.columns.get("image")
        if name is None:
            return None
        root = str(source.image_root or Path(source.paths[0]).parent)
        cells = [record.values.get(name) for record in _records(source)]
        return StoredImages(len(cells), lambda rows: [encoded_bytes(cells[i] or None, "", root) for i in rows])


def _records(source: Source) -> Iterator[Record]:
    return islice(iter_records(source.paths[0], source.options.get("encoding")), source.n_rows)


def _path(record: Record, name: str) -> str | None:
    value = record.values.get(name)
    return value if isinstance(value, str) else None


def _is_list(path: Path) -> bool:
    """Whether a ``.json`` file is a list."""
    if path.suffix not in JSON_ENDINGS:
        return False
    with open_regular(path) as file:
        return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def find_root(paths: Sequence[str], file: Path, given: str | None, also: Sequence[Path] = ()) -> Path:
    """The folder that image ``paths`` are relative to: the one given, the file's own, or one of the usual names in it.

    ``also`` are more folders to look into, in this order, after those.

    Raises DataError: None of the images is there: it is the wrong folder.
    """
    if given is not None:
        candidates = [Path(given).absolute()]
    else:
        candidates = [p for p in [*(file.parent / name for name in SUBFOLDERS), *also] if p.is_dir()]
    if not paths:
        return candidates[0]
    for folder in candidates:
        if any(_is_there(path, folder) for path in paths):
            return folder
    raise DataError(
        f"none of the first {len(paths)} images that {file} names is in {candidates[0]} (the first: "
        f"{paths[0][:200]!r}); "
        + (
            "they are URLs: download them by img2dataset"
            if "://" in paths[0]
            else "name their folder with --image-root"
        )
    )


def _is_there(path: str, folder: Path) -> bool:
    try:
        return resolve_path(path, folder).is_file()
    except (OSError, DataError):
        return False
