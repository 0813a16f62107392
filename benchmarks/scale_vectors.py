"""``cleanpairs score`` of pairs of vectors, an image's and a caption's, and ``cleanpairs export`` of rows with an
image's; 512 halves each; parts of bench_scale.py.

Rows come in ten files of equal contents, so that a tenth, three tenths and all of them can be scored. They are one file
by ten names: the disk holds a tenth of the input, and reads it from its cache more often than it would. CPU seconds are
those of all processes, memory is the sum of their VmHWM (ru_maxrss begins with what the parent had when it forked);
both are looked up ten times a second, since the processes that are killed report nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILES = 10
DISTINCT = 100_000  # rows that are made; a file repeats them
GROUP = 20_000


@dataclass(frozen=True)
class Cost:
    """CPU seconds and seconds by the clock; bytes of all processes, each at its peak; whether it was killed."""

    cpu: float
    wall: float
    peak: int
    killed: bool = False


def write_pairs(path: Path, rows: int, dim: int, kind: type[np.floating], texts: bool = True) -> None:
    """``rows`` rows: a key, a caption of eight words, its image's vector and, with ``texts``, its own, like it."""
    rng = np.random.default_rng(0)
    n = min(DISTINCT, rows)
    words = rng.normal(size=(2000, dim)).astype(np.float32)
    names = np.array([f"word{i}" for i in range(2000)], object)
    vector = pa.list_(pa.from_numpy_dtype(kind), dim)
    names_of = ("image_features", "text_features")[: 1 + texts]
    schema = pa.schema([("key", pa.string()), ("caption", pa.string()), *((name, vector) for name in names_of)])
    blocks = []
    for start in range(0, n, GROUP):
        chosen = rng.integers(0, 2000, size=(min(GROUP, n - start), 8))
        image = words[chosen].mean(axis=1)
        text = image + 0.3 * rng.normal(size=image.shape).astype(np.float32)
        captions = pa.array([" ".join(c) for c in names[chosen]])
        sides = [
            pa.FixedSizeListArray.from_arrays(pa.array(x.astype(kind).ravel()), dim) for x in (image, text)[: 1 + texts]
        ]
        blocks.append((captions, *sides))
    staged = path.with_suffix(".part")
    with pq.ParquetWriter(staged, schema, compression="none", use_dictionary=False) as writer:
        for number, start in enumerate(range(0, rows, GROUP)):
            columns = [column.slice(0, rows - start) for column in blocks[number % len(blocks)]]
            keys = pa.array([str(start + i) for i in range(len(columns[0]))])
            writer.write_batch(pa.RecordBatch.from_arrays([keys, *columns], schema=schema))
    staged.rename(path)


def folders(work: Path, rows: int, dim: int, kind: type[np.floating], texts: bool = True) -> dict[int, Path]:
    """Rows -> a folder with as many: a tenth, three tenths, all; their files are the same ones."""
    shard = rows // FILES
    whole = work / f"{'vectors' if texts else 'images'}-{rows}-{dim}-{np.dtype(kind).name}"
    found = {}
    for files in (1, 3, FILES):
        folder = whole / f"of-{files}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(files):
            source, name = whole / f"{i}.parquet", folder / f"{i}.parquet"
            if not source.exists() and i == 0:
                write_pairs(source, shard, dim, kind, texts)
            elif not source.exists():
                os.link(whole / "0.parquet", source)
            if not name.exists():
                os.link(source, name)
        found[files * shard] = folder
    return found


def command(*args: object, kill: Callable[[], bool] = lambda: False) -> Cost:
    """What a command costs in processes of its own; ``kill()`` is asked now and then whether to kill them all."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "cleanpairs", *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    used: dict[int, tuple[float, int]] = {}
    killed = False
    try:
        while process.poll() is None:
            for pid in family(process.pid):
                used[pid] = tuple(map(max, usage(pid), used.get(pid, (0.0, 0))))  # type: ignore[assignment]
            if not killed and kill():
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
            time.sleep(0.1)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    _, errors = process.communicate()
    if process.returncode and not killed:
        sys.exit(f"cleanpairs {' '.join(map(str, args))}\n{errors}")
    cpu, peak = (sum(values) for values in zip(*used.values(), strict=True))
    return Cost(cpu, time.monotonic() - began, int(peak), killed)


def usage(pid: int) -> tuple[float, int]:
    """CPU seconds and VmHWM in bytes of a process, 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0
    peak = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), peak


def family(pid: int) -> list[int]:
    """A process and all that descend from it, those that are there."""
    found = [pid]
    for at in found:
        try:
            children = [Path(f"/proc/{at}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{at}/task")]
        except OSError:
            continue
        found += [int(child) for child in " ".join(children).split()]
    return found


def fitted(work: Path, dim: int, kind: type[np.floating], method: str) -> Path:
    run, few = work / f"run-{method}-{dim}", work / f"few-{dim}-{np.dtype(kind).name}.parquet"
    if not few.exists():
        write_pairs(few, 2000, dim, kind)
    if not (run / "model").exists():
        settings = ["--set", "method.text_encoder=features", "--set", "method.require_dependence=false"]
        settings += [] if method == "clip-score" else ["--epochs", 1]
        command("fit", few, "--out", run, "--method", method, *settings, "--quiet", "--overwrite")
    return run


def exponent(small: float, large: float, factor: float) -> float:
    return float(np.log(max(large, 1e-9) / max(small, 1e-9)) / np.log(factor))


def vectors(work: Path, rows: int, dim: int, workers: int, flops: float, bandwidth: float, kind: type) -> None:
    """Rates of clip-score and of a head, exponents of time and memory; the longest run is killed half-way."""
    sizes = folders(work, rows, dim, kind)
    out, few = work / "vector-scores.parquet", work / f"few-{dim}-{np.dtype(kind).name}.parquet"
    size = np.dtype(kind).itemsize
    for method, head in (("clip-score", 0), ("infonce", 1)):
        run = fitted(work, dim, kind, method)
        alone = command("score", run, few, "--overwrite", "--out", out)
        helped = command("score", run, few, "--overwrite", "--out", out, "--workers", 2)  # one, as there is one part
        begun = alone.cpu + workers * max(helped.cpu - alone.cpu, 0)  # the start of all processes
        # A head: two layers of D x D a side, and the bank's 1,016 pairs from either side.
        floor = 2 * 2 * dim * size / bandwidth + head * (2 * 2 * 2 * dim * dim + 2 * 2 * 1016 * dim) / flops
        costs: dict[int, tuple[float, int]] = {}
        for n, folder in list(sizes.items())[: 1 if head else None]:
            if n == max(sizes):
                cpu, peak = _in_two(run, folder, out, n, workers)
                cpu -= begun  # it began twice
            else:
                cost = command("score", run, folder, "--overwrite", "--out", out, "--workers", workers)
                cpu, peak = cost.cpu, cost.peak
            a_row = (cpu - begun) / n
            costs[n] = cpu - begun, peak
            print(
                f"vectors {method:10} {n:>10,} rows: {1 / a_row:>9,.0f} rows/s a core, {workers / a_row:,.0f} on "
                f"{workers}; start {begun:.1f} s; peak {peak / 2**20:,.0f} MiB in all processes; {a_row * 1e6:.1f} us "
                f"a row, {a_row / floor:.1f} times the floor of {floor * 1e6:.2f} us (bytes copied, FLOPs)",
                flush=True,
            )  # fmt: skip
            if n == min(sizes):
                whole = out.read_bytes()
                _in_two(run, folder, out, n, workers)
                print(
                    f"vectors {method:10} killed and gone on with: same bytes {out.read_bytes() == whole}", flush=True
                )
        x = np.log(list(costs))
        if len(x) > 1:
            slopes = [np.polyfit(x, np.log([c[k] for c in costs.values()]), 1)[0] for k in (0, 1)]
            print(f"vectors {method:10} exponent of time {slopes[0]:.3f}, of memory {slopes[1]:.3f}", flush=True)


def exports(work: Path, rows: int, dim: int, workers: int, bandwidth: float, kind: type) -> None:
    """Rates of an export that drops one row in ten, exponents; the longest run is killed half-way."""
    out, few = work / "vector-out.parquet", work / f"few-{dim}-{np.dtype(kind).name}.parquet"
    fitted(work, dim, kind, "clip-score")  # makes the few
    write_plan(work / "plan-few.parquet", few, 2000)
    export = ("export", "--overwrite", "--out", out, "--plan")
    alone = command(*export, work / "plan-few.parquet")
    helped = command(*export, work / "plan-few.parquet", "--workers", 2)
    begun = alone.cpu + workers * max(helped.cpu - alone.cpu, 0)
    floor = 2 * dim * np.dtype(kind).itemsize / bandwidth
    costs: dict[int, tuple[float, int]] = {}
    for n, folder in folders(work, rows, dim, kind, texts=False).items():
        plan = work / f"plan-{n}.parquet"
        write_plan(plan, folder, n)
        began, killed = time.monotonic(), n == rows
        if killed:
            cpu, peak = _killed(out, n, (*export[:1], *export[2:], plan, "--workers", workers))
            cpu -= begun  # it began twice
        else:
            cost = command(*export, plan, "--workers", workers)
            cpu, peak = cost.cpu, cost.peak
        wall, a_row = time.monotonic() - began, (cpu - begun) / n
        costs[n] = cpu - begun, peak
        found = sum(pq.read_metadata(path).num_rows for path in (out, out.with_name(out.name + ".ledger.parquet")))
        print(
            f"exports    {n:>10,} rows: {1 / a_row:>9,.0f} rows/s a core, {n / wall:,.0f} by the clock on {workers}; "
            f"start {begun:.1f} s; peak {peak / 2**20:,.0f} MiB in all processes; {a_row * 1e6:.1f} us a row, "
            f"{a_row / floor:.1f} times the floor of {floor * 1e6:.2f} us (bytes copied); rows out and in the ledger: "
            f"{found:,}",
            flush=True,
        )  # fmt: skip
    x = np.log(list(costs))
    slopes = [np.polyfit(x, np.log([c[k] for c in costs.values()]), 1)[0] for k in (0, 1)]
    print(f"exports    exponent of time {slopes[0]:.3f}, of memory {slopes[1]:.3f}", flush=True)


def write_plan(path: Path, data: Path, rows: int) -> None:
    """A plan that keeps nine rows in ten of ``data`` and drops one, written as a stream."""
    from cleanpairs.data import open_source
    from cleanpairs.data.parquet_io import iter_batches
    from cleanpairs.repair import plan

    source = open_source(data)

    def tables() -> Iterator[pa.Table]:
        first = 0
        for _, batch in iter_batches(source.paths, ["key", "caption"], 65_536, rows):
            n = len(batch)
            dropped = np.arange(first, first + n) % 10 == 0
            captions = batch.column("caption")
            columns = {
                "pair_id": pa.array(np.arange(first, first + n)), "key": batch.column("key"),
                "original_caption": captions, "caption": pc.if_else(pa.array(~dropped), captions, None),
                "action": pa.array(np.where(dropped, "drop", "keep")),
                "correspondence": pa.array(np.where(dropped, 0.1, 0.9).astype(np.float32)),
                "reason": pa.array(np.full(n, "no candidate", object), mask=~dropped),
            }  # fmt: skip
            schema = plan.PLAN_SCHEMA
            yield pa.table([columns.get(f.name, pa.nulls(n, f.type)) for f in schema], schema=schema)
            first += n

    settings = {"data": str(data.absolute())}
    head = plan.RepairPlan(plan.PLAN_SCHEMA.empty_table(), 0.5, 0.5, source.fingerprint, settings)
    plan.write_plan(path, head, tables())


def _in_two(run: Path, data: Path, out: Path, rows: int, workers: int) -> tuple[float, int]:
    return _killed(out, rows, ("score", run, data, "--workers", workers, "--out", out))


def _killed(out: Path, rows: int, args: tuple[object, ...]) -> tuple[float, int]:
    """Killed when half of the partitions are done, then run again: CPU seconds of both, the higher peak."""
    manifest = out.with_name(out.name + ".parts") / "manifest.json"
    parts = rows // 65_536
    for old in out.parent.glob(out.name + "*"):
        if old.is_file():
            old.unlink()
    first = command(*args, kill=lambda: manifest.exists() and manifest.read_text().count("number") > parts // 2)
    done = len(json.loads(manifest.read_text())["done"]) if first.killed else 0
    second = command(*args)
    print(
        f"{args[0]} killed with {done} of about {parts} partitions done ({first.cpu:.0f} CPU s, {first.wall:.0f} s by "
        f"the clock); gone on with: {second.cpu:.0f} CPU s, {second.wall:.0f} s",
        flush=True,
    )  # fmt: skip
    return first.cpu + second.cpu, max(first.peak, second.peak)
