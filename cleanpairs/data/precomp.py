"""The research layout: ``{split}_ims.npy``, (n, D) or (n, R, D), and ``{split}_caps.txt``, one caption a line.

NoW (Noise of Web) has ``{split}_caps_{bpe,bert,jieba}.txt`` instead: its captions are published as the numbers of their
tokens, ``17,5,230``, which are read as words, ``17 5 230``.

Every image has the same number of captions (1 or 5 as a rule), in order. Some research files repeat an image's vectors
for each of its captions; equal vectors make one image group, so nothing is lost by that.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import read_text, reading
from cleanpairs.data.arrays import read_vectors
from cleanpairs.data.columns import check_truth
from cleanpairs.data.formats.stored import record_batch
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.parquet_io import read_table
from cleanpairs.data.source import Source
from cleanpairs.data.table_reader import ReadRequest, Rows, TableReader, chosen_split

_NUMBERS = re.compile(r"[\d,\s]*")


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


class PrecompReader(TableReader):
    """Reads the research layout; see :func:`cleanpairs.data.readers.load_pairs`."""

    kind = "precomp"
    splits = True

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
        images, captions = _regions(paths[0]), lines_of(paths[1])
        schema = _schema(images, _per_image(len(images), len(captions), paths) > 1)
        return self.described(data, paths, schema, len(images), replace(request, columns={}))

    def schema(self, source: Source) -> pa.Schema:
        """``key``, ``caption`` (or a list ``captions``) and ``image_features``."""
        return _schema(_regions(source.paths[0]), source.explicit_lists)

    def batches(self, source: Source, batch_rows: int, columns: Sequence[str] | None) -> Iterator[Rows]:
        """See :class:`TableReader`."""
        array, lines, schema = _regions(source.paths[0]), lines_of(source.paths[1]), self.schema(source)
        per_image, split = _per_image(len(array), len(lines), source.paths), _split_of(source)
        for start in range(0, source.n_rows, batch_rows):
            block = np.ascontiguousarray(array[start : min(start + batch_rows, source.n_rows)])
            captions = lines[start * per_image : (start + len(block)) * per_image]
            texts = pa.array(captions, pa.string())
            if source.explicit_lists:
                texts = pa.ListArray.from_arrays(np.arange(len(block) + 1, dtype=np.int32) * per_image, texts)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), block.shape[2])
            if block.shape[1] > 1:
                vectors = pa.FixedSizeListArray.from_arrays(vectors, block.shape[1])
            values = {
                "key": [f"{split}-{start + i}" for i in range(len(block))],
                source.columns["text"]: texts,
                "image_features": vectors,
            }
            yield Rows(source.paths[0], record_batch(schema, values, columns))

    def mapped(self, source: Source) -> list[np.ndarray]:
        """The vectors."""
        return [_regions(source.paths[0])[: source.n_rows]]

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


def _schema(array: np.ndarray, lists: bool) -> pa.Schema:
    vectors = pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[2])
    text = ("captions", pa.list_(pa.string())) if lists else ("caption", pa.string())
    vectors = vectors if array.shape[1] == 1 else pa.list_(vectors, array.shape[1])
    return pa.schema([("key", pa.string()), text, ("image_features", vectors)])


def _split_of(source: Source) -> str:
    return Path(source.paths[0]).name.removesuffix("_ims.npy")


def _regions(path: str) -> np.ndarray:
    """(n, R, D) in this machine's byte order; memory-mapped where it is already."""
    array = read_vectors(path, regions=True)
    array = array[:, None, :] if array.ndim == 2 else array
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def lines_of(path: str) -> list[str]:
    """The captions of a text file, one a line; of token numbers (not in ``*_caps.txt``) commas become spaces."""
    try:
        with reading(path):
            text = read_text(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); save it so") from error
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if Path(path).name.endswith("_caps.txt") or not all(map(_NUMBERS.fullmatch, lines)):
        return lines
    return [" ".join(line.replace(",", " ").split()) for line in lines]


def _per_image(images: int, captions: int, paths: Sequence[str]) -> int:
    if images == 0 and captions == 0:
        return 1
    if images == 0 or captions == 0 or captions % images:
        raise DataError(
            f"{paths[1]} has {captions} captions for the {images} images of {paths[0]}: not the same for each"
        )
    return captions // images
