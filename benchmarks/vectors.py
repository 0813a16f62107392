"""Vectors of both sides: auto and clip-score beside the cosine, CSLS, negCLIPLoss and LEMoN, on real sets made worse.

    OMP_NUM_THREADS=1 python benchmarks/vectors.py DIR [--names mini] [--kinds plain,hubbed] [--noise 0,0.4,near]

DIR holds NAME_image.npy and NAME_text.npy (n, d). Where it has a CSV named like the first letters of NAME with a column
``label`` (true, out-of-context, miscaptioned: VERITE), the set is its true pairs, each image and each caption once.

kinds: plain; noisy (noise added to the vectors of both sides); hubbed (images near to all captions, each to another
degree); rotated (the captions turned: no common space); mixed (half of it turned). noise: a share of captions that
rotate, "near" (three tenths exchanged with one of the five nearest), or "outside:0.2" (a half of the set, a share of
whose captions is of the other half). Printed: 1 - AUROC of each, the best possible F1 of negCLIPLoss, F1 at the own
threshold, the error of the estimated rate, what is flagged, and the bound that counts captions of similar pairs
(``auto``), less the true rate: below zero it does not hold. Last the repairs of ``auto``: made, right, and expected to
be right.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from cleanpairs import Auto, Pairs
from cleanpairs.methods.clip_score import ClipScore
from cleanpairs.ops.normalised_similarity import TAU, VectorPairs, cosines


def normalised_similarity(
    x: np.ndarray, t: np.ndarray, *groups: np.ndarray, kind: str = "softmax", background: VectorPairs | None = None
) -> np.ndarray:
    """Normalised similarity (n,) of n pairs, beside each other or a background."""
    pairs = VectorPairs(x, t, *(groups or (np.arange(len(x)),) * 2))
    return cosines(x, t) - (background or pairs).shared(pairs, kind=kind, tau=TAU).mean(axis=0)


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.float32)


def lemon(
    x: np.ndarray, t: np.ndarray, near: tuple[np.ndarray, np.ndarray] | None = None,
    k: int = 30, beta: float = 5, t1: float = 0.1, t2: float = 5,
) -> np.ndarray:  # fmt: skip
    """Minus LEMoN's score (Zhang et al., ICML 2025), with the settings that it has where nothing can be tuned.

    Neighbours are of the pairs ``near``, else of each other.
    """
    u, v = near or (x, t)
    of_near, score = 1 - (u * v).sum(1), 1 - (x * t).sum(1)
    for a, b, c, d in ((x, t, u, v), (t, x, v, u)):
        D = 1 - a @ c.T
        if near is None:
            np.fill_diagonal(D, np.inf)
        best = np.argsort(D, axis=1)[:, :k]
        far = 1 - np.einsum("id,ikd->ik", b, d[best])
        score += beta * (np.exp(-t1 * np.take_along_axis(D, best, 1) - t2 * of_near[best]) * far).mean(axis=1)
    return -score


def varied(x: np.ndarray, t: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    n, d = x.shape
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    if kind == "noisy":
        return unit(x + rng.normal(size=x.shape) / d**0.5), unit(t + 0.7 * rng.normal(size=t.shape) / d**0.5)
    if kind == "hubbed":
        hub = 0.6 * np.abs(rng.normal(size=(n, 1))) * unit(x.mean(0, keepdims=True))
        return unit(x + 0.5 * np.abs(rng.normal(size=(n, 1))) * t.mean(0)), unit(t + hub)
    if kind == "rotated":
        return x, unit(t @ turn)
    if kind == "mixed":
        half = np.arange(n)[:, None] % 2 == 0
        return np.where(half, x, unit(x @ turn)), np.where(half, t, unit(t @ turn))
    return x, t


def corrupted(t: np.ndarray, noise: str, rng: np.random.Generator) -> np.ndarray:
    """(n,) whose caption each pair shows."""
    n = len(t)
    at = np.arange(n)
    if noise.startswith("outside:"):
        at, half = at[: n // 2], n // 2
        at[rng.permutation(half)[: round(float(noise[8:]) * half)]] += half
        return at
    if noise != "near":
        moved = rng.permutation(n)[: round(float(noise) * n)]
        at[moved] = np.roll(moved, 1)
        return at
    S = t @ t.T
    np.fill_diagonal(S, -1)
    for i in rng.permutation(n):
        j = next((j for j in np.argsort(-S[i])[:5] if at[j] == j), i)
        if at[i] == i and (at != np.arange(n)).mean() < 0.3:
            at[i], at[j] = j, i
    return at


def real(folder: Path, names: str | None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Name -> unit vectors of both sides and, where people gave them, labels."""
    out = {}
    for file in sorted(folder.glob("*_image.npy")):
        name = file.name.removesuffix("_image.npy")
        if names and name not in names.split(","):
            continue
        sides = [unit(np.load(folder / f"{name}_{side}.npy").astype(np.float32)) for side in ("image", "text")]
        table = next((f for f in folder.glob("*.csv") if name.startswith(f.stem)), None)
        labels = None
        if table is not None:
            with table.open(encoding="utf-8") as lines:
                labels = np.array([row["label"] for row in csv.DictReader(lines)])
        out[name] = (sides[0], sides[1], labels)
    return out


def once(x: np.ndarray) -> np.ndarray:
    return np.sort(np.unique(x.round(3), axis=0, return_index=True)[1])


def area(score: np.ndarray, wrong: np.ndarray) -> float:
    return float(1 - roc_auc_score(~wrong, score)) if 0 < wrong.sum() < len(wrong) else float("nan")


def f1(flagged: np.ndarray, wrong: np.ndarray) -> float:
    return float(2 * (flagged & wrong).sum() / max(flagged.sum() + wrong.sum(), 1))


def best_f1(score: np.ndarray, wrong: np.ndarray) -> float:
    hits = np.cumsum(wrong[np.argsort(score)])
    return float((2 * hits / (np.arange(1, len(hits) + 1) + wrong.sum())).max())


def judged(x: np.ndarray, t: np.ndarray, at: np.ndarray, epochs: int) -> dict[str, float]:
    wrong = at != np.arange(len(at))
    pairs = Pairs.from_arrays([f"caption {i}" for i in at], features=x, text_vectors=t)
    plain = normalised_similarity(x, t)
    out = {
        "cosine": area((x * t).sum(1), wrong),
        "CSLS": area(normalised_similarity(x, t, kind="csls"), wrong),
        "negCLIPLoss": area(plain, wrong),
        "LEMoN": area(lemon(x, t), wrong),
        "best F1": best_f1(plain, wrong),
    }
    settings = {"text_encoder": "features", "image_encoder": "features", "device": "cpu", "require_dependence": False}
    for name, model in (
        ("clip-score", ClipScore(**settings)),
        ("auto", Auto(**settings, epochs=epochs) if epochs else None),
    ):
        if model is None:
            continue
        y = model.fit(pairs).correspondence_
        flagged = y < model.threshold_
        out[name] = area(y, wrong)
        out[f"{name} F1"], out[f"{name} rate"] = f1(flagged, wrong), model.noise_rate_ - wrong.mean()
        out[f"{name} flagged"] = flagged.mean()
        if name == "auto":
            out["auto bound"] = model.noise_rate_bound_ - wrong.mean()
            out |= repaired(model.rematch(pairs).to_pandas(), at)
    return out


def repaired(plan: pd.DataFrame, at: np.ndarray) -> dict[str, float]:
    """How many repairs a plan makes, how many are right, and how many it expects to be."""
    row = pd.Series(range(len(plan)), plan["pair_id"])
    made = plan[plan["action"].str.startswith("rematch")]
    own, donor = row[made["pair_id"]].to_numpy(), row[made["donor_pair_id"]].to_numpy()
    text = made["action"].to_numpy() == "rematch_text"
    right = at[np.where(text, donor, own)] == np.where(text, own, donor)
    return {"repairs": len(made), "right repairs": right.sum(), "expected right": made["confidence"].sum()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, nargs="?")
    parser.add_argument("--names")
    parser.add_argument("--kinds", default="plain,noisy,hubbed,rotated,mixed")
    parser.add_argument("--noise", default="0,0.05,0.2,0.4,0.6,near")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    epochs = "of auto; 0: without auto. It matters only where auto trains, not where it compares by similarity"
    parser.add_argument("--epochs", type=int, default=12, help=epochs)
    args = parser.parse_args()
    columns: list[str] = []
    for name, (x0, t0, labels) in real(args.dir, args.names).items():
        if labels is not None:
            true = labels == "true"
            x0, t0 = x0[true], t0[true]
            kept = np.intersect1d(once(x0), once(t0))
            x0, t0 = x0[kept], t0[kept]
        for kind in args.kinds.split(","):
            for noise in args.noise.split(","):
                rng = np.random.default_rng(args.seed)
                some = rng.permutation(len(x0))[: args.size]
                x, t = varied(x0[some], t0[some], kind, rng)
                at = corrupted(t, noise, rng)
                x = x[: len(at)]
                row = judged(x, t[at], at, args.epochs)
                if not columns:
                    columns = list(row)
                    print("| set | kind | noise | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 3) + "|")
                print(
                    f"| {name} ({len(x)}) | {kind} | {noise} | " + " | ".join(f"{row[c]:.4f}" for c in columns) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
