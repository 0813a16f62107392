"""``cleanpairs fit`` and ``export ids.npy`` on N pairs of CLIP-like vectors, beside the plain score in the same run.

    OMP_NUM_THREADS=2 python benchmarks/vectors_at_scale.py 1000000 DIR [--noise 0.3] [--repair] [--exact]

DIR gets an embedding folder of clip-retrieval (512 halves a side, in shards of 250,000) whose captions rotate by the
share ``--noise``. The plain score is negCLIPLoss in numpy: a background of 4,096 pairs, blocks of float32. Printed: CPU
seconds, seconds by the clock and VmHWM of each process, the ratio of fit and export to the plain score, the area under
the ROC curve of both, and the error of the noise rate. ``--repair`` goes on with ``rematch`` and ``export`` by
defaults, and prints the share of right repairs, and their mean probability, with the calibration error over ten bins.
``--exact`` also compares all pairs with each other, which takes quadratic time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIM, SHARD, BLOCK = 512, 250_000, 8192


@dataclass(frozen=True)
class Cost:
    """CPU seconds and seconds by the clock; bytes of all processes, each at its peak."""

    cpu: float
    wall: float
    peak: int

    def __str__(self) -> str:
        return f"{self.cpu:.1f} CPU s, {self.wall:.1f} s by the clock, VmHWM {self.peak / 2**20:,.0f} MiB"


def command(*args: object) -> Cost:
    """What a command of cleanpairs costs."""
    return measured("-m", "cleanpairs", *args)


def measured(*args: object) -> Cost:
    """What Python with these arguments costs, in processes of its own, looked up ten times a second."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    used: dict[int, tuple[float, int]] = {}
    try:
        while process.poll() is None:
            for pid in family(process.pid):
                used[pid] = tuple(map(max, usage(pid), used.get(pid, (0.0, 0))))  # type: ignore[assignment]
            time.sleep(0.1)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, args))}\n{errors}")
    cpu, peak = (sum(values) for values in zip(*used.values(), strict=True))
    return Cost(cpu, time.monotonic() - began, int(peak))


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


def make(folder: Path, n: int, noise: float, seed: int = 0) -> None:
    """Vectors of both sides of shared contents: topics, details, noise of each side, hubs and a gap, as CLIP's have."""
    rng = np.random.default_rng(seed)
    spread = np.exp(-np.arange(DIM) / 300).astype(np.float32)
    topics, (gap, *gaps) = rng.normal(size=(max(64, n // 50), DIM)).astype(np.float32), rng.normal(size=(3, DIM)) * 0.45

    def content(k: int) -> np.ndarray:
        return rng.normal(size=(k, DIM)).astype(np.float32) * spread

    for side in ("img_emb", "text_emb", "metadata"):
        (folder / side).mkdir(parents=True, exist_ok=True)
    wrong = rng.permutation(n)[: round(noise * n)]
    at = np.arange(n)
    at[wrong] = np.roll(wrong, 1)
    texts = np.lib.format.open_memmap(folder / "texts.npy", "w+", np.float16, (n, DIM))
    shards = range(0, n, SHARD)
    for number, first in enumerate(shards):
        images = np.empty((min(SHARD, n - first), DIM), np.float16)
        for start in range(0, len(images), BLOCK):
            k = min(BLOCK, len(images) - start)
            shared = 0.6 * topics[rng.integers(0, len(topics), k)] * spread + 0.8 * content(k)
            hub = 1 + 0.3 * rng.normal(size=(2, k, 1))
            x, t = (gap * hub[i] + gaps[i] + shared + 2.0 * content(k) for i in range(2))
            images[start : start + k] = x / np.linalg.norm(x, axis=1, keepdims=True)
            texts[first + start : first + start + k] = t / np.linalg.norm(t, axis=1, keepdims=True)
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", images)
        ids = np.arange(first, first + len(images))
        rows = {"uid": [f"{i * 2654435761 % 2**128:032x}" for i in ids.tolist()]}
        words = at[ids][:, None] * np.array([7919, 104729, 1299709, 15485863, 179424673]) // 1009 % 5003
        rows |= {"caption": [" ".join(f"w{word}" for word in five) for five in words.tolist()]}
        pq.write_table(pa.table(rows), folder / "metadata" / f"metadata_{number}.parquet")
    for number, first in enumerate(shards):
        np.save(folder / "text_emb" / f"text_emb_{number}.npy", texts[at[first : first + SHARD]])
    (folder / "texts.npy").unlink()
    np.save(folder / "at.npy", at)


def plain(folder: Path, out: Path, background: int = 4096, tau: float = 0.01) -> None:
    """negCLIPLoss of all pairs, as a user would write it."""
    sides = [[np.load(f, mmap_mode="r") for f in parts(folder, side)] for side in ("img_emb", "text_emb")]
    n, rng = sum(map(len, sides[0])), np.random.default_rng(0)
    some = np.sort(rng.choice(n, min(background, n), replace=False))
    ends = np.cumsum([len(part) for part in sides[0]])
    of = [(int(np.searchsorted(ends, i, "right")), int(i)) for i in some]
    near = [
        np.stack([side[p][i - (ends[p] - len(side[p]))] for p, i in of]).astype(np.float32).T / np.float32(tau)
        for side in sides
    ]
    scores = []
    for images, texts in zip(*sides, strict=True):
        for start in range(0, len(images), 4096):
            x, t = (side[start : start + 4096].astype(np.float32) for side in (images, texts))
            score = (x * t).sum(axis=1)
            for asking, answering in ((x, near[1]), (t, near[0])):
                S = asking @ answering
                top = S.max(axis=1)
                score -= tau / 2 * (top + np.log(np.exp(S - top[:, None]).sum(axis=1)))
            scores.append(score)
    np.save(out, np.concatenate(scores))


def parts(folder: Path, side: str) -> list[Path]:
    """The shards of a side, in order."""
    return sorted((folder / side).glob("*.npy"), key=lambda f: int(f.stem.rpartition("_")[2]))


def compare(name: str, folder: Path, scores: np.ndarray, rate: float) -> None:
    """The area under the ROC curve, and the error of the rate."""
    from sklearn.metrics import roc_auc_score

    at = np.load(folder / "at.npy")
    wrong = at != np.arange(len(at))
    print(f"{name:10} AUROC {roc_auc_score(~wrong, scores):.5f}  rate {rate:.4f}, is {wrong.mean():.4f}", flush=True)


def repair(folder: Path, run: Path, out: Path) -> None:
    """The plan and the clean dataset by defaults: what they cost, and how many repairs are right."""
    plan, at = out.with_name("plan.parquet"), np.load(folder / "at.npy")
    rematch = command("rematch", run, "--out", plan, "--overwrite")
    print(f"{'rematch':10} {rematch}", flush=True)
    print(f"{'export':10} {command('export', '--plan', plan, '--out', out, '--overwrite')}", flush=True)
    columns = pq.read_table(plan, columns=["pair_id", "donor_pair_id", "action", "confidence"])
    table = columns.filter(columns["donor_pair_id"].is_valid())
    pair, donor, confidence = (table[name].to_numpy() for name in ("pair_id", "donor_pair_id", "confidence"))
    is_image = np.array(table["action"].to_pylist()) == "rematch_image"
    right = np.where(is_image, at[pair] == donor, at[donor] == pair)
    bins = [b for b in np.array_split(np.argsort(confidence, kind="stable"), 10) if len(b)]
    error = sum(len(b) * abs(confidence[b].mean() - right[b].mean()) for b in bins) / max(len(right), 1)
    of = f"{len(right):,} of {(at != np.arange(len(at))).sum():,}"
    sure = f"right {right.mean():.4f}, probability {confidence.mean():.4f}, calibration error {error:.4f}"
    print(f"{'repairs':10} {of}, {sure}", flush=True)


def exact(folder: Path) -> None:
    """All pairs compared with each other."""
    from dataclasses import replace

    from cleanpairs.correspondence import similarity
    from cleanpairs.ops.normalised_similarity import VectorPairs

    sides = [np.concatenate([np.load(f) for f in parts(folder, side)]) for side in ("img_emb", "text_emb")]
    began, n = time.process_time(), len(sides[0])
    pairs = VectorPairs(*sides, np.arange(n), np.load(folder / "at.npy"))
    similarity.NUMBERS = replace(similarity.NUMBERS, exact=n)
    found = similarity.similarity_agreement(pairs)
    assert found is not None
    compare("exact", folder, found.observed, found.noise_rate)
    print(f"{'exact':10} {time.process_time() - began:.1f} CPU s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", type=int)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--repair", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder: Path = args.dir / f"embeddings-{args.n}-{args.noise:g}"
    if args.plain:
        plain(folder, args.plain)
        return
    if not (folder / "at.npy").exists():
        make(folder, args.n, args.noise)
    run, ids, score = args.dir / "run", args.dir / "ids.npy", args.dir / "plain.npy"
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(f"{args.n:,} pairs of {DIM} halves, threads: {threads}, load {os.getloadavg()[0]:.1f}", flush=True)
    beside = measured(__file__, args.n, args.dir, "--noise", args.noise, "--plain", score)
    print(f"{'plain':10} {beside}", flush=True)
    fit = command("fit", folder, "--out", run, "--overwrite", "--quiet")
    print(f"{'fit':10} {fit}", flush=True)
    export = command("export", run, "--repaired", ids, "--overwrite")
    print(f"{'export':10} {export}", flush=True)
    cpu, wall = (sum(getattr(c, name) for c in (fit, export)) / getattr(beside, name) for name in ("cpu", "wall"))
    print(f"{'ratio':10} {cpu:.2f} in CPU s, {wall:.2f} by the clock; {len(np.load(ids)):,} ids", flush=True)
    compare("plain", folder, np.load(score), float("nan"))
    y = pq.read_table(run / "scores.parquet", columns=["correspondence"])["correspondence"].to_numpy()
    compare("fit", folder, np.nan_to_num(y), float(1 - np.nanmean(y)))
    if args.repair:
        repair(folder, run, args.dir / "clean.parquet")
    if args.exact:
        exact(folder)


if __name__ == "__main__":
    main()
