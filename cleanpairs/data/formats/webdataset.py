"""WebDataset tars, as img2dataset and the webdataset package write them.

``00000.tar`` holds ``KEY.jpg``, ``KEY.txt`` and ``KEY.json``. Beside it img2dataset leaves ``00000.parquet`` with a row
for each attempted download (``key``, ``url``, ``caption``, ``status`` and what its input brought, as ``similarity``);
its columns are joined by key; rows without a sample in the tar, the failed downloads, are no input. Without that file,
the similarities and the URL come from the ``.json``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.core.limits import limit
from cleanpairs.core.regular import open_regular
from cleanpairs.data.columns import is_score
from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.formats.stored import IMAGE_TYPE, bounded, image_array, record_batch
from cleanpairs.data.formats.tar_index import Member, Sample, member_bytes, read_index
from cleanpairs.data.images import ImageSource
from cleanpairs.data.parquet_io import common_schema, read_table
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, Rows, TableReader
from cleanpairs.data.text import NOT_UTF8
from cleanpairs.ops.columns import one_array, taken

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
TAR = (".tar", ".tar.gz", ".tgz")
MAX_JSON_BYTES = 16 * 2**20
LOOK_AT = 100  # samples whose .json tells which fields there are
OWN = ("key", "image", "caption")


class WebDatasetReader(TableReader):
    """Reads tars: one, a directory of them, a glob, or braces; columns ``key``, ``image``, ``caption`` and more."""

    kind = "webdataset"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` names tars, or is a directory with some."""
        path = Path(data)
        return any(path.glob("[!.]*.tar")) if path.is_dir() else data.endswith(TAR)

    def open(self, data: str, request: ReadRequest) -> Source:
        """The tars, their sidecars, their columns; of the tars only headers are read."""
        if request.image_root is not None:
            raise DataError(f"{data} has no image root: the images are in the tars")
        tars = expand_files(data, ".tar")
        sidecars = [p for p in map(_sidecar, tars) if p is not None]
        fields = [] if sidecars else _json_fields(tars, request.columns.get("text"))
        options = {"json": json.dumps(fields)} if fields else {}
        n_rows = sum(len(read_index(tar)) for tar in tars)
        return self.described(data, [*tars, *sidecars], _schema(sidecars, fields), n_rows, request, options)

    def schema(self, source: Source) -> pa.Schema:
        """``key``, ``image`` (bytes), ``caption``, and the columns of the sidecars or of the .json."""
        return _schema([p for p in source.paths if p.endswith(".parquet")], _fields_of(source))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        schema, fields = self.schema(source), _fields_of(source)
        wanted = set(schema.names if columns is None else columns)
        left = source.n_rows
        for tar in _tars(source):
            samples = read_index(tar)[:left]
            left -= len(samples)
            table, row = _sidecar_rows(tar)
            more = [f for f in schema if f.name in wanted and f.name not in OWN]
            with open_regular(tar) as file:
                for batch in bounded(iter(samples), batch_rows, _image_size if "image" in wanted else lambda _: 0):
                    values, faults = _columns(batch, file, wanted, fields)
                    _join(values, more, table, pa.array([row.get(s.key) for s in batch], pa.int64()))
                    yield Rows(tar, record_batch(schema, values, columns), faults)

    def encoded(self, source: Source) -> ImageSource:
        """The images, each read at its place in its tar."""
        places = [(tar, sample) for tar in _tars(source) for sample in read_index(tar)][: source.n_rows]

        def read(rows: Sequence[int]) -> list[bytes | None]:
            found: dict[int, bytes | None] = {}
            for tar, some in groupby(sorted(set(rows)), lambda row: places[row][0]):  # one tar after the other
                with open_regular(tar) as file:
                    found |= {row: _content(places[row][1], file)[0] or None for row in some}
            return [found[row] for row in rows]

        return ImageSource(len(places), read)


def _tars(source: Source) -> list[str]:
    return [p for p in source.paths if not p.endswith(".parquet")]


def _fields_of(source: Source) -> list[str]:
    return list(json.loads(source.options.get("json", "[]")))


def _sidecar(tar: str) -> str | None:
    path = Path(tar).with_suffix(".parquet")
    return str(path) if path.is_file() and "key" in common_schema([str(path)]).names else None


def _schema(sidecars: Sequence[str], fields: Sequence[str]) -> pa.Schema:
    own = [pa.field("key", pa.string()), pa.field("image", IMAGE_TYPE), pa.field("caption", pa.string())]
    more = [f for f in common_schema(sidecars) if f.name not in OWN] if sidecars else []
    if fields:
        kinds = {name: pa.float64() if is_score(name, pa.float64()) else pa.string() for name in fields}
        more = [pa.field(name, kind) for name, kind in kinds.items()] + [pa.field("json", pa.string())]
    return pa.schema([*own, *more])


def _json_fields(tars: Sequence[str], text: str | None) -> list[str]:
    """The fields of the .json that become columns: similarities, the URL, and the one that was asked for."""
    found: dict[str, None] = {}
    samples = ((tar, sample) for tar in tars for sample in read_index(tar))
    for tar, sample in islice(samples, LOOK_AT):
        if "json" in sample.members:
            with open_regular(tar) as file:
                for name in _record(file, sample):
                    if name in ("url", text) or is_score(name, pa.float64()):
                        found[name] = None
            found.setdefault("url")
    return [name for name in found if name not in (*OWN, "json")]


def _image(sample: Sample) -> tuple[str, Member] | None:
    return next(((e, sample.members[e]) for e in IMAGE_EXTENSIONS if e in sample.members), None)


def _image_size(sample: Sample) -> int:
    image = _image(sample)
    return image[1].size if image is not None else 0


def _json(file: BinaryIO, sample: Sample) -> bytes | None:
    member = sample.members.get("json")
    return None if member is None or member.size > MAX_JSON_BYTES else member_bytes(file, member)


def _record(file: BinaryIO, sample: Sample) -> dict[str, Any]:
    try:
        record = json.loads(_json(file, sample) or b"null")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _columns(
    samples: Sequence[Sample], file: BinaryIO, wanted: set[str], fields: Sequence[str]
) -> tuple[dict[str, Any], dict[int, str]]:
    """The columns of a batch of samples that are in the tar, and sample -> what is wrong with it."""
    faults: dict[int, str] = {}
    values: dict[str, Any] = {"key": [s.key for s in samples]}
    from_json = wanted.intersection(fields)
    no_text = any("txt" not in s.members for s in samples)
    records = [_record(file, s) if from_json or no_text else {} for s in samples]
    if "caption" in wanted:
        texts = [_text(sample, record, file) for sample, record in zip(samples, records, strict=True)]
        values["caption"] = [text for text, _ in texts]
        faults = {i: fault for i, (_, fault) in enumerate(texts) if fault}
    if "image" in wanted:
        images = [_content(sample, file) for sample in samples]
        values["image"] = image_array([content for content, _, _ in images], [name for _, name, _ in images])
        faults |= {i: fault for i, (*_, fault) in enumerate(images) if fault}
    for name in from_json:
        convert: Callable[[Any], Any] = _number if is_score(name, pa.float64()) else _string
        values[name] = [convert(r.get(name)) for r in records]
    if fields and "json" in wanted:
        whole_json = (_json(file, s) for s in samples)
        values["json"] = [d if d is None else d.decode("utf-8-sig", "replace") for d in whole_json]
    return values, faults


def _content(sample: Sample, file: BinaryIO) -> tuple[bytes | None, str | None, str | None]:
    """The encoded image of a sample, its name, and why there is none."""
    image = _image(sample)
    if image is None:
        return None, None, f"the sample {sample.key!r} has no image (it has: {', '.join(sample.members)})"
    if image[1].size > (most := limit("image_bytes")):
        return None, None, f"the image of sample {sample.key!r} is larger than {most} bytes"
    return member_bytes(file, image[1]), f"{sample.key}.{image[0]}", None


def _text(sample: Sample, record: dict[str, Any], file: BinaryIO) -> tuple[str | None, str | None]:
    """The caption, the .txt or else the field ``caption`` of the .json; and what is wrong with it."""
    member = sample.members.get("txt")
    if member is None:
        return _string(record.get("caption")), None
    if member.size > 4 * (most := limit("caption_bytes")):
        return None, f"the caption is longer than {most} bytes"
    raw = member_bytes(file, member)
    try:
        return raw.decode("utf-8-sig"), None
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), NOT_UTF8


def _string(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else value.encode("utf-8", "replace").decode()
    return json.dumps(value)


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON's whole numbers have no end
        return None


def _sidecar_rows(tar: str) -> tuple[pa.Table | None, dict[str | None, int]]:
    """The Parquet file beside a tar, and key -> its row."""
    path = _sidecar(tar)
    if path is None:
        return None, {}
    table = read_table(path)
    row = {key: i for i, key in enumerate(table["key"].cast(pa.string()).to_pylist())}
    if len(row) != len(table):
        raise DataError(f"{path} has a key more than once: its rows cannot be joined to the samples of {tar}")
    return table, row


def _join(values: dict[str, Any], fields: Sequence[pa.Field], table: pa.Table | None, rows: pa.Array) -> None:
    """Add the columns ``fields`` of a sidecar to those of samples, by its ``rows``; null where it has no such row."""
    for field in fields:
        if field.name not in values:
            found = None if table is None else one_array(taken(table[field.name], rows))
            values[field.name] = pa.nulls(len(rows), field.type) if found is None else found
    if table is not None and "caption" in table.column_names and None in values.get("caption", ()):
        beside = one_array(taken(table["caption"].cast(pa.string()), rows))
        values["caption"] = pc.coalesce(pa.array(values["caption"], pa.string()), beside)
