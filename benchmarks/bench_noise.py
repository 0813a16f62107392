"""CRCL against plain InfoNCE under noise: detection, retrieval and repair, mean and spread of several seeds.

    python benchmarks/bench_noise.py photos DATA_DIR --noise 0,0.2,0.4,0.6 --seeds 3
    python benchmarks/bench_noise.py fashion DATA_DIR --noise 0.4 --seeds 3
    python benchmarks/bench_noise.py fashion DATA_DIR --noise 0.4 --seeds 1 --image-encoder cnn

DATA_DIR holds ``{photos,fashion}_{train,val,test}.parquet``. Both methods have the same encoders, steps, batches and
validation; captions are mismatched one by one (per caption), the validation and test splits stay clean. The truth is
used to judge only. One JSON line a run goes to ``--out``, which is read again to resume.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs import CRCL, InfoNCE, load_pairs
from cleanpairs.data import Pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.features import image_matrix
from cleanpairs.scoring.evaluate import detection

COLUMNS = {"photos": {}, "fashion": {"text_column": "text"}}
SIZE = {"photos": 224, "fashion": 96}


def settings(corpus: str, args: argparse.Namespace) -> dict[str, Any]:
    """The defaults of the library, but for what the command line changes."""
    return {
        "image_size": args.image_size or (64 if args.image_encoder == "cnn" else SIZE[corpus]),
        **json.loads(args.set),
    }


def with_features(pairs: Pairs, encoder: str, size: int) -> Pairs:
    """Vectors in place of the images, once for all runs; pixels stay as they are."""
    from dataclasses import replace

    from cleanpairs.data.images import ImageSource

    if encoder == "cnn":
        return pairs
    array = np.asarray(image_matrix(pairs, encoder, image_size=size).array)
    return replace(pairs, images=ImageSource(len(array), vectors=array))


def repair_quality(model: Any, pairs: Pairs) -> dict[str, float]:
    """Share of new captions that are one of the image's own, and the share of mismatched pairs that got one."""
    plan = model.rematch(pairs, targets="text", repairs="plausible")
    action = np.array(plan.table["action"].to_pylist(), object)
    donor = np.array(plan.table["donor_pair_id"].fill_null(0), np.int64)
    rows = np.flatnonzero(action == "rematch_text")
    own = np.array([pairs.true_key[d] for d in donor[rows]], object) == np.array([pairs.keys[i] for i in rows], object)
    wrong = pairs.true_mismatch
    mismatched = np.flatnonzero(~(model.correspondence_ >= model.threshold_))
    keys = np.array([pairs.keys[i] for i in range(len(pairs))], object)
    true = np.array(pairs.true_key, object)
    pool, counts = np.unique(true[mismatched], return_counts=True)
    share = dict(zip(pool.tolist(), (counts / max(len(mismatched), 1)).tolist(), strict=True))
    random = float(np.mean([share.get(k, 0.0) for k in keys[rows]])) if len(rows) else float("nan")
    return {
        "repaired": float(len(rows)),
        "repair_precision": float(own.mean()) if len(rows) else float("nan"),
        "repair_random": random,
        "corrupted_restored": float((own & wrong[rows]).sum() / max(int(wrong.sum()), 1)),
    }


def one(
    method: str, corpus: str, rate: float, seed: int, data: dict[str, Pairs], args: argparse.Namespace
) -> dict[str, Any]:
    """One run, all its figures."""
    noise = inject_noise(data["train"], rate, per="caption", seed=seed)
    train = apply_noise(data["train"], noise)
    given = settings(corpus, args)
    model: Any = CRCL(random_state=seed, **given)
    if method == "infonce":
        total = sum(model.refine_epochs) + model.epochs
        same = ("dim", "batch_size", "lr", "image_encoder", "image_size", "image_drop", "text_drop", "tau")
        model = InfoNCE(random_state=seed, epochs=total, **{k: getattr(model, k) for k in same})
    if args.image_encoder == "cnn":
        model.set_params(image_encoder="cnn")
    curve: list[float] = []

    def on_epoch(record: Any, y: np.ndarray) -> None:
        if noise.mismatched.any():
            curve.append(detection(y, noise.mismatched, 0.1).auroc)

    began, cpu = time.perf_counter(), time.process_time()
    model.fit(train, val=data["val"], on_epoch=on_epoch)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    row: dict[str, Any] = {
        "method": method,
        "corpus": corpus,
        "noise": rate,
        "seed": seed,
        "encoder": args.image_encoder,
    }
    row |= {"seconds": seconds, "cpu_seconds": cpu, "pairs": len(train), "best_val_rsum": model.best_val_rsum_}
    row |= {"rsum": model.evaluate(data["test"]).rsum, "noise_rate_estimate": model.noise_rate_}
    flagged = model.correspondence_ < model.threshold_
    row["flagged"] = float(flagged.mean())
    if noise.mismatched.any():
        row |= detection(model.correspondence_, noise.mismatched, model.threshold_).to_dict()
        row["auroc_best_epoch"] = max(curve)
        from cleanpairs.correspondence.density_minimum import find_density_minimum

        density_minimum = find_density_minimum(model.correspondence_)
        auto = (
            detection(model.correspondence_, noise.mismatched, density_minimum.threshold)
            if density_minimum.separated
            else None
        )
        row["f1_auto"] = auto.f1 if auto else float("nan")
        if corpus == "photos" or args.repair:
            row |= repair_quality(model, train)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and spread (standard deviation over seeds) of every figure, a line a method and rate."""
    names = (
        "auroc", "auroc_best_epoch", "f1", "f1_auto", "precision", "recall", "rsum", "flagged", "noise_rate_estimate",
        "repair_precision", "repair_random", "corrupted_restored",
    )  # fmt: skip
    lines = [
        "| corpus | encoder | noise | method | seeds | " + " | ".join(names) + " |",
        "|---" * (5 + len(names)) + "|",
    ]
    groups = sorted({(r["corpus"], r["encoder"], r["noise"], r["method"]) for r in rows})
    for group in groups:
        chosen = [r for r in rows if (r["corpus"], r["encoder"], r["noise"], r["method"]) == group]
        cells = []
        for name in names:
            values = np.array([r[name] for r in chosen if r.get(name) is not None], dtype=float)
            digits = 1 if name == "rsum" else 3
            known = len(values) and np.isfinite(values).any()
            cells.append(f"{np.nanmean(values):.{digits}f} ± {np.nanstd(values):.{digits}f}" if known else "-")
        lines.append(f"| {' | '.join(str(g) for g in group)} | {len(chosen)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=list(COLUMNS))
    parser.add_argument("data", type=Path)
    parser.add_argument("--noise", default="0,0.2,0.4,0.6")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", default="crcl,infonce")
    parser.add_argument("--image-encoder", default="efficientnet_lite0", choices=["efficientnet_lite0", "cnn"])
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--repair", action="store_true", help="judge repair also where images have one caption")
    parser.add_argument("--set", default="{}", help="JSON of more constructor parameters of CRCL")
    parser.add_argument("--out", type=Path, default=Path("bench_noise.jsonl"))
    args = parser.parse_args()
    size = settings(args.corpus, args)["image_size"]
    data = {
        split: with_features(
            load_pairs(args.data / f"{args.corpus}_{split}.parquet", limit=args.limit, **COLUMNS[args.corpus]),
            args.image_encoder,
            size,
        )
        for split in ("train", "val", "test")
    }
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(r["corpus"], r["encoder"], r["noise"], r["seed"], r["method"]) for r in rows}
    for rate in (float(x) for x in args.noise.split(",")):
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            for method in args.methods.split(","):
                if (args.corpus, args.image_encoder, rate, seed, method) in done:
                    continue
                row = one(method, args.corpus, rate, seed, data, args)
                rows.append(row)
                with args.out.open("a") as f:
                    f.write(json.dumps(row) + "\n")
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
