"""``cleanpairs rematch`` of pairs of vectors of which a share is wrong; a part of bench_scale.py.

An embedding folder, 512 halves a side: one part of wrong pairs, all different, whose captions stand a hundredth of it
further on, and nine of right ones, which are three files, each of them three times (links): right pairs take part in no
search but for the best 100,000. Each number of rows is planned from files of its own, which are removed when it is
measured.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from vectors_at_scale import Cost, command

from cleanpairs.core.plain import percent
from cleanpairs.ops.search import SearchNote
from cleanpairs.repair.plan import METADATA_KEY

BLOCKS = 100  # of a part
RIGHT, DIFFERENT = 9, 3  # parts of right pairs, and how many of them are different
MODES, FREEDOM = 1000, 32


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def write_folder(folder: Path, rows: int, dim: int, share: float) -> tuple[Path, int]:
    """The folder, of about ``rows`` rows; and how many are wrong, which are the first ones."""
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    wrong = round(rows * share) // BLOCKS * BLOCKS
    right = (rows - wrong) // RIGHT // BLOCKS * BLOCKS
    first = 0
    for part in range(bool(wrong) + (DIFFERENT if right else 0)):
        count = wrong if wrong and not part else right
        write_part(folder, part, first, count // BLOCKS, dim, permuted=count == wrong and not part)
        first += count
    for part in range(DIFFERENT, RIGHT if right else 0):
        for name, kind in (("img_emb", "npy"), ("text_emb", "npy"), ("metadata", "parquet")):
            of = bool(wrong) + part % DIFFERENT
            (folder / name / f"{name}_{bool(wrong) + part}.{kind}").hardlink_to(folder / name / f"{name}_{of}.{kind}")
    return folder, wrong


def write_part(folder: Path, part: int, first: int, block: int, dim: int, permuted: bool) -> None:
    """Images of 32 degrees of freedom in 1,000 modes, captions near them; ``permuted``: a block further on."""
    rng = np.random.default_rng(0)
    modes = rng.normal(size=(MODES, FREEDOM)).astype(np.float32)
    basis = rng.normal(size=(FREEDOM, dim)).astype(np.float32)
    shape = BLOCKS * block, dim
    images, texts = (
        np.lib.format.open_memmap(folder / name / f"{name}_{part}.npy", "w+", np.float16, shape)
        for name in ("img_emb", "text_emb")
    )
    schema = pa.schema([("image_path", pa.string()), ("caption", pa.string())])
    with pq.ParquetWriter(folder / "metadata" / f"metadata_{part}.parquet", schema) as writer:
        for at in range(0, len(images), block):
            some = np.random.default_rng([part, at])
            point = modes[some.integers(0, MODES, block)] + 0.5 * some.normal(size=(block, FREEDOM)).astype(np.float32)
            image = unit(point @ basis)
            images[at : at + block] = image
            noise = np.float32(0.5 / np.sqrt(dim)) * some.standard_normal(size=(block, dim), dtype=np.float32)
            to = (at + block) % len(texts) if permuted else at
            texts[to : to + block] = unit(image + noise)
            number = first + np.arange(at, at + block)
            own = first + (np.arange(at, at + block) - (block if permuted else 0)) % len(texts)
            captions = pc.binary_join_element_wise("caption number", pa.array(own).cast(pa.string()), " ")
            paths = pc.binary_join_element_wise(pa.array(number).cast(pa.string()), "jpg", ".")
            writer.write_table(pa.table([paths, captions], schema=schema))


def rematch_many(work: Path, sizes: list[int], dim: int, share: float) -> None:
    """Cost, recall and what is found at each number of rows; exponents of time and memory."""
    few, run, plan = work / f"few-{dim}", work / f"run-{dim}", work / "plan-many.parquet"
    if not (run / "model").exists():
        data = few if few.exists() else write_folder(few, 2000, dim, 0.0)[0]
        command("fit", data, "--out", run, "--method", "clip-score", "--set", "text_encoder=features", "--quiet")
    costs: dict[int, Cost] = {}
    for n in sizes:
        data = work / f"rematch-{n}-{dim}"
        shutil.rmtree(data, ignore_errors=True)
        _, wrong = write_folder(data, n, dim, share)
        options = ("--threshold", 0.8, "--repairs", "plausible", "--out", plan, "--overwrite")
        costs[n] = command("rematch", run, data, *options)
        tell(plan, wrong, costs[n])
        shutil.rmtree(data)
    if len(costs) < 2:
        return
    x = np.log(list(costs))
    slopes = [np.polyfit(x, np.log([getattr(c, name) for c in costs.values()]), 1)[0] for name in ("cpu", "peak")]
    least, most = min(costs), max(costs)
    a_row = (costs[most].peak - costs[least].peak) / (most - least)
    print(f"rematch exponent of time {slopes[0]:.3f}, of memory {slopes[1]:.3f}: {a_row:.0f} bytes a row", flush=True)


def tell(plan: Path, wrong: int, cost: Cost) -> None:
    """One line a plan: its cost, and how many of the wrong pairs, which are the first, have their own part back."""
    table = pq.read_table(plan, columns=["action", "donor_pair_id"])
    donor = np.asarray(table["donor_pair_id"].fill_null(-1))[:wrong]
    row, block = np.arange(wrong), wrong // BLOCKS
    image = np.asarray(pc.equal(table["action"], "rematch_image"))[:wrong]
    # The caption of row i is that of the image a block before; the image of row i has its caption a block further on.
    own = np.where(image, donor == (row - block) % wrong, donor == (row + block) % wrong)
    flagged = np.asarray(pc.not_equal(table["action"], "keep"))
    print(
        f"rematch {len(table):>10,} rows, {wrong:,} of them wrong ({percent(flagged[:wrong].mean(), 2)} of these below "
        f"the threshold, {flagged[wrong:].sum():,} others): {cost.cpu:.0f} CPU s, {cost.wall:.0f} s, peak "
        f"{cost.peak / 2**30:.2f} GiB; own part back {percent(own.mean())}",
        flush=True,
    )
    for note in json.loads(pq.read_schema(plan).metadata[METADATA_KEY])["settings"]["searches"]:
        print(f"rematch search {SearchNote(**note)}", flush=True)
