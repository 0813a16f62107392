"""Captions in one JSON: COCO's ``captions_*.json``, and Karpathy's splits of COCO and Flickr (``dataset_*.json``).

COCO has ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``, ``caption``); Karpathy's files have
``images`` alone, each with ``filename``, ``split``, and ``sentences`` (``raw``). Either way a row is an image with its
list of captions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, open_regular, read_json, reading
from cleanpairs.data.formats.folder import find_root
from cleanpairs.data.formats.stored import IMAGE_TYPE, read_files, record_batch, with_images
from cleanpairs.data.images import ImageSource, StoredImages
from cleanpairs.data.source import Source, fingerprint_files, settings_text
from cleanpairs.data.table_reader import ReadRequest, Rows, TableReader

_SCHEMA = pa.schema([("key", pa.string()), ("image", IMAGE_TYPE), ("captions", pa.list_(pa.string()))])
LOOK_AT = 100


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    path: str | None
    captions: tuple[str | None, ...]
    split: str | None


class CaptionJsonReader(TableReader):
    """Reads the JSON; the images lie under ``image_root``, or where these corpora usually have them."""

    kind = "coco"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.json`` file that holds an object."""
        path = Path(data)
        if path.suffix != ".json" or not path.is_file():
            return False
        with open_regular(path) as file:
            return file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")

    def open(self, data: str, request: ReadRequest) -> Source:
        """The images of one split (``train`` where none is named), or all where the file has no splits."""
        path = str(Path(data).absolute())
        name = _split(path, request.split)
        entries = _entries(path, name)
        options = {} if name is None else {"split": name}
        source = self.described(path, [path], _SCHEMA, len(entries), request, options)
        first = [e.path for e in entries[:LOOK_AT] if e.path]
        root = str(find_root(first, Path(path), request.image_root, also=_usual_roots(Path(path))))
        source = replace(source, image_root=root)
        return replace(source, fingerprint=fingerprint_files(source.paths, settings_text(source)))

    def schema(self, source: Source) -> pa.Schema:
        """``key``, ``image``, ``captions``."""
        return _SCHEMA

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        path, root = source.paths[0], Path(str(source.image_root))
        wanted = set(_SCHEMA.names if columns is None else columns)

        listed = _entries(path, source.options.get("split"))[: source.n_rows]
        for entries, images, faults in with_images(listed, _path, root if "image" in wanted else None, batch_rows):
            values = {"key": [e.key for e in entries], "image": images, "captions": [list(e.captions) for e in entries]}
            yield Rows(path, record_batch(_SCHEMA, values, columns), faults)

    def encoded(self, source: Source) -> ImageSource:
        """The image files."""
        paths = [e.path for e in _entries(source.paths[0], source.options.get("split"))[: source.n_rows]]
        root = Path(str(source.image_root))
        return StoredImages(len(paths), lambda rows: read_files([paths[row] for row in rows], root)[0])


def _path(entry: _Entry) -> str | None:
    return entry.path


def _usual_roots(path: Path) -> list[Path]:
    """Where the images of ``annotations/captions_train2017.json`` and of ``dataset_coco.json`` usually are."""
    split = path.stem.removeprefix("captions_")
    above = path.parent.parent
    own = [path.parent / f"{path.stem.removeprefix('dataset_')}{end}" for end in ("-images", "_images")]
    return [*own, above / split, above / "images" / split, path.parent / split, above, above / "images"]


def _split(path: str, asked: str | None) -> str | None:
    """The split to read: several may be joined by a plus, as in ``train+restval``."""
    counts = Counter(entry.split for entry in _all_entries(path))
    known = [name for name in counts if name is not None]
    if not known:
        if asked is not None:
            raise DataError(f"{path} has no splits; leave --split (split) out")
        return None
    name = asked or ("train" if "train" in known else known[0])
    missing = [part for part in name.split("+") if part not in known]
    if missing:
        listed = ", ".join(f"{k} ({counts[k]:,} images)" for k in known)
        raise DataError(f"{path} has no split {missing[0]!r} (splits: {listed}); name one with --split")
    return name


def _entries(path: str, split: str | None) -> list[_Entry]:
    everything = _all_entries(path)
    return everything if split is None else [e for e in everything if e.split in split.split("+")]


@cached_by_file(2)
def _all_entries(path: str) -> list[_Entry]:
    with reading(path, "read as JSON", ValueError):
        content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise DataError(f"{path} has no list 'images' of objects: it is neither COCO's captions nor Karpathy's splits")
    if "annotations" in content:
        return _coco(path, images, content["annotations"])
    if images and not any("sentences" in image for image in images):
        raise DataError(
            f"{path} has neither 'annotations' (COCO) nor 'sentences' of its images (Karpathy): no captions"
        )
    return [_karpathy(image, i) for i, image in enumerate(images)]


def _coco(path: str, images: list[Any], annotations: Any) -> list[_Entry]:
    if not all(isinstance(image.get("id"), int | str) for image in images):
        raise DataError(f"{path} has an image without an id: its captions cannot be found")
    captions: dict[Any, list[str | None]] = {image.get("id"): [] for image in images}
    if len(captions) != len(images):
        raise DataError(f"{path} has two images with one id: its captions cannot be told apart")
    for i, annotation in enumerate(annotations if isinstance(annotations, list) else [annotations]):
        if not isinstance(annotation, dict) or "caption" not in annotation:
            raise DataError(f"{path}, annotation {i}: it has no caption; COCO's captions are in captions_*.json")
        image = annotation.get("image_id")
        if not isinstance(image, int | str) or image not in captions:
            raise DataError(f"{path}, annotation {i}: there is no image with the id {image!r}")
        captions[image].append(_text(annotation["caption"]))
    return [_Entry(str(m.get("id")), _text(m.get("file_name")), tuple(captions[m.get("id")]), None) for m in images]


def _karpathy(image: dict[str, Any], i: int) -> _Entry:
    name, folder = _text(image.get("filename")), _text(image.get("filepath"))
    sentences = image.get("sentences")
    raw = [s.get("raw") if isinstance(s, dict) else None for s in sentences] if isinstance(sentences, list) else []
    key = next((str(image[k]) for k in ("cocoid", "imgid") if k in image), str(i))
    return _Entry(
        key, f"{folder}/{name}" if folder and name else name, tuple(map(_text, raw)), _text(image.get("split"))
    )


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
