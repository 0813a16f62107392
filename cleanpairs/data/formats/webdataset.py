"""WebDataset tars, as img2dataset and the webdataset package write them.

A sample is the members of ``00000.tar`` with one key, ``KEY.jpg``, ``KEY.txt`` and ``KEY.json``. The key is the name up
to the first dot of its last part, or up to the last dot where that makes more samples whole. Only headers are read to
find them. Nothing is unpacked, and no name is ever used as a path.

The columns of ``00000.parquet``, which img2dataset writes beside it, are joined by key. Its rows without a sample, the
failed downloads, follow the samples and are quarantined. Without that file, the similarities and the URL come from the
``.json``.
"""

import json
import posixpath
import re
import tarfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, first_few, limit, plain_text
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import begins_with, cached_by_file, open_regular, reading
from cleanpairs.data.captions import are_lists, caption_cell, caption_field
from cleanpairs.data.columns import is_score, number_of
from cleanpairs.data.formats.file_names import IMAGES, expand_files, files_below
from cleanpairs.data.image_paths import LOOK_AT
from cleanpairs.data.images import ImageSource
from cleanpairs.data.parquet_io import common_schema, input_table
from cleanpairs.data.rows import Rows
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import IMAGE_TYPE, TableReader, bounded, record_batch
from cleanpairs.data.text import NOT_UTF8, text_of
from cleanpairs.ops.columns import is_list, one_array, recast, taken, whole_numbers

OWN = ("key", "image", "caption")
CAPTIONS = ("txt", "caption", "text")  # endings


class Member(NamedTuple):
    """A file in the tar: the place and the number of its bytes."""

    offset: int
    size: int


class Sample(NamedTuple):
    """The members of one key, by extension in small letters, and why it cannot be used."""

    key: str
    members: Mapping[str, Member]
    fault: str | None = None

    def among(self, endings: Sequence[str]) -> list[str]:
        """The extensions that are one of ``endings``, or else end in one, as ``image.jpg`` does."""
        plain = [ending for ending in endings if ending in self.members]
        return plain or [name for name in self.members if name.rpartition(".")[2] in endings]

    @property
    def image(self) -> str | None:
        """The extension of its one image."""
        member = self.among([ending[1:] for ending in IMAGES])
        return member[0] if len(member) == 1 else None

    @property
    def whole(self) -> bool:
        """Whether it has one image, and a file that may hold a caption."""
        return self.image is not None and bool(self.among([*CAPTIONS, "json"]))


@cached_by_file(256)
def read_index(path: str) -> list[Sample]:
    """The samples of a tar, in the order of their first members. Raises DataError: it is no plain tar, or damaged."""
    with reading(path):
        packed = ": it is compressed; unpack it (gunzip) first" if begins_with(path, b"\x1f\x8b") else ""
    members: list[tuple[str, str, Member | None]] = []  # folder, name, place. None for a sparse file
    places, links = dict[str, Member | None](), list[tuple[str, str, str]]()
    with (
        reading(path, f"read as a tar{packed}", Exception),  # tarfile raises anything for a damaged header
        open_regular(path) as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
            name = member.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").removeprefix("./")
            folder, _, own = name.rpartition("/")
            # no extension, hidden, or a note of the writer
            if "." not in own[1:-1] or own[0] == "." or name.startswith("__"):
                continue
            at = (f"{folder}/" if folder else "", own)
            if member.isreg():
                places[name] = None if member.issparse() else Member(member.offset_data, member.size)
                members.append((*at, places[name]))
            elif member.islnk() or member.issym():
                target = member.linkname if member.islnk() else posixpath.normpath(f"{folder}/./{member.linkname}")
                links.append((*at, target.removeprefix("./")))
        file.seek(end := tar.offset)  # tarfile reads a broken header, and a cut, as the end
        block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise DataError(f"{path} is cut short: it ends at byte {end + len(block)} without its end mark; fetch it again")
    if any(block):
        raise DataError(f"{path} is damaged: there is no member at byte {end}; fetch it again")
    members += [(folder, own, places[target]) for folder, own, target in links if target in places]
    samples = _samples(members, str.partition)
    if not all(sample.whole for sample in samples):  # names with dots, as img.0001.jpg
        samples = max(samples, _samples(members, str.rpartition), key=lambda found: sum(s.whole for s in found))
    return samples


def _samples(
    found: Sequence[tuple[str, str, Member | None]], cut: Callable[[str, str], tuple[str, str, str]]
) -> list[Sample]:
    """Members as samples. Where a name occurs again, a second sample of its key begins."""
    keys: dict[str, list[tuple[str, dict[str, Member], list[str]]]] = {}
    order: list[tuple[str, dict[str, Member], list[str]]] = []
    for folder, name, place in found:
        key, _, ending = cut(name, ".")
        same = keys.setdefault(unicodedata.normalize("NFC", folder + key), [])
        ending = ending.lower()
        sample = next((each for each in same if ending not in each[1]), None)
        if sample is None:
            sample = (folder + key, {}, [])
            same.append(sample)
            order.append(sample)
        sample[1][ending] = place or Member(0, 0)
        if place is None:
            sample[2].append(f"{name!r} is stored with holes; write the tar anew without --sparse")
    for same in keys.values():
        if any(each[1].keys() != same[0][1].keys() for each in same):  # it is unknown which belong together
            for key, members, faults in same:
                faults.append(f"{key + '.' + next(iter(members))!r} occurs more than once in the tar")
    return [Sample(key, members, faults[0] if faults else None) for key, members, faults in order]


def member_bytes(file: BinaryIO, member: Member) -> bytes:
    """The bytes of a member of an open tar. Raises DataError: the tar is cut short."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) != member.size:
        raise DataError(f"{file.name} is cut short: {member.size} bytes at {member.offset} are not all there")
    return data


class WebDatasetReader(TableReader):
    """Reads tars: one, a directory of them, a glob, or braces. Columns ``key``, ``image``, ``caption`` and more."""

    kind = "webdataset"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` names tars, or is a directory with some."""
        path = Path(data)
        if path.is_dir():
            return any(files_below(path, ".tar", depth=0))
        return data.lower().endswith((".tar", ".tar.gz", ".tgz"))

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the tars, their sidecars and columns. Only the headers of tars are read."""
        if request.image_root is not None:
            raise DataError(f"{data} has no image root: the images are in the tars")
        tars = expand_files(data, ".tar")
        sidecars = [p for p in map(_sidecar, tars) if p is not None]
        fields = [] if sidecars else _json_fields(tars, request.text_column)
        options = {"json": json.dumps(fields)} if fields else {}
        if _has_lists(tars, sidecars, request.text_column or "caption"):
            options["lists"] = "captions"
        n_rows = sum(len(_rows(tar)) for tar in tars)
        return self.described(data, [*tars, *sidecars], n_rows, request, **options)

    def schema(self, source: Source) -> pa.Schema:
        """``key``, ``image`` (bytes), ``caption``, and the columns of the sidecars or of the .json."""
        sidecars, fields = [p for p in source.paths if p.endswith(".parquet")], _fields_of(source)
        own = [pa.field("key", pa.string()), pa.field("image", IMAGE_TYPE), pa.field("caption", pa.string())]
        text = pa.list_(pa.string()) if "lists" in source.options else pa.string()
        more = [f for f in common_schema(sidecars) if f.name not in OWN] if sidecars else []
        if fields:
            kinds = {name: pa.float64() if is_score(name, pa.float64()) else pa.string() for name in fields}
            more = [pa.field(name, kind) for name, kind in kinds.items()] + [pa.field("json", pa.string())]
        schema = pa.schema([*own, *more])
        at = schema.get_field_index(source.columns.get("text", "caption"))
        if at < 0 or schema.field(at).type != pa.string():
            return schema
        return schema.set(at, schema.field(at).with_type(text))

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        schema, fields, lists = self.schema(source), _fields_of(source), "lists" in source.options
        text = source.columns.get("text", "caption")
        wanted = set(schema.names if columns is None else columns)
        left = source.n_rows
        for tar in _tars(source):
            samples = _rows(tar)[:left]
            left -= len(samples)
            table = _sidecar_table(tar)
            more = [f for f in schema if f.name in wanted and f.name not in OWN]
            with open_regular(tar) as file:
                for batch in bounded(iter(samples), batch_rows, _image_size if "image" in wanted else lambda _: 0):
                    parsed = [_cells(sample, file, wanted, fields, text, lists) for sample in batch]
                    values: dict[str, Any] = {name: [cells[name] for cells, *_ in parsed] for name in parsed[0][0]}
                    faults = {i: fault for i, (_, fault, _) in enumerate(parsed) if fault}
                    bad = {(i, k): why for i, (*_, each) in enumerate(parsed) for k, why in each.items()}
                    _join(values, more, table, lists)
                    for i, caption in enumerate(values.get("caption", ())):
                        if caption is None:
                            faults.setdefault(i, f"there is no caption (the sample has: {_names(batch[i])})")
                    yield Rows(tar, record_batch(schema, values, columns), faults, bad)

    def encoded(self, source: Source) -> ImageSource:
        """The images, each read at its place in its tar."""
        places = [(tar, sample) for tar in _tars(source) for sample in _rows(tar)][: source.n_rows]
        return ImageSource(len(places), partial(_read, places))


def _read(places: Sequence[tuple[str, Sample]], rows: np.ndarray) -> Iterator[bytes | None]:
    """The images (k,) at ``rows`` (k,), rising, of all ``places``: tar and sample of each."""
    for tar, samples in groupby((places[row] for row in rows.tolist()), lambda place: place[0]):
        with reading(tar), open_regular(tar) as file:
            for _, sample in samples:
                yield _content(sample, file)[0] or None


def _tars(source: Source) -> list[str]:
    return [p for p in source.paths if not p.endswith(".parquet")]


def _fields_of(source: Source) -> list[str]:
    return list(json.loads(source.options.get("json", "[]")))


def _sidecar(tar: str) -> str | None:
    path = Path(tar).with_suffix(".parquet")
    return str(path) if path.is_file() and "key" in common_schema([str(path)]).names else None


def _json_fields(tars: Sequence[str], text: str | None) -> list[str]:
    """The fields of the .json that become columns: similarities, the URL, and the text column of the user."""
    fields: dict[str, None] = {}
    samples = ((tar, sample) for tar in tars for sample in read_index(tar))
    for tar, sample in islice(samples, LOOK_AT):
        if sample.among(["json"]):
            with open_regular(tar) as file:
                names = [n for n in _record(file, sample) if n in ("url", text) or is_score(n, pa.float64())]
            fields |= dict.fromkeys([*names, "url"])
    return [name for name in fields if name not in (*OWN, "json")]


def _has_lists(tars: Sequence[str], sidecars: Sequence[str], text: str) -> bool:
    """Whether captions are lists, in the column ``text``, by the first samples of some of the tars."""
    if sidecars and text in (schema := common_schema(sidecars)).names and is_list(schema.field(text).type):
        return text == "caption"
    values = list[Any]()
    for tar in tars[:: max(1, len(tars) // 10)]:
        with open_regular(tar) as file:
            samples = read_index(tar)[:LOOK_AT]
            values += [_text(s, file)[0] if text == "caption" else _record(file, s).get(text) for s in samples]
    return are_lists(values)


def _image_size(sample: Sample) -> int:
    return sample.members[sample.image].size if sample.image else 0


def _names(sample: Sample) -> str:
    return first_few(list(sample.members), 10)


def _json(file: BinaryIO, sample: Sample) -> bytes | None:
    """The bytes of the .json. None where there is none, or one of more than 16 MiB."""
    names = sample.among(["json"])
    member = sample.members[names[0]] if names else None
    return None if member is None or member.size > 16 * 2**20 else member_bytes(file, member)


def _record(file: BinaryIO, sample: Sample) -> dict[str, Any]:
    try:
        record = json.loads(_json(file, sample) or b"null")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _cells(
    sample: Sample, file: BinaryIO, wanted: set[str], fields: Sequence[str], text: str, lists: bool
) -> tuple[dict[str, Any], str | None, dict[int, str]]:
    """The cells of a sample that are in the tar, its fault, and the faults of its captions in ``text``."""
    cells: dict[str, Any] = {"key": sample.key}
    from_json, fault, bad = wanted.intersection(fields), None, dict[int, str]()
    record = _record(file, sample) if from_json else {}
    for name in from_json:
        value = record.get(name)
        cells[name] = value if name == text else (number_of if is_score(name, pa.float64()) else _string)(value)
    if fields and "json" in wanted:
        written = _json(file, sample)
        cells["json"] = None if written is None else written.decode("utf-8-sig", "replace")
    if "caption" in wanted:
        cells["caption"], fault = _text(sample, file)
    if "image" in wanted:
        content, why = _content(sample, file)
        cells["image"] = {"bytes": content, "path": None if content is None else f"{sample.key}.{sample.image}"}
        fault = why or fault
    if text in cells:
        cells[text], bad = caption_cell(cells[text], lists)
    return cells, sample.fault or fault, bad


def _content(sample: Sample, file: BinaryIO) -> tuple[bytes | None, str | None]:
    """The encoded image of a sample, and why there is none."""
    if sample.image is None:
        how = "several images" if sample.among([ending[1:] for ending in IMAGES]) else "no image"
        return None, f"the sample {sample.key!r} has {how} (it has: {_names(sample)})"
    if _image_size(sample) > (most := limit("image_bytes")):
        return None, f"the image of sample {sample.key!r} is larger than {most} bytes"
    return member_bytes(file, sample.members[sample.image]), None


def _text(sample: Sample, file: BinaryIO) -> tuple[Any, str | None]:
    """The caption, and its fault: of the .txt, or else of the .json by the usual names of its field."""
    member = sample.among(CAPTIONS)
    if len(member) > 1:
        return None, f"the sample {sample.key!r} has several captions (it has: {_names(sample)})"
    raw = b""
    if member:
        if sample.members[member[0]].size > 4 * (most := limit("caption_bytes")):
            return None, f"the caption is longer than {most} bytes"
        raw = member_bytes(file, sample.members[member[0]])
    if not raw.strip():
        value = caption_field(_record(file, sample))
        return "" if member and value is None else value, None
    try:
        return text_of(raw), None
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace"), NOT_UTF8


def _string(value: Any) -> str | None:
    return None if value is None else plain_text(value if isinstance(value, str) else json.dumps(value))


def _rows(tar: str) -> list[Sample]:
    """The samples of a tar. Behind them, without members, the rows of its sidecar that have none."""
    samples, table = read_index(tar), _sidecar_table(tar, ["key"])
    if table is None:
        return samples
    at = sidecar_rows([sample.key for sample in samples], table)
    if samples and at.null_count == len(samples) and len(table):
        raise DataError(
            f"{_sidecar(tar)} has none of the keys of {tar}: {str(table['key'][0])!r} there, {samples[0].key!r} here; "
            "move it away, or give it the tar's keys"
        )
    left = taken(sidecar_keys(table), np.setdiff1d(np.arange(len(table)), at.drop_null().to_numpy()))
    return [*samples, *(Sample(str(key), {}, "the tar has no sample of this key") for key in left.to_pylist())]


def _sidecar_table(tar: str, columns: list[str] | None = None) -> pa.Table | None:
    """The Parquet file beside a tar, or its ``columns``."""
    path = _sidecar(tar)
    table = None if path is None else input_table(path, columns)
    if table is not None and len((keys := sidecar_keys(table).drop_null()).unique()) != len(keys):
        raise DataError(f"{path} has a key more than once: its rows cannot be joined to the samples of {tar}")
    return table


def sidecar_keys(table: pa.Table) -> pa.Array:
    """The column ``key`` of a sidecar: texts, or whole numbers. Pandas makes these floats where one is missing."""
    column, kind = one_array(table["key"]), table["key"].type
    if pa.types.is_floating(kind):
        return whole_numbers(column)
    return column.cast(pa.int64() if pa.types.is_integer(kind) else pa.string(), safe=False)


def keys_of_names(names: Iterable[str], kind: pa.DataType) -> pa.Array:
    """The names of samples as keys of a sidecar, of a type of :func:`sidecar_keys`. Null where one is no number."""
    if pa.types.is_integer(kind):
        return pa.array([int(name) if re.fullmatch(r"[0-9]{1,18}", name) else None for name in names], kind)
    return pa.array(names, kind)


def sidecar_rows(keys: Sequence[str], table: pa.Table) -> pa.Array:
    """The row of each key in the column ``key``, null where there is none. Numbers have no leading zeros.

    Where a key does not match, its name without folders is tried.
    """
    own_keys = sidecar_keys(table)
    spelled = (keys_of_names(names, own_keys.type) for names in (keys, [key.rpartition("/")[2] for key in keys]))
    return pc.coalesce(*(pc.index_in(names, own_keys, skip_nulls=True) for names in spelled))


def _join(values: dict[str, Any], fields: Sequence[pa.Field], table: pa.Table | None, lists: bool) -> None:
    """Add the columns ``fields`` of a sidecar to those of samples, by their keys. Null where it has no such row."""
    at = None if table is None else sidecar_rows(values["key"], table)
    for field in fields:
        if field.name not in values:
            count = len(values["key"])
            column = pa.nulls(count, field.type) if table is None else one_array(taken(table[field.name], at))
            values[field.name] = recast(column, field.type)
    if table is not None and "caption" in table.column_names and None in values.get("caption", ()):
        captions = [caption_cell(value, lists)[0] for value in taken(table["caption"], at).to_pylist()]
        values["caption"] = [a if a is not None else b for a, b in zip(values["caption"], captions, strict=True)]
