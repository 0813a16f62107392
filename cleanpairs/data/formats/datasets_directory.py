"""`datasets`: what ``Dataset.save_to_disk`` and ``DatasetDict.save_to_disk`` leave, and datasets on the hub.

The Arrow files are read memory-mapped. Nothing is fetched unless the name says so: ``hf://owner/name``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.hub import hub_allowed
from cleanpairs.core.regular import read_json, reading
from cleanpairs.data.formats.arrow_io import arrow_schema, count_arrow_rows, iter_arrow
from cleanpairs.data.formats.file_names import expand_files
from cleanpairs.data.formats.remote import HUB
from cleanpairs.data.images import resolve_path
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, Rows, TableReader, chosen_split

_HUB_NAME = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


class DatasetsReader(TableReader):
    """Reads `datasets` directories, single ``.arrow`` files, and ``hf://owner/name``."""

    kind = "datasets"
    splits = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` names the hub, an Arrow file, or a directory that ``save_to_disk`` wrote."""
        path = Path(data)
        if data.startswith(HUB) or (data.endswith(".arrow") and not path.is_dir()):
            return True
        return any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))

    def open(self, data: str, request: ReadRequest) -> Source:
        """The Arrow files of one split (``train`` where none is named)."""
        if data.startswith(HUB):
            paths, root = _fetched(data, request.split)
            request = replace(request, image_root=request.image_root or root)
        elif Path(data).is_dir():
            paths = _files(Path(data).absolute(), request.split)
        else:
            if request.split is not None:
                raise DataError(f"{data} has no splits: it is one Arrow file")
            paths = expand_files(data, ".arrow")
        n_rows = sum(count_arrow_rows(path) for path in paths if not path.endswith(".json"))
        return self.described(data, paths, _schema(paths), n_rows, request)

    def schema(self, source: Source) -> pa.Schema:
        """The one that the files share."""
        return _schema(source.paths)

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        left = source.n_rows
        for path in source.paths if left else ():
            for batch in iter_arrow(path, columns, batch_rows) if left > 0 else ():
                part = batch.slice(0, left)
                left -= len(part)
                if len(part):
                    yield Rows(path, part)


def _json(path: Path) -> Any:
    with reading(path, "read as JSON", ValueError):
        return read_json(path)


def _schema(paths: Sequence[str]) -> pa.Schema:
    """Of the Arrow files; where a dataset has no rows there is none of them, and its note tells."""
    if not paths[0].endswith(".json"):
        return arrow_schema(paths)
    from datasets import Features

    try:
        return Features.from_dict(_json(Path(paths[0]))["features"]).arrow_schema
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{paths[0]} does not say which columns there are: {error}") from error


def _files(folder: Path, split: str | None) -> list[str]:
    """The Arrow files of a directory of ``save_to_disk``; its note alone where it has no rows."""
    if (folder / "dataset_dict.json").is_file():
        note = _json(folder / "dataset_dict.json")
        known = note.get("splits") if isinstance(note, dict) else None
        if not isinstance(known, list) or not all(isinstance(name, str) for name in known) or not known:
            raise DataError(f"{folder / 'dataset_dict.json'} names no splits; save the dataset again")
        folder = resolve_path(chosen_split(split, known, str(folder)), folder)
    elif split is not None:
        raise DataError(f"{folder} has no splits: it is one dataset; leave --split (split) out")
    note = _json(folder / "state.json")
    try:
        names = [str(file["filename"]) for file in note["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / 'state.json'} names no data files; save the dataset again") from error
    paths = [str(resolve_path(name, folder)) for name in names]
    missing = [p for p in paths if not Path(p).is_file()]
    if not paths:
        return [str(folder / "dataset_info.json")]
    if missing:
        raise DataError(f"{missing[0]} is missing: the copy of {folder} is not whole")
    return paths


def _fetched(data: str, split: str | None) -> tuple[list[str], str]:
    """The Arrow files of a dataset on the hub, in `datasets`' own cache, and the folder of what was fetched."""
    name = _HUB_NAME.fullmatch(data)
    if name is None:
        raise DataError(f"{data} is no dataset on the hub: write hf://owner/name, or hf://owner/name@revision")
    if not hub_allowed():
        raise ConfigError(f"{data} is on the hub, which is not asked for what a file names: name it yourself")
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        loaded = datasets.load_dataset(name[1], revision=name[2], split=split)
    except Exception as error:  # of `datasets`, of the hub and of half a dozen libraries for the network
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(
            f"{data} could not be had from the Hugging Face hub: {text}. Check the name and the network; a gated one "
            f"needs `hf auth login`; without a network, fetch it elsewhere (`hf download --repo-type dataset {name[1]} "
            f"--local-dir DIR`) and give its Parquet files ('DIR/data/train-*.parquet'), or what save_to_disk leaves"
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
