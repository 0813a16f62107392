"""Nearest neighbours by the workers of any engine, each of which answers a part of the queries.

This process builds the index once, in files that the workers map. A part of the queries is a block of the search as
:func:`cleanpairs.ops.search.top_k` does it, so that the answer is the same, bit for bit, with as many threads.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.data.atomic import staged_file
from cleanpairs.engine.work import Engine, Partition, claim_folder, remove_job, run_partitions
from cleanpairs.ops.search import Prepared, SearchNote, TopK, load_faiss, prepare

INDEX = "lists.faiss"


@dataclass(frozen=True)
class QueryWork:
    """The ``k`` best rows of a part of the queries. The files of the search are in ``folder``.

    The output is two arrays in ``.npy`` format, one after the other: scores (n, k) float32 and indices (n, k) int64.
    """

    folder: str
    k: int
    note: SearchNote

    def __call__(self, part: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        prepared, queries = self._opened
        with path.open("wb") as file:
            for array in prepared(queries[part.first : part.first + part.rows]):
                np.save(file, array)
        return {}

    @cached_property
    def _opened(self) -> tuple[Prepared, np.ndarray]:
        index = load_faiss().read_index(str(Path(self.folder) / INDEX)) if self.note.index == "ivf" else None
        # Writable, since PyTorch warns of arrays that are not. Nothing is written.
        queries, rows = (
            np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
            for name in ("queries", "rows")
        )
        return Prepared(rows, self.k, self.note, index), queries


@dataclass
class EngineSearch:
    """Searches by the workers of ``engine``, whose jobs lie in ``folder`` until :meth:`remove`.

    The same searches resume after a kill.
    """

    folder: Path
    engine: Engine
    _searches: list[Path] = field(default_factory=list)

    def __call__(self, queries: np.ndarray, rows: np.ndarray, k: int) -> TopK:
        """As :func:`cleanpairs.ops.search.top_k`. Raises CleanpairsError: as the engine does."""
        prepared = prepare(queries, rows, k)
        folder = self.folder.absolute() / f"search-{len(self._searches)}"
        self._searches.append(folder)
        n = len(queries)
        parts = [Partition(i, f, min(prepared.block, n - f)) for i, f in enumerate(range(0, n, prepared.block))]
        claim_folder(self.folder)
        claim_folder(folder)
        digests = [_write_array(folder, name, x) for name, x in (("queries", queries), ("rows", prepared.rows))]
        if prepared.index is not None:
            load_faiss().write_index(prepared.index, str(folder / INDEX))
        job = json.dumps(["queries", k, asdict(prepared.note), digests])
        # The vectors follow from model and data: a search in this folder that is another one is out of date.
        work = QueryWork(str(folder), k, prepared.note)
        stage = f"search {len(self._searches)}"  # as a search of this process
        run_partitions(work, parts, folder, job=job, engine=self.engine, overwrite=True, stage=stage)
        scores, indices = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
        for part in parts:
            s = slice(part.first, part.first + part.rows)
            with (folder / part.name).open("rb") as file:
                scores[s], indices[s] = (np.load(file, allow_pickle=False) for _ in range(2))
        return TopK(scores, indices, prepared.note)

    def remove(self) -> None:
        """Remove the files of the searches."""
        for folder in self._searches:
            for name in ("queries.npy", "rows.npy", INDEX):
                (folder / name).unlink(missing_ok=True)
            remove_job(folder)
        if self._searches:  # else the folder was never claimed: its files are the user's
            remove_job(self.folder)


def _write_array(folder: Path, name: str, array: np.ndarray) -> str:
    """Write an array as ``folder/name.npy``. Return the SHA-256 of its numbers."""
    array = np.ascontiguousarray(array, np.float32)
    with staged_file(folder / f"{name}.npy", overwrite=True) as staged:
        np.save(staged, array)
    return hashlib.sha256(array.data if array.size else b"").hexdigest()
