"""Mismatches among similar pairs: what ``auto`` says of them, beside the truth, with both settings of ``mismatches``.

    OMP_NUM_THREADS=1 python benchmarks/similar_pairs.py                       # the clip art that ships
    OMP_NUM_THREADS=1 python benchmarks/similar_pairs.py X_train.parquet --kinds uniform,cluster:4,within:category

DATA: what ``cleanpairs bench`` takes. Kinds: those of ``cleanpairs bench``, and cluster:K, captions exchanged within K
k-means clusters of the clean pairs (images and captions in the frozen spaces of ``auto``). "bound": the upper 95 %
bound that counts captions of similar pairs. Flagged, F1 and the mismatched share of what is kept are at the threshold
of the method. CRCL and the untrained evidence, whose threshold is w = 1/2, stand beside.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

sys.path.insert(0, str(Path(__file__).parent))
from rows import splits_of
from vectors import area

from cleanpairs import Pairs
from cleanpairs.core.registry import METHODS
from cleanpairs.data.noise import Noise, apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.estimators.spaces import frozen_spaces
from cleanpairs.methods.auto import Auto
from cleanpairs.methods.untrained import Untrained
from cleanpairs.scoring.evaluate import detection

SETTINGS: dict[str, Any] = {"backbone": "mlp", "text_encoder": "auto", "device": "cpu"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("auto", {}),
    "auto, similar": ("auto", {"mismatches": "similar"}),
    "crcl": ("crcl", {}),
}


def noise_of(pairs: Pairs, kind: str, rate: float, seed: int, fit: Any = None) -> Noise:
    name, _, clusters = kind.partition(":")
    if name != "cluster":
        return inject_noise(pairs, rate, seed=seed, kind=kind)
    fit = fit or Auto(device="cpu")._prepare(pairs)
    usable, data = fit.usable, fit.data
    images, texts = frozen_spaces(data.images, data.image_index, data.tokens, 0)
    groups = np.full(len(pairs), -1)
    both = np.concatenate([images[data.image_index], texts], axis=1)
    groups[usable] = KMeans(int(clusters), n_init=2, random_state=0).fit_predict(both)
    return inject_noise(pairs, rate, seed=seed, kind="within:cluster", groups=groups)


def judged(w: np.ndarray, wrong: np.ndarray, threshold: float) -> dict[str, Any]:
    known = np.isfinite(w)
    w, wrong = w[known], wrong[known]
    flagged = w < threshold
    return {
        "AUROC": 1 - area(w, wrong),
        "F1": detection(w, wrong, threshold).f1 if wrong.any() else None,
        "flagged": flagged.mean(),
        "kept": wrong[~flagged].mean() if not flagged.all() else None,
    }


def cells(pairs: Pairs, noise: Noise, seed: int) -> list[dict[str, Any]]:
    noisy, wrong, found = apply_noise(pairs, noise), noise.mismatched, []
    fit = Auto(device="cpu")._prepare(noisy)
    usable, data = fit.usable, fit.data
    untrained = Untrained.of(data, 0.0, similar=False, train=True, seed=seed).agreement
    told = {"model": "evidence", "rate": untrained.noise_rate, **judged(untrained.matched, wrong[usable], 0.5)}
    found.append(told | {"AUROC": 1 - area(untrained.observed, wrong[usable])})
    for name, (method, settings) in MODELS.items():
        model = METHODS.load(method)(**SETTINGS, random_state=seed, **settings).fit(noisy)
        low, high = model.noise_rate_interval_
        told = {"rate": model.noise_rate_, "low": low, "high": high, "bound": model.noise_rate_bound_}
        found.append({"model": name, **told, **judged(model.correspondence_, wrong, model.threshold_)})
    return [{"mismatched": wrong[usable].mean(), **row} for row in found]


def shown(value: float | None) -> str:
    return "-" if value is None or not np.isfinite(value) else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=clipart_path())
    parser.add_argument("--kinds", default="uniform,cluster:4,cluster:16,partial")
    parser.add_argument("--noise", default="0.4", help="0 is of the first kind alone")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("runs/similar_pairs"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pairs, kinds = splits_of(args.data)[0], args.kinds.split(",")
    columns = ["mismatched", "rate", "low", "high", "bound", "AUROC", "F1", "flagged", "kept"]
    print(f"| kind | seed | model | {' | '.join(columns)} |\n{'|---' * (3 + len(columns))}|")
    for rate in map(float, args.noise.split(",")):
        for kind in kinds if rate else kinds[:1]:
            for seed in map(int, args.seeds.split(",")):
                file = args.out / f"{args.data.stem}-{kind.replace(':', '_')}-{rate:g}-{seed}.json"
                if not file.exists():
                    file.write_text(json.dumps(cells(pairs, noise_of(pairs, kind, rate, seed), seed), default=float))
                for row in json.loads(file.read_text()):
                    figures = " | ".join(shown(row.get(name)) for name in columns)
                    print(f"| {kind} | {seed} | {row['model']} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
