"""Batches scored in a pipeline of somebody else's: as `score` scores them, however they are cut."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cleanpairs import ClipScore, InfoNCE, ScorePairs
from cleanpairs.commands.score import score_stream
from cleanpairs.core.errors import ConfigError, DataError
from tests.helpers import assert_raises

COLUMNS = ("correspondence", "is_mismatch", "reason")

D = 32


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One thread: the last bit of a sum depends on the threads that add it up."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads, arrow = torch.get_num_threads(), pa.cpu_count()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    pa.set_cpu_count(arrow)


def rows(n: int) -> pa.Table:
    """Vectors of both sides in halves, captions of three words; some rows cannot be scored."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(n, D)).astype(np.float16)
    texts = (vectors + rng.normal(size=(n, D)) * 1.5).astype(np.float16)
    vectors[5:6] = np.inf
    texts[9:10] = 0
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (n, 3))]
    captions[7:8] = ["  "]
    columns = [pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), D) for x in (vectors, texts)]
    names = ["uid", "text", "image_features", "text_features"]
    return pa.table([pa.array(range(n)), pa.array(captions), *columns], names)


def clip_score(data: Path) -> ClipScore:
    return ClipScore(text_encoder="features", device="cpu").fit(data)


def words(data: Path) -> InfoNCE:
    small = {"backbone": "mlp", "dim": 32, "dim_word": 32, "epochs": 1, "eval_group_size": 32, "device": "cpu"}
    return InfoNCE(**small, require_dependence=False).fit(data)


def vectors_of_both(data: Path) -> InfoNCE:
    return InfoNCE(text_encoder="features", epochs=1, eval_group_size=32, device="cpu").fit(data)


@pytest.mark.parametrize("fit", [clip_score, words, vectors_of_both])
def test_batches_of_any_size_have_the_scores_of_score_bit_for_bit(fit: Any, tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    pq.write_table(rows(200), data)
    model = fit(data).save_pretrained(tmp_path / "run" / "model")
    score_stream(model, data, tmp_path / "scores.parquet")
    want = pq.read_table(tmp_path / "scores.parquet").select(list(COLUMNS))
    scorer, table = ScorePairs(tmp_path / "run"), pq.read_table(data)
    assert want["reason"].null_count < 200 and len(set(want["correspondence"].to_pylist())) > 150
    for size in (1, 7, 64, 130, 200, 1000):
        parts = [scorer(table.slice(start, size)) for start in range(0, 200, size)]
        found = pa.concat_tables(parts)
        assert found.drop(list(COLUMNS)).equals(table)
        assert found.select(list(COLUMNS)).equals(want), size
    assert scorer(table.slice(0, 0)).schema.names == [*table.schema.names, *COLUMNS]
    if fit is not words:  # captions need not be there
        bare, given = (t["correspondence"].to_numpy() for t in (scorer(table.drop("text")), want))
        assert np.isfinite(bare).sum() == np.isfinite(given).sum() + 1 == 198  # one caption is blank


def test_what_cannot_be_scored_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    table = rows(60)
    pq.write_table(table, data)
    scorer = ScorePairs(clip_score(data).save_pretrained(tmp_path / "model"))
    assert_raises(DataError, 'batch_format="pyarrow"', scorer, {"text": np.array(["a"])})
    assert_raises(DataError, "text_features", scorer, table.drop("text_features"))
    assert_raises(DataError, "rename it", scorer, table.append_column("reason", pa.nulls(60, pa.string())))
    assert_raises(DataError, "one caption a row", scorer, table.set_column(1, "text", pa.array([["a"]] * 60)))
    assert_raises(DataError, "found list", scorer, [1])
    pq.write_table(table.append_column("similarity", pa.array(np.linspace(0, 1, 60))), data)
    other = ClipScore(score_column="similarity", device="cpu").fit(data).save_pretrained(tmp_path / "other")
    assert_raises(ConfigError, "cleanpairs score", ScorePairs, other)


@pytest.mark.cluster
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "cleanpairs[ray]"')
def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code block of docs/scale.md, as it stands there, on a Ray of four processors: its two actors hold two."""
    import ray

    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    assert "map_batches" in code
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    pq.write_table(rows(300), tmp_path / "shards" / "a.parquet", row_group_size=100)
    pq.write_table(rows(150), tmp_path / "shards" / "b.parquet")
    model = clip_score(tmp_path / "shards" / "a.parquet").save_pretrained(tmp_path / "runs" / "latest" / "model")
    score_stream(model, tmp_path / "shards", tmp_path / "scores.parquet")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    try:
        exec(code, {})
    finally:
        ray.shutdown()
    kept = pq.read_table(tmp_path / "kept")
    want = pq.read_table(tmp_path / "scores.parquet")
    good = want["correspondence"].to_numpy(zero_copy_only=False) >= 0.5
    assert 0 < good.sum() == len(kept) < 450
    got = sorted(zip(kept["uid"].to_pylist(), kept["correspondence"].to_pylist(), strict=True))
    keys = np.array(want["key"].to_pylist(), int)[good]
    assert got == sorted(zip(keys.tolist(), want["correspondence"].to_numpy()[good].tolist(), strict=True))
