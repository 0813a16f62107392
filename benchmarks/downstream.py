"""Does cleaning help whoever trains on the data? A plain InfoNCE model on noisy, cleaned and right pairs.

    OMP_NUM_THREADS=1 python benchmarks/downstream.py                 # the clip art that ships: nothing to download
    OMP_NUM_THREADS=1 python benchmarks/downstream.py DATA --noise 0.2,0.4,0.6 --seeds 3

DATA: what ``benchmarks/rows.py`` takes, whose fits in OUT are used. Rows: all pairs of the input; those that ``auto``
keeps, at its own threshold; as many by the untrained evidence, the simplest score; the pairs that are right, which
nobody knows. Each is the mean over seeds of rSum on the test split, the same noise, networks and epochs for all; the
validation split picks the epoch.
"""

import argparse
from pathlib import Path

import numpy as np
from rows import Corpus

from cleanpairs.datasets import clipart_path
from cleanpairs.methods.plain import InfoNCE


def retrieval(corpus: Corpus) -> dict[str, tuple[float, float]]:
    """Row -> share of mismatched pairs, and rSum."""
    y, evidence = corpus.fit("auto", corpus.seed)[0], corpus.untrained()[0]["evidence alone"]
    usable = np.flatnonzero(np.isfinite(y))
    kept = usable[y[usable] >= 0.5]
    best = usable[np.argsort(-evidence[usable], kind="stable")[: len(kept)]]
    parts = {"all pairs": usable, "kept by `auto`": kept, "as many pairs, by evidence": np.sort(best)}
    parts["right pairs only"] = usable[~corpus.wrong[usable]]
    found = {}
    for name, rows in parts.items():
        model = InfoNCE(**corpus.settings, device=corpus.device, random_state=corpus.seed)
        rsum = model.fit(corpus.pairs.select(rows), val=corpus.val).evaluate(corpus.test).rsum
        found[name] = float(corpus.wrong[rows].mean()), rsum
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=clipart_path("train"))
    parser.add_argument("--noise", default="0.4", help="rates, with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/rows"))
    args = parser.parse_args()
    for rate in map(float, args.noise.split(",")):
        each = [retrieval(Corpus(args.data, rate, seed, "mlp", args.out)) for seed in range(args.seeds)]
        print(f"| {args.data.stem}, noise {rate:g}, {args.seeds} seeds | mismatched | rSum |\n|---|---|---|")
        for name in each[0]:
            wrong, rsum = np.array([found[name] for found in each]).T
            print(f"| {name} | {wrong.mean():.3f} | {rsum.mean():.1f} ± {rsum.std(ddof=1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
