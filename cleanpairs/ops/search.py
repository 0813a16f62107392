"""Nearest neighbours by inner product, by the index that the size asks for.

    flat     up to 100,000 rows, unless so many queries take a minute, or few queries: exact. A flat FAISS index. On a
             GPU FAISS's where its GPU build is there, else matrix products in blocks.
    ivf      above, on a CPU: FAISS's inverted lists of product codes of four bits (André, Kermarrec and Le Scouarnec,
             "Quicker ADC", 2019). The nearest by the codes, twice as many as wanted, are ranked again by the
             vectors: the scores are true inner products. As many lists are probed as give a recall@10 of 0.92 on a
             sample of the queries. Flat where that would take no less time.

Which it was, and its recall, is in the answer.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from cleanpairs.ops.mapped import blocks, release

FLAT_UP_TO = 100_000  # searched rows
LEAST_RECALL = 0.92  # recall@10 of the approximate search, on a sample
_RERANK, _RERANK_MIN = 2, 64  # times k, and at least so many, are ranked again by their vectors
_IVF_BLOCK = 1 << 12  # queries

_CPU_NUMBERS = 1 << 24  # of a block of the searched rows, and of scores, without FAISS
_FLAT_BLOCK = 1 << 16  # queries of an exact search at once: FAISS itself takes 4,096


@dataclass(frozen=True)
class SearchNote:
    """How neighbours were looked for."""

    index: str  # "flat" or "ivf"
    queries: int  # rows
    rows: int  # that are searched
    lists: int = 0
    probes: int = 0  # of each query
    recall: float = 1.0  # recall@10 on a sample of the queries


@dataclass(frozen=True)
class TopK:
    """The nearest rows of each query."""

    scores: np.ndarray  # (n, k) float32: inner products, falling along a row, -inf where there are fewer rows
    indices: np.ndarray  # (n, k) int64: numbers of rows, -1 where there is none
    note: SearchNote | None = None  # None if not searched for by this module


def top_k(
    queries: np.ndarray, rows: np.ndarray, k: int, *, exact: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TopK:  # fmt: skip
    """The ``k`` rows of largest inner product with each query. Which index finds them, see the module's head.

    ``queries`` (n, d), ``rows`` (m, d) float: there may be none. ``k``: 1 or more. ``exact``: never approximate.
    ``progress``: called with the numbers of queries that are answered, and of all. The
    same input gives the same answer. Where there are fewer rows than ``k``, scores are -inf and indices -1.
    """
    prepared = prepare(queries, rows, k, exact=exact)
    n = len(queries)
    scores, indices = np.empty((n, k), np.float32), np.empty((n, k), np.int64)
    for s in blocks(n, prepared.block):
        scores[s], indices[s] = prepared(queries[s])
        release(queries)
        if progress is not None:
            progress(s.stop, n)
    return TopK(scores, indices, prepared.note)


@dataclass(frozen=True)
class Prepared:
    """A search of ``rows`` (m, d), or of FAISS's ``index`` of them, for the ``k`` best of each query.

    A block of ``block`` queries gives the same numbers on every machine, with as many threads.
    """

    rows: np.ndarray
    k: int
    note: SearchNote
    index: Any = None

    @property
    def block(self) -> int:
        """The number of queries that are answered at once."""
        return _FLAT_BLOCK if self.index is None else _IVF_BLOCK

    @cached_property
    def flat(self) -> Any:
        """FAISS's index, where that is the fastest exact way. It holds the rows once more."""
        faiss = load_faiss()
        if _gpu() and not _faiss_gpus(faiss):
            return None
        index: Any = faiss.IndexFlatIP(self.rows.shape[1])
        if _faiss_gpus(faiss) and self.k <= 2048:  # neighbours: its GPU indexes give no more
            index = faiss.index_cpu_to_all_gpus(index)
        index.add(self.rows)
        return index

    def __call__(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores (b, k) float32, falling, and numbers of rows (b, k) int64, of queries (b, d). -inf and -1 for none."""
        scores = np.full((len(queries), self.k), -np.inf, np.float32)
        indices = np.full((len(queries), self.k), -1, np.int64)
        count = min(self.k, self.note.rows)
        if len(queries) and count:
            vectors = np.ascontiguousarray(queries, np.float32)
            if self.index is not None:
                best = self._approximate(vectors, count)
            elif self.flat is not None:
                best = self.flat.search(vectors, count)
            else:
                best = _search_torch(vectors, self.rows, count)
            # Ties by the smaller index: FAISS's mode and `argpartition` leave the order open.
            order = np.lexsort((best[1], -best[0]), axis=1)
            scores[:, :count], indices[:, :count] = (np.take_along_axis(values, order, 1) for values in best)
        return scores, indices

    def _approximate(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best of the probed lists by their codes, ranked again by the rows themselves."""
        self.index.nprobe = self.note.probes
        _, near = self.index.search(_padded(queries, self.index.d), min(max(_RERANK * k, _RERANK_MIN), self.note.rows))
        scores, order = np.empty(near.shape, np.float32), np.argsort(near, axis=None)  # mapped rows front to back
        for some in blocks(len(order), 1 << 12):  # vectors, before the pages of their file are given back
            at = order[some]
            ids = np.maximum(near.ravel()[at], 0)
            scores.ravel()[at] = _products(queries, at // near.shape[1], self.rows, ids)
            release(self.rows)
        scores[near < 0] = -np.inf
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(near, best, 1)


def _products(queries: np.ndarray, at: np.ndarray, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Inner products (e,) float32 of queries ``at`` (e,) in (b, d) with rows ``ids`` (e,) in (m, d)."""
    faiss = load_faiss()
    if rows.dtype != np.float32 or not rows.flags.c_contiguous:
        rows, ids = rows[ids].astype(np.float32), np.arange(len(ids))
    out = np.empty(len(ids), np.float32)
    pointers = [faiss.swig_ptr(array) for array in (queries, at, rows, ids, out)]
    faiss.pairwise_indexed_inner_product(rows.shape[1], len(ids), *pointers)
    return out


def prepare(queries: np.ndarray, rows: np.ndarray, k: int, *, exact: bool = False) -> Prepared:
    """Prepare the search that :func:`top_k` does, to run it in blocks. Same parameters."""
    n, m = len(queries), len(rows)
    lists = 1 << round(np.log2(np.sqrt(max(m, 1))))
    small = m <= FLAT_UP_TO and n * m <= 2 * 10**9  # products: of 512 numbers, some 25 seconds of one core
    few = n <= 4 * lists  # for them alone each row would be compared with all centres
    approximate = None if exact or small or few or _gpu() else _in_lists(queries, rows, k, lists)
    return approximate or Prepared(np.ascontiguousarray(rows, np.float32), k, SearchNote("flat", n, m))


def _in_lists(queries: np.ndarray, rows: np.ndarray, k: int, lists: int) -> Prepared | None:
    """The rows in lists, with the fewest probes (4, 6, 8, 12, 16 ...) that suffice. None if that does not pay.

    So many queries as ``sample_size`` choose the probes, and as many others measure the recall. Inverted lists pay if
    less than the share ``pays`` of them has to be probed.
    """
    sample_size, pays = 256, 0.5
    m, d = rows.shape
    sample = _taken(queries, np.unique(np.linspace(0, len(queries) - 1, 2 * sample_size).astype(np.int64)))
    truth = _search_torch(sample, rows, min(10, m))[1]
    chooses = np.arange(len(sample)) % 2 == 0
    for part in (4, 2) if d > 512 else (2, 1) if d > 128 else (1,):  # finer codes where rows crowd
        index, probes = _index(rows, lists, part), 4
        while probes <= pays * lists:
            tried = Prepared(rows, k, SearchNote("ivf", len(queries), m, lists, probes), index)
            indices = replace(tried, k=max(k, 10))(sample)[1]
            if recall_at(indices[chooses], truth[chooses]) >= LEAST_RECALL:
                rest = ~chooses if len(sample) > 1 else chooses
                return replace(tried, note=replace(tried.note, recall=recall_at(indices[rest], truth[rest])))
            probes += probes // 2 if probes & (probes - 1) == 0 else probes // 3
    return None


def _index(rows: np.ndarray, lists: int, part: int) -> Any:
    """The rows in FAISS's inverted lists, with a code of four bits for each ``part`` numbers of a vector."""
    faiss = load_faiss()
    m, d = rows.shape
    codes = -(-d // part)
    # Codes of residuals: they say where a row lies in its list.
    index = faiss.index_factory(part * codes, f"IVF{lists},PQ{codes}x4fsr", faiss.METRIC_INNER_PRODUCT)
    for clusters in (index.cp, index.pq.cp):
        clusters.niter, clusters.min_points_per_centroid = 5, 1  # the recall is measured: they need not be the best
    rng = np.random.default_rng(0)
    seen = min(m, 48 * lists)  # rows that k-means sees
    index.train(_padded(_taken(rows, np.sort(rng.choice(m, seen, replace=False))), index.d))
    for some in blocks(m, 1 << 14):
        index.add(_padded(rows[some], index.d))
        release(rows)
    return index


def _taken(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The rows ``chosen`` (k,), rising, in float32."""
    out = np.empty((len(chosen), rows.shape[1]), np.float32)
    for at in blocks(len(chosen), 64):  # they lie far apart: the system may map half a megabyte for each
        out[at] = rows[chosen[at]]
        release(rows)
    return out


def _padded(rows: np.ndarray, d: int) -> np.ndarray:
    """Rows (n, d') as (n, d) float32 with d' <= d, zeros behind."""
    rows = np.ascontiguousarray(rows, np.float32)
    return rows if rows.shape[1] == d else np.pad(rows, ((0, 0), (0, d - rows.shape[1])))


def recall_at(found: np.ndarray, exact: np.ndarray) -> float:
    """Share of the ``exact`` neighbours (n, k) that are among those ``found`` (n, k'). 1 for no queries."""
    return float((found[:, None, :] == exact[:, :, None]).any(axis=2).mean()) if exact.size else 1.0


def _search_torch(queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best in any order by matrix products in float32, on a GPU where there is one, by shards of the rows."""
    import torch

    device = "cuda" if _gpu() else "cpu"
    n, m = len(queries), len(rows)
    of_rows, of_scores = (1 << 30, 1 << 28) if device == "cuda" else (_CPU_NUMBERS, _CPU_NUMBERS)  # at a time
    shard = max(k, min(m, of_rows // rows.shape[1]))
    at_once = max(1, min(n, of_scores // shard))
    scores = torch.full((n, k), -torch.inf)
    indices = torch.full((n, k), -1, dtype=torch.int64)
    with torch.inference_mode():
        for first in range(0, m, shard):
            part = torch.from_numpy(np.array(rows[first : first + shard], np.float32)).to(device)
            release(rows)
            for s in blocks(n, at_once):
                S = torch.from_numpy(queries[s]).to(device) @ part.T  # (at_once, shard)
                new = S.topk(min(k, len(part)), dim=1)
                del S
                merged = torch.cat([scores[s].to(device), new.values], dim=1)
                names = torch.cat([indices[s].to(device), new.indices + first], dim=1)
                best = merged.topk(k, dim=1)
                scores[s], indices[s] = best.values.cpu(), names.gather(1, best.indices).cpu()
            del part
    return scores.numpy(), indices.numpy()


def _gpu() -> bool:
    """Whether there is a GPU to search on."""
    import torch

    return torch.cuda.is_available()


def _faiss_gpus(faiss: Any) -> int:
    """How many GPUs the build of FAISS that is installed can use."""
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


@cache
def load_faiss() -> Any:
    """FAISS, imported at its first use. All its users import it here, so that the same vectors give the same ranks."""
    _choose_openblas_kernel()
    import faiss

    # Numbers of all queries above which FAISS multiplies matrices: 1.15 takes 128,000, ten times slower.
    faiss.cvar.distance_compute_blas_threshold = min(faiss.cvar.distance_compute_blas_threshold, 10_240)
    return faiss


def _choose_openblas_kernel() -> None:
    """Name the kernel for the OpenBLAS inside FAISS's wheel, unless the user has. It does not know all processors by
    name (AMD Zen in some builds). Those get a generic kernel, which is several times slower.
    """
    with suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        flags = next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
        if (kernel := _kernel_of(flags)) is not None:
            os.environ.setdefault("OPENBLAS_CORETYPE", kernel)


def _kernel_of(flags: set[str]) -> str | None:
    """OpenBLAS's name of the fastest kernel for a processor with these flags of /proc/cpuinfo. None: let it choose."""
    if "avx512f" in flags:
        return "SKYLAKEX"
    return "HASWELL" if "avx2" in flags else None
