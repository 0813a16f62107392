"""Peak memory and speed of ``cleanpairs score`` on many rows of precomputed vectors.

    OMP_NUM_THREADS=2 python benchmarks/bench_score.py --rows 1000000 --dim 512 --work /tmp/bench-score

Writes synthetic rows (a caption of 4 to 12 words out of 2,000, a vector that depends on them), fits a small model on
2,000 of them, then scores all of them in a process of its own and prints that process's peak memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_rows(path: Path, rows: int, dim: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    words = rng.normal(size=(2000, dim)).astype(np.float32)
    names = np.array([f"word{i}" for i in range(2000)], object)
    vector = pa.list_(pa.float32(), dim)
    schema = pa.schema([("key", pa.string()), ("caption", pa.string()), ("image_features", vector)])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, rows, 20_000):
            n = min(20_000, rows - start)
            chosen = rng.integers(0, 2000, size=(n, 12))
            lengths = rng.integers(4, 13, size=n)
            present = np.arange(12) < lengths[:, None]
            vectors = np.einsum("nk,nkd->nd", present.astype(np.float32), words[chosen])
            captions = [" ".join(names[c[:k]]) for c, k in zip(chosen, lengths.tolist(), strict=True)]
            flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).ravel()), dim)
            keys = pa.array([str(start + i) for i in range(n)])
            writer.write_batch(pa.RecordBatch.from_arrays([keys, pa.array(captions), flat], schema=schema))


def cleanpairs(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "cleanpairs", *args], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--work", type=Path, default=Path("bench-score"))
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    data, run, out = args.work / f"rows-{args.rows}-{args.dim}.parquet", args.work / "run", args.work / "scores.parquet"
    if not data.exists():
        write_rows(data, args.rows, args.dim)
    print(f"{args.rows:,} rows of {args.dim}-d vectors, {data.stat().st_size / 2**20:,.0f} MiB", flush=True)
    small = args.work / f"small-{args.dim}.parquet"
    if not small.exists():
        write_rows(small, 2000, args.dim)
    short = ("--epochs", "2", "--set", "refine_epochs=[2]")
    cleanpairs("fit", str(small), "--out", str(run), "--overwrite", "--quiet", *short)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    began = time.perf_counter()
    cleanpairs("score", str(run), str(data), "--out", str(out), "--overwrite")
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    note = "" if peak > before else " (no more than the fit before it)"
    print(f"score: {args.rows / seconds:,.0f} rows/s, peak {peak / 2**20:.2f} GiB{note}")


if __name__ == "__main__":
    main()
