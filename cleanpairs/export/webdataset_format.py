"""A directory of tars in img2dataset's layout: ``00000.tar`` with KEY.jpg, KEY.json, KEY.txt. ``00000.parquet`` with
what the .json files hold. The same rows give the same bytes: the tars' members have no owner and no time.
"""

import base64
import datetime
import io
import json
import re
import tarfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.core import CleanpairsError, ConfigError, DataError, jsonable
from cleanpairs.data import ParquetSink
from cleanpairs.data.images import cell_bytes, image_cells
from cleanpairs.export.formats import Output
from cleanpairs.export.layout import Layout
from cleanpairs.ops.columns import as_schema, fresh_names, readable

KEY = "key"


def sample_key(key: str) -> str:
    """``key`` as a name of files in a tar: at most 80 of ``A-Z a-z 0-9 _ -``. At most one ``_`` begins it, since two
    mean that it is no sample. Empty where nothing of it is left.
    """
    safe = re.sub(r"^_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "_", key))[:80]  # a plain tar header has room for 100
    return safe if safe.strip("_") else ""


def image_suffix(data: bytes) -> str:
    """The usual suffix of an encoded image, by its first bytes. ``img`` for what is none of ours."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    begins = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"BM": "bmp"}
    begins |= {b"II*\x00": "tif", b"MM\x00*": "tif"}
    return next((suffix for magic, suffix in begins.items() if data.startswith(magic)), "img")


class WebDatasetOutput(Output):
    """Shards of at most ``shard_rows`` samples.

    A sample's key, the column ``key`` of .json and Parquet, is the row's own. ``_`` stands for what is not a letter of
    ASCII, a digit, ``_`` or ``-``. A key that occurs already gets a number behind it. Shard and place where the input
    has no keys. Images are the encoded bytes as they were. In .json bytes are base64 and NaN is null. Vectors of images
    are in Parquet only. Raises ConfigError: there are no images, or rows hold lists of captions.
    """

    directory: ClassVar[bool] = True
    loads: ClassVar[str | None] = "[0-9]*.tar"  # the Parquet files beside them are not another split

    def __init__(self, folder: Path, layout: Layout, shard_rows: int = 10_000) -> None:
        if "image" not in layout.out_columns:
            raise ConfigError("webdataset holds images, and the input has only their features: export Parquet")
        if not layout.one_row_a_pair:
            raise ConfigError("a webdataset sample has one caption, and rows have lists: explode (--captions split)")
        self.path, self._columns, self._shard_rows = folder, layout.out_columns, shard_rows
        self._image_root, schema = layout.image_root, layout.out_schema
        self._renamed = fresh_names(schema.names, [KEY])
        fields = [f.with_name(self._renamed.get(f.name, f.name)) for f in schema if f.name != self._columns["image"]]
        self._schema = pa.schema([pa.field(KEY, pa.string()), *fields], schema.metadata)
        self.parts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}  # key in this shard -> the number to try behind it where it occurs again
        self._stack = ExitStack()
        self._tar: tarfile.TarFile | None = None
        self._sidecar: ParquetSink

    @staticmethod
    def count(path: Path) -> int:
        """Captions in the tars, by their headers. Raises CleanpairsError: a tar and its Parquet file differ."""
        total = 0
        for file in sorted(path.glob("*.tar")):
            with tarfile.open(file, "r:") as tar:
                samples = sum(member.name.endswith(".txt") for member in tar)
            rows = int(pq.read_metadata(file.with_suffix(".parquet")).num_rows)
            if samples != rows:
                raise CleanpairsError(f"{file.name} has {samples} samples, its Parquet file {rows} rows")
            total += samples
        return total

    def _write(self, table: pa.Table) -> None:
        start = 0
        while start < len(table):
            if self._tar is None or self._sidecar.rows == self._shard_rows:
                self._next()
            part = table.slice(start, self._shard_rows - self._sidecar.rows)
            self._add(part)
            start += len(part)

    def _add(self, part: pa.Table) -> None:
        image, text, key, features = map(self._columns.get, ("image", "text", "key", "features"))
        images = image_cells(part[image].combine_chunks())
        captions = [""] * len(part) if text is None else _cells(part[text].combine_chunks())
        given_keys = [None] * len(part) if key is None else _cells(part[key].combine_chunks())
        keys = [self._fresh_key(key, i) for i, key in enumerate(given_keys)]
        table = part.drop_columns([image])
        table = table.rename_columns([self._renamed.get(name, name) for name in table.column_names])
        table = table.add_column(0, KEY, pa.array(keys, pa.string()))
        self._sidecar.write(as_schema(table, self._schema))
        described = table if features is None else table.drop_columns([self._renamed.get(features, features)])
        for key, image, caption, line in zip(keys, images, captions, json_lines(described), strict=True):
            encoded = self._encoded(image, key)
            self._member(f"{key}.{image_suffix(encoded)}", encoded)
            self._member(f"{key}.json", line)
            self._member(f"{key}.txt", (caption or "").encode())
        self.parts[f"{self._shard:05d}.tar"] += len(part)

    def _fresh_key(self, own: Any, place: int) -> str:
        base = sample_key("" if own is None else str(own)) or f"{self._shard:05d}{self._sidecar.rows + place:04d}"
        key, folded = base, base.lower()  # a tar may be unpacked where "a.jpg" and "A.jpg" are one file
        number = self._numbers.get(folded, 2)
        while key.lower() in self._numbers:
            key, number = f"{base}-{number}", number + 1
        self._numbers |= {key.lower(): 2, folded: number}
        return key

    def _encoded(self, cell: Any, key: str) -> bytes:
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if self._image_root is None and not isinstance(content, bytes):
            raise ConfigError("the images are paths, of files in several folders: read them with --image-root")
        try:
            return cell_bytes(cell, self._image_root or Path())
        except DataError as error:
            raise DataError(f"the sample {key!r} cannot be written: {error}; a Parquet export keeps it") from error

    def _member(self, name: str, data: bytes) -> None:
        assert self._tar is not None
        info = tarfile.TarInfo(name)  # no owner, mode 0644, time 0: the same samples give the same file
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def _next(self) -> None:
        self._stack.close()
        self._shard = len(self.parts)
        tar, sidecar = f"{self._shard:05d}.tar", f"{self._shard:05d}.parquet"
        opened = tarfile.open(self.path / tar, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 - the stack closes it
        self._tar = self._stack.enter_context(opened)
        self._sidecar = self._stack.enter_context(ParquetSink(self.path / sidecar, self._schema))
        self.parts[tar] = 0  # the Parquet file beside it holds the same rows, which count once
        self._numbers = {}

    def _finish(self) -> None:
        if self._tar is None:
            self._next()  # no rows: an empty tar, as no file would look like a mistake
        self._stack.close()

    def abandon(self) -> None:
        """See :class:`cleanpairs.data.writing.Sink`."""
        self._stack.__exit__(OSError, OSError(), None)  # so that the sinks in it are abandoned as well


def json_lines(table: pa.Table) -> list[bytes]:
    """The contents of the .json of each row."""
    columns = [_cells(column.combine_chunks()) for column in table.columns]
    lines = (dict(zip(table.column_names, cells, strict=True)) for cells in zip(*columns, strict=True))
    return [json.dumps(jsonable(line, _text), ensure_ascii=False, allow_nan=False).encode() for line in lines]


def _cells(column: pa.Array) -> list[Any]:
    """The values of a column. Text that is not UTF-8 is decoded in part, and what has no form in Python is null."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):  # parts of one name, an unknown time zone, the year 300,000
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return list(readable(column).to_pylist())
        return [_cell(value) for value in column]


def _cell(value: pa.Scalar) -> Any:
    with suppress(ValueError, OverflowError, pa.ArrowException):
        return value.as_py()
    return None  # the Parquet file beside the tar has it


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
