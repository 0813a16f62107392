"""Scores in a stream are the scores: chunk borders, lists of captions, quarantined rows."""

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import ClipScore, InfoNCE, load_pairs
from cleanpairs.commands import score as streaming_module
from cleanpairs.commands.score import ScoreResult
from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.engine import Partition, make_engine, run_partitions
from tests.helpers import assert_raises, embedding_folder, write_table

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 8, "eval_group_size": 8, "threshold": 0.2, "tau": 0.1}


def score_stream(model: Any, data: Path, out: Path, **how: Any) -> ScoreResult:
    """By the model, or by the directory of a saved one."""
    if not isinstance(model, Path):
        model = model.save_pretrained(out.parent / f"saved-{id(model)}", overwrite=True)
    return streaming_module.score_stream(model, data, out, **how)


def write(path: Path, n: int, *, lists: bool = False, bad: tuple[int, ...] = (), dim: int = 6) -> Path:
    rng = np.random.default_rng(n)
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    vectors[list(bad), 0] = np.nan
    words = rng.integers(0, 9, (n, 3))
    captions = [" ".join(f"w{k}" for k in row) for row in words]
    texts = [[c, c + " too", ""][: 1 + i % 3] for i, c in enumerate(captions)] if lists else captions
    kind = pa.list_(pa.string()) if lists else pa.string()
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
    return write_table(path, {"caption": pa.array(texts, kind), "image_features": flat, "id": pa.array(range(n))})


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("train") / "train.parquet", 40)


@pytest.fixture(scope="module")
def model(train: Path) -> InfoNCE:
    return InfoNCE(dim=8, dim_word=4, device="cpu", **SETTINGS).fit(train)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_a_stream_of_small_chunks_scores_as_a_whole(
    model: InfoNCE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, lists: bool
) -> None:
    monkeypatch.setattr(streaming_module.ScoreWork, "batch_rows", 7)
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
    assert_raises(DataError, r"6.*3", score_stream, model, data, tmp_path / "scores.parquet")
    assert not (tmp_path / "scores.parquet").exists()


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of 40 rows in row groups of 10, which become partitions of 20 rows."""
    monkeypatch.setattr(streaming_module.ScoreWork, "partition_rows", 20)
    (tmp_path / "many").mkdir()
    for name, seed in (("a", 40), ("b", 41)):
        file = write(tmp_path / f"{name}.parquet", seed, lists=True, bad=(1, 8))
        pq.write_table(pq.read_table(file), tmp_path / "many" / f"{name}.parquet", row_group_size=10)
    return tmp_path / "many"


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each partition of a job."""
    found: list[int] = []

    def noted(work: Any, partitions: list[Partition], folder: Path, **how: Any) -> Any:
        found.extend(partition.rows for partition in partitions)
        return run_partitions(work, partitions, folder, **how)

    monkeypatch.setattr(streaming_module, "run_partitions", noted)
    return found


def test_partitions_score_as_a_whole(
    model: InfoNCE, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: list[int]
) -> None:
    result = score_stream(model, many, tmp_path / "scores.parquet")
    assert cut == [20, 20, 20, 20, 1]
    assert not (tmp_path / "scores.parquet.parts").exists()
    monkeypatch.setattr(streaming_module.ScoreWork, "partition_rows", 1000)
    assert score_stream(model, many, tmp_path / "whole.parquet") == result
    table, whole = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("scores", "whole"))
    assert table.drop(["correspondence"]).equals(whole.drop(["correspondence"]))
    np.testing.assert_allclose(*(t["correspondence"].to_pandas() for t in (table, whole)), rtol=1e-5)
    assert table["pair_id"].to_pylist() == list(range(result.pairs)) and result.quarantined > 4


def test_parts_of_another_model_are_not_mixed_in(
    model: InfoNCE, train: Path, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scores.parquet"
    with monkeypatch.context() as patched:
        patched.setattr(streaming_module, "_put_together", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            score_stream(model, many, out)
    other = InfoNCE(**{**model.get_params(), "random_state": 5}).fit(train)
    assert_raises(OutputExistsError, "another model", score_stream, other, many, out)
    score_stream(other, many, out, overwrite=True)
    score_stream(other, many, tmp_path / "want.parquet")
    assert out.read_bytes() == (tmp_path / "want.parquet").read_bytes()


@pytest.mark.slow
def test_a_pool_writes_the_same_file(model: InfoNCE, many: Path, tmp_path: Path) -> None:
    one = score_stream(model, many, tmp_path / "one.parquet")
    assert one == score_stream(model, many, tmp_path / "two.parquet", engine=make_engine("local", workers=2))
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert not list(tmp_path.glob(".cleanpairs-model-*"))


def test_what_cannot_be_divided_says_so(tmp_path: Path, model: InfoNCE) -> None:
    table = pq.read_table(write(tmp_path / "new.parquet", 9)).rename_columns(["caption", "image_features", "id"])
    table.to_pandas().drop(columns="image_features").assign(image=b"no image").to_parquet(tmp_path / "images.parquet")
    with pytest.raises(ConfigError, match="leave --engine and --workers out"):
        score_stream(model, tmp_path / "images.parquet", tmp_path / "s.parquet", engine=make_engine("local", workers=2))
    assert not (tmp_path / "s.parquet").exists()


def with_texts(path: Path, n: int, *, kind: Any = np.float32, dim: int = 6, bad: tuple[int, ...] = ()) -> Path:
    """Vectors of both sides; those of the captions ``bad`` are, in turn, zero, not finite and missing."""
    table = pq.read_table(write(path, n, dim=dim))
    rng = np.random.default_rng(7)
    images = np.stack(table["image_features"].to_pylist()) if n else np.empty((0, dim))
    texts: list[Any] = list((images + 0.3 * rng.normal(size=(n, dim))).astype(kind))
    for k, row in enumerate(bad):
        texts[row] = [np.zeros(dim, kind), np.full(dim, np.nan, kind), None][k % 3]
    vector = pa.list_(pa.from_numpy_dtype(kind), dim)
    return write_table(path, table.append_column("text_features", pa.array(texts, vector)), row_group_size=9)


@pytest.fixture(scope="module", params=[InfoNCE(**SETTINGS), ClipScore()], ids=["infonce", "clip-score"])
def of_both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    data = with_texts(tmp_path_factory.mktemp("both") / "both.parquet", 40)
    return request.param.set_params(text_encoder="features", device="cpu").fit(data)


def test_filters_that_are_named_are_asked_about_all_rows(of_both: Any, tmp_path: Path) -> None:
    """What streams passes none."""
    data = with_texts(tmp_path / "new.parquet", 9)
    pq.write_table(pq.read_table(data).set_column(0, "caption", pa.array(["w1", *["w1 w2 w3"] * 8])), data)
    model = copy(of_both).set_params(drop="caption_length=8")
    assert score_stream(model, data, tmp_path / "scores.parquet").quarantined == 1
    with pytest.raises(ConfigError, match=r"without --drop.*all rows at once; leave --engine"):
        score_stream(model, data, tmp_path / "s.parquet", engine=make_engine("local", workers=2))
    assert model.set_params(drop="none")._row_scorer({"features", "text_features"}) is not None


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_vectors_of_both_sides_stream(of_both: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_module.ScoreWork, "batch_rows", 7)
    monkeypatch.setattr(streaming_module, "load_pairs", lambda *_: pytest.fail("it was loaded whole"))
    for n in (0, 1, 2, 40):
        bad = (3, 11, 20) if n == 40 else ()
        data = with_texts(tmp_path / "new.parquet", n, kind=kind, bad=bad)
        pairs, out = load_pairs(data), tmp_path / "scores.parquet"
        assert pairs.text_vectors is not None and len(pairs.text_vectors) == n
        result = score_stream(of_both, data, out, overwrite=True)
        table, want = pq.read_table(out), of_both.score_pairs(pairs)
        got = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        assert result.pairs == n and {11, 20} & set(bad) <= set(np.flatnonzero(np.isnan(got)).tolist())
        if bad:
            reasons = table["reason"].to_pylist()
            assert reasons[11] == pairs.reasons[11] == "its text vector is not finite"
            assert reasons[20] == pairs.reasons[20] == "there is no text vector"
            assert reasons[3] == pairs.reasons[3] == "its text vector is zero"


def test_an_embedding_folder_streams(of_both: Any, tmp_path: Path, monkeypatch: Any, cut: list[int]) -> None:
    table = pq.read_table(with_texts(tmp_path / "new.parquet", 45))
    images, texts = (np.stack(table[c].to_pylist()) for c in ("image_features", "text_features"))
    texts[30] = np.inf
    note = table.select(["caption", "id"])
    embedding_folder(tmp_path / "folder", images.astype(np.float16), texts, note, cuts=(20,), row_group_size=8)
    want = of_both.score_pairs(load_pairs(tmp_path / "folder"))
    monkeypatch.setattr(streaming_module.ScoreWork, "partition_rows", 11)
    monkeypatch.setattr(streaming_module, "load_pairs", lambda *_: pytest.fail("it was loaded whole"))
    score_stream(of_both, tmp_path / "folder", tmp_path / "s.parquet")
    scores = pq.read_table(tmp_path / "s.parquet")
    np.testing.assert_allclose(scores["correspondence"].to_numpy(zero_copy_only=False), want, rtol=1e-4)
    assert len(cut) == 4 and np.flatnonzero(np.isnan(want)).tolist() == [30]
    assert scores["reason"].to_pylist()[30] == "its text vector is not finite"
