"""A method on a corpus in the research layout, at the dimensions, batch and epochs of a reference run; and its speed.

    OMP_NUM_THREADS=1 python benchmarks/bench_precomp.py DIR --noise-file DIR/noise_index_0.4.npy --seeds 3
    OMP_NUM_THREADS=1 python benchmarks/bench_precomp.py DIR --noise-file FILE --method l2rm --set '{"backbone": "sgr"}'

CRCL unless another is named: embedding 256, words 300, batch 64, pieces 4, 4, 4, 12 (freeze 2), what the paper's own
code was measured with; of another method the settings are its defaults and those of ``--set``. Prints, a line a seed,
the test rSum at the best validation epoch and the standard deviation of it over draws of the test queries, the AUROC of
the label, and training pairs per CPU second; and the GEMM rate of the same process, for speeds are comparable only
between machines of one rate.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cleanpairs import Pairs, PairScorer, load_pairs
from cleanpairs.core.registry import METHODS
from cleanpairs.data.noise import apply_noise, load_noise_file, noise_of
from cleanpairs.scoring import Encoded, matrix
from cleanpairs.scoring.evaluate import detection

CRCL = {"dim": 256, "batch_size": 64, "refine_epochs": (4, 4, 4), "epochs": 12, "freeze": 2}
DRAWS = 400  # of the test queries


def gemm_rate(size: int = 1024, seconds: float = 2.0) -> float:
    """GFLOP/s of a float32 matrix product, best of many."""
    a = torch.randn(size, size)
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.process_time()
        for _ in range(4):
            a @ a
        best = max(best, 4 * 2 * size**3 / (time.process_time() - began) / 1e9)
    return best


def rsum_of_rows(model: PairScorer, pairs: Pairs) -> tuple[float, float]:
    """rSum as the reference code counts it: each row is an image of its own, equal images included, ranks by argsort;
    and its standard deviation over queries drawn again.

    Our own :meth:`evaluate` takes equal images for one, and counts ties against the model.
    """
    rows, found = np.arange(len(pairs)), model._embed(pairs)
    S = matrix(Encoded(found.images, found.texts, model.model_, "cpu"), pairs.image_index, rows)  # one caption an image
    hits = np.zeros(len(pairs))
    for similarity in (S, S.T):
        rank = np.array([int(np.flatnonzero(np.argsort(row)[::-1] == i)[0]) for i, row in enumerate(similarity)])
        hits += sum(100.0 * (rank < k) for k in (1, 5, 10))
    drawn = np.random.default_rng(0).integers(0, len(hits), (DRAWS, len(hits)))
    return float(hits.mean()), float(hits[drawn].mean(axis=1).std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--noise-file", type=Path, required=True)
    parser.add_argument("--method", default="crcl")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", default="{}", help="JSON of more constructor parameters")
    args = parser.parse_args()
    torch.set_num_threads(1)
    splits = {s: load_pairs(args.data, split=s) for s in ("train", "dev", "test")}
    noise = noise_of(splits["train"], load_noise_file(args.noise_file, len(splits["train"])))
    train = apply_noise(splits["train"], noise)
    print(f"GEMM {gemm_rate():.0f} GFLOP/s per core (float32, one thread)")
    rows = []
    for seed in range(args.seeds):
        given: dict[str, Any] = {**(CRCL if args.method == "crcl" else {}), **json.loads(args.set)}
        model = METHODS.load(args.method)(random_state=seed, device="cpu", **given)
        curve: list[float] = []
        before = time.process_time()
        model.fit(
            train, val=splits["dev"], on_epoch=lambda r, y, c=curve: c.append(detection(y, noise.mismatched, 0.1).auroc)
        )
        cpu = time.process_time() - before
        found = detection(model.correspondence_, noise.mismatched, model.threshold_)
        rsum, deviation = rsum_of_rows(model, splits["test"])
        row = {"seed": seed, "test_rsum": rsum, "over_queries": deviation, "dev_rsum": model.best_val_rsum_}
        row["test_rsum_distinct_images"] = model.evaluate(splits["test"]).rsum
        row |= {"auroc": found.auroc, "auroc_best_epoch": max(curve), "f1": found.f1}
        row |= {"pairs_per_cpu_second": len(train) * len(curve) / cpu}
        rows.append(row)
        print(json.dumps({k: round(v, 4) for k, v in row.items()}), flush=True)
    for name in rows[0]:
        if name != "seed":
            values = np.array([r[name] for r in rows])
            print(f"{name:<22} {values.mean():9.3f} ± {values.std():.3f}")
    print(f"GEMM {gemm_rate():.0f} GFLOP/s per core (float32, one thread)")


if __name__ == "__main__":
    main()
