"""Methods on the kinds of noise that reviewers know: copied captions, one edited word, captions that are cut.

    OMP_NUM_THREADS=1 python benchmarks/noise_kinds.py DATA_DIR --corpora mini --kinds copied,copied:noun --seeds 3

DATA_DIR and the corpora: those of calibrate.py. Kinds: those of ``cleanpairs corrupt``. Cosine, negCLIPLoss and LEMoN
are of corpora with vectors of one space (mini), whose kinds keep the captions' vectors. F1 is at the threshold of the
method, of the untrained evidence where its probability is below 1/2. Every finished fit stays in OUT.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))
from calibrate import clean
from similar_pairs import SETTINGS, judged
from vectors import area, lemon, normalised_similarity, unit

from cleanpairs import Pairs
from cleanpairs.core.registry import METHODS
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.methods.auto import Auto
from cleanpairs.methods.untrained import Untrained, vectors_of_both


def cells(clean_pairs: Pairs, kind: str, rate: float, seed: int, methods: list[str]) -> list[dict[str, Any]]:
    noise = inject_noise(clean_pairs, rate, seed=seed, kind=kind)
    noisy, wrong = apply_noise(clean_pairs, noise), noise.mismatched
    fit = Auto(device="cpu")._prepare(noisy)
    data, bad, found = fit.data, wrong[fit.usable], list[dict[str, Any]]()
    both = vectors_of_both(data.images, data.tokens)
    if both is not None and both[0].shape[1] == both[1].shape[1]:
        x, t = unit(both[0][data.image_index]), unit(both[1])
        for name, score in {
            "cosine": (x * t).sum(axis=1), "negCLIPLoss": normalised_similarity(x, t), "LEMoN": lemon(x, t),
        }.items():  # fmt: skip
            found.append({"method": name, "AUROC": 1 - area(score, bad)})
    known = Untrained.of(data, 0.0, similar=False, train=True, seed=seed).agreement
    told = {"AUROC": 1 - area(known.observed, bad), "rate": known.noise_rate}
    found.append({"method": "evidence", **judged(known.matched, bad, 0.5), **told})
    for name in methods:
        model = METHODS.load(name)(**SETTINGS, random_state=seed).fit(noisy)
        told = judged(model.correspondence_, wrong, model.threshold_)
        found.append({"method": name, **told, "rate": model.noise_rate_})
    return [{"kind": kind, "mismatched": float(wrong.mean()), **row} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="mini,web")
    parser.add_argument("--kinds", default="copied,copied:noun,edited,truncated")
    parser.add_argument("--methods", default="crcl,auto")
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/noise_kinds"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    for corpus in args.corpora.split(","):
        pairs = clean(args.data, corpus, args.out)
        for kind in args.kinds.split(","):
            for seed in range(args.seeds):
                file = args.out / f"{corpus}-{kind.replace(':', '_')}-{args.noise:g}-{seed}.json"
                if not file.exists():
                    rows = cells(pairs, kind, args.noise, seed, [m for m in args.methods.split(",") if m])
                    file.write_text(json.dumps(rows, default=float))
                found += [{"corpus": corpus, **row} for row in json.loads(file.read_text())]
    figures = ["mismatched", "AUROC", "F1", "rate"]
    table = pd.DataFrame(found).groupby(["corpus", "kind", "method"], sort=False)[figures]
    mean, spread = table.mean(), table.std()
    shown = mean.map("{:.3f}".format) + spread.map(lambda s: "" if np.isnan(s) else f" ± {s:.3f}")
    print(shown.where(mean.notna(), "-").reset_index().to_csv(index=False))


if __name__ == "__main__":
    main()
