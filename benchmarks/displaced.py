"""Displaced rows: how many get their own caption back by the rule, and how many other rows are damaged.

    OMP_NUM_THREADS=1 python benchmarks/displaced.py DATA_DIR --corpora vectors,titles-2000,clipart --out displaced.csv
    OMP_NUM_THREADS=1 python benchmarks/displaced.py DATA_DIR --none 40
    OMP_NUM_THREADS=1 python benchmarks/displaced.py DATA_DIR --many 1000000

The corpora are those of truth.py; ``vectors`` are the CLIP vectors of ``clip/mini_*.npy``, which clip-score compares.
Captions of a block are displaced in a circle, so its first or last ones are orphans. A share of all captions is then
exchanged at random. A row counts as displaced where its own caption stands at the block's distance. ``own caption
restored`` is the share of these that the plan gives their caption. ``other rows damaged`` is the share of all other
rows that the rule gives a wrong caption, and ``damaged outside a block`` the part of it that is in no block. ``kept
wrong``: the share of a block's rows that the plan keeps with another's caption.
Vectors have one size of blocks and one distance at a time. Pictures have six blocks together, of 30, 100 and 300 rows
with distances from -2 to 5, or two of 30 and 60, in one fit of ``auto``.
``--none`` counts what is found in so many corpora without displacement: unchanged, exchanged at random, sorted by
likeness and exchanged among neighbours. ``--many`` counts the CPU seconds of fits on so many rows of vectors that
vectors_at_scale.py makes, and of the search in them. It takes more than 250,000 rows, which are two files.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from truth import read
from vectors_at_scale import make, parts

from cleanpairs import Auto, ClipScore, Pairs
from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.fit_stream import StreamedFit
from cleanpairs.core.recipe import Recipe
from cleanpairs.correspondence.displacement import find_displaced_rows

Block = tuple[int, int]  # rows, distance


def vectors(folder: Path) -> Pairs:
    """Pairs of CLIP vectors."""
    sides = [np.load(folder / "clip" / f"mini_{side}.npy").astype(np.float32) for side in ("image", "text")]
    captions = (folder / "clip" / "mini_captions.txt").read_text().splitlines()
    return Pairs.from_arrays(captions, features=sides[0], text_vectors=sides[1])


def displace(n: int, blocks: list[Block], noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The owner (n,) of each row's caption, the distance (n,) of displaced rows, 0 elsewhere, and the block or -1."""
    rng = np.random.default_rng(seed)
    owner, at, inside = np.arange(n), np.zeros(n, np.int64), np.full(n, -1)
    free = n - sum(rows for rows, _ in blocks)
    first = np.sort(rng.choice(free + 1, len(blocks))) + np.concatenate([[0], np.cumsum([r for r, _ in blocks])[:-1]])
    for number, (start, (rows, distance)) in enumerate(zip(first.tolist(), blocks, strict=True)):
        owner[start : start + rows] = np.roll(owner[start : start + rows], distance)
        inside[start : start + rows] = number
    some = rng.choice(n, round(noise * n), replace=False)
    owner[some] = owner[rng.permutation(some)]
    place = np.argsort(owner) - np.arange(n)
    wanted = np.array([distance for _, distance in blocks] + [0])[inside]
    at[(place == wanted) & (wanted != 0)] = wanted[(place == wanted) & (wanted != 0)]
    return owner, at, inside


def measured(folder: Path, corpus: str, blocks: list[Block], noise: float, seed: int) -> list[dict[str, Any]]:
    """One fit and one plan, judged block size by block size."""
    clean, settings = (vectors(folder), {}) if corpus == "vectors" else read(folder, corpus)
    owner, at, inside = displace(len(clean), blocks, noise, seed)
    pairs = clean.with_captions([clean.captions[i] for i in owner], of=owner)
    model: Any = ClipScore(text_encoder="features", require_dependence=False)
    if corpus != "vectors":
        model = Auto(backbone="mlp", random_state=seed, device="cpu", **settings)
    begun = time.process_time()
    model.fit(pairs)
    fit = time.process_time() - begun
    plan, begun = model.rematch(pairs).table.to_pandas(), time.process_time()
    model._embed(pairs).displaced_rows(model.correspondence_)
    search = time.process_time() - begun
    ruled = plan.reason.fillna("").str.startswith("displaced: ").to_numpy()
    donor = plan.donor_pair_id.fillna(-1).to_numpy(np.int64)
    right = ruled & (owner[donor] == np.arange(len(pairs)))
    others, wrong = at == 0, (plan.action == "keep").to_numpy() & (owner != np.arange(len(pairs)))
    found = []
    for rows, distance in dict.fromkeys(blocks):
        numbers = [k for k, block in enumerate(blocks) if block == (rows, distance)]
        mine = np.isin(inside, numbers) & ~others
        found.append({
            "corpus": corpus, "blocks": len(blocks), "rows a block": rows, "distance": distance, "mismatched": noise,
            "seed": seed, "displaced": int(mine.sum()), "own caption restored": round(float(right[mine].mean()), 3),
            "other rows damaged": round(float((ruled & ~right)[others].mean()), 4),
            "damaged outside a block": round(float((ruled & ~right & others & (inside < 0)).sum() / others.sum()), 4),
            "kept wrong": round(float(wrong[np.isin(inside, numbers)].mean()), 4),
            "fit, s": round(fit, 1), "search, s": round(search, 1),
        })  # fmt: skip
    return found


def over_distances(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All distances in one row: the displaced rows, the mean of the figures, and the least share of own captions."""
    found = pd.DataFrame(rows).groupby(["corpus", "blocks", "rows a block", "mismatched"], as_index=False).agg(
        displaced=("displaced", "sum"), own=("own caption restored", "mean"), least=("own caption restored", "min"),
        damaged=("other rows damaged", "mean"), outside=("damaged outside a block", "mean"),
        kept=("kept wrong", "mean"),
    )  # fmt: skip
    named = found.round(4).rename(columns={
        "own": "own caption restored", "least": "at the worst distance", "damaged": "other rows damaged",
        "outside": "damaged outside a block", "kept": "kept wrong",
    })  # fmt: skip
    return [{str(name): value for name, value in row.items()} for row in named.to_dict("records")]


def undisplaced(folder: Path, count: int) -> list[dict[str, Any]]:
    """What is found in corpora where nothing is displaced."""
    clean, found = vectors(folder), []
    z = clean.images.array()
    assert z is not None and clean.text_vectors is not None
    image, text = z[:, 0], clean.text_vectors
    for seed in range(count):
        rng = np.random.default_rng(seed)
        kind, rate = ("unchanged", "permuted", "near")[seed % 3], (0.2, 0.4, 0.8, 1.0)[seed // 3 % 4]
        order, owner = rng.permutation(len(image)), np.arange(len(image))
        some = np.sort(rng.choice(len(owner), round(rate * len(owner)), replace=False))
        if kind == "permuted":
            owner[some] = rng.permutation(some)
        if kind == "near":  # sorted by a direction, exchanged among the ten nearest
            order = np.argsort(image @ rng.normal(size=image.shape[1]))
            for group in np.array_split(some, max(1, len(some) // 10)):
                owner[group] = rng.permutation(group)
        blocks = find_displaced_rows(image[order], text[order][owner]).blocks
        found.append({"kind": kind, "rate": 0.0 if kind == "unchanged" else rate, "seed": seed, "blocks": len(blocks)})
    return found


def many(n: int) -> list[dict[str, Any]]:
    """CPU seconds of fits in a stream on n rows of vectors, and of the search in them.

    Of the rows 1,000 are displaced, or those of the first two files are exchanged.
    """
    search, spent = StreamedFit._displaced, [0.0]

    def timed(self: StreamedFit, usable: np.ndarray) -> Any:
        begun = time.process_time()
        found = search(self, usable)
        spent[0] = time.process_time() - begun
        return found

    StreamedFit._displaced = timed  # type: ignore[method-assign]
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "data", n, 0.2)
        recipe = Recipe.resolve(None, overrides=[], options={"train": str(folder / "data"), "device": "cpu"})
        first, second = parts(folder / "data", "text_emb")[:2]
        own, other = np.load(first), np.load(second)
        displaced = own.copy()
        displaced[5_000:6_000] = np.roll(own[5_000:6_000], 1, axis=0)
        for kind, in_first, in_second in (("1,000 rows by 1", displaced, other), ("two files", other, own)):
            np.save(first, in_first)
            np.save(second, in_second)
            begun = time.process_time()
            blocks = fit_run(recipe, out=folder / kind, latest=False)["displaced"]
            rest = time.process_time() - begun - spent[0]
            print(*(block["why"] for block in blocks), sep="\n")
            times = {"search, CPU s": round(spent[0]), "fit without it": round(rest)}
            rows.append({"pairs": n, "displaced": kind, "blocks": len(blocks)} | times)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="")
    parser.add_argument("--none", type=int, default=0)
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    grid = [[(rows, k)] * many for rows, k, many in product((30, 100, 300, 1000), (1, 2, 3, 4, 5, -2), (1, 5))]
    grid = [blocks for blocks in grid if sum(r for r, _ in blocks) <= 900]  # a tenth of the rows stays in place
    together = [[(30, 1), (30, 3), (30, -2), (100, 2), (100, 5), (300, 4)], [(30, 1), (60, -2)]]
    rows: list[dict[str, Any]] = []
    for corpus in filter(None, args.corpora.split(",")):
        for blocks, noise in product(grid if corpus == "vectors" else together, (0.0, 0.2)):
            rows += measured(args.data, corpus, blocks, noise, args.seed)
            print(rows[-1], flush=True)
    rows = over_distances(rows) if rows else []
    rows += undisplaced(args.data, args.none) + (many(args.many) if args.many else [])
    with args.out.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# OMP_NUM_THREADS=1 python benchmarks/displaced.py DATA {' '.join(sys.argv[2:])}\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
