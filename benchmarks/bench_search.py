"""Nearest neighbours: few in a small bank, and by inverted lists, against FAISS and a full sort.

    python benchmarks/bench_all.py --only search

One thread, CPU seconds. OpenBLAS inside FAISS is told its kernel (OPENBLAS_CORETYPE) for both sides, as
`cleanpairs.ops.search` does before it imports it; the last row shows what that is worth: flat FAISS in two processes,
one that tells it and one that does not.

Our search goes through FAISS's inverted lists of product codes, and ranks again by the vectors. It is compared with
FAISS's lists of whole vectors at equal recall: these are given as many probes as bring them to at least the recall of
ours, less 0.005. The vectors are unit vectors of 64 degrees of freedom in 1,000 modes, and queries near
to them. FAISS's search is timed on a sample of the queries and scaled; both sides' training and filling of the
lists is in the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from side_by_side import Machine, Row, take_turns

from cleanpairs.ops import search
from cleanpairs.ops.search import recall_at

K = 10  # neighbours
KERNEL = """
import sys, time
import numpy as np
if sys.argv[1] == "told":
    from cleanpairs.ops.search import _choose_openblas_kernel
    _choose_openblas_kernel()
import faiss
x = np.random.default_rng(0).standard_normal((20_000, 256), np.float32)
index = faiss.IndexFlatIP(256)
index.add(x)
best = 1e9
for _ in range(4):
    began = time.process_time()
    index.search(x[:1000], 10)
    best = min(best, time.process_time() - began)
print(best)
"""


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def modes(rows: int, dim: int, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Bank (rows, dim), and as many queries, each near to one of it."""
    rng = np.random.default_rng(0)
    centres, basis = (rng.standard_normal(shape, np.float32) for shape in ((1000, freedom), (freedom, dim)))
    spread = rng.standard_normal((rows, freedom), np.float32)
    bank = unit((centres[rng.integers(0, 1000, rows)] + spread) @ basis)
    return bank, unit(bank + (0.7 / np.sqrt(dim)) * rng.standard_normal((rows, dim), np.float32))


def small_bank(machine: Machine) -> Iterator[Row]:
    """Top 32 of 100,000 in a bank of 4,096."""
    rng = np.random.default_rng(0)
    queries, bank = (
        unit(rng.standard_normal((20_000, 256), np.float32)),
        unit(rng.standard_normal((4096, 256), np.float32)),
    )
    few = 2000

    def full_sort() -> np.ndarray:
        return np.argsort(-(queries[:few] @ bank.T), axis=1)[:, :32]

    timed = take_turns({"ours": lambda: search.top_k(queries, bank, 32), "sort": full_sort}, 3)
    recall = recall_at(timed.result["ours"].indices[:few], timed.result["sort"])
    n = 100_000
    yield Row(
        "top 32", f"{n:,} in a bank of 4,096, 256-d", timed.seconds["ours"] * n / len(queries), "product and argsort",
        timed.seconds["sort"] * n / few, None, machine.floor(2.0 * n * 4096 * 256), f"scaled; recall {recall:.4f}",
    )  # fmt: skip


def inverted_lists(machine: Machine, rows: int, dim: int, freedom: int, wanted: float) -> Iterator[Row]:
    """All queries by the lists, built and searched, at a recall@10 of ``wanted`` or above."""
    faiss: Any = search.load_faiss()
    bank, queries = modes(rows, dim, freedom)
    lists = 1 << round(np.log2(np.sqrt(rows)))
    some = np.linspace(0, rows - 1, 1000).astype(np.int64)
    exact = search.top_k(queries[some], bank, K, exact=True).indices
    search.LEAST_RECALL = wanted
    began = time.process_time()
    prepared = search.prepare(queries, bank, K)
    built = time.process_time() - began
    if prepared.index is None:
        raise SystemExit(f"no number of probes that pays gives a recall of {wanted}")
    chosen = prepared.note
    began = time.process_time()
    parts = [prepared(queries[at : at + prepared.block])[1] for at in range(0, rows, prepared.block)]
    searched = time.process_time() - began
    recall = recall_at(np.concatenate(parts)[some], exact)

    quantizer = faiss.IndexFlatIP(dim)
    theirs = faiss.IndexIVFFlat(quantizer, dim, lists, faiss.METRIC_INNER_PRODUCT)
    theirs.cp.seed = 0
    began = time.process_time()
    theirs.train(bank[:: max(1, rows // (64 * lists))])
    theirs.add(bank)
    their_build = time.process_time() - began
    theirs.nprobe = max(1, chosen.probes // 2)
    their_recall = 0.0
    while their_recall < recall - 0.005 and theirs.nprobe < lists:
        began = time.process_time()
        _, at = theirs.search(queries[some], K)
        took = (time.process_time() - began) * rows / len(some)
        their_recall = recall_at(at, exact)
        probes, theirs.nprobe = theirs.nprobe, theirs.nprobe + max(1, chosen.probes // 8)
    size = f"top {K} of {rows:,} in {rows:,}, {dim}-d, {lists:,} lists"
    note = (
        f"{chosen.probes} probes, recall {recall:.3f}; {probes} probes, {their_recall:.3f}; "
        f"search alone {took / searched:.2g}, building {their_build / built:.2g}"
    )
    # The centres are products with all queries and rows, and so are the lists that are probed.
    floor = machine.floor(2.0 * rows * dim * (2 * lists + chosen.probes * rows / lists))
    yield Row(
        "inverted lists of codes",
        size,
        built + searched,
        "faiss IVF, equal recall",
        their_build + took,
        4.0,
        floor,
        note,
    )


def kernel() -> Iterator[Row]:
    """Flat FAISS, told its kernel and not."""
    seconds = {}
    for told in ("told", "untold"):
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        done = subprocess.run(
            [sys.executable, "-c", KERNEL, told], capture_output=True, text=True, check=True, env=environment
        )
        seconds[told] = float(done.stdout)
    yield Row("flat FAISS, OPENBLAS_CORETYPE told", "1,000 in 20,000, 256-d", seconds["told"], "as OpenBLAS chooses",
              seconds["untold"])  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """Those of the suite (bench_all.py)."""
    yield from small_bank(machine)
    yield from inverted_lists(machine, 150_000, 256, 64, 0.92)
    yield from kernel()
