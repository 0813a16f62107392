"""The kinds of output: what a sink is, what a format promises, and which format a path asks for.

A format is one file and one line of :data:`FORMATS`. :func:`cleanpairs.export.export_pairs` stages the output, opens
the format's sink in it, writes table by table, counts again what is on disk, and publishes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import Registry
from cleanpairs.data.writing import Sink
from cleanpairs.ops.columns import is_list


@dataclass(frozen=True)
class OutTable:
    """The table that is written, and which column plays which role (None: there is none).

    ``image_root``: folder that image paths are relative to; None where it is not one.
    """

    schema: pa.Schema
    text: str | None
    image: str | None
    key: str | None
    features: str | None
    image_root: Path | None

    @property
    def lists(self) -> bool:
        """Whether a row holds a list of captions."""
        return self.text is not None and is_list(self.schema.field(self.text).type)


class ExportFormat(Protocol):
    """One kind of output.

    ``directory``: it is a directory, not a file; ``selection``: it names samples and holds no captions, so that a
    repair cannot be expressed in it.
    """

    directory: ClassVar[bool]
    selection: ClassVar[bool]

    def open(self, path: Path, table: OutTable) -> Sink:
        """A sink into ``path``, a new file or an empty directory; ConfigError where it cannot hold ``table``."""

    def count(self, path: Path) -> int:
        """Rows that are on disk, counted without the sink that wrote them."""

    def card(self, schema: pa.Schema, rows: int) -> dict[str, object]:
        """What the header of the dataset card says about loading it: ``configs``, ``dataset_info``."""


FORMATS = Registry(
    "export format",
    {
        "parquet": ("cleanpairs.export.parquet_format:ParquetFormat", "one Parquet file"),
        "webdataset": ("cleanpairs.export.webdataset_format:WebDatasetFormat", "a directory of tars, as img2dataset's"),
        "datasets": ("cleanpairs.export.datasets_format:DatasetsFormat", "a directory for datasets.load_from_disk"),
        "uids": ("cleanpairs.export.uids_format:UidsFormat", "a .npy of the uids kept, as DataComp's resharder reads"),
    },
)

_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".npy": "uids", ".tar": "webdataset"}
_PATTERN = re.compile(r".*(\{.*\}|\*).*\.tar")


def choose_format(out: str | Path, name: str | None = None) -> tuple[str, Path]:
    """The format of an output and where it goes: by ``name``, else by the suffix of ``out``.

    ``DIR/{00000..00009}.tar``, or any pattern for tars, is the directory DIR: shards are named by their number.

    Raises ConfigError: an unknown name; a suffix that says nothing, or something else than the name.
    """
    out = Path(out)
    by_suffix = _SUFFIXES.get(out.suffix)
    if name is None and by_suffix is None:
        names = ", ".join(FORMATS.names())
        raise ConfigError(
            f"{out} does not say what it is to be: name it *.parquet, or give its format, --format ({names})"
        )
    chosen = FORMATS.entry(name or str(by_suffix)).name
    if by_suffix is not None and by_suffix != chosen:
        raise ConfigError(f"{out} is named as {by_suffix}, but the format is {chosen}: change one of them")
    if chosen == "webdataset" and out.suffix == ".tar":
        if not _PATTERN.fullmatch(out.name):
            raise ConfigError(
                f"{out} is one tar, and webdataset is a directory of them: name the directory, or "
                f"{out.parent / '{00000..}.tar'}"
            )
        out = out.parent
    if out.name in ("", ".."):
        raise ConfigError(
            f"{out} is the directory that you are in, or above it: name one that can be written as a whole"
        )
    return chosen, out


def make_format(name: str, shard_size: int | None = None) -> ExportFormat:
    """The format called ``name``; ``shard_size`` samples to a tar of webdataset (10,000 when None).

    Raises ConfigError: an unknown name, a shard size below 1, or one for a format that has no shards of samples.
    """
    if shard_size is not None and name != "webdataset":
        raise ConfigError(f"--shard-size is for webdataset; {name} has no shards of so many samples: leave it out")
    made: ExportFormat = FORMATS.load(name)(**({} if shard_size is None else {"shard_rows": shard_size}))
    return made
