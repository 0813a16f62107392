"""Nearest neighbours in a bank that is searched shard by shard, by the workers of any engine.

A worker maps the vectors from their files, searches one shard and leaves its top k; the shards are merged here. The
index is chosen by the size of a shard (:mod:`cleanpairs.ops.search`), and what is searched stays searched if the job is
killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.engine.job import run_partitions
from cleanpairs.engine.partitions import Partition
from cleanpairs.engine.work import Engine
from cleanpairs.errors import DataError
from cleanpairs.ops.search import SearchNote, TopK, merge_top_k, top_k
from cleanpairs.regular import sha256_of

__all__ = ["SearchWork", "sharded_top_k"]

SHARD = 1_000_000  # bank rows: 2 GB of 512-d vectors
_BLOCK = 65_536  # queries whose shards are merged at once


@dataclass(frozen=True)
class SearchWork:
    """The ``k`` best rows of a shard of ``bank`` for every row of ``queries``: two ``.npy`` files of (n, d) float.

    The output is an array (2, n, k) of float64 in ``.npy``: scores, and rows of the shard.
    """

    queries: str
    bank: str
    k: int
    exact: bool = False

    def open(self, threads: int | None) -> Callable[[Partition, Path], dict[str, Any]]:
        """Map both files."""
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        queries, bank = _vectors(self.queries), _vectors(self.bank)

        def search(shard: Partition, path: Path) -> dict[str, Any]:
            found = top_k(queries, bank[shard.first : shard.first + shard.rows], self.k, exact=self.exact)
            with path.open("wb") as file:  # whole numbers below 2^53 are exact in float64
                np.save(file, np.stack([found.scores.astype(np.float64), found.indices.astype(np.float64)]))
            return {} if found.note is None else asdict(found.note)

        return search


def sharded_top_k(
    queries: str | Path,
    bank: str | Path,
    k: int,
    folder: str | Path,
    *,
    engine: Engine,
    shard: int = SHARD,
    exact: bool = False,
) -> TopK:
    """The ``k`` bank rows of largest inner product with each query, as :func:`cleanpairs.ops.search.top_k` has them.

    Parameters
    ----------
    queries, bank : path
        ``.npy`` files of (n, d) and (m, d) float; on a cluster, where every machine sees them.
    folder : path
        Of the job; another search in it is replaced. It stays, so that the same search need not be done again.
    engine : Engine
    shard : int
        Bank rows that are searched at once.

    Returns
    -------
    TopK
        Its note has the index of the first shard, and the mean of the recalls.

    Raises
    ------
    DataError
        A file is no matrix of numbers.
    CleanpairsError
        As the engine does.
    """
    queries, bank, folder = (Path(p).absolute() for p in (queries, bank, folder))
    n, m = len(_vectors(str(queries))), len(_vectors(str(bank)))
    shards = [Partition(i, first, min(shard, m - first)) for i, first in enumerate(range(0, m, shard))]
    job = json.dumps(["search", k, exact, *(sha256_of(p) for p in (queries, bank))])
    work = SearchWork(str(queries), str(bank), k, exact)
    done = run_partitions(work, shards, folder, job=job, engine=engine, overwrite=True)
    found = [np.load(folder / s.name, mmap_mode="r", allow_pickle=False) for s in shards]
    scores, indices = np.full((n, k), -np.inf, np.float32), np.full((n, k), -1, np.int64)
    for start in range(0, n if shards else 0, _BLOCK):
        s = slice(start, start + _BLOCK)
        parts = [TopK(f[0, s].astype(np.float32), f[1, s].astype(np.int64)) for f in found]
        merged = merge_top_k(parts, [p.first for p in shards], k)
        scores[s], indices[s] = merged.scores, merged.indices
    notes = [SearchNote(**d.facts) for d in done if d.facts]
    if not notes:
        return TopK(scores, indices, SearchNote("flat", n, m))
    first, recall = notes[0], float(np.mean([note.recall for note in notes]))
    return TopK(scores, indices, SearchNote(first.index, n, m, first.lists, first.probes, recall))


def _vectors(path: str) -> np.ndarray:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a matrix of vectors (.npy): {error}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind != "f":
        raise DataError(f"{path} must hold (n, d) floating-point numbers")
    return found
