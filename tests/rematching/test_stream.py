"""A plan that is made in a stream is the plan that is made in memory, and what it leaves beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.errors import OutputExistsError
from cleanpairs.exporting import plan_run
from cleanpairs.fitting import fit_run
from cleanpairs.ops import edge_pairs, repairs, search, sparse_transport
from cleanpairs.plan import RepairPlan
from cleanpairs.recipe import Recipe
from cleanpairs.rematching import plan_stream, stream
from cleanpairs.run import Run

NUMBERS = ("repair_score", "margin", "confidence", "correspondence")


def write(path: Path, n: int, wrong: float, seed: int = 0, dim: int = 16) -> Path:
    """Pairs of like vectors, some permuted, some twice, some with no caption or no vector."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n, dim))
    image, text = (centre + 0.3 * rng.normal(size=(n, dim)) for _ in range(2))
    captions = [f"a text of number {i}" for i in range(n)]
    chosen = rng.choice(n, round(wrong * n), replace=False)
    order = np.arange(n)
    order[chosen] = rng.permutation(chosen)
    text, captions = text[order], [captions[i] for i in order]
    for _ in range(n // 20):  # duplicates of images, of texts
        a, b = rng.integers(0, n, 2)
        image[a] = image[b]
        a, b = rng.integers(0, n, 2)
        text[a], captions[a] = text[b], captions[b]
    if n > 10:
        captions[3], image[5, 0] = "", np.nan
    sides = [pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float16).ravel()), dim) for x in (image, text)]
    columns = {"key": [f"k{i}" for i in range(n)], "caption": captions}
    table = pa.table({**columns, "image_features": sides[0], "text_features": sides[1]})
    pq.write_table(table, path, row_group_size=max(1, n // 3))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of clip-score on vectors of both sides."""
    home = tmp_path_factory.mktemp("stream")
    data = write(home / "few.parquet", 300, 0.2)
    options = {"train": str(data), "method": "clip-score", "device": "cpu"}
    recipe = Recipe.resolve(None, overrides=["text_encoder=features", "require_evidence=false"], options=options)
    fit_run(recipe, out=home / "run", latest=False)
    return Run(home / "run")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many blocks and buckets of few rows."""
    monkeypatch.setattr(stream, "_BATCH", 64)
    monkeypatch.setattr(edge_pairs, "BUCKET", 500)
    monkeypatch.setattr(repairs, "BUCKET", 500)
    monkeypatch.setattr(sparse_transport, "_BLOCK", 700)
    yield


def same(a: pa.Table, b: pa.Table) -> None:
    assert a.schema.names == b.schema.names and len(a) == len(b)
    for name in a.schema.names:
        if name not in NUMBERS:
            assert a[name].to_pylist() == b[name].to_pylist(), name
        else:
            x, y = (t[name].to_numpy(zero_copy_only=False) for t in (a, b))
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "nearest", "donors": "mismatched"},
        {"max_reuse": 3, "min_confidence": 0.05, "candidates": 5},
        {"targets": "image", "donors": "trusted"},
    ],
)
@pytest.mark.usefixtures("small_blocks")
def test_streamed_plan_is_the_plan_of_memory(run: Run, tmp_path: Path, settings: dict[str, Any]) -> None:
    data = write(tmp_path / "data.parquet", 700, 0.4, seed=1)
    expected = plan_run(run, data, threshold=0.75, **settings)[1]
    out = tmp_path / "plan.parquet"
    found = plan_stream(run, data, out, threshold=0.75, least_rows=0, **settings)
    assert found is not None
    loaded = RepairPlan.load(out)
    same(loaded.table, expected.table)
    assert loaded.fingerprint == expected.fingerprint and loaded.threshold == expected.threshold
    assert json.loads(json.dumps(dict(expected.settings))) == dict(loaded.settings)
    wanted, got = expected.summary(), found.summary
    assert str(got) == str(wanted) and got.repaired > 10 and got.quarantined == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.parquet", "plan.parquet"]
