"""The kinds of output, each one file and one line of :data:`FORMATS`, and which of them a path asks for."""

import re
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from cleanpairs.core import ConfigError
from cleanpairs.core.registry import Registry
from cleanpairs.data.writing import ParquetSink, Sink
from cleanpairs.export.layout import Layout


class Output(Sink):
    """Writes the rows of ``layout.out_schema`` into ``path``, a new file or an empty directory.

    - ``directory``: whether it is a directory
    - ``selection``: whether it names samples and holds no captions. It cannot express a repair
    - ``loads``: its files on the hub, which are a dataset's one split

    Raises ConfigError: it cannot hold these rows.
    """

    directory: ClassVar[bool] = False
    selection: ClassVar[bool] = False
    loads: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, path: Path, layout: Layout, **shards: int) -> None: ...


class ParquetOutput(ParquetSink, Output):
    """See :class:`cleanpairs.data.ParquetSink`."""

    loads: ClassVar[str | None] = "data/train-*.parquet"

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(path, layout.out_schema)


FORMATS = Registry(
    "export format",
    {
        "parquet": ("cleanpairs.export.formats:ParquetOutput", "one Parquet file"),
        "webdataset": ("cleanpairs.export.webdataset_format:WebDatasetOutput", "a directory of tars, as img2dataset's"),
        "datasets": ("cleanpairs.export.datasets_format:DatasetsOutput", "a directory for datasets.load_from_disk"),
        "csv": ("cleanpairs.export.csv_format:CsvOutput", "a CSV that names the files of the images"),
        "lance": ("cleanpairs.export.lance_format:LanceOutput", "a directory of Lance"),
        "uids": ("cleanpairs.export.uids_format:UidsOutput", "a .npy of the uids kept, as DataComp's resharder reads"),
    },
)


def choose_format(out: str | Path, name: str | None = None) -> tuple[str, Path]:
    """The format of an output and where it goes: by ``name``, else by the suffix of ``out``. Any pattern for tars in
    DIR, such as ``DIR/{00000..00009}.tar``, is the directory DIR. Raises ConfigError: neither is known, or they differ.
    """
    out = Path(out)
    suffixes = {f".{name}": name for name in ("parquet", "csv", "lance")}
    suffixes |= {".pq": "parquet", ".npy": "uids", ".tar": "webdataset"}
    by_suffix = suffixes.get(out.suffix)
    if name is None and by_suffix is None:
        raise ConfigError(f"{out} does not say its format: name it *.parquet, or give --format ({', '.join(FORMATS)})")
    chosen = FORMATS[name or str(by_suffix)].name
    if by_suffix is not None and by_suffix != chosen:
        raise ConfigError(f"{out} is named as {by_suffix}, but the format is {chosen}: change one of them")
    if chosen == "webdataset" and out.suffix == ".tar":
        if not re.fullmatch(r".*(\{.*\}|\*).*\.tar", out.name):
            raise ConfigError(f"{out} is one tar, and webdataset is a directory of them: name the directory")
        out = out.parent
    if out.name in ("", ".."):
        raise ConfigError(f"{out} is the directory that you are in, or above it: name one that can be replaced")
    return chosen, out
