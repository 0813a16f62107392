"""The research layout: ``{split}_ims.npy``, (n, D) or (n, R, D), and ``{split}_caps.txt``, one caption a line.

NoW (Noise of Web) has ``{split}_caps_{bpe,bert,jieba}.txt`` instead: its captions are published as the numbers of their
tokens, ``17,5,230``, which are read as words, ``17 5 230``.

Every image has the same number of captions (1 or 5 as a rule), in order. Some research files repeat an image's vectors
for each of its captions; equal vectors make one image group, so nothing is lost by that.
"""

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import cached_by_file, reading
from cleanpairs.data.columns import check_truth
from cleanpairs.data.formats.clip_retrieval import ClipRetrievalReader
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.parquet_io import read_table
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, chosen_split
from cleanpairs.data.text import lines_of
from cleanpairs.data.writing import cached_tables


def splits_of(folder: Path) -> list[str]:
    """The splits that a directory holds, images and captions."""
    names = [p.name.removesuffix("_ims.npy") for p in folder.glob("*_ims.npy")]
    return sorted(n for n in names if (folder / f"{n}_caps.txt").exists() or _tokenised(folder, n))


def _tokenised(folder: Path, split: str) -> list[str]:
    """The tokenisers by which the captions of a split are given."""
    found = [p.stem.removeprefix(f"{split}_caps_") for p in folder.glob(f"{glob.escape(split)}_caps_*.txt")]
    return sorted(found, key=lambda name: (name != "bert", name))  # that of the paper's own command first


def _caption_file(folder: Path, split: str, asked: str | None) -> Path:
    """The file of captions: the plain one, else the tokenised one that was ``asked`` for, else the first."""
    plain, known = folder / f"{split}_caps.txt", _tokenised(folder, split)
    if asked is None:
        return plain if plain.exists() else folder / f"{split}_caps_{known[0]}.txt"
    if asked not in known:
        there = f"captions tokenised by {', '.join(known)}" if known else "no columns"
        raise DataError(f"{folder} is in the research layout and has {there}: {asked!r} cannot be chosen")
    return folder / f"{split}_caps_{asked}.txt"


class PrecompReader(ClipRetrievalReader):
    """Reads the research layout; see :func:`cleanpairs.data.readers.load_pairs`."""

    kind = "precomp"
    splits = True
    streams = False
    regions = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a directory with at least one split."""
        return Path(data).is_dir() and bool(splits_of(Path(data)))

    def open(self, data: str, request: ReadRequest) -> Source:
        """The files of one split (``train`` where none is named)."""
        for named in (request.columns.get("image"), request.columns.get("key"), request.image_root):
            if named is not None:
                raise DataError(f"{data} is in the research layout, without columns or an image root: {named!r}")
        folder = Path(data).absolute()
        known = splits_of(folder)
        name = chosen_split(request.split or (known[0] if "train" not in known else None), known, data)
        paths = [str(folder / f"{name}_ims.npy"), str(_caption_file(folder, name, request.columns.get("text")))]
        truth = folder / f"{name}_truth.parquet"
        if truth.exists():
            paths.append(str(truth))
        request = replace(request, columns={})
        return self.described(data, paths, self._schema(*self._parts(paths)), len(self._array(paths[0])), request)

    def _files(self, source: Source) -> tuple[list[str], list[str], list[str]]:
        """The images, and their captions as a table in the cache."""
        return self._parts(source.paths)

    def _parts(self, paths: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        return [paths[0]], [], [_table(paths[1], paths[0], len(self._array(paths[0])))]

    def load(self, source: Source) -> Pairs:
        """All pairs of the split, with what ``corrupt`` left beside the captions."""
        pairs = super().load(source)
        if len(source.paths) < 3:
            return pairs
        with reading(source.paths[2], "read", pa.ArrowException, KeyError):
            table = read_table(source.paths[2])
            check_truth(table.schema, source.paths[2])
            mismatch, keys = table["true_mismatch"].to_numpy(), table["true_key"].to_pylist()
        if len(mismatch) != (total := len(lines_of(source.paths[1]))):
            raise DataError(f"{source.paths[2]} has {len(mismatch)} rows for {total} captions")
        n = len(pairs)
        return replace(pairs, true_mismatch=np.asarray(mismatch[:n], dtype=bool), true_key=[str(k) for k in keys[:n]])


@cached_by_file(16)
def _table(captions: str, images: str, n: int) -> str:
    """The Parquet file in the cache with ``key`` and ``caption`` (or a list ``captions``) of each of ``n`` images."""
    lines = lines_of(captions)
    if bool(lines) != bool(n) or (n and len(lines) % n):
        raise DataError(f"{captions} has {len(lines)} captions for the {n} images of {images}: not the same for each")
    split, each = Path(images).name.removesuffix("_ims.npy"), len(lines) // max(n, 1)
    keys = pa.array([f"{split}-{i}" for i in range(n)], pa.string())
    texts = pa.array(lines, pa.string())
    if each > 1:
        table = {"key": keys, "captions": pa.ListArray.from_arrays(np.arange(n + 1, dtype=np.int32) * each, texts)}
    else:
        table = {"key": keys, "caption": texts}
    return str(cached_tables([pa.table(table)]))
