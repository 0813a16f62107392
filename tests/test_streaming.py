"""Scores in a stream are the scores: chunk borders, lists of captions, quarantined rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import InfoNCE, load_pairs
from cleanpairs import streaming as streaming_module
from cleanpairs.errors import DataError, OutputExistsError
from cleanpairs.streaming import score_stream


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEANPAIRS_CACHE", str(tmp_path / "cache"))


def write(path: Path, n: int, *, lists: bool = False, bad: tuple[int, ...] = (), dim: int = 6) -> Path:
    rng = np.random.default_rng(n)
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    vectors[list(bad), 0] = np.nan
    words = rng.integers(0, 9, (n, 3))
    captions = [" ".join(f"w{k}" for k in row) for row in words]
    texts = [[c, c + " too", ""][: 1 + i % 3] for i, c in enumerate(captions)] if lists else captions
    kind = pa.list_(pa.string()) if lists else pa.string()
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
    pq.write_table(pa.table({"caption": pa.array(texts, kind), "image_features": flat, "id": pa.array(range(n))}), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> InfoNCE:
    data = write(tmp_path / "train.parquet", 40)
    return InfoNCE(dim=8, dim_word=4, epochs=2, batch_size=8, label_group=8, device="cpu", threshold=0.2, tau=0.1).fit(
        data
    )


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 23, 50])
def test_a_stream_of_small_chunks_scores_as_a_whole(
    model: InfoNCE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, lists: bool
) -> None:
    monkeypatch.setattr(streaming_module, "ROWS", 7)
    data = write(tmp_path / "new.parquet", n, lists=lists, bad=(1, 8) if n > 8 else ())
    pairs = load_pairs(data)
    result = score_stream(model, data, tmp_path / "scores.parquet")
    table = pq.read_table(tmp_path / "scores.parquet")
    assert len(table) == len(pairs) == result.pairs
    assert table["pair_id"].to_pylist() == list(range(len(pairs)))
    assert table["key"].to_pylist() == pairs.keys
    want = model.score_pairs(pairs)
    got = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    reasons = {i: r for i, r in enumerate(table["reason"].to_pylist()) if r is not None}
    assert reasons == pairs.reasons
    assert (n <= 8) or len(reasons) >= 2
    flags = table["is_mismatch"].to_pylist()
    assert flags == [None if np.isnan(s) else bool(s < np.float32(0.2)) for s in got]
    assert (result.quarantined, result.flagged) == (len(reasons), sum(f is True for f in flags))


def test_vectors_of_another_size_leave_no_output(model: InfoNCE, tmp_path: Path) -> None:
    data = write(tmp_path / "other.parquet", 5, dim=3)
    with pytest.raises(DataError, match=r"6.*3"):
        score_stream(model, data, tmp_path / "scores.parquet")
    assert not (tmp_path / "scores.parquet").exists()


def test_an_existing_output_is_kept(model: InfoNCE, tmp_path: Path) -> None:
    data = write(tmp_path / "new.parquet", 5)
    (tmp_path / "scores.parquet").write_text("mine")
    with pytest.raises(OutputExistsError):
        score_stream(model, data, tmp_path / "scores.parquet")
    assert (tmp_path / "scores.parquet").read_text() == "mine"
    assert score_stream(model, data, tmp_path / "scores.parquet", overwrite=True).pairs == 5
