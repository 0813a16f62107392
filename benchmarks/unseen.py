"""The threshold of pairs that a model has not seen, beside the truth: of the fit, by random pairs, and the best one.

    OMP_NUM_THREADS=1 python benchmarks/unseen.py                                  # the clip art that ships
    OMP_NUM_THREADS=1 python benchmarks/unseen.py photos1_train.parquet --methods auto,crcl

Fitted on the train split with 40 % of the captions mismatched, judged on the test split, of which a share is mismatched
(two draws each). Flagged are the pairs below the threshold; ``best`` is the highest F1 of any threshold, chosen by the
truth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rows import splits_of

from cleanpairs.core.registry import METHODS
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.scoring.evaluate import detection

SEEDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=clipart_path("train"))
    parser.add_argument("--methods", default="auto,crcl")
    parser.add_argument("--rates", default="0,0.1,0.2,0.4,0.6")
    args = parser.parse_args()
    train, val, test = splits_of(args.data)
    noisy = apply_noise(train, inject_noise(train, 0.4, per="caption", seed=0))
    print(f"| {args.data.stem}: {len(test)} pairs | mismatched | AUROC | ", end="")
    print("threshold of the fit: flagged, F1 | new threshold: flagged, F1 | F1, best threshold | ", end="")
    print("estimated rate [interval] |")
    print("|---|---|---|---|---|---|---|")
    for name in args.methods.split(","):
        model = METHODS.load(name)(backbone="mlp", text_encoder="auto", device="cpu", random_state=0).fit(
            noisy, val=val
        )
        for rate in map(float, args.rates.split(",")):
            for seed in range(SEEDS if rate else 1):
                noise = inject_noise(test, rate, per="caption", seed=seed)
                found, scores = model._scored(apply_noise(test, noise))
                own, wrong = model._threshold_of(found, scores), noise.mismatched
                cuts = [model.threshold_, model._applied_threshold(own)]
                cells = [f"{(scores < cut).mean():.3f}, {detection(scores, wrong, cut).f1:.2f}" for cut in cuts]
                best = max(
                    detection(scores, wrong, q).f1 for q in np.quantile(scores, np.linspace(0.01, 0.99, 99)).tolist()
                )
                head = f"{name} | {wrong.mean():.3f} | {detection(scores, wrong, 0.5).auroc:.3f}"
                rate_said = "none" if own is None else own.noise_rate
                print(f"| {head} | {cells[0]} | {cells[1]} | {best:.2f} | {rate_said} |", flush=True)


if __name__ == "__main__":
    main()
