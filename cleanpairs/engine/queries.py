"""Nearest neighbours by the workers of any engine, each of which answers a part of the queries.

The index is built once, here, and lies in files that the workers map; a part of the queries is a block of the search as
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
from cleanpairs.ops.scratch import MEMORY, Scratch, release
from cleanpairs.ops.search import Prepared, SearchNote, TopK, prepare

INDEX = "lists.faiss"


@dataclass(frozen=True)
class QueryWork:
    """The ``k`` best bank rows of a part of the queries: arrays in ``.npy`` format, one after the other, of the scores
    (n, k) float32, and the indices (n, k) int64. What to search in is ``here``, in this process, or lies in ``folder``.
    """

    folder: str
    k: int
    note: dict[str, Any]
    here: tuple[Prepared, np.ndarray] | None = None

    def __call__(self, part: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        prepared, queries = self.here or self._mapped
        found = prepared(queries[part.first : part.first + part.rows])
        release(queries)
        with path.open("wb") as file:
            for array in found:
                np.save(file, array)
        return {}

    @cached_property
    def _mapped(self) -> tuple[Prepared, np.ndarray]:
        note, index = SearchNote(**self.note), None
        if note.index == "ivf":
            import faiss

            index = faiss.read_index(str(Path(self.folder) / INDEX))
        # As if to be written, which nobody does: PyTorch warns of arrays that cannot be.
        queries, rows = (
            np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
            for name in ("queries", "rows")
        )
        return Prepared(rows, self.k, note, index), queries


@dataclass
class EngineSearch:
    """Searches by ``engine``, whose answers lie in ``scratch``, and whose jobs in ``folder`` until :meth:`remove`: the
    same searches go on after a kill. ``job`` names what the vectors follow from; without it they are hashed.
    """

    folder: Path
    engine: Engine
    scratch: Scratch = MEMORY
    job: str | None = None
    _searches: list[Path] = field(default_factory=list)

    def __call__(self, queries: np.ndarray, bank: np.ndarray, k: int) -> TopK:
        """As :func:`cleanpairs.ops.search.top_k`. Raises CleanpairsError: as the engine does."""
        prepared = prepare(queries, bank, k)
        folder = self.folder.absolute() / f"search-{len(self._searches)}"
        self._searches.append(folder)
        n = len(queries)
        parts = [Partition(i, f, min(prepared.block, n - f)) for i, f in enumerate(range(0, n, prepared.block))]
        claim_folder(self.folder)
        claim_folder(folder)
        digests, here = [str(self.job)], (prepared, queries)
        if self.engine.remote or self.job is None:
            digests = [_lay_down(folder, name, x) for name, x in (("queries", queries), ("rows", prepared.rows))]
            if prepared.index is not None:
                import faiss

                faiss.write_index(prepared.index, str(folder / INDEX))
        work = QueryWork(str(folder), k, asdict(prepared.note), None if self.engine.remote else here)
        job = json.dumps(["queries", k, asdict(prepared.note), digests])
        # The vectors follow from model and data: a search in this folder that is another one is out of date.
        run_partitions(work, parts, folder, job=job, engine=self.engine, overwrite=True)
        scores, indices = self.scratch.empty((n, k), np.float32), self.scratch.empty((n, k), np.int64)
        for part in parts:
            s = slice(part.first, part.first + part.rows)
            with (folder / part.name).open("rb") as file:
                scores[s], indices[s] = (np.load(file, allow_pickle=False) for _ in range(2))
            release(scores, indices)
        return TopK(scores, indices, prepared.note)

    def remove(self) -> None:
        """Remove what the searches have left."""
        for folder in self._searches:
            for name in ("queries.npy", "rows.npy", INDEX):
                (folder / name).unlink(missing_ok=True)
            remove_job(folder)
        remove_job(self.folder)


def _lay_down(folder: Path, name: str, array: np.ndarray) -> str:
    """Write an array as ``folder/name.npy``; the SHA-256 of its numbers."""
    array = np.ascontiguousarray(array, np.float32)
    with staged_file(folder / f"{name}.npy", overwrite=True) as staged:
        np.save(staged, array)
    return hashlib.sha256(array.data if array.size else b"").hexdigest()
