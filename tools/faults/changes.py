"""One bit flipped in an output, and whether `verify` notices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.data import load_pairs
from cleanpairs.export import export_pairs
from cleanpairs.verification import verify_path
from faults.figures import Figure
from faults.tables import FORMATS, make_plan, png

__all__ = ["try_changes"]

ROWS = 24


def try_changes(numbers: range, folder: Path) -> list[Figure]:
    """Flip the bits of these numbers, one after the other, in the outputs of all formats."""
    folder.mkdir(exist_ok=True)
    pq.write_table(_table(), folder / "in.parquet", row_group_size=7)
    pairs = load_pairs(folder / "in.parquet")
    for format, name in FORMATS.items():
        export_pairs(
            pairs, make_plan(pairs, 3), folder / name, format=format, dropped=folder / f"{format}.dropped.parquet"
        )
        if not (found := verify_path(folder / name)).ok:
            raise RuntimeError(f"{format}: {found}")
    missed = []
    for number in numbers:
        rng, name = np.random.default_rng([19, number]), list(FORMATS.values())[number % len(FORMATS)]
        names = json.loads((folder / f"{name}.manifest.json").read_text())["files"]
        file = folder / list(names)[rng.integers(len(names))]
        before = file.read_bytes()
        at, bit = int(rng.integers(len(before))), 1 << int(rng.integers(8))
        file.write_bytes(before[:at] + bytes([before[at] ^ bit]) + before[at + 1 :])
        if verify_path(folder / name).ok:
            missed.append(f"{file.relative_to(folder)}: byte {at}")
        file.write_bytes(before)
    return [Figure("single bits flipped in outputs, and not noticed by `verify`", len(numbers), missed)]


def _table() -> pa.Table:
    rng = np.random.default_rng(0)
    flat = pa.array(rng.normal(size=ROWS * 6).astype(np.float32))
    return pa.table({
        "key": [f"k{i}" for i in range(ROWS)], "uid": [f"{i:032x}" for i in range(ROWS)],
        "image": [png(i) for i in range(ROWS)], "caption": [None if i == 5 else f"text {i}" for i in range(ROWS)],
        "image_features": pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2),
        "text_features": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=ROWS * 2)), 2),
        "similarity": rng.random(ROWS), "site": pa.array([f"s{i % 3}" for i in range(ROWS)]).dictionary_encode(),
        "tags": [[{"name": "a", "count": i}] * (i % 3) for i in range(ROWS)], "flag": [i % 3 == 0 for i in range(ROWS)],
    })  # fmt: skip
