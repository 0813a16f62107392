"""What ``auto`` says of its correspondence beside what is true: shares of mismatched pairs, intervals, ``max_wrong``.

    OMP_NUM_THREADS=1 python benchmarks/truth.py DATA_DIR --corpora photos-1,titles-2000,clipart --noise 0.4 --seeds 1

DATA_DIR holds ``{photos,fashion,stamps,emoji}_train.parquet``, ``webcaptions.parquet`` and ``clipart_precomp``, as far
as they are asked for; photos-1 are the photographs with the first of their captions, titles-N the first N titles.
Captions are exchanged at random. Every finished row goes to OUT, and a second call goes on where the first stopped.

The targets: above every probability at most 1.5 times the share of mismatched pairs that the scores say, and .005;
expected calibration error at most .03, of fewer than 1,000 pairs .05; max_wrong kept within 1.5 times; the interval of
the noise rate holds it, and is narrower than .1 for 8,000 pairs; the repaired export (`--repairs probable`) at most .02
dirtier than the kept part, the expected calibration error of its repairs' confidence at most .05, and at least nine
tenths of the right repairs that the best threshold by the truth allows ("possible": on the confidence of the plausible
ones, for .02).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs import Auto, Pairs, load_pairs
from cleanpairs.core.errors import RefusedError
from cleanpairs.core.plain import percent
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.repair.plan import truth_of
from cleanpairs.scoring.evaluate import detection

CORPORA: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "photos": ("photos_train.parquet", {}, {"image_size": 224}),
    "titles": ("fashion_train.parquet", {"text_column": "text"}, {"image_size": 96}),
    "clipart": ("clipart_precomp", {"split": "train"}, {}),
    "web": ("webcaptions.parquet", {}, {"image_size": 224}),
    "stamps": ("stamps_train.parquet", {}, {}),
    "emoji": ("emoji_train.parquet", {}, {}),
}
ABOVE = (0.5, 0.9, 0.95, 0.99)
WRONG = (0.05, 0.02, 0.01)
MOST_ABOVE = 0.02  # share of wrong pairs by which the repaired export may lie above the kept part's


def read(folder: Path, corpus: str) -> tuple[Pairs, dict[str, Any]]:
    """The clean pairs, and the settings of their encoder."""
    name, _, size = corpus.partition("-")
    file, columns, settings = CORPORA[name]
    if name == "photos" and size == "1":
        pairs = load_pairs(str(folder / file), **columns)
        return pairs.select(np.sort(np.unique(pairs.image_index, return_index=True)[1])), settings
    return load_pairs(str(folder / file), limit=int(size) if size else None, **columns), settings


def repairs_by(model: Auto, noisy: Pairs, repairs: str) -> tuple[np.ndarray, np.ndarray]:
    """Confidence (R,) of the repairs of a plan, surest first, and whether they are wrong (R,) bool."""
    table = model.rematch(noisy, repairs=repairs).table
    mismatch = truth_of(noisy, table)["true_mismatch"]
    rows = np.flatnonzero(np.array([a.startswith("rematch") for a in table["action"].to_pylist()], bool))
    sure = np.nan_to_num(table["confidence"].to_numpy(zero_copy_only=False)[rows].astype(float))
    order = np.argsort(-sure, kind="stable")
    return sure[order], mismatch[rows][order]


def repaired(model: Auto, noisy: Pairs) -> dict[str, Any]:
    """Wrong pairs as they came, kept, kept and repaired; the repairs' calibration, and what a threshold allows."""
    assert noisy.true_mismatch is not None
    kept = np.nan_to_num(model.correspondence_) >= model.threshold_
    bad, n = int(noisy.true_mismatch[kept].sum()), int(kept.sum())
    found: dict[str, Any] = {"came": float(noisy.true_mismatch.mean()), "kept": bad / max(n, 1)}
    for name in ("probable", "plausible"):
        sure, wrong = repairs_by(model, noisy, name)
        found[name] = [len(sure), int((~wrong).sum()), (bad + int(wrong.sum())) / max(n + len(wrong), 1)]
        found[f"{name} error"] = calibration_error(sure, ~wrong) if len(sure) else None
    shares = (bad + np.cumsum(wrong)) / (n + np.arange(1, len(wrong) + 1))  # of the plausible, by falling confidence
    allowed = np.flatnonzero(shares <= bad / max(n, 1) + MOST_ABOVE)
    found["possible"] = int((~wrong[: allowed[-1] + 1]).sum()) if len(allowed) else 0
    return found


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error (Naeini et al., 2015): mean distance of probability and share right, over ten bins."""
    bins = np.array_split(np.argsort(probability, kind="stable"), 10)
    return sum(len(b) * abs(probability[b].mean() - right[b].mean()) for b in bins if len(b)) / len(probability)


def row(folder: Path, corpus: str, rate: float, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """One fit, judged by the truth."""
    clean, settings = read(folder, corpus)
    noise = inject_noise(clean, rate, seed=seed)
    begun = time.process_time()
    model = Auto(backbone="mlp", random_state=seed, require_dependence=False, **settings, **changes)
    noisy = apply_noise(clean, noise)
    model.fit(noisy)
    known = np.isfinite(model.correspondence_)
    w, wrong = model.correspondence_[known].astype(float), noise.mismatched[known]
    low, high = model.noise_rate_interval_
    found: dict[str, Any] = {
        "corpus": corpus, "noise": rate, "seed": seed, "pairs": int(known.sum()),
        "mismatched": float(wrong.mean()), "rate": model.noise_rate_, "low": low, "high": high,
        "auroc": detection(w, wrong, 0.5).auroc if wrong.any() else None, "error": calibration_error(w, ~wrong),
        "seconds": time.process_time() - begun,
        "repairs": repaired(model, noisy),
    }  # fmt: skip
    for level in ABOVE:
        kept = w > level
        estimate = (1 - w[kept]).mean() if kept.any() else None
        found[f"above {level}"] = [int(kept.sum()), estimate, wrong[kept].mean() if kept.any() else None]
    best = np.cumsum(wrong[np.argsort(-w, kind="stable")]) / np.arange(1, len(w) + 1)
    for most in WRONG:
        possible = np.flatnonzero(best <= most)  # by an oracle's threshold of the same scores
        right = float((~wrong[np.argsort(-w, kind="stable")][: possible[-1] + 1]).sum()) if len(possible) else 0.0
        try:
            cut = model.threshold_for(max_wrong=most)
        except RefusedError:
            found[f"max {most}"] = None
            continue
        kept = w >= cut.threshold
        found[f"max {most}"] = [
            int(kept.sum()), cut.share.value, cut.share.low, cut.share.high, wrong[kept].mean(),
            float((~wrong[kept]).sum()) / max(right, 1.0),
        ]  # fmt: skip
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: the expected and true share above each level, then by each max_wrong: true share, right pairs kept."""
    head = ["corpus", "noise", "seed", "estimated rate [interval]", "AUROC", "calibration error"]
    head += [f"mismatched above {a}: expected / true" for a in ABOVE]
    head += [f"max_wrong {m}: mismatched, right pairs kept (% of optimum)" for m in WRONG] + ["CPU s"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        cells = [r["corpus"], f"{r['noise']:g}", str(r["seed"])]
        cells.append(f"{r['rate']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" if r["rate"] == r["rate"] else "undetermined")
        cells += ["-" if r["auroc"] is None else f"{r['auroc']:.3f}", f"{r['error']:.3f}"]
        for level in ABOVE:
            count, estimate, true = r[f"above {level}"]
            cells.append(f"{estimate:.3f} / {true:.3f}" if count else "none")
        for most in WRONG:
            cut = r[f"max {most}"]
            cells.append("refused" if cut is None else f"{cut[4]:.3f}, {percent(cut[5], 0)}")
        lines.append("| " + " | ".join([*cells, f"{r['seconds']:.0f}"]) + " |")
    return "\n".join(lines)


def repair_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mismatched pairs of the input, the kept, the kept and repaired ones, then how good the repairs are."""
    head = ["corpus", "noise", "seed", *(f"mismatched: {part}" for part in ("input", "kept", "kept and repaired"))]
    head += [f"repairs: {what}" for what in ("made, right", "calibration error", "possible")]
    head += ["mismatched: plausible repairs"]
    head += [f"plausible repairs: {what}" for what in ("made, right", "calibration error")]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for r in rows:
        f = r["repairs"]
        cells = [r["corpus"], f"{r['noise']:g}", str(r["seed"]), f"{f['came']:.3f}", f"{f['kept']:.3f}"]
        for name in ("probable", "plausible"):
            count, right, share = f[name]
            error = f[f"{name} error"]
            cells += [f"{share:.3f}", f"{count}, {right}", "-" if error is None else f"{error:.3f}"]
            cells += [str(f["possible"])] if name == "probable" else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="photos,photos-1,titles-20000,titles-2000,clipart,web")
    parser.add_argument("--noise", default="0,0.05,0.2,0.4,0.6,0.8")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--planted", type=float, default=0.1, help="share of the pairs")
    parser.add_argument("--out", type=Path, default=Path("runs/truth.jsonl"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    rows = []
    for corpus in args.corpora.split(","):
        for rate in map(float, args.noise.split(",")):
            for seed in range(args.seeds):
                key = {"corpus": corpus, "noise": rate, "seed": seed, "planted": args.planted}
                found = next((r for r in done if all(r.get(k) == v for k, v in key.items())), None)
                if found is None:
                    found = row(args.data, corpus, rate, seed, {"planted": args.planted}) | key
                    with args.out.open("a") as file:
                        file.write(json.dumps(found) + "\n")
                rows.append(found)
    print(table(rows), repair_table(rows), sep="\n\n")


if __name__ == "__main__":
    main()
