"""What cleaning and repair do for the model that is trained next, and how good the repairs are.

    OMP_NUM_THREADS=1 python benchmarks/repair.py DATA_DIR
    OMP_NUM_THREADS=1 python benchmarks/repair.py DATA_DIR --corpora photos --noise 0.4 --seeds 1

DATA_DIR holds ``{photos,fashion}_{train,val,test}.parquet``. A method is fitted on mismatched captions; then a plain
InfoNCE model is trained, as many steps each time, on

    a  the mismatched data              d  the pairs that the method keeps
    b  it without the mismatched pairs  e  those and the repaired ones, by each strategy
    c  the true data

and judged by rSum on the clean test split. ``_wrong`` is the share of mismatched pairs in it: as it came, kept, and
kept and repaired (probable: by default; the others are plausible). ``closed`` is (d - a) / (b - a). A new caption is
right when it is one of the image's own, or of the same text as one; the precision of two strategies is compared at an
equal recall: nine tenths of what the lesser of them restores, the surest repairs first. One JSON line a cell goes to
OUT, read to resume.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs import InfoNCE
from cleanpairs.benchmarking.settings import Splits, load_splits
from cleanpairs.core.registry import METHODS
from cleanpairs.data import Pairs
from cleanpairs.data.noise import Noise, apply_noise, inject_noise
from cleanpairs.repair.plan import RepairPlan

CORPORA: dict[str, dict[str, Any]] = {
    "photos": {"size": 224, "columns": {}, "epochs": 18, "fit": {}},
    "fashion": {
        "size": 96, "columns": {"text_column": "text"}, "epochs": 10,
        "fit": {"crcl": {"refine_epochs": (3, 3), "epochs": 4}},
    },
}  # fmt: skip


RSUM = ("a", "b", "c", "d", "e_probable", "e_ot", "e_nearest", "e_ot_both")


def right_repairs(plan: RepairPlan, clean: Pairs, noise: Noise) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Repaired rows (R,), which are right (R,) bool, and how sure the plan is of each (R,)."""
    table = plan.table
    rows = np.flatnonzero(np.array([a == "rematch_text" for a in table["action"].to_pylist()], dtype=bool))
    donor = np.array(table["donor_pair_id"].fill_null(-1), dtype=np.int64)[rows]
    after = noise.permutation.copy()
    after[rows] = noise.permutation[donor]
    score = np.array(table["repair_score"].fill_null(0), dtype=np.float64)[rows]
    confidence = table["confidence"].to_numpy(zero_copy_only=False)[rows]
    sure = np.where(np.isnan(confidence), score - 1, confidence)  # of a transport; before what has none
    return rows, ~clean.mismatched_by(after)[rows], sure


def precision_at(right: np.ndarray, sure: np.ndarray, hits: int) -> float | None:
    """Precision of the surest repairs that hold ``hits`` right ones."""
    found = np.cumsum(right[np.argsort(-sure, kind="stable")])
    return float(hits / (np.searchsorted(found, hits) + 1)) if 0 < hits <= right.sum() else None


def run_cell(splits: Splits, corpus: str, args: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    spec, clean = CORPORA[corpus], splits.train
    noise = inject_noise(clean, rate, per="caption", seed=seed)
    corrupted = apply_noise(clean, noise)
    shared = {"backbone": args.backbone, "image_size": spec["size"], "random_state": seed}
    known = METHODS.load(args.method)
    model = known(**{**shared, **spec["fit"].get(args.method, {})}).fit(corrupted, val=splits.val)
    y = model.correspondence_
    steps = spec["epochs"] * len(clean)

    def train(pairs: Pairs) -> float:
        epochs = max(1, round(steps / max(len(pairs), 1)))
        plain = InfoNCE(**shared, epochs=epochs).fit(pairs, val=splits.val)
        return float(plain.evaluate(splits.test).rsum)

    kept = np.flatnonzero(y >= model.threshold_)
    row: dict[str, Any] = {"flagged": float((y < model.threshold_).mean()), "threshold": float(model.threshold_)}
    variants: dict[str, Callable[[], Pairs]] = {
        "a": lambda: corrupted,
        "b": lambda: corrupted.select(np.flatnonzero(~noise.mismatched)),
        "c": lambda: clean,
        "d": lambda: corrupted.select(kept),
    }
    plans = {
        "ot": {"strategy": "ot", "take_from": "mismatched"},
        "nearest": {"strategy": "nearest", "take_from": "mismatched"},
        "ot_both": {"strategy": "ot", "take_from": "both"},
        "probable": {"repairs": "probable"},
    }
    judged = {}
    for name, settings in plans.items():
        plan = model.rematch(corrupted, targets="text", **{"repairs": "plausible", **settings})
        rows, right, _ = judged[name] = right_repairs(plan, clean, noise)
        row[f"{name}_repaired"] = len(rows) / len(clean)
        row[f"{name}_precision"] = float(right.mean()) if len(rows) else None
        row[f"{name}_restored"] = float(right.sum() / max(noise.mismatched.sum(), 1))
        variants[f"e_{name}"] = lambda plan=plan: plan.apply(corrupted)  # type: ignore[misc]
    hits = int(0.9 * min(judged[name][1].sum() for name in ("ot", "nearest")))
    for name in ("ot", "nearest"):
        row[f"{name}_precision_at"] = precision_at(judged[name][1], judged[name][2], hits)
    row["at_restored"] = hits / max(int(noise.mismatched.sum()), 1)
    for name, make in variants.items():
        made = make()
        row[f"{name}_wrong"] = 0.0 if made.true_mismatch is None else float(made.true_mismatch.mean())
        row[name] = train(made)
    if row["b"] != row["a"]:
        row["closed"] = (row["d"] - row["a"]) / (row["b"] - row["a"])
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """Mean and spread over seeds, a line for each corpus and rate."""
    names = [
        "a_wrong", "d_wrong", "e_probable_wrong", "e_ot_wrong", "e_nearest_wrong", "e_ot_both_wrong", "e_probable",
        "a", "b", "c", "d", "e_ot", "e_nearest", "e_ot_both", "closed", "ot_repaired", "nearest_repaired",
        "ot_precision", "nearest_precision", "at_restored", "ot_precision_at", "nearest_precision_at",
    ]  # fmt: skip
    lines = ["| corpus | noise | seeds | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 3)]
    for corpus, rate in sorted({(r["corpus"], r["noise"]) for r in rows}, reverse=True):
        mine = [r for r in rows if (r["corpus"], r["noise"]) == (corpus, rate)]
        cells = []
        for name in names:
            values = np.array([r[name] for r in mine if r.get(name) is not None], dtype=np.float64)
            digits = 3 if name not in RSUM else 1
            spread = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.{digits}f}{spread}" if len(values) else "-")
        lines.append(f"| {corpus} | {rate:g} | {len(mine)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--method", default="crcl")
    parser.add_argument("--backbone", default="mlp")
    parser.add_argument("--noise", default="0.2,0.4,0.6")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/repair.jsonl"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in lines]
    for seed in range(args.seeds):
        for corpus in args.corpora.split(","):
            spec = CORPORA[corpus]
            splits = load_splits(args.data / f"{corpus}_train.parquet", **spec["columns"])
            for rate in map(float, args.noise.split(",")):
                cell = {
                    "corpus": corpus, "noise": rate, "seed": seed, "method": args.method, "backbone": args.backbone,
                }  # fmt: skip
                if any(all(r[k] == v for k, v in cell.items()) for r in rows):
                    continue
                rows.append({**cell, **run_cell(splits, corpus, args, rate, seed)})
                with open(args.out, "a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}
                print(json.dumps(shown), flush=True)
    mine = [r for r in rows if r["method"] == args.method and r["backbone"] == args.backbone]
    print(summary(mine))


if __name__ == "__main__":
    main()
