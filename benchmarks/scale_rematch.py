"""``cleanpairs rematch`` of pairs of vectors of which a share is wrong; a part of bench_scale.py.

An embedding folder of 512 halves a side, written block by block; wrong are rows spread over all of it, whose captions
stand a block further on. Each number of rows is planned from files of its own, which are removed when it is measured;
the smallest is killed in its searches and gone on with.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scale_vectors import Cost, command

from cleanpairs.ops.search import SearchNote
from cleanpairs.plan import METADATA_KEY

BLOCKS = 100
HEAPS, FREEDOM = 1000, 32


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def wrong_rows(block: int, share: float) -> np.ndarray:
    """Within a block of so many rows."""
    return np.flatnonzero(np.floor(np.arange(1, block + 1) * share) > np.floor(np.arange(block) * share))


def write_folder(folder: Path, rows: int, dim: int, share: float) -> Path:
    """Images of 32 degrees of freedom in 1,000 heaps, captions near them; the wrong ones go a block further on."""
    rng = np.random.default_rng(0)
    heaps = rng.normal(size=(HEAPS, FREEDOM)).astype(np.float32)
    basis = rng.normal(size=(FREEDOM, dim)).astype(np.float32)
    block = rows // BLOCKS
    wrong = wrong_rows(block, share)
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    images, texts = (
        np.lib.format.open_memmap(folder / name / f"{name}_0.npy", "w+", np.float16, (BLOCKS * block, dim))
        for name in ("img_emb", "text_emb")
    )
    schema = pa.schema([("image_path", pa.string()), ("caption", pa.string())])
    with pq.ParquetWriter(folder / "metadata" / "metadata_0.parquet", schema) as writer:
        for b in range(BLOCKS):
            at = b * block
            some = np.random.default_rng(b + 1)
            point = heaps[some.integers(0, HEAPS, block)] + 0.5 * some.normal(size=(block, FREEDOM)).astype(np.float32)
            image = unit(point @ basis)
            noise = some.standard_normal(size=(block, dim), dtype=np.float32)
            text = unit(image + np.float32(0.5 / np.sqrt(dim)) * noise).astype(np.float16)
            images[at : at + block] = image
            right = np.setdiff1d(np.arange(block), wrong)
            texts[at + right] = text[right]
            texts[(at + block) % len(texts) + wrong] = text[wrong]
            number = np.arange(at, at + block)
            own = number.copy()
            own[wrong] = (own[wrong] - block) % len(texts)
            captions = pc.binary_join_element_wise("caption number", pa.array(own).cast(pa.string()), " ")
            paths = pc.binary_join_element_wise(pa.array(number).cast(pa.string()), "jpg", ".")
            writer.write_table(pa.table([paths, captions], schema=schema))
    return folder


def rematch_many(work: Path, sizes: list[int], dim: int, share: float, workers: int) -> None:
    """Cost, recall and what is found at each number of rows; exponents of time and memory."""
    few, run, plan = work / f"few-{dim}", work / f"run-{dim}", work / "plan-many.parquet"
    if not (run / "model").exists():
        data = few if few.exists() else write_folder(few, 2000, dim, 0.0)
        command("fit", data, "--out", run, "--method", "clip-score", "--set", "text_encoder=features", "--quiet")
    costs: dict[int, Cost] = {}
    for n in sizes:
        data = work / f"rematch-{n}-{dim}"
        shutil.rmtree(data, ignore_errors=True)
        write_folder(data, n, dim, share)
        options = ("--threshold", 0.8, "--out", plan, "--overwrite", "--spill", "always", "--workers", workers)
        found = command("rematch", run, data, *options)
        costs[n] = found
        tell(plan, n, share, found)
        if n == min(sizes):
            whole, parts = plan.read_bytes(), plan.with_name(plan.name + ".parts")
            plan.unlink()
            answered = parts / "search-0" / "manifest.jsonl"
            first = command(
                "rematch", run, data, *options, kill=lambda a=answered: a.exists() and a.read_text().count("\n") > 1
            )
            second = command("rematch", run, data, *options)
            print(
                f"rematch killed in its first search ({first.cpu:.0f} CPU s); gone on with: {second.cpu:.0f} CPU s; "
                f"same bytes {plan.read_bytes() == whole}, left behind: {parts.exists()}",
                flush=True,
            )
        shutil.rmtree(data)
    if len(costs) < 2:
        return
    x = np.log(list(costs))
    slopes = [np.polyfit(x, np.log([getattr(c, name) for c in costs.values()]), 1)[0] for name in ("cpu", "peak")]
    least, most = min(costs), max(costs)
    a_row = (costs[most].peak - costs[least].peak) / (most - least)
    print(f"rematch exponent of time {slopes[0]:.3f}, of memory {slopes[1]:.3f}: {a_row:.0f} bytes a row", flush=True)


def tell(plan: Path, rows: int, share: float, cost: Cost) -> None:
    """One line a plan: its cost, and how many of the wrong pairs have their own part back."""
    table = pq.read_table(plan, columns=["action", "donor_pair_id"])
    donor = np.asarray(table["donor_pair_id"].fill_null(-1))
    block = rows // BLOCKS
    wrong = (np.arange(BLOCKS)[:, None] * block + wrong_rows(block, share)).ravel()
    image = np.asarray(pc.equal(table["action"], "rematch_image"))
    # The caption of row i is that of the image a block before; the image of row i has its caption a block further on.
    own = np.where(image[wrong], donor[wrong] == (wrong - block) % rows, donor[wrong] == (wrong + block) % rows)
    flagged = np.asarray(pc.not_equal(table["action"], "keep"))
    print(
        f"rematch {rows:>10,} rows, {len(wrong):,} of them wrong ({flagged[wrong].mean():.2%} of these below the "
        f"threshold, {flagged.sum() - flagged[wrong].sum():,} others): {cost.cpu:.0f} CPU s, {cost.wall:.0f} s, peak "
        f"{cost.peak / 2**30:.2f} GiB; own part back {own.mean():.1%}",
        flush=True,
    )
    for note in json.loads(pq.read_schema(plan).metadata[METADATA_KEY])["settings"]["searches"]:
        print(f"rematch search {SearchNote(**note)}", flush=True)
