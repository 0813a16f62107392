"""Scoring against the bank, Parquet in and out, and the report, against the plain ways.

    python benchmarks/bench_all.py --only files

score    the matching probability of pairs of vectors by its definition, a pair at a time: in each of the bank's groups
         the softmax over the group and the pair itself, of images to texts and back, and the mean.
parquet  a million captions with four columns read, one column added, written: a stream of batches against pandas, both
         compressed by zstd.
report   the page about 100,000 pairs against a pandas table of them as HTML.

One thread, CPU seconds, the minimum of interleaved rounds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from side_by_side import Machine, Row, take_turns

from cleanpairs import load_pairs
from cleanpairs.data import ParquetSink
from cleanpairs.data.parquet_io import iter_batches
from cleanpairs.report import write_report
from cleanpairs.scoring import Bank, Embeddings

TAU = 0.05


def unit(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    x = rng.standard_normal((n, dim), np.float32)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def with_score(path: Path, out: Path, score: np.ndarray) -> None:
    """Copy a Parquet file with one more column (N,), a batch at a time."""
    first, sink = 0, None
    for _, batch in iter_batches([str(path)], None, 65_536):
        wide = batch.append_column("score", pa.array(score[first : first + len(batch)]))
        sink = sink or ParquetSink(out, wide.schema).__enter__()
        sink.write(wide)
        first += len(batch)
    if sink is not None:
        sink.__exit__(None, None, None)


def captions_of(rng: np.random.Generator, n: int) -> list[str]:
    words = np.array([f"word{i}" for i in range(2000)], object)
    return [" ".join(row) for row in words[rng.integers(0, 2000, (n, 8))]]


def scoring(machine: Machine) -> Iterator[Row]:
    rng, n, dim, size, few = np.random.default_rng(0), 65_536, 512, 1016, 200
    banked, given = (unit(rng, size, dim), unit(rng, size, dim)), (unit(rng, n, dim), unit(rng, n, dim))
    group, other = np.arange(size), size + np.arange(n)
    bank = Bank(Embeddings(banked[0]), Embeddings(banked[1]), group, group, tau=TAU)

    def by_pair() -> np.ndarray:
        out = np.empty(few, np.float32)
        for i, (image, text) in enumerate(zip(given[0][:few], given[1][:few], strict=True)):
            own, p = np.exp(image @ text / TAU), 0.0
            for start in range(0, size, bank.group_size):
                s = slice(start, start + bank.group_size)
                p += own / (own + np.exp(banked[1][s] @ image / TAU).sum())
                p += own / (own + np.exp(banked[0][s] @ text / TAU).sum())
            out[i] = p / (2 * size / bank.group_size)
        return out

    timed = take_turns(
        {"ours": lambda: bank(Embeddings(given[0]), Embeddings(given[1]), other, other), "pair": by_pair}, 3
    )
    off = np.abs(timed.result["ours"][:few] - timed.result["pair"]).max()
    yield Row(
        "score against the bank", f"{n:,} pairs, bank {size:,}, {dim}-d", timed.seconds["ours"], "a pair at a time",
        timed.seconds["pair"] * n / few, None, machine.floor(2.0 * 2 * n * size * dim),
        f"{n / timed.seconds['ours']:,.0f} pairs/s; baseline scaled, differs by {off:.0e}",
    )  # fmt: skip


def parquet(machine: Machine, folder: Path) -> Iterator[Row]:
    rng, n = np.random.default_rng(0), 1_000_000
    path, out = folder / "captions.parquet", folder / "copy.parquet"
    columns = {f"c{i}": rng.normal(size=n) for i in range(4)}
    pq.write_table(pa.table({"caption": captions_of(rng, n), **columns}), path, compression="zstd")
    score = np.zeros(n, np.float32)

    def stream() -> None:
        with_score(path, out, score)

    def frame() -> None:
        pd.read_parquet(path).assign(score=score).to_parquet(out, compression="zstd")

    frame()
    expected = pq.read_table(out)
    stream()
    if not pq.read_table(out).cast(expected.schema).equals(expected):
        raise SystemExit("the stream and pandas wrote different tables")
    timed = take_turns({"ours": stream, "pandas": frame}, 2)
    moved = 2.0 * path.stat().st_size
    yield Row("Parquet in and out", f"{n:,} captions, 4 columns", timed.seconds["ours"], "pandas",
              timed.seconds["pandas"], None, machine.floor(moved=moved))  # fmt: skip


def report(machine: Machine, folder: Path) -> Iterator[Row]:
    rng, n = np.random.default_rng(0), 100_000
    captions = captions_of(rng, n)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.standard_normal(8 * n, np.float32)), 8)
    pairs = load_pairs(pa.table({"caption": captions, "image_features": vectors}))
    correspondence = rng.random(n).astype(np.float32)
    scores = pa.table({"pair_id": np.arange(n), "correspondence": correspondence})
    page, plain = folder / "report.html", folder / "plain.html"

    def ours() -> None:
        write_report(page, title="report", scores=scores, threshold=0.5, pairs=pairs, overwrite=True)

    def frame() -> None:
        pd.DataFrame({"caption": captions, "correspondence": correspondence}).to_html(plain)

    timed = take_turns({"ours": ours, "pandas": frame}, 1)
    sizes = [p.stat().st_size / 2**20 for p in (page, plain)]
    yield Row(
        "report", f"{n:,} pairs", timed.seconds["ours"], "pandas to_html of all", timed.seconds["pandas"], None, None,
        f"{sizes[0]:.1f} MiB; {sizes[1]:.1f} MiB",
    )  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """Those of the suite (bench_all.py)."""
    with tempfile.TemporaryDirectory() as folder:
        yield from scoring(machine)
        yield from parquet(machine, Path(folder))
        yield from report(machine, Path(folder))
