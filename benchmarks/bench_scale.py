"""What grows with the rows: score, export, rematch, search; with ratios, floors and exponents of cost.

    OMP_NUM_THREADS=1 python benchmarks/bench_scale.py --rows 100000 --work /tmp/bench-scale
    OMP_NUM_THREADS=1 python benchmarks/bench_scale.py --rows 1000000 --only score,search --work /tmp/bench-scale

One thread. The floors are measured first: a matrix product of 2048 x 2048 float32 (the FLOP/s of the processor) and a
copy of 256 MB (its bandwidth).

score    ``cleanpairs score`` of ROWS/4 and of ROWS rows (512-d vectors, captions of 4 to 12 words), an MLP model, in
         processes of their own: rows/s, peak memory, and the exponents of time and of memory in the rows (the start of
         the process, measured on few rows, taken off). The floor: the model's and the bank's FLOPs, the file's bytes.
export   ``cleanpairs export`` of a plan for ROWS/4 and for ROWS rows: rows/s, peak memory, the exponents of both. The
         floor: the file read and written.
rematch  ``cleanpairs rematch`` of an embedding folder with ROWS pairs of 256-d vectors, all of them mismatched (the
         captions are permuted), by a ``clip-score`` run, end to end: reading, search, scorer, transport, assignment.
search   top-32 of ROWS queries in ROWS vectors by inverted lists, against a flat FAISS index (timed on 2,000 queries
         and scaled) and against FAISS's IVF at the same number of probes; recall@10 against the exact search.

The baseline stands beside each ratio and ran in the same process. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from scale_rematch import rematch_many

from cleanpairs.core.plain import percent
from cleanpairs.ops import search
from cleanpairs.ops.search import recall_at
from cleanpairs.repair.plan import METADATA_KEY

print = functools.partial(print, flush=True)  # what is known is seen before what takes longer

PARTS = ("score", "export", "rematch", "search")
CHILD = """
import json, re, resource, sys
from cleanpairs.cli import main
sys.argv[0] = "cleanpairs"
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
peak = re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]  # ru_maxrss begins with the parent's
print(json.dumps([sum(u.ru_utime + u.ru_stime for u in used), int(peak) * 1024]))
"""


def cpu(call: Callable[[], object], rounds: int = 1) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best


def floors() -> tuple[float, float]:
    """FLOP/s of float32 and bytes/s of a copy, one thread."""
    a = torch.randn(2048, 2048)
    flops = 2 * 2048**3 / cpu(lambda: a @ a, 5)
    source, target = np.ones(1 << 26, np.float32), np.empty(1 << 26, np.float32)
    return flops, 2 * source.nbytes / cpu(lambda: np.copyto(target, source), 5)


def command(*args: object) -> tuple[float, float]:
    """CPU seconds and peak bytes of a command in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cleanpairs {' '.join(map(str, args))}\n{done.stderr}")
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def write_rows(path: Path, rows: int, dim: int, seed: int = 0) -> None:
    """Synthetic rows: a caption of 4 to 12 words out of 2,000, and a vector that is the sum of theirs."""
    rng = np.random.default_rng(seed)
    words = rng.normal(size=(2000, dim)).astype(np.float32)
    names = np.array([f"word{i}" for i in range(2000)], object)
    vector = pa.list_(pa.float32(), dim)
    schema = pa.schema([("key", pa.string()), ("caption", pa.string()), ("image_features", vector)])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, rows, 20_000):
            n = min(20_000, rows - start)
            chosen = rng.integers(0, 2000, size=(n, 12))
            lengths = rng.integers(4, 13, size=n)
            present = np.arange(12) < lengths[:, None]
            vectors = np.einsum("nk,nkd->nd", present.astype(np.float32), words[chosen])
            captions = [" ".join(names[c[:k]]) for c, k in zip(chosen, lengths.tolist(), strict=True)]
            flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).ravel()), dim)
            keys = pa.array([str(start + i) for i in range(n)])
            writer.write_batch(pa.RecordBatch.from_arrays([keys, pa.array(captions), flat], schema=schema))


def inputs(work: Path, rows: int, dim: int) -> Path:
    path = work / f"rows-{rows}-{dim}.parquet"
    if not path.exists():
        write_rows(path, rows, dim)
    return path


def exponent(small: float, large: float, factor: float) -> float:
    return float(np.log(max(large, 1e-9) / max(small, 1e-9)) / np.log(factor))


def fitted(work: Path, dim: int) -> Path:
    run = work / f"run-{dim}"
    if not (run / "model").exists():
        few = inputs(work, 2000, dim)
        settings = ("--method", "infonce", "--backbone", "mlp", "--epochs", 3, "--quiet", "--overwrite")
        command("fit", few, "--out", run, *settings)
    return run


def score(work: Path, rows: int, dim: int, flops: float, bandwidth: float) -> None:
    run, out = fitted(work, dim), work / "scores.parquet"
    start, base = command("score", run, inputs(work, 2000, dim), "--out", out, "--overwrite")
    took = {}
    for n in (rows // 4, rows):
        data = inputs(work, n, dim)
        seconds, peak = command("score", run, data, "--out", out, "--overwrite")
        took[n] = seconds - start, peak
        print(f"score   {n:>10,} rows: {n / took[n][0]:>9,.0f} rows/s, peak {peak / 2**20:,.0f} MiB")
    (t0, m0), (t1, m1) = took[rows // 4], took[rows]
    print(f"score   exponent of time {exponent(t0, t1, 4):.2f}, of memory {exponent(m0, m1, 4):.3f}; the start takes "
          f"{start:.1f} s, {base / 2**20:,.0f} MiB")  # fmt: skip
    model = json.loads((run / "model" / "config.json").read_text())["parameters"]
    width = int(model.get("dim") or 256)
    work_flops = rows * 2 * (dim * width + 2 * width * 1016)
    floor = work_flops / flops + data.stat().st_size / bandwidth
    print(f"score   floor {floor:.1f} s (image tower's first layer, bank, bytes): {t1 / floor:.1f} times that")


def export(work: Path, rows: int, dim: int, bandwidth: float) -> None:
    out, took = work / "out.parquet", []
    for n in (2000, rows // 4, rows):
        data, plan = inputs(work, n, dim), work / f"plan-{n}.parquet"
        write_plan(plan, data, n)
        began = time.perf_counter()
        seconds, peak = command("export", "--plan", plan, "--out", out, "--overwrite")
        took.append((n, seconds, peak, time.perf_counter() - began))
    (_, start, base, _), (_, t0, m0, _), (_, t1, m1, _) = took
    for n, seconds, peak, wall in took[1:]:
        print(f"export  {n:>10,} rows: {n / (seconds - start):>9,.0f} rows/s of CPU time, {n / wall:,.0f} by the "
              f"clock; peak {peak / 2**20:,.0f} MiB")  # fmt: skip
    floor = 2 * data.stat().st_size / bandwidth
    print(f"export  exponent of time {exponent(t0 - start, t1 - start, 4):.2f}, of memory {exponent(m0, m1, 4):.3f}; "
          f"the start takes {start:.1f} s, {base / 2**20:,.0f} MiB; floor {floor:.1f} s (bytes read and written): "
          f"{(t1 - start) / floor:.1f} times that")  # fmt: skip


def write_plan(path: Path, data: Path, rows: int) -> None:
    """A plan that keeps nine rows in ten and drops one."""
    from cleanpairs.data import open_source
    from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan

    keys = pq.read_table(data, columns=["key", "caption"])
    dropped = np.arange(rows) % 10 == 0
    columns = {
        "pair_id": np.arange(rows), "key": keys["key"], "original_caption": keys["caption"],
        "action": np.where(dropped, "drop", "keep"), "correspondence": np.where(dropped, 0.1, 0.9).astype(np.float32),
        "caption": pa.array(keys["caption"].to_pylist(), mask=dropped),
        "reason": pa.array(np.full(rows, "no candidate", object), mask=~dropped),
    }  # fmt: skip
    table = pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in PLAN_SCHEMA], schema=PLAN_SCHEMA)
    settings = {"data": str(data.absolute()), "columns": {}}
    RepairPlan(table, 0.5, 0.5, open_source(data).fingerprint, settings).save(path, overwrite=True)


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def embeddings(rows: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of 32 degrees of freedom in 1,000 modes, and queries near them: as embeddings of a model are."""
    rng = np.random.default_rng(seed)
    modes, basis = rng.normal(size=(1000, 32)).astype(np.float32), rng.normal(size=(32, dim)).astype(np.float32)
    bank = unit((modes[rng.integers(0, 1000, rows)] + 0.5 * rng.normal(size=(rows, 32)).astype(np.float32)) @ basis)
    return bank, unit(bank + (0.5 / np.sqrt(dim)) * rng.normal(size=(rows, dim)).astype(np.float32))


def embedding_folder(folder: Path, rows: int, dim: int, permuted: bool) -> Path:
    """What clip-retrieval leaves: vectors of images, of captions, and the rows that they belong to."""
    if (folder / "metadata").exists():
        return folder
    images, texts = embeddings(rows, dim)
    order = np.random.default_rng(1).permutation(rows) if permuted else np.arange(rows)
    for name, array in (("img_emb", images), ("text_emb", texts[order])):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / f"{name}_0.npy", array.astype(np.float16))
    (folder / "metadata").mkdir()
    captions = pa.array([f"caption number {i}" for i in order])
    table = pa.table({"image_path": [f"{i}.jpg" for i in range(rows)], "caption": captions})
    pq.write_table(table, folder / "metadata" / "metadata_0.parquet")
    return folder


def rematch(work: Path, rows: int) -> None:
    few = embedding_folder(work / "vectors-2000", 2000, 256, permuted=False)
    run, plan = work / "run-clip-score", work / "plan-rematch.parquet"
    if not (run / "model").exists():
        command(
            "fit",
            few,
            "--out",
            run,
            "--method",
            "clip-score",
            "--set",
            "text_encoder=features",
            "--quiet",
            "--overwrite",
        )
    data = embedding_folder(work / f"vectors-{rows}", rows, 256, permuted=True)
    began = time.perf_counter()
    options = ("--threshold", 1, "--repairs", "plausible", "--set", "take_from=mismatched", "--overwrite")
    seconds, peak = command("rematch", run, data, "--out", plan, *options)
    wall = time.perf_counter() - began
    table = pq.read_table(plan, columns=["action", "caption", "donor_pair_id"])
    repaired = np.asarray(table["donor_pair_id"].is_valid())
    order = np.random.default_rng(1).permutation(rows)
    back = np.argsort(order)  # the pair that shows the caption of each image
    donor = np.asarray(table["donor_pair_id"].fill_null(-1))
    image = np.asarray(pc.equal(table["action"], "rematch_image"))
    right = np.where(image, donor == order, donor == back) & repaired
    print(f"rematch {rows:>10,} mismatched pairs: {seconds:.0f} CPU s, {wall:.0f} s, peak {peak / 2**30:.2f} GiB; "
          f"repaired {percent(repaired.mean())}, "
          f"their own part {percent(right.sum() / max(repaired.sum(), 1))}")  # fmt: skip
    for note in json.loads(pq.read_schema(plan).metadata[METADATA_KEY])["settings"]["searches"]:
        print(f"rematch search {search.SearchNote(**note)}")


def neighbours(rows: int, dim: int, flops: float) -> None:
    bank, queries = embeddings(rows, dim)
    size, search.FLAT_UP_TO = search.FLAT_UP_TO, 0
    began = time.process_time()
    found = search.top_k(queries, bank, 32)
    ours = time.process_time() - began
    search.FLAT_UP_TO = size
    some = np.arange(0, rows, max(1, rows // 2000))
    began = time.process_time()
    exact = search.top_k(queries[some], bank, 32, exact=True)
    flat = (time.process_time() - began) * rows / len(some)
    recall = recall_at(found.indices[some, :10], exact.indices[:, :10])
    print(f"search  {rows:>10,} x {rows:,}: {found.note}; {ours:.1f} s, recall@10 {recall:.3f}")
    print(f"search  flat FAISS (scaled) {flat:.1f} s: {flat / ours:.1f} times as long; exact floor "
          f"{2 * rows * rows * dim / flops:.1f} s")  # fmt: skip
    if found.note is not None and found.note.index == "ivf":
        import faiss

        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFFlat(quantizer, dim, found.note.lists, faiss.METRIC_INNER_PRODUCT)
        built = cpu(lambda: (index.train(bank[: 64 * found.note.lists]), index.add(bank)))
        index.nprobe = found.note.probes
        began = time.process_time()
        _, at = index.search(queries[some], 32)
        peer = built + (time.process_time() - began) * rows / len(some)
        print(f"search  FAISS IVF, as many probes (scaled): {peer:.1f} s, {peer / ours:.1f} times as long, recall@10 "
              f"{recall_at(at[:, :10], exact.indices[:, :10]):.3f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--work", type=Path, default=Path("bench-scale"))
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--mismatched", type=float, default=1.0, help="share of wrong pairs of the part rematch")
    parser.add_argument("--parts", default="0.1,0.3,1", help="of the rows, that the part rematch plans one by one")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    flops, bandwidth = floors()
    print(f"one thread: {flops / 1e9:.0f} GFLOP/s float32, {bandwidth / 1e9:.1f} GB/s copied")
    only = args.only.split(",")
    if "score" in only:
        score(args.work, args.rows, args.dim, flops, bandwidth)
    if "export" in only:
        export(args.work, args.rows, args.dim, bandwidth)
    if "rematch" in only and args.mismatched < 1:
        sizes = [round(args.rows * float(part)) for part in args.parts.split(",")]
        rematch_many(args.work, sizes, args.dim, args.mismatched)
    elif "rematch" in only:
        rematch(args.work, args.rows)
    if "search" in only:
        neighbours(args.rows, args.dim, flops)


if __name__ == "__main__":
    main()
