"""Captions in one JSON: COCO's ``captions_*.json``, and Karpathy's splits of COCO and Flickr (``dataset_*.json``).

COCO has ``images`` (``id``, ``file_name``) and ``annotations`` (``image_id``, ``caption``); Karpathy's files have
``images`` alone, each with ``filename``, ``split``, and ``sentences`` (``raw``). Either way a row is an image with its
list of captions.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, read_json, reading
from cleanpairs.data.formats.folder import begins_with
from cleanpairs.data.formats.stored import Listing, ListingReader, find_root
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, chosen_split
from cleanpairs.ops.columns import filtered

_SCHEMA = pa.schema(
    [("key", pa.string()), ("image", pa.string()), ("captions", pa.list_(pa.string())), ("split", pa.string())]
)
_Entry = tuple[str, str | None, list[str | None], str | None]  # a row of that


class CaptionJsonReader(ListingReader):
    """Reads the JSON; the images lie under ``image_root``, or where these corpora usually have them."""

    kind = "coco"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.json`` file that holds an object."""
        path = Path(data)
        return path.suffix == ".json" and path.is_file() and begins_with(path, b"{")

    def open(self, data: str, request: ReadRequest) -> Source:
        """The images of one split (``train`` where none is named), or all where the file has no splits."""
        path = Path(data).absolute()
        split = _split(str(path), request.split)
        table = _of_split(str(path), split)
        request = replace(request, image_root=find_root(table["image"], path, request.image_root, _usual_roots(path)))
        options = {} if split is None else {"split": split}
        return self.described(str(path), [str(path)], table.schema, len(table), request, options)

    def listing(self, source: Source) -> Listing:
        """``key``, ``image``, ``captions``."""
        return Listing(_of_split(source.paths[0], source.options.get("split")))


def _usual_roots(path: Path) -> list[Path]:
    """Where the images of ``annotations/captions_train2017.json`` and of ``dataset_coco.json`` usually are."""
    split = path.stem.removeprefix("captions_")
    above = path.parent.parent
    own = [path.parent / f"{path.stem.removeprefix('dataset_')}{end}" for end in ("-images", "_images")]
    return [*own, above / split, above / "images" / split, path.parent / split, above, above / "images"]


def _split(path: str, asked: str | None) -> str | None:
    """The split to read: several may be joined by a plus, as in ``train+restval``."""
    known = list(dict.fromkeys(_table(path)["split"].drop_null().to_pylist()))
    if not known:
        if asked is not None:
            raise DataError(f"{path} has no splits; leave --split (split) out")
        return None
    name = asked or ("train" if "train" in known else known[0])
    for part in name.split("+"):
        chosen_split(part, known, path)
    return name


def _of_split(path: str, split: str | None) -> pa.Table:
    table = _table(path)
    if split is not None:
        table = filtered(table, pc.is_in(table["split"], pa.array(split.split("+"))).combine_chunks())
    return table.drop_columns("split")


@cached_by_file(2)
def _table(path: str) -> pa.Table:
    """All images, a row each; see :data:`_SCHEMA`."""
    with reading(path, "read as JSON", ValueError):
        content = read_json(path)
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise DataError(f"{path} has no list 'images' of objects: it is neither COCO's captions nor Karpathy's splits")
    if "annotations" in content:
        entries = _coco(path, images, content["annotations"])
    elif images and not any("sentences" in image for image in images):
        raise DataError(
            f"{path} has neither 'annotations' (COCO) nor 'sentences' of its images (Karpathy): no captions"
        )
    else:
        entries = [_karpathy(image, i) for i, image in enumerate(images)]
    columns = zip(*entries, strict=True) if entries else [()] * len(_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA)


def _coco(path: str, images: list[Any], annotations: Any) -> list[_Entry]:
    if not all(isinstance(image.get("id"), int | str) for image in images):
        raise DataError(f"{path} has an image without an id: its captions cannot be found")
    captions: dict[Any, list[str | None]] = {image["id"]: [] for image in images}
    if len(captions) != len(images):
        raise DataError(f"{path} has two images with one id: its captions cannot be told apart")
    for i, annotation in enumerate(annotations if isinstance(annotations, list) else [annotations]):
        if not isinstance(annotation, dict) or "caption" not in annotation:
            raise DataError(f"{path}, annotation {i}: it has no caption; COCO's captions are in captions_*.json")
        image = annotation.get("image_id")
        if not isinstance(image, int | str) or image not in captions:
            raise DataError(f"{path}, annotation {i}: there is no image with the id {image!r}")
        captions[image].append(_text(annotation["caption"]))
    return [(str(m["id"]), _text(m.get("file_name")), captions[m["id"]], None) for m in images]


def _karpathy(image: dict[str, Any], i: int) -> _Entry:
    name, folder = _text(image.get("filename")), _text(image.get("filepath"))
    sentences = image.get("sentences")
    raw = [s.get("raw") if isinstance(s, dict) else None for s in sentences] if isinstance(sentences, list) else []
    key = next((str(image[k]) for k in ("cocoid", "imgid") if k in image), str(i))
    return key, f"{folder}/{name}" if folder and name else name, list(map(_text, raw)), _text(image.get("split"))


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
