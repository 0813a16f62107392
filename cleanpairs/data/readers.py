"""Opens every kind of input: pairs from a path, and the input's own rows again."""

import codecs
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cleanpairs.core import READERS, nearest, reading
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, MissingInputError
from cleanpairs.core.parameters import check_settings
from cleanpairs.core.recipe import DataOptions
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.captions import are_lists, caption_column
from cleanpairs.data.columns import USUAL_NAMES, is_bytes, is_text, named_column
from cleanpairs.data.formats.folder import annotation_files
from cleanpairs.data.formats.remote import fetch, urls_in_errors
from cleanpairs.data.image_paths import LOOK_AT
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.rows import Rows, row_numbers
from cleanpairs.data.source import TABLES, Source, cache_folder, digest_of, read_cached, write_cached
from cleanpairs.data.table_reader import FAULT, chosen_split, load_rows
from cleanpairs.data.text import concerns_caption
from cleanpairs.data.writing import cached_tables, write_tables
from cleanpairs.ops.columns import as_schema, decoded_type, flat_type, is_list, list_lengths, numbered, plain_schema


def fitting(data: str) -> Iterator[str]:
    """Names of the readers that recognise ``data``, in their order: the first one reads it.

    A name ``*.parquet`` is Parquet, unless it or a folder of its images is a directory.
    """
    named = data.endswith((".parquet", ".pq")) and "://" not in data
    parquet = named and not (Path(data).is_dir() or Path(data).with_suffix("").is_dir())
    return (name for name in (["parquet"] if parquet else READERS) if READERS.load(name).recognises(data))


def sniff(data: str) -> str:
    """Name of the first reader that recognises ``data``. Raises DataError: none does."""
    if not data.strip():
        raise DataError("the data has no name: give a path")
    with reading(data[:300]):  # a name too long, a folder without access
        if (Path(data) / "run.json").is_file() and (Path(data) / "recipe.yaml").is_file():
            done = (Path(data) / "scores.parquet").is_file()
            what = f"report {quote(data)}` shows it" if done else f"fit --resume --out {quote(data)}` resumes it"
            raise DataError(f"{data} is a run: `cleanpairs {what}; to fit, name the data it was made of")
        for kind in fitting(data):
            named = {"parquet": "Parquet", "webdataset": "tars"}.get(kind)
            beside = annotation_files(Path(data)) if named and Path(data).is_dir() else []
            if beside:
                warnings.warn(f"{data}: {', '.join(p.name for p in beside)} not read beside {named}", stacklevel=2)
            return kind
        exists = Path(data).exists()
    if not exists:
        files = (".parquet", ".arrow", ".tar", ".csv", ".tsv", ".json", ".jsonl", ".npy")
        on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", data) and not data.endswith(files)
        hint = f"; a dataset on the Hugging Face hub is named hf://{data}" if on_hub else ""
        raise MissingInputError(f"no such input: {data}{hint}")
    names = [p.name for p in annotation_files(Path(data))]
    if len(names) > 1:
        raise DataError(f"{data} has several files of captions ({', '.join(names[:10])}): give one of them")
    if not Path(data).is_dir():
        raise DataError(f"{data} is neither a regular file nor a directory")
    raise DataError(
        f"{data} is a directory without any known input: no *.parquet, no *.tar, no .csv, no N.jpg with N.txt; name "
        f"arrays of vectors as '{data}/*.npy', and unpack tars: see docs/inputs.md"
    )


@urls_in_errors()
def open_source(data: str | Path, *, text_column: str | None = None, **options: Any) -> Source:
    """Find ``data`` and its columns, without reading it. Parameters as in :func:`load_pairs`."""
    try:
        return _open_path(data, text_column=text_column, **options)  # a column's own name may hold a comma
    except DataError:
        if "," not in (text_column or ""):
            raise
    names = [name.strip() for name in str(text_column).split(",")]
    source = _open_path(data, text_column=names[0], **options)
    path, text_column = _join_columns(source, names)
    root = source.image_root or Path(source.paths[0]).parent
    passed = "image_column", "key_column", "score_columns", "text_vectors", "limit"
    kept: dict[str, Any] = {name: options.get(name) for name in passed}
    return replace(_open_path(path, text_column=text_column, image_root=root, **kept), original=source)


def options_for_others(others: str | Path, data: str | Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those ``options`` of ``data`` that hold for ``others``, such as validation pairs: not its split, nor its
    other files. Options of the reader hold if both have one format.
    """
    names = {"image_column", "text_column", "allow_urls"}
    names |= set() if str(options.get("text_vectors")).endswith(".npy") else {"text_vectors"}
    reader = options.get("reader")
    with reading(str(others)[:300]):
        kind, kind_of_data = (next((k for k in fitting(str(d)) if reader in (None, k)), None) for d in (others, data))
    if kind == kind_of_data:  # of COCO each split has a folder of images
        names |= {"reader", "encoding"} | (set() if kind == "coco" else {"image_root"})
    return {name: value for name, value in options.items() if name in names}


def _join_columns(source: Source, names: list[str]) -> tuple[Path, str]:
    """The input as Parquet in the cache directory, and the name of a new column with the texts of several ones.

    Names of rows that are not their numbers get a column, too, and so do the faults of rows.
    """
    schema = (reader := reader_of(source)).schema(source)
    for name in names:
        named_column(schema, name, source.files[0])
    images = reader.encoded(source) if reader.names_images else None  # files, which the fingerprint does not cover
    shown = "" if images is None else images.hashes().tobytes().hex()
    digest = sha256("|".join([source.fingerprint, *names, FAULT, shown]).encode()).hexdigest()
    path = cache_folder(TABLES) / f"{digest[:32]}.parquet"
    column = "joined_caption" if "caption" in schema.names else "caption"

    def text_of(cells: pa.Array, name: str) -> pa.Array:
        what = f"{source.inputs[-1]}, column {name!r} of type {cells.type},"
        with reading(what, "joined as texts", pa.ArrowException):
            if pa.types.is_nested(cells.type):
                raise pa.ArrowNotImplementedError("a value of it is several; leave it out of --column text=")
            text = cells.cast(pa.string())
        return pc.if_else(pc.equal(text, ""), None, text)

    def joined() -> Iterator[pa.RecordBatch]:
        for _, rows in iter_noted(source):
            texts = (text_of(rows.batch[name], name) for name in names)
            # Not by null_handling="skip": pyarrow 26 leaves out rows whose cells are all null.
            text = reduce(lambda a, b: pc.coalesce(pc.binary_join_element_wise(a, b, ". "), a, b), texts)
            faults = {i: why for (i, _), why in rows.caption_faults.items()}
            # Without a caption in the first column, another may have one.
            faults |= {i: why for i, why in rows.faults.items() if not why.startswith("there is no caption")}
            why = pa.array([faults.get(i) for i in range(len(rows))], pa.string())
            yield rows.batch.append_column(column, text).append_column(FAULT, why)

    note = path.with_suffix(".sha256")
    if not path.exists() or read_cached(note) != digest_of(path):
        with staged_file(path, overwrite=True) as staged:
            write_tables(staged, joined())
        write_cached(note, digest_of(path))
    return path, column


def _open_path(data: str | Path, **options: Any) -> Source:
    given: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    request = DataOptions(**given)
    check_settings("load_pairs", request)
    reader, encoding, text_vectors, urls = request.reader, request.encoding, request.text_vectors, request.allow_urls
    files = ((name, getattr(request, name)) for name in ("text_vectors", "captions"))
    fetched: dict[str, Any] = {name: fetch(path, urls) for name, path in files if path is not None}
    request, path = replace(request, **fetched), fetch(str(data), urls)
    kind = sniff(path) if reader is None else READERS[reader].name
    if reader is not None and kind not in (fits := list(fitting(path))):
        raise ConfigError(f"the reader {reader!r} is not one for {data}: {', '.join(fits) or 'none'} would be")
    if encoding is not None:
        if kind not in ("folder", "images"):
            raise ConfigError(f"an encoding goes with CSV, TSV and .txt, and {data} is {kind}: leave it out")
        try:
            "".encode(encoding)  # refuses base64 and the like, which codecs.lookup takes
            request = replace(request, encoding=codecs.lookup(encoding).name)
        except (LookupError, ValueError) as error:
            raise ConfigError(f"unknown encoding: {encoding}; give one like utf-16, cp1252 or gb18030") from error
    if request.captions is not None and kind != "npy":
        raise ConfigError(f"captions in a file of their own go with arrays of vectors (.npy), and {data} is {kind}")
    chosen = READERS.load(kind)()
    if request.split is not None and not chosen.splits:
        chosen_split(request.split, (), f"{data} ({kind})")
    with reading(path[:300]):
        source: Source = chosen.open(path, request)
    if text_vectors is not None and "text_features" not in source.columns:
        raise ConfigError(f"{data} ({kind}) takes no other vectors of captions than its own: leave {text_vectors} out")
    return source


def load_pairs(
    data: Any,
    *,
    reader: str | None = None,
    encoding: str | None = None,
    split: str | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
    key_column: str | None = None,
    score_columns: str | None = None,
    text_vectors: str | Path | None = None,
    captions: str | Path | None = None,
    image_root: str | Path | None = None,
    limit: int | None = None,
    allow_urls: bool = False,
) -> Pairs:
    """Read image-caption pairs.

    Parameters
    ----------
    data : path, str or object
        A path, a glob, a directory, or ``hf://owner/name``: what one of :data:`cleanpairs.core.registry.READERS`
        recognises. Or a Dataset, DatasetDict, IterableDataset, DataFrame, Table, dict or list of dicts, which is
        written to the cache directory first, so that it can be read again. Or Pairs, which are returned.
    reader : str, optional
        A name of these readers, where several recognise ``data``. The first is the default.
    encoding : str, optional
        That of CSV, TSV and .txt. The default is UTF-8.
    split : str, optional
        Split, where the input has splits. The default is ``train``.
    image_column, text_column, key_column : str, optional
        Columns. The default are columns with usual names. A text column of lists makes one pair of each caption.
        Several columns, ``"title,description"``, are joined.
    score_columns : str, optional
        Columns of numbers that are scores of the pairs, ``"aesthetic,judge"``, in addition to those found by their
        names, such as ``clip_score``.
    text_vectors : str or Path, optional
        Column with vectors of the captions. The default is a column with a usual name. Where ``data`` is ``.npy`` files
        of image vectors, the files with those of the captions.
    captions : str or Path, optional
        With ``.npy`` files: their captions one a line (.txt), or Parquet with any columns.
    image_root : str or Path, optional
        Folder that image paths are relative to, and may not leave. The default is the folder of the file that names
        them, or the working directory where ``data`` is no path.
    limit : int, optional
        Number of rows that are read, from the first on. The default is all.
    allow_urls : bool
        Whether ``data`` may be a URL, which is fetched. Images that the data itself names by URLs are never fetched.

    Returns
    -------
    Pairs
        Rows that cannot be used are in it, with their reason in ``reasons``.

    Raises
    ------
    ConfigError
        The input is a URL, and these are not allowed.
    DataError
        The input cannot be read, or has no column of captions or images. The message names file and columns.
    """
    options = {name: value for name, value in locals().items() if name != "data"}
    if isinstance(data, Pairs):
        return data
    if isinstance(data, str | Path):
        return load_source(open_source(data, **options))
    path, options["split"] = _as_parquet(data, split, text_column), None
    try:
        source = open_source(path, **options)
        name, relative = source.columns.get("image"), options | {"image_root": Path.cwd()}
        paths = name and is_text(flat_type(pq.read_schema(path).field(name).type))
        pairs = load_source(open_source(path, **relative) if image_root is None and paths else source)
        if image_root is None and not paths and any(why.startswith("the image ") for why in pairs.reasons.values()):
            pairs = load_source(open_source(path, **relative))  # images without their bytes have paths, too
        return pairs
    except CleanpairsError as error:  # the message names the file in the cache: name the object and its options instead
        text = str(error).replace(f"--url_list {path}", "--url_list FILE")
        text = text.replace(str(path), f"the {type(data).__name__}")
        text = re.sub(r"--column (image|text|key)=(NAME)?", r"\1_column", text).replace("--image-root", "image_root")
        raise type(error)(text.replace("--column text-vectors=NAME", "text_vectors")) from error


def reader_of(source: Source) -> Any:
    """The reader of a source. Raises DataError: of pairs in memory."""
    if source.kind == "memory":
        raise DataError("these pairs exist in memory only: take plan.apply(pairs), or save them as Parquet")
    return READERS.load(source.kind)()


def load_some(source: Source, rows: np.ndarray) -> Pairs:
    """The pairs of some ``rows`` (k,) int64, rising, of an input of vectors with one pair a row, without its images.

    Their fingerprint is their own. Where the input has no keys, they are numbered anew.
    """
    reader = reader_of(source)
    columns = [name for role, name in source.columns.items() if role != "image"]

    def chosen() -> Iterator[Rows]:
        for first, part in numbered(reader.batches(source, 4096, columns)):
            lo, hi = np.searchsorted(rows, [first, first + len(part)])
            if hi > lo:
                yield part.at(rows[lo:hi] - first)

    digest = sha256(source.fingerprint.encode() + rows.tobytes()).hexdigest()
    selected = replace(source, fingerprint=digest, n_rows=len(rows))
    return load_rows(reader.iter_rows(selected, chosen()), selected, None)


@urls_in_errors()
def load_source(source: Source) -> Pairs:
    """The pairs of an input that was opened by :func:`open_source`. Raises DataError: there is no caption in the column
    of captions, and there are other columns of texts.
    """
    pairs: Pairs = reader_of(source).load(source)
    reasons = pairs.reasons.values()
    if len(pairs) and len(reasons) == len(pairs) and all(map(concerns_caption, reasons)):
        texts = [field.name for field in reader_of(source).schema(source) if is_text(field.type)]
        unused = [name for name in texts if name not in source.columns.values()]
        others = [name for name in unused if re.search("caption|text|title|alt|desc", name.lower())]
        if others:
            raise DataError(
                f"no row of {source.files[0]} has a caption in its column {source.columns.get('text')!r} "
                f"({pairs.reasons[0]}); other columns hold texts ({', '.join(others)}): --column text=NAME"
            )
    return pairs


def _as_parquet(data: Any, split: str | None, text: str | None) -> Path:
    """A table of any kind as a Parquet file in the cache directory, named by its content."""
    if isinstance(data, pa.Array | pa.ChunkedArray) or (hasattr(data, "to_frame") and not hasattr(data, "columns")):
        raise DataError(f"the {type(data).__name__} is one column, and pairs take two: images and captions")
    names = getattr(getattr(data, "index", None), "names", ())  # of the index of a DataFrame
    if named := [name for name in names if name is not None and name not in data.columns]:
        data = data.reset_index(named)
    if split is not None and not type(data).__name__.endswith("DatasetDict"):
        chosen_split(split, (), f"the {type(data).__name__}")
    data = _with_captions(data, text)
    dataset = as_dataset(data, split)
    if dataset is None and hasattr(data, "columns") and hasattr(getattr(data, "dtypes", None), "items"):
        if len(data.columns) and not len(data):
            raise DataError("the DataFrame holds no row")
        with reading("the DataFrame", "taken as a table", pa.ArrowException, ValueError, TypeError):
            cells = (cell for name in data.columns for cell in data[name].head(100))
            if any(hasattr(c, "getexif") or isinstance(c, Path) or getattr(c, "ndim", 0) > 1 for c in cells):
                columns = {name: zip(data[name], data[name].isna(), strict=True) for name in data.columns}
                data = {name: [None if missing else cell for cell, missing in cells] for name, cells in columns.items()}
                dataset = as_dataset(data)  # images, paths, regions, pixels
            else:
                texts = {  # Parquet has no categories that are intervals, as of pandas.cut, periods or tuples
                    name: data[name].cat.rename_categories(str)
                    for name, kind in data.dtypes.items()
                    if getattr(getattr(kind, "categories", 0), "inferred_type", "") in ("interval", "period", "mixed")
                }
                data = pa.Table.from_pandas(data.assign(**texts), preserve_index=False)
    elif dataset is None and hasattr(data, "__arrow_c_stream__"):
        with reading(f"the {type(data).__name__}", "taken as a table", KeyError):  # two columns of one name
            table = pa.table(data)
            data = as_schema(table, plain_schema(table.schema))  # Parquet has no dictionary of views, as polars has
    if dataset is None and not isinstance(data, pa.Table):
        raise DataError(
            "pairs are read from a path, a Dataset, a DataFrame, a pyarrow Table, a dict of columns, a list of dicts "
            f"or Pairs, not from {type(data).__name__}{': give what its collect() returns' * hasattr(data, 'collect')}"
        )
    with reading("the rows", "kept as Parquet", pa.ArrowNotImplementedError):
        path = cached_tables([data] if dataset is None else dataset_tables(dataset))
    if path is None:
        raise DataError("the dataset holds no row")
    return path


def _with_captions(data: Any, text: str | None) -> Any:
    """A DataFrame or a dict of columns, of a list of dicts too, with captions that are texts, or lists of texts as of
    :func:`are_lists`. Raises DataError: one is something else.
    """
    what = type(data).__name__
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        data = {name: [row.get(name) for row in data] for name in dict.fromkeys(chain.from_iterable(data))}
    if type(data).__module__.startswith("datasets") or not (isinstance(data, Mapping) or hasattr(data, "assign")):
        return data
    for name in list(data):
        values = data[name]
        if not (name == text or str(name).lower() in USUAL_NAMES["text"]) or not hasattr(values, "__len__"):
            continue
        cells = [getattr(value, "tolist", lambda value=value: value)() for value in values]
        cells = [list(cell) if isinstance(cell, tuple) else cell for cell in cells]
        cells = [None if type(cell).__name__ in ("NAType", "NaTType") else cell for cell in cells]
        plain = all(isinstance(cell, str) or cell is None for cell in cells)
        if isinstance(values, pa.Array | pa.ChunkedArray) or (plain and not are_lists(cells[:LOOK_AT])):
            continue
        column, faults = caption_column(cells)
        if faults:
            (row, _), why = min(faults.items())
            raise DataError(f"the {what}, row {row}, column {name!r}: {why}")
        columns = {name: column.to_pylist()}
        data = {**data, **columns} if isinstance(data, Mapping) else data.assign(**columns)
    return data


def as_dataset(data: Any, split: str | None = None) -> Any:
    """The ``datasets.Dataset`` or ``IterableDataset`` that ``data``, or its ``split``, is or can be made. None where it
    is neither. Raises DataError: `datasets` cannot make columns of it, or there is no such split.
    """
    if not isinstance(data, Mapping | list) and not type(data).__module__.startswith("datasets"):
        return None
    import datasets

    if isinstance(data, datasets.DatasetDict | datasets.IterableDatasetDict):
        return data[chosen_split(split, list(data), f"the {type(data).__name__}")]
    if isinstance(data, datasets.Dataset | datasets.IterableDataset):
        return data
    if isinstance(data, list) and (odd := [row for row in data if not isinstance(row, Mapping)]):
        raise DataError(
            "a list is to be a list of dicts, one for each pair, {'image': ..., 'caption': ...}, not of "
            f"{type(odd[0]).__name__}; two lists go as {{'image': images, 'caption': captions}}, files as a glob"
        )
    how = "taken as a table; a dict holds columns, of one value a pair (in Dataset.map: batched=True)"
    errors = pa.ArrowException, ValueError, TypeError, AttributeError, KeyError, OverflowError
    with reading("the data", how, *errors):
        columns = {  # an empty list holds no rows
            name: [_storable(cell) for cell in values] if isinstance(values, list | tuple) else values
            for name, values in dict(data).items()
        }
        return datasets.Dataset.from_dict(columns)


def _storable(cell: Any) -> Any:
    """A cell. A path becomes text, an empty image None. An image loses the name of its file where it differs from the
    file, which `datasets` would read in its place. Without a file it loses its format where that may lose pixels:
    `datasets` encodes it again.
    """
    if not hasattr(cell, "getexif"):
        return str(cell) if isinstance(cell, Path) else cell
    if 0 in cell.size or cell.mode in ("HSV", "La", "RGBa"):  # Pillow writes no such file
        return None if 0 in cell.size else cell.convert("RGB" if cell.mode == "HSV" else cell.mode.upper())
    name = getattr(cell, "filename", "")
    if not name and cell.format in (None, "PNG", "GIF", "BMP"):
        return cell
    from PIL import Image

    with suppress(Exception):  # the file is gone, or another: Pillow raises anything
        if getattr(cell, "_im", None) is None and Path(name).is_file():  # the image was not changed
            return cell
        with Image.open(name) as file:
            looks = [(image.mode, image.size, image.getpalette(), image.tobytes()) for image in (file, cell)]
            if looks[0] == looks[1]:
                return cell
    with suppress(Exception):
        return cell.copy()
    return cell  # closed, or cut: only its file is left


def dataset_tables(dataset: Any) -> Iterator[pa.Table]:
    """The rows of a dataset, some hundred at once, with the bytes of images that are local files.

    Raises DataError: its rows do not go together.
    """
    from datasets.table import embed_table_storage

    name = f"the {type(dataset).__name__}"
    if getattr(dataset, "format", {}).get("type") == "custom":
        raise DataError(f"{name} has a transform, which is not applied: give .with_format(None), or .map(transform)")
    with reading(name, "taken as a table; its features may have to be given", pa.ArrowException):
        features = dataset.features
        if features is None:  # of a stream
            features = dataset._resolve_features().features
        schema = features.arrow_schema
        for batch in dataset.with_format("arrow").iter(256):
            table = batch.cast(schema)
            no_file = np.zeros(len(table), dtype=bool)  # URLs are not fetched, and missing files are quarantined
            for column in table.columns:
                if "struct" in str(column.type):
                    no_file[list(_rows_without_file(column.combine_chunks(), np.arange(len(table))))] = True
            ends = [0, *(np.flatnonzero(np.diff(no_file)) + 1).tolist(), len(table)]
            for start, end in pairwise(ends):
                part = table.slice(start, end - start)
                yield part if no_file[start] else embed_table_storage(part)


def _rows_without_file(column: pa.Array, rows: np.ndarray) -> Iterator[int]:
    """The ``rows`` (n,) whose value (n,), or a part of it, names a URL, or a missing file without bytes."""
    if is_list(column.type):
        yield from _rows_without_file(column.flatten(), np.repeat(rows, list_lengths(column)))
    elif pa.types.is_struct(column.type):
        parts = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        if {"bytes", "path"} <= parts.keys() and is_text(parts["path"].type):
            encoded = parts["bytes"].is_valid().to_pylist()
            for row, path, has_bytes in zip(rows.tolist(), parts["path"].to_pylist(), encoded, strict=True):
                if path is not None and ("://" in path or not (has_bytes or os.path.isfile(path))):
                    yield row
        for part in parts.values():
            yield from _rows_without_file(part, rows)


def iter_tables(
    source: Source, batch_rows: int = 512, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The input's own rows, in order, in batches, at least one. Raises DataError: they cannot be read any more."""
    return (rows.batch for rows in reader_of(source).batches_or_empty(source, batch_rows, columns))


def plain_columns(source: Source, names: Sequence[str], use: str) -> pa.Table:
    """Columns of the input's rows with one value a row, and of categories their values. ConfigError, which says for
    what ``use`` one was named: the input has no such column, or it holds lists, structs or bytes.
    """
    schema = reader_of(source).schema(source)
    for name in names:
        if name not in schema.names:
            there = f"{nearest(name, schema.names)} (it has: {', '.join(schema.names)})"
            raise ConfigError(f"{use} by {name!r}: the input has no such column{there}")
        kind = decoded_type(schema.field(name).type)
        if pa.types.is_nested(kind) or is_bytes(kind):
            raise ConfigError(f"{use} by {name!r}: it holds {kind}, and needed is one value a row: text, number, date")
    table = pa.Table.from_batches(iter_tables(source, 8_192, names))
    return as_schema(table, pa.schema([field.with_type(decoded_type(field.type)) for field in table.schema]))


def iter_noted(source: Source) -> Iterator[tuple[int, Rows]]:
    """As :func:`iter_tables`, the rows with their faults, behind the number of the first one. With the column ``key``
    where they have names that are not their numbers.
    """
    reader, n = reader_of(source), source.n_rows
    named = "key" not in source.columns and not reader.names(source, 0, n).equals(row_numbers(0, n))
    for first, rows in numbered(reader.batches_or_empty(source, 512, None)):
        if named and "key" not in rows.batch.column_names:
            rows = replace(rows, batch=rows.batch.append_column("key", reader.names(source, first, len(rows))))
        yield first, rows
