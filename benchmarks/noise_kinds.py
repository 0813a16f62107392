"""Methods on the protocols that reviewers know: copied captions (LEMoN), one edited word (TRACED), cut captions.

    OMP_NUM_THREADS=1 python benchmarks/noise_kinds.py DATA_DIR --corpora photos1 --kinds copied,edited --seeds 3

DATA_DIR holds X_train, X_val and X_test.parquet (``benchmarks/corpora.py`` makes them), or what calibrate.py takes. Of
the latter a fifth is the test split. Kinds: those of ``cleanpairs corrupt``. Both splits are noisy. Methods are fitted
on the train split. What they say of the test split is judged, too. The evidence has no score for other pairs. Cosine,
negCLIPLoss and LEMoN are of vectors of one space (mini), whose copied captions keep their vectors. They take neighbours
from the train split. F1 is at the threshold of the method, of the evidence where its probability is below 1/2. AUPRC is
of the mismatched pairs. Every finished fit stays in OUT.
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
from rows import splits_of
from similar_pairs import SETTINGS
from vectors import lemon, normalised_similarity, unit

from cleanpairs import Pairs
from cleanpairs.core.registry import METHODS
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.methods.auto import Auto
from cleanpairs.methods.untrained import Untrained
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.scoring.evaluate import detection

FIGURES = ["AUROC", "AUPRC", "F1"]


def splits(folder: Path, corpus: str, out: Path) -> tuple[Pairs, Pairs]:
    """Train and test, clean."""
    if (file := folder / f"{corpus}_train.parquet").exists():
        train, _, test = splits_of(file)
        return train, test
    pairs = clean(folder, corpus, out)
    order = np.random.default_rng(0).permutation(len(pairs))
    return pairs.select(order[len(pairs) // 5 :]), pairs.select(order[: len(pairs) // 5])


def judged(score: np.ndarray, pairs: Pairs, cut: float | None = None, head: str = "") -> dict[str, Any]:
    found = detection(score, pairs.true_mismatch_mask(), 0.5 if cut is None else cut)
    return {head + "AUROC": found.auroc, head + "AUPRC": found.ap, head + "F1": None if cut is None else found.f1}


def untrained(train: Pairs, test: Pairs, seed: int) -> list[dict[str, Any]]:
    fit = Auto(device="cpu")._prepare(train)
    known, some = Untrained.of(fit.data, 0.0, similar=False, train=True, seed=seed).agreement, train.select(fit.usable)
    f1 = judged(known.matched, some, 0.5)["F1"]
    found = [{"method": "evidence", **judged(known.observed, some), "F1": f1, "rate": known.noise_rate}]
    if train.text_vectors is None:
        return found
    sides = [(np.asarray(p.images.array(), np.float32)[p.image_index, 0], p.text_vectors) for p in (train, test)]
    (x, t), (u, v) = ([unit(side) for side in both] for both in sides)
    background = VectorPairs(x, t, *(-1 - np.arange(len(x)),) * 2)  # no pair of the test split
    for name, scores in {
        "cosine": ((x * t).sum(axis=1), (u * v).sum(axis=1)),
        "negCLIPLoss": (normalised_similarity(x, t), normalised_similarity(u, v, background=background)),
        "LEMoN": (lemon(x, t), lemon(u, v, near=(x, t))),
    }.items():
        found.append({"method": name, **judged(scores[0], train), **judged(scores[1], test, head="test ")})
    return found


def cells(clean_pairs: tuple[Pairs, Pairs], kind: str, rate: float, seed: int, name: str) -> list[dict[str, Any]]:
    train, test = (apply_noise(pairs, inject_noise(pairs, rate, seed=seed, kind=kind)) for pairs in clean_pairs)
    if name == "untrained":
        found = untrained(train, test, seed)
    else:
        model = METHODS.load(name)(**SETTINGS, random_state=seed).fit(train)
        told = judged(model.correspondence_, train, model.threshold_) | {"rate": model.noise_rate_}
        embedded, scores = model._scored(test)
        cut = model._applied_threshold(model._threshold_of(embedded, scores))
        found = [{"method": name, **told, **judged(scores, test, cut, "test ")}]
    return [{"kind": kind, "mismatched": train.true_mismatch_mask().mean(), **row} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="mini,web")
    parser.add_argument("--kinds", default="copied,copied:noun,edited,truncated")
    parser.add_argument("--methods", default="untrained,crcl,auto")
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/noise_kinds"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    for corpus in args.corpora.split(","):
        pairs = splits(args.data, corpus, args.out)
        for kind in args.kinds.split(","):
            for seed in range(args.seeds):
                for name in args.methods.split(","):
                    file = args.out / f"{corpus}-{kind.replace(':', '_')}-{args.noise:g}-{seed}-{name}.json"
                    if not file.exists():
                        file.write_text(json.dumps(cells(pairs, kind, args.noise, seed, name), default=float))
                    found += [{"corpus": corpus, **row} for row in json.loads(file.read_text())]
    figures = ["mismatched", *FIGURES, "rate", *(f"test {name}" for name in FIGURES)]
    table = pd.DataFrame(found, columns=["corpus", "kind", "method", *figures])
    table = table.groupby(["corpus", "kind", "method"], sort=False)[figures]
    mean, spread = table.mean(), table.std()
    shown = mean.map("{:.3f}".format) + spread.map(lambda s: "" if np.isnan(s) else f" ± {s:.3f}")
    print(shown.where(mean.notna(), "-").reset_index().to_csv(index=False))


if __name__ == "__main__":
    main()
