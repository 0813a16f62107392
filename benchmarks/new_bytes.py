"""How many bytes of a second export are new to a store that keeps pieces by their content, as the hub does.

    OMP_NUM_THREADS=1 python benchmarks/new_bytes.py --megabytes 200 > benchmarks/results/new_bytes.csv

An export of pairs is written twice, the second time with a share of its rows changed: captions replaced, or rows
dropped, scattered or as one block. A row has a picture (random bytes, as compressed ones are) or a vector beside its
caption. Both files are cut into pieces of 64 KiB on average, 8 to 128 KiB, where a rolling hash of the bytes says so,
as Xet does. A piece that is in the first file, too, is not new.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data.writing import ParquetSink


def pieces(path: Path, window: int = 48, step: int = 1 << 20) -> dict[bytes, int]:
    """Digest of each piece -> its bytes."""
    data = np.fromfile(path, np.uint8)
    factor = 0x9E3779B1
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(step + window, factor, np.uint32), dtype=np.uint32)
        inverses = np.cumprod(np.full(step + window, pow(factor, -1, 2**32), np.uint32), dtype=np.uint32)
        cuts = []
        for begin in range(0, len(data), step):  # a window of bytes before each part, so that none is missed
            part = data[max(0, begin - window) : begin + step].astype(np.uint32) + np.uint32(1)
            sums = np.cumsum(part * inverses[: len(part)], dtype=np.uint32)
            rolled = (sums[window:] - sums[:-window]) * powers[window : len(part)]
            cuts.append(np.flatnonzero(rolled < 1 << 16) + max(0, begin - window) + window + 1)
    found: dict[bytes, int] = {}
    start = 0
    for cut in [*np.concatenate(cuts).tolist(), len(data)]:
        while cut - start > 128 << 10:
            found[hashlib.blake2b(data[start : start + (128 << 10)]).digest()] = 128 << 10
            start += 128 << 10
        if cut - start >= 8 << 10 or cut == len(data):
            found[hashlib.blake2b(data[start:cut]).digest()] = cut - start
            start = cut
    return found


def write(path: Path, table: pa.Table, before: bool) -> None:
    """As an export, or as it was written before: everything with zstd, in pages of a fixed size."""
    with ParquetSink(path, table.schema) as sink:
        if before:
            repeats = [field.name for field in table.schema if pa.types.is_string(field.type)]
            sink._writer.close()
            sink._writer = pq.ParquetWriter(
                path, sink.schema, compression="zstd", use_dictionary=repeats, write_page_checksum=True
            )
        for batch in table.to_batches(max_chunksize=256):
            sink.write(batch)


def corpus(kind: str, megabytes: int) -> pa.Table:
    """Pairs of about so many bytes: ``8 kB`` and the like are of pictures, ``vectors`` of 512 floats."""
    rng = np.random.default_rng(0)
    size = 2048 if kind == "vectors" else int(kind.split()[0]) * 1000
    n = megabytes * 1_000_000 // size
    captions = [" ".join(f"word{k}" for k in row) for row in rng.integers(0, 5000, (n, 10))]
    rows: dict[str, Any] = {"uid": [f"{k:032x}" for k in rng.permutation(n)], "caption": captions}
    if kind == "vectors":
        rows["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(n * 512, np.float32)), 512)
    else:
        images = [{"bytes": rng.bytes(int(k)), "path": None} for k in rng.integers(size // 2, size * 3 // 2, n)]
        rows["image"] = pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    return pa.table(rows)


def versions(table: pa.Table, share: float) -> Iterator[tuple[str, str, pa.Table]]:
    """What is changed, where, and the table with it."""
    n, column = len(table), table.column_names.index("caption")
    scattered = np.sort(np.random.default_rng(1).permutation(n)[: int(share * n)])
    for where, rows in (("scattered", scattered), ("one block", np.arange(n // 3, n // 3 + len(scattered)))):
        captions = table["caption"].to_pylist()
        for k in rows:
            captions[k] = f"another {k} {captions[k]}"
        yield "captions", where, table.set_column(column, "caption", pa.array(captions))
        yield "rows dropped", where, table.take(np.setdiff1d(np.arange(n), rows))


def main() -> None:
    """Print the rows as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--share", type=float, default=0.1)
    args = parser.parse_args()
    print("# OMP_NUM_THREADS=1 python", *sys.argv)
    print("a row has,changed,where,writer,MB,new share")
    for kind in ("40 kB", "160 kB", "vectors"):
        table = corpus(kind, args.megabytes)
        for writer in ("before", "now"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "x.parquet"
                write(path, table, writer == "before")
                size, known = path.stat().st_size, pieces(path)
                for changed, where, version in versions(table, args.share):
                    write(path, version, writer == "before")
                    second = pieces(path)
                    share = sum(second[key] for key in second.keys() - known.keys()) / path.stat().st_size
                    print(f"{kind},{changed},{where},{writer},{size / 1e6:.0f},{share:.3f}", flush=True)


if __name__ == "__main__":
    main()
