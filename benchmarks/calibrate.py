"""Forty answers: the rate, its interval and the threshold that a few labels give, with the truth as the person.

    OMP_NUM_THREADS=1 python benchmarks/calibrate.py DATA_DIR --corpora clipart,photos-1,titles-2000 --out DIR

DATA_DIR and the corpora: those of truth.py; mini: CLIP's vectors in ``clip/mini_*``;
attributes: 2,000 products with their attributes as captions. Scores are those of the untrained evidence, and stay in
DIR. Kinds of noise: ``within:category`` where there are categories, else cluster:4; cluster:16, partial, uniform, none.

order: telling (as ``review --calibrate`` asks), random, lowest scores first, audit (its stratified draw). F1 at the
threshold that the answers give, by the best F1 of these scores. Interval holds truth: how often the 95 % interval of
the rate does. Exports made: how often ``max_wrong`` .05 is not refused. Exports within limit: of these, those with at
most so many mismatched pairs. Each figure is the mean over corpora, kinds, rates and draws. Lowest mean: that F1 of one
corpus, kind and rate.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from similar_pairs import noise_of
from truth import read
from vectors import best_f1, f1

from cleanpairs import Pairs, load_pairs
from cleanpairs.audit import Answered, draw_sample
from cleanpairs.correspondence.calibration import calibrate_by_labels, positions
from cleanpairs.data.noise import Noise, apply_noise
from cleanpairs.methods.auto import Auto
from cleanpairs.methods.untrained import Untrained
from cleanpairs.trainer import TrainingData

RATES = 0.1, 0.2, 0.4
ORDERS = ("telling", 0.0), ("telling", 0.05), ("random", 0.0), ("lowest", 0.0), ("audit", 0.0)  # and wrong answers


def clean(folder: Path, corpus: str, out: Path) -> Pairs:
    if corpus == "mini":
        image, text, captions = (f"{folder}/clip/mini_{name}" for name in ("image.npy", "text.npy", "captions.txt"))
        return load_pairs(image, text_vectors=text, captions=captions)
    if corpus == "attributes":
        file, table = out / "attributes.parquet", pq.read_table(folder / "fashion_train.parquet").slice(6000, 2000)
        names = {"key": "key", "image": "image", "text": "attributes", "category": "category"}
        pq.write_table(pa.table({name: table[column] for name, column in names.items()}), file)
        return load_pairs(str(file))
    return read(folder, corpus)[0]


def noisy_data(fit: Any, noise: Noise) -> tuple[TrainingData, np.ndarray]:
    """The data of the noisy pairs, and which of these it has. Only new captions are encoded."""
    if noise.rewritten or len(fit.usable) < len(fit.pairs):
        fit = Auto(device="cpu")._prepare(apply_noise(fit.pairs, noise))
        return fit.data, fit.usable
    order = noise.permutation
    return replace(fit.data, tokens=fit.data.tokens.take(order), text_group=fit.data.text_group[order]), fit.usable


def scored(folder: Path, corpus: str, out: Path) -> dict[tuple[str, float], tuple[np.ndarray, np.ndarray]]:
    """Kind and rate -> scores (n,), and who is mismatched (n,)."""
    near, found, fit = "within:category" if corpus[:5] in ("title", "attri") else "cluster:4", {}, None
    for kind, rates in {near: RATES, "cluster:16": RATES, "partial": RATES, "uniform": RATES, "none": (0.0,)}.items():
        for rate in rates:
            file = out / f"{corpus}-{kind.replace(':', '_')}-{rate:g}.npz"
            if not file.exists():
                fit = fit or Auto(device="cpu")._prepare(clean(folder, corpus, out))
                noise = noise_of(fit.pairs, "uniform" if kind == "none" else kind, rate, 0, fit)
                data, usable = noisy_data(fit, noise)
                y = Untrained.of(data, 0.0, similar=False, train=True, seed=0).agreement.observed
                np.savez(file, y=y, bad=noise.mismatched[usable])
            with np.load(file) as kept:
                found[kind, rate] = kept["y"], kept["bad"]
    return found


def asked(y: np.ndarray, order: str, n: int, given: dict[int, bool], rng: np.random.Generator) -> list[int]:
    """The next pairs to ask about, n at most."""
    q, free = positions(y, y), np.setdiff1d(np.arange(len(y)), list(given))
    if order == "telling":
        return free[
            labelled(y, given).telling(q[free], min(5 if len(given) < 40 else 10, n), seed=int(rng.integers(2**31)))
        ].tolist()
    if order == "audit":
        return draw_sample(q, n, threshold=0.5, seed=int(rng.integers(2**31))).pair_id.tolist()
    return (rng.choice(free, n, replace=False) if order == "random" else free[np.argsort(y[free])[:n]]).tolist()


def labelled(y: np.ndarray, given: dict[int, bool]) -> Any:
    rows = np.array(list(given), dtype=np.int64)
    return calibrate_by_labels(y, rows, ~np.array(list(given.values()), dtype=bool))


def judged(y: np.ndarray, bad: np.ndarray, given: dict[int, bool]) -> dict[str, float]:
    answered = Answered.of(y, {i: not wrong for i, wrong in given.items()})
    q, rate, found = positions(y, y), answered.noise_rate, answered.calibration
    kept = found.purest(1 - found.mismatched(q), 0.05)
    best = best_f1(q, bad) if bad.any() else float("nan")
    return {
        "F1": f1(q <= found.best_share(), bad) / best, "interval holds truth": rate.low <= bad.mean() <= rate.high,
        "interval width": rate.high - rate.low, "exports made": kept > 0,
        "word": bad[np.argsort(-y, kind="stable")[:kept]].mean() <= 0.05 if kept else float("nan"),
    }  # fmt: skip


def drawn(y: np.ndarray, bad: np.ndarray, order: str, wrong: float, draws: int) -> dict[int, list[dict[str, float]]]:
    """Number of answers -> figures of each draw."""
    found = defaultdict(list)
    for seed in range(draws):
        rng, given = np.random.default_rng(seed), dict[int, bool]()
        for n in (40, 100):
            given = {} if order == "audit" else given
            while len(given) < n:
                rows = asked(y, order, n - len(given), given, rng)
                given |= {i: bool(bad[i] ^ (rng.random() < wrong)) for i in rows}
            found[n].append(judged(y, bad, given))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="clipart,titles-2000,mini,photos-1,web,attributes")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/calibrate"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found = []
    for corpus in args.corpora.split(","):
        file = args.out / f"{corpus}-{args.draws}.csv"
        if not file.exists():
            cells = []
            for (kind, rate), (y, bad) in scored(args.data, corpus, args.out).items():
                for order, wrong in ORDERS:
                    for n, figures in drawn(y, bad, order, wrong, args.draws).items():
                        cell = {"corpus": corpus, "kind": kind, "rate": rate, "order": order}
                        cell |= {"wrong answers": wrong, "answers": n}
                        cells.append(cell | pd.DataFrame(figures, dtype=float).mean().to_dict())
                print(f"{corpus} {kind} {rate}", file=sys.stderr, flush=True)
            pd.DataFrame(cells).to_csv(file, index=False)
        found.append(pd.read_csv(file))
    cells = pd.concat(found)
    cells["wrong answers"] = cells["wrong answers"].map("{:g}".format)
    cells["kept"] = (cells["word"] * cells["exports made"]).fillna(0)
    for by in ("order", "kind", "corpus"):
        some = cells if by == "order" else cells[cells["order"] == "telling"]
        found = some.groupby([by, "wrong answers", "answers"], sort=False)
        table = found[["F1", "interval holds truth", "interval width", "exports made"]].mean()
        table.insert(1, "lowest mean", found["F1"].min())
        table["exports within limit"] = found["kept"].sum() / found["exports made"].sum()
        print(table.rename(columns={"F1": "F1 / best F1"}).to_csv(float_format="%.3f", na_rep="-"))


if __name__ == "__main__":
    main()
