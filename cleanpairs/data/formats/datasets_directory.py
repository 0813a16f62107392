"""`datasets`: directories of ``Dataset.save_to_disk`` and ``DatasetDict.save_to_disk``, and datasets on the hub.

The Arrow files are read memory-mapped, in small batches, which are validated in full before they are used: a damaged
file would otherwise end in a signal. An IPC stream that was cut between two batches reads back short without an error,
so its end is checked. Nothing is fetched unless the name says so: ``hf://owner/name``.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core import ConfigError, DataError
from cleanpairs.core.hub import hub_allowed
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import error_text, open_regular, read_object, reading
from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.formats.remote import HUB
from cleanpairs.data.images import resolve_path
from cleanpairs.data.parquet_io import BATCH_BYTES, conformed, shared_schema
from cleanpairs.data.rows import Rows
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import TableReader, chosen_split
from cleanpairs.ops.columns import plain_batch, plain_schema

_ERRORS = ("read as Arrow", pa.ArrowException, UnicodeDecodeError)


class DatasetsReader(TableReader):
    """Reads `datasets` directories, single ``.arrow`` files, and ``hf://owner/name``."""

    kind = "datasets"
    splits = parses_lists = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` names the hub, an Arrow file, or a directory that ``save_to_disk`` wrote."""
        path = Path(data)
        if data.startswith(HUB) or (data.endswith(".arrow") and not path.is_dir()):
            return True
        return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the Arrow files of one split (``train`` where none is named)."""
        if data.startswith(HUB):
            paths, root = _fetched(data, request.split)
            request = replace(request, image_root=request.image_root or root)
        elif Path(data).is_dir():
            paths = stored_files(Path(data).absolute(), request.split)
        else:
            if request.split is not None:
                chosen_split(request.split, (), data)
            paths = expand_files(data, ".arrow")
        n_rows = sum(count_arrow_rows(path) for path in paths if not path.endswith(".json"))
        return self.described(data, paths, n_rows, request)

    def schema(self, source: Source) -> pa.Schema:
        """The schema that the files share. A dataset without rows has no files, only a note of its columns."""
        note = source.paths[0]
        if not note.endswith(".json"):
            return self.with_lists(source, shared_schema(source.paths, lambda path: plain_schema(_mapped(path).schema)))
        from datasets import Features

        with reading(note, "read for its columns", KeyError, TypeError, ValueError, AttributeError):
            return Features.from_dict(read_object(Path(note), "dataset")["features"]).arrow_schema

    def stored_schema(self, source: Source) -> pa.Schema:
        """See :class:`TableReader`."""
        return _mapped(source.paths[0]).schema if source.n_rows else self.schema(source)

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        left = source.n_rows
        schema = self.schema(replace(source, options={}))
        for path in source.paths if left else ():
            for batch in iter_arrow(path, columns, batch_rows) if left > 0 else ():
                with reading(path, *_ERRORS):
                    part = conformed(batch.slice(0, left), schema)
                left -= len(part)
                if len(part):
                    yield self.rows_of(source, path, part, {})


def stored_files(folder: Path, split: str | None = None) -> list[str]:
    """The Arrow files of a directory of ``save_to_disk``. Its note alone where it has no rows."""
    if (folder / "dataset_dict.json").is_file():
        splits = read_object(folder / "dataset_dict.json", "dataset").get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits) or not splits:
            raise DataError(f"{folder / 'dataset_dict.json'} names no splits; save the dataset again")
        folder = resolve_path(chosen_split(split, splits, str(folder)), folder)
    elif split is not None:
        chosen_split(split, (), str(folder))
    with reading(folder / "state.json", "read for its data files", KeyError, TypeError):
        names = [str(file["filename"]) for file in read_object(folder / "state.json", "dataset")["_data_files"]]
    paths = [str(resolve_path(name, folder)) for name in names]
    missing = [p for p in paths if not Path(p).is_file()]
    if not paths:
        return [str(folder / "dataset_info.json")]
    if missing:
        raise DataError(f"{missing[0]} is missing: the copy of {folder} is not whole")
    return paths


def _fetched(data: str, split: str | None) -> tuple[list[str], str]:
    """The Arrow files of a dataset on the hub, in `datasets`' own cache, and the folder of the hub's cache."""
    name = re.fullmatch(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", data)
    if name is None:
        raise DataError(f"{data} is no dataset on the hub: write hf://owner/name, or hf://owner/name@revision")
    if not hub_allowed.get():
        raise ConfigError(f"{data} is on the hub, which is not asked for what a file names: name it yourself")
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        loaded = datasets.load_dataset(name[1], revision=name[2], split=split)
    except Exception as error:  # of `datasets`, of the hub and of half a dozen libraries for the network
        raise DataError(
            f"{data} could not be fetched from the hub: {error_text(error)}. Check the name, the network and "
            f"`hf auth login`, or give the Parquet files of `hf download --repo-type dataset {name[1]} --local-dir DIR`"
        ) from error
    if isinstance(loaded, dict):
        loaded = loaded[chosen_split(split, list(loaded), data)]
    return cached_files(loaded, data), HF_HUB_CACHE


def cached_files(loaded: Any, data: str) -> list[str]:
    """The Arrow files behind a dataset of `datasets`."""
    paths = [str(Path(file["filename"]).absolute()) for file in loaded.cache_files]
    if not paths or loaded._indices is not None:
        raise DataError(f"{data} has no Arrow files of its own: save it with save_to_disk and give that directory")
    return paths


def _mapped(path: str) -> pa.Table:
    """The rows of a file or a stream, of which only headers are read."""
    of_file, end_of_stream = b"ARROW1", b"\xff\xff\xff\xff\x00\x00\x00\x00"
    with reading(path, *_ERRORS):
        with open_regular(path) as file:
            begin = file.read(len(of_file))
            file.seek(-min(len(end_of_stream), os.fstat(file.fileno()).st_size), os.SEEK_END)
            end = file.read()
        if begin != of_file and end != end_of_stream:
            raise DataError(f"{path} is cut short, or no Arrow file: it lacks the mark of its end; write it again")
        opened = pa.ipc.open_file if begin == of_file else pa.ipc.open_stream
        table = opened(pa.memory_map(path)).read_all()
        _check_names(table.schema)
    return table


def _check_names(kind: pa.Schema | pa.DataType) -> None:
    """Raise UnicodeDecodeError where the name of a column, or of a part of one, is not UTF-8."""
    fields = kind if isinstance(kind, pa.Schema) else [kind.field(i) for i in range(kind.num_fields)]
    for field in fields:
        _ = field.name
        _check_names(field.type)


def count_arrow_rows(path: str) -> int:
    """The number of rows of a file. Its batches are mapped, not read."""
    return len(_mapped(path))


def iter_arrow(path: str, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, at most ``batch_rows`` at once and fewer where rows are large. All columns when None."""
    table = _mapped(path)
    for whole in (table if columns is None else table.select(list(columns))).to_batches():
        with reading(path, *_ERRORS):
            whole.validate(full=True)
            batch = plain_batch(whole)
        step = max(1, min(batch_rows, int(BATCH_BYTES * len(batch) / max(batch.nbytes, 1))))
        for start in range(0, len(batch), step):
            yield batch.slice(start, step)
