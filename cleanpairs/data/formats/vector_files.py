"""Loose arrays of vectors: ``.npy`` files (n, D) of the images and of the captions, perhaps with a file of captions.

Each side may lie in several files, which are taken one after another, those of a glob by the numbers at the end of
their names. Captions come one a line (.txt) or from Parquet, whose other columns come along; without Parquet a row's
key is its number. Row i of one side belongs to row i of the other.
"""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.data.arrays import read_vectors
from cleanpairs.data.formats.clip_retrieval import ClipRetrievalReader, by_number
from cleanpairs.data.formats.file_names import expand_braces, expand_files
from cleanpairs.data.parquet_io import count_rows
from cleanpairs.data.source import Source, fingerprint_of
from cleanpairs.data.table_reader import ReadRequest
from cleanpairs.data.text import lines_of
from cleanpairs.data.writing import cached_tables


class VectorFilesReader(ClipRetrievalReader):
    """Reads ``.npy`` files of image vectors, beside those that ``text_vectors`` and ``captions`` name."""

    kind = "npy"

    @staticmethod
    def recognises(data: str) -> bool:
        """Whether ``data`` is a ``.npy`` file, or names some by a glob or braces."""
        return not Path(data).is_dir() and all(name.endswith(".npy") for name in expand_braces(data))

    def open(self, data: str, request: ReadRequest) -> Source:
        """The files, which must hold equally many rows."""
        columns = dict(request.columns)
        texts, captions = columns.pop("text_features", None), columns.pop("captions", None)
        sides = [_files(data), [] if texts is None else _files(texts)]
        n = sum(len(read_vectors(p)) for p in sides[0])
        notes = _table(captions, n)
        rows = {data: n, texts: sum(len(read_vectors(p)) for p in sides[1]), captions: sum(count_rows(notes))}
        rows.pop(None, None)
        if len(set(rows.values())) > 1:
            found = ", ".join(f"{name} has {count:,}" for name, count in rows.items())
            raise DataError(f"row i of each belongs together, and their numbers of rows differ: {found}")
        counts = ",".join(str(len(part)) for part in (*sides, notes))
        schema, paths = self._schema(sides[0], sides[1], notes), [*sides[0], *sides[1], *notes]
        source = self.described(data, paths, schema, n, replace(request, columns=columns), {"files": counts})
        if captions is None or not captions.endswith(".txt"):
            return source
        original = Source(self.kind, (str(Path(captions).absolute()),), {}, "", n, None, False)
        return replace(source, original=replace(original, fingerprint=fingerprint_of(original)))

    def _files(self, source: Source) -> tuple[list[str], list[str], list[str]]:
        """The files with vectors of images, with vectors of captions, and with rows."""
        images, texts, _ = map(int, source.options["files"].split(","))
        paths = list(source.paths)
        return paths[:images], paths[images : images + texts], paths[images + texts :]


def _files(names: str) -> list[str]:
    """The ``.npy`` files that are meant, absolute: those of a glob by their numbers, others in the order given."""
    found: list[str] = []
    for name in expand_braces(names):
        found += sorted(expand_files(name, ".npy"), key=lambda p: by_number(Path(p)))
    return found


def _table(captions: str | None, n: int) -> list[str]:
    """The Parquet files that hold the rows; of a file of lines, and of no captions at all, one in the cache."""
    if captions is not None and not captions.endswith(".txt"):
        if not captions.endswith(".parquet"):
            raise DataError(f"{captions} must be captions one a line (.txt), or Parquet with a column of captions")
        return sorted(expand_files(captions, ".parquet"), key=lambda p: by_number(Path(p)))
    lines = None if captions is None else lines_of(captions)
    keys = pa.array(range(n if lines is None else len(lines))).cast(pa.string())
    return [str(cached_tables([pa.table({"key": keys} | ({} if lines is None else {"caption": lines}))]))]
