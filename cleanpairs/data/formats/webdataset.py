"""WebDataset tars, as img2dataset and the webdataset package write them.

A sample is the members of ``00000.tar`` with one key, ``KEY.jpg``, ``KEY.txt`` and ``KEY.json``: the name up to the
first dot of its last part. Only headers are read to find them; nothing is unpacked, and no name is ever used as a path.
The columns of ``00000.parquet``, which img2dataset leaves beside it, are joined by key; its rows without a sample, the
failed downloads, are no input. Without that file, the similarities and the URL come from the ``.json``.
"""

import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import DataError
from cleanpairs.core.limits import limit
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import cached_by_file, open_regular, reading
from cleanpairs.data.columns import is_score
from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.images import IMAGES, ImageSource
from cleanpairs.data.parquet_io import common_schema, read_table
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import IMAGE_TYPE, Rows, TableReader, bounded, record_batch
from cleanpairs.data.text import NOT_UTF8
from cleanpairs.ops.columns import one_array, taken

TAR = (".tar", ".tar.gz", ".tgz")
MAX_JSON_BYTES = 16 * 2**20
LOOK_AT = 100  # samples whose .json tells which fields there are
OWN = ("key", "image", "caption")
_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")


class Member(NamedTuple):
    """A file in the tar: where its bytes begin, and how many they are."""

    offset: int
    size: int


class Sample(NamedTuple):
    """The members of one key, by extension in small letters."""

    key: str
    members: Mapping[str, Member]

    @property
    def image(self) -> str | None:
        """The extension of its image."""
        return next((e[1:] for e in IMAGES if e[1:] in self.members), None)


@cached_by_file(256)
def read_index(path: str) -> list[Sample]:
    """The samples of a tar, in the order of their first members. Raises DataError: it is no plain tar, or damaged."""
    packed = "" if path.endswith(".tar") else ": it is compressed; unpack it (gunzip) first"
    found: dict[str, dict[str, Member]] = {}
    with (
        reading(path, f"read as a tar{packed}", tarfile.TarError),
        open_regular(path) as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            if not member.isreg() or member.issparse():
                continue
            name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            parts = _NAME.fullmatch(name.removeprefix("./"))
            if parts is None or parts[1].startswith("__"):  # no extension, hidden, or a note of the writer
                continue
            members = found.setdefault(parts[1], {})
            if parts[2].lower() in members:
                raise DataError(f"{path} holds {name[:200]!r} more than once: its samples cannot be told apart")
            members[parts[2].lower()] = Member(member.offset_data, member.size)
        file.seek(end := tar.offset)  # tarfile takes a broken header, and a cut, for the end
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path} is cut short: it ends at byte {end + len(block)} without the mark of its end; fetch it again"
        )
    if any(block):
        raise DataError(f"{path} is damaged: there is no member at byte {end}; fetch it again")
    return [Sample(key, members) for key, members in found.items()]


def member_bytes(file: BinaryIO, member: Member) -> bytes:
    """What a member of an open tar holds; DataError where the tar is cut short."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise DataError(f"{file.name} is cut short: {member.size} bytes at {member.offset} are not all there")
    return data


class WebDatasetReader(TableReader):
    """Reads tars: one, a directory of them, a glob, or braces; columns ``key``, ``image``, ``caption`` and more."""

    kind = "webdataset"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` names tars, or is a directory with some."""
        path = Path(data)
        return any(path.glob("[!.]*.tar")) if path.is_dir() else data.endswith(TAR)

    def open(self, data: str, request: DataOptions) -> Source:
        """The tars, their sidecars, their columns; of the tars only headers are read."""
        if request.image_root is not None:
            raise DataError(f"{data} has no image root: the images are in the tars")
        tars = expand_files(data, ".tar")
        sidecars = [p for p in map(_sidecar, tars) if p is not None]
        fields = [] if sidecars else _json_fields(tars, request.text_column)
        options = {"json": json.dumps(fields)} if fields else {}
        n_rows = sum(len(read_index(tar)) for tar in tars)
        return self.described(data, [*tars, *sidecars], n_rows, request, **options)

    def schema(self, source: Source) -> pa.Schema:
        """``key``, ``image`` (bytes), ``caption``, and the columns of the sidecars or of the .json."""
        sidecars, fields = [p for p in source.paths if p.endswith(".parquet")], _fields_of(source)
        own = [pa.field("key", pa.string()), pa.field("image", IMAGE_TYPE), pa.field("caption", pa.string())]
        more = [f for f in common_schema(sidecars) if f.name not in OWN] if sidecars else []
        if fields:
            kinds = {name: pa.float64() if is_score(name, pa.float64()) else pa.string() for name in fields}
            more = [pa.field(name, kind) for name, kind in kinds.items()] + [pa.field("json", pa.string())]
        return pa.schema([*own, *more])

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        schema, fields = self.schema(source), _fields_of(source)
        wanted = set(schema.names if columns is None else columns)
        left = source.n_rows
        for tar in _tars(source):
            samples = read_index(tar)[:left]
            left -= len(samples)
            table = _beside(tar)
            more = [f for f in schema if f.name in wanted and f.name not in OWN]
            with open_regular(tar) as file:
                for batch in bounded(iter(samples), batch_rows, _image_size if "image" in wanted else lambda _: 0):
                    found = [_cells(sample, file, wanted, fields) for sample in batch]
                    values: dict[str, Any] = {name: [cells[name] for cells, _ in found] for name in found[0][0]}
                    faults = {i: fault for i, (_, fault) in enumerate(found) if fault}
                    _join(values, more, table)
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


def _json_fields(tars: Sequence[str], text: str | None) -> list[str]:
    """The fields of the .json that become columns: similarities, the URL, and the one that was asked for."""
    found: dict[str, None] = {}
    samples = ((tar, sample) for tar in tars for sample in read_index(tar))
    for tar, sample in islice(samples, LOOK_AT):
        if "json" in sample.members:
            with open_regular(tar) as file:
                names = [n for n in _record(file, sample) if n in ("url", text) or is_score(n, pa.float64())]
            found |= dict.fromkeys([*names, "url"])
    return [name for name in found if name not in (*OWN, "json")]


def _image_size(sample: Sample) -> int:
    return sample.members[sample.image].size if sample.image else 0


def _json(file: BinaryIO, sample: Sample) -> bytes | None:
    member = sample.members.get("json")
    return None if member is None or member.size > MAX_JSON_BYTES else member_bytes(file, member)


def _record(file: BinaryIO, sample: Sample) -> dict[str, Any]:
    try:
        record = json.loads(_json(file, sample) or b"null")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _cells(
    sample: Sample, file: BinaryIO, wanted: set[str], fields: Sequence[str]
) -> tuple[dict[str, Any], str | None]:
    """The cells of a sample that are in the tar, and what is wrong with it."""
    cells: dict[str, Any] = {"key": sample.key}
    from_json, fault = wanted.intersection(fields), None
    record = _record(file, sample) if from_json or "txt" not in sample.members else {}
    for name in from_json:
        cells[name] = (_number if is_score(name, pa.float64()) else _string)(record.get(name))
    if fields and "json" in wanted:
        written = _json(file, sample)
        cells["json"] = None if written is None else written.decode("utf-8-sig", "replace")
    if "caption" in wanted:
        cells["caption"], fault = _text(sample, record, file)
    if "image" in wanted:
        content, why = _content(sample, file)
        cells["image"] = {"bytes": content, "path": None if content is None else f"{sample.key}.{sample.image}"}
        fault = why or fault
    return cells, fault


def _content(sample: Sample, file: BinaryIO) -> tuple[bytes | None, str | None]:
    """The encoded image of a sample, and why there is none."""
    if sample.image is None:
        return None, f"the sample {sample.key!r} has no image (it has: {', '.join(sample.members)})"
    if _image_size(sample) > (most := limit("image_bytes")):
        return None, f"the image of sample {sample.key!r} is larger than {most} bytes"
    return member_bytes(file, sample.members[sample.image]), None


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
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and abs(value) < 1e308 else None  # JSON's whole numbers have no end


def _beside(tar: str) -> pa.Table | None:
    """The Parquet file beside a tar."""
    path = _sidecar(tar)
    table = None if path is None else read_table(path)
    if table is not None and len(table["key"].unique()) != len(table):
        raise DataError(f"{path} has a key more than once: its rows cannot be joined to the samples of {tar}")
    return table


def _join(values: dict[str, Any], fields: Sequence[pa.Field], table: pa.Table | None) -> None:
    """Add the columns ``fields`` of a sidecar to those of samples, by their keys; null where it has no such row."""
    keys = pa.array(values["key"], pa.string())
    at = None if table is None else pc.index_in(keys, table["key"].cast(pa.string()))
    for field in fields:
        if field.name not in values:
            found = pa.nulls(len(keys), field.type) if table is None else one_array(taken(table[field.name], at))
            values[field.name] = found
    if table is not None and "caption" in table.column_names and None in values.get("caption", ()):
        beside = one_array(taken(table["caption"].cast(pa.string()), at))
        values["caption"] = pc.coalesce(pa.array(values["caption"], pa.string()), beside)
