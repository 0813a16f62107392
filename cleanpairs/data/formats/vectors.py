"""Vectors in ``.npy`` files, with a table of their rows.

- Embedding folders of clip-retrieval: ``img_emb/img_emb_0.npy`` (n, D) holds the vectors of the images,
  ``text_emb/text_emb_0.npy`` those of the captions, ``metadata/metadata_0.parquet`` the rows. Part 10 after part 9.
- Loose arrays: ``.npy`` files (n, D) of the images and of the captions. Each side may have several files. Captions come
  one a line (.txt) or from Parquet, with its other columns. Without Parquet a row's key is its number.
- The research layout: ``{split}_ims.npy``, (n, D) or (n, R, D), and ``{split}_caps.txt``, one caption a line, as many
  for each image, in order. NoW (Noise of Web) has ``{split}_caps_{bpe,bert,jieba}.txt`` instead, with the numbers of
  the captions' tokens, ``17,5,230``, which are read as words, ``17 5 230``. ``{split}_truth.parquet`` holds the truth
  that :func:`cleanpairs.corrupt` wrote, a row a caption.

The vectors of the images are the column ``image_features``, those of the captions the column ``text_features``.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import DataError, plural
from cleanpairs.core.recipe import DataOptions
from cleanpairs.core.regular import cached_by_file, read_text, reading
from cleanpairs.data.arrays import read_vectors
from cleanpairs.data.columns import TRUTH
from cleanpairs.data.formats.file_names import expand_braces, expand_files
from cleanpairs.data.images import ImageSource, rows_by_file
from cleanpairs.data.parquet_io import common_schema, count_rows, iter_batches, read_table
from cleanpairs.data.rows import Rows
from cleanpairs.data.source import Source, with_original
from cleanpairs.data.table_reader import ParquetReader, chosen_split, record_batch
from cleanpairs.data.writing import cached_tables
from cleanpairs.ops.columns import grouped
from cleanpairs.ops.mapped import release

VECTORS = ("image_features", "text_features")
Parts = tuple[list[str], list[str], list[str]]  # the files with vectors of images, of captions, and with rows


class ClipRetrievalReader(ParquetReader):
    """Reads a folder with ``img_emb`` and ``metadata``, and ``text_emb`` where there is one."""

    kind = "clip-retrieval"
    splits = parses_lists = False
    regions: ClassVar[bool] = False  # whether an image may have several vectors

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a directory with ``img_emb/*.npy``."""
        return any((Path(data) / "img_emb").glob("*.npy"))

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the parts of the folder, which must fit each other."""
        folder = Path(data).absolute()
        images, notes = _parts(folder / "img_emb", ".npy"), _parts(folder / "metadata", ".parquet")
        texts = _parts(folder / "text_emb", ".npy") if (folder / "text_emb").is_dir() else []
        for side in (images, texts) if texts else (images,):
            if len(side) != len(notes):
                raise DataError(f"{Path(side[0]).parent} has {len(side)} parts, {folder / 'metadata'} has {len(notes)}")
            for path, note in zip(side, notes, strict=True):
                count, (n,) = len(read_vectors(path)), count_rows([note])
                if by_number(path)[0] != by_number(note)[0] or count != n:
                    raise DataError(f"{path} with {plural(count, 'vector')} does not go with {note} (rows: {n})")
        request = replace(request, text_vectors=request.text_vectors or (VECTORS[1] if texts else None))
        return self.described(data, [*images, *texts, *notes], sum(count_rows(notes)), request)

    def parts(self, source: Source) -> Parts:
        """The files of each side."""
        parts: Parts = ([], [], [])
        for path in source.paths:
            parts[("img_emb", "text_emb", "metadata").index(Path(path).parent.name)].append(path)
        return parts

    def schema(self, source: Source) -> pa.Schema:
        """The schema of the rows, with ``image_features`` and ``text_features``."""
        *sides, notes = self.parts(source)
        schema = common_schema(notes)
        for name, parts in zip(VECTORS, sides, strict=True):
            arrays = [self._array(path) for path in parts]
            shapes = {array.shape[1:]: path for path, array in zip(parts, arrays, strict=True)}
            if len(shapes) > 1:
                listed = ", ".join(f"{Path(path).name} has {shape}" for shape, path in shapes.items())
                raise DataError(f"the parts of {Path(parts[0]).parent} differ in shape: {listed}")
            if shapes and name in schema.names:
                raise DataError(f"{notes[0]} has a column {name!r}, which vectors of the folder are called: rename it")
            for shape in shapes:
                kind = pa.from_numpy_dtype(_wider(arrays))
                for size in reversed(shape):
                    kind = pa.list_(kind, int(size))
                schema = schema.append(pa.field(name, kind))
        return schema

    def _array(self, path: str) -> np.ndarray:
        array = read_vectors(path, self.regions)  # (n, D), or (n, R, D) where there may be regions
        return array[:, 0] if array.ndim == 3 and array.shape[1] == 1 else array

    def batches(
        self, source: Source, batch_rows: int, columns: Sequence[str] | None, first: int = 0, rows: int | None = None
    ) -> Iterator[Rows]:
        """See :class:`TableReader`. Rows have their vectors."""
        rows = source.n_rows if rows is None else rows
        *sides, notes = self.parts(source)
        schema = self.schema(source)
        names = schema.names if columns is None else list(columns)
        arrays = {name: [self._array(p) for p in parts] for name, parts in zip(VECTORS, sides, strict=True)}
        for path, batch in iter_batches(notes, [n for n in names if n not in VECTORS], batch_rows, rows, first):
            values = {name: batch.column(name) for name in batch.schema.names}
            for name in set(VECTORS) & set(names):
                block = _rows(arrays[name], first, first + len(batch))
                values[name] = pa.array(block.reshape(-1))
                for size in reversed(block.shape[1:]):
                    values[name] = pa.FixedSizeListArray.from_arrays(values[name], size)
            yield Rows(path, record_batch(schema, values, names))
            first += len(batch)

    def encoded(self, source: Source) -> ImageSource | None:
        """The images that the rows name. Where there are vectors, only if there is an image root: for thumbnails."""
        return None if source.image_root is None and "features" in source.columns else super().encoded(source)

    def mapped(self, source: Source) -> list[np.ndarray]:
        """The vectors, where each side is one part, and no other column is named in its place."""
        images, texts, _ = self.parts(source)
        arrays = [self._array(p)[: source.n_rows] for p in (*images, *texts)]
        own = set(VECTORS[: 1 + bool(texts)]) <= set(source.columns.values())
        if not own or max(len(images), len(texts)) > 1 or not all(array.dtype.isnative for array in arrays):
            return []
        return [arrays[0][:, None] if arrays[0].ndim == 2 else arrays[0], *arrays[1:]]


class VectorFilesReader(ClipRetrievalReader):
    """Reads ``.npy`` files of image vectors, with the files of ``text_vectors`` and ``captions``."""

    kind = "npy"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.npy`` file, or names some by a glob or braces."""
        return not Path(data).is_dir() and all(name.endswith(".npy") for name in expand_braces(data))

    def open(self, data: str, request: DataOptions) -> Source:
        """Find the files, which must have equally many rows."""
        texts, captions = request.text_vectors, request.captions
        sides = [_parts(data, ".npy"), [] if texts is None else _parts(texts, ".npy")]
        n, others = (sum(len(read_vectors(p)) for p in side) for side in sides)
        notes = _rows_of(captions, n)
        rows = {data: n, texts: others, captions: sum(count_rows(notes))}
        rows.pop(None, None)
        if len(set(rows.values())) > 1:
            listed = ", ".join(f"{name} has {count:,}" for name, count in rows.items())
            raise DataError(f"row i of each belongs together, and their numbers of rows differ: {listed}")
        counts = ",".join(str(len(part)) for part in (*sides, notes))
        paths, request = [*sides[0], *sides[1], *notes], replace(request, text_vectors=VECTORS[1] if texts else None)
        source = self.described(data, paths, n, request, files=counts)
        if captions is None or not captions.endswith(".txt"):
            return source
        return with_original(source, [str(Path(captions).absolute())])

    def parts(self, source: Source) -> Parts:
        """The files of each side."""
        images, texts, _ = map(int, source.options["files"].split(","))
        paths = list(source.paths)
        return paths[:images], paths[images : images + texts], paths[images + texts :]


class PrecompReader(ClipRetrievalReader):
    """Reads the research layout. Its captions become a table in the cache."""

    kind = "precomp"
    splits = True
    streams = False
    regions = True

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a directory with at least one split."""
        return Path(data).is_dir() and bool(splits_of(Path(data)))

    def open(self, data: str, request: DataOptions) -> Source:
        """The files of one split (``train`` where none is named)."""
        for option in (request.image_column, request.key_column, request.image_root):
            if option is not None:
                raise DataError(f"{data} is in the research layout, without columns or an image root: {option!r}")
        folder = Path(data).absolute()
        splits = splits_of(folder)
        name = chosen_split(request.split or (splits[0] if "train" not in splits else None), splits, data)
        tokeniser, tokenised = request.text_column, _tokenised(folder, name)
        captions = folder / f"{name}_caps.txt"
        if tokeniser is None and not captions.exists():
            tokeniser = tokenised[0]
        if tokeniser is not None:
            if tokeniser not in tokenised:
                found = f"captions tokenised by {', '.join(tokenised)}" if tokenised else "no columns"
                raise DataError(f"{folder} is in the research layout and has {found}: {tokeniser!r} cannot be chosen")
            captions = folder / f"{name}_caps_{tokeniser}.txt"
        paths = [str(folder / f"{name}_ims.npy"), str(captions)]
        paths += [str(truth) for truth in (folder / f"{name}_truth.parquet",) if truth.exists()]
        request = replace(request, text_column=None, text_vectors=None)
        return self.described(data, paths, len(self._array(paths[0])), request)

    def parts(self, source: Source) -> Parts:
        """The images, and their captions as a table in the cache, with the truth of ``corrupt`` where there is one."""
        images, captions, *truth = source.paths
        rows = _captions(captions, images, len(self._array(images)))
        return [images], [], [_with_truth(truth[0], rows) if truth else rows]


def by_number(path: str) -> tuple[int, list[str | int]]:
    """The number at the end of a file's name, and the sort key of files: texts and numbers of the name in turn."""
    parts = re.split(r"(\d+)", Path(path).stem)
    return int(parts[-2]) if parts[1:] and not parts[-1] else -1, [int(p) if p.isdecimal() else p for p in parts]


def _parts(data: str | Path, ending: str) -> list[str]:
    """The files of ``data``: those of a folder or a glob by their numbers, others in the order given."""
    names = [str(data)] if Path(data).exists() else expand_braces(str(data))
    return [path for name in names for path in sorted(expand_files(name, ending), key=lambda p: by_number(p)[1])]


def _rows(arrays: Sequence[np.ndarray], first: int, last: int) -> np.ndarray:
    """Rows first to last of the arrays one after the other, in one type."""
    within = rows_by_file([len(array) for array in arrays], np.arange(first, last))
    parts = [arrays[number][rows[0] : rows[-1] + 1] for number, _, rows in within]
    block = np.concatenate(parts) if parts else arrays[0][:0]  # a copy
    release(*parts)  # a mapped page that was read counts as memory
    return np.ascontiguousarray(block, _wider(arrays))


def _wider(arrays: Sequence[np.ndarray]) -> np.dtype:
    """The type that holds the values of all arrays, in this machine's byte order."""
    return np.result_type(*{array.dtype for array in arrays}).newbyteorder("=")


def _rows_of(captions: str | None, n: int) -> list[str]:
    """The Parquet files that hold the rows. A file of lines, or no captions, becomes one in the cache."""
    if captions is not None and not captions.endswith(".txt"):
        if not captions.endswith(".parquet"):
            raise DataError(f"{captions} must be captions one a line (.txt), or Parquet with a column of captions")
        return _parts(captions, ".parquet")
    lines = None if captions is None else _lines_of(captions)
    keys = pa.array(range(n if lines is None else len(lines))).cast(pa.string())
    return [str(cached_tables([pa.table({"key": keys} | ({} if lines is None else {"caption": lines}))]))]


def _lines_of(path: str) -> list[str]:
    """The captions of a text file, one a line. Commas of token numbers (not in ``*_caps.txt``) become spaces."""
    with reading(path, "read as UTF-8", UnicodeDecodeError):
        text = read_text(path).removeprefix("\ufeff")
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if Path(path).name.endswith("_caps.txt") or not all(re.fullmatch(r"[\d,\s]*", line) for line in lines):
        return lines
    return [" ".join(line.replace(",", " ").split()) for line in lines]


def splits_of(folder: Path) -> list[str]:
    """The splits that a directory in the research layout holds, images and captions."""
    names = [p.name.removesuffix("_ims.npy") for p in folder.glob("*_ims.npy")]
    return sorted(n for n in names if (folder / f"{n}_caps.txt").exists() or _tokenised(folder, n))


def _tokenised(folder: Path, split: str) -> list[str]:
    """The tokenisers of a split's captions."""
    endings = [p.stem.removeprefix(f"{split}_caps_") for p in folder.glob(f"{glob.escape(split)}_caps_*.txt")]
    return sorted(endings, key=lambda name: (name != "bert", name))  # the one of the paper's command first


@cached_by_file(16)
def _captions(captions: str, images: str, n: int) -> str:
    """The Parquet file in the cache with ``key`` and ``caption`` (or a list ``captions``) of each of ``n`` images."""
    lines = _lines_of(captions)
    if bool(lines) != bool(n) or (n and len(lines) % n):
        raise DataError(f"{captions} has {plural(len(lines), 'caption')} for {n} of {images}: not the same for each")
    split, each = Path(images).name.removesuffix("_ims.npy"), len(lines) // max(n, 1)
    keys, texts = pa.array([f"{split}-{i}" for i in range(n)], pa.string()), pa.array(lines, pa.string())
    if each > 1:
        texts = grouped(texts, np.full(n, each))
    return str(cached_tables([pa.table({"key": keys, "captions" if each > 1 else "caption": texts})]))


@cached_by_file(16)
def _with_truth(truth: str, rows: str) -> str:
    """The Parquet file in the cache with the ``rows`` and the columns of their ``truth``, a row a caption."""
    table, labels = read_table(rows), read_table(truth)
    lists = "captions" in table.column_names
    counts = np.asarray(pc.list_value_length(table["captions"])) if lists else np.ones(len(table), int)
    if len(labels) != counts.sum():
        raise DataError(f"{truth} speaks of {plural(len(labels), 'pair')}, the data has {counts.sum()}")
    for name in [name for name in TRUTH if name in labels.column_names]:
        table = table.append_column(name, grouped(labels[name], counts) if lists else labels[name])
    return str(cached_tables([table]))
