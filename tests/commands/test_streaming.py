"""Scores in a stream, and in a pipeline of somebody else's, are the scores: borders, lists, quarantined rows."""

import importlib
from copy import copy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import ClipScore, InfoNCE, ScorePairs, load_pairs
from cleanpairs.commands import score as streaming_module
from cleanpairs.commands.score import ScoreResult
from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError
from cleanpairs.engine import make_engine, run_partitions
from tests.helpers import assert_raises, vector_column, write_table

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 8, "eval_group_size": 8, "threshold": 0.2, "tau": 0.1}


def score_stream(model: Any, data: Path, out: Path, **how: Any) -> ScoreResult:
    """By the model, once it is saved."""
    saved = model.save_pretrained(out.parent / f"saved-{id(model)}", overwrite=True)
    return streaming_module.score_stream(saved, data, out, **how)


def write(path: Path, n: int, *, lists: bool = False, bad: tuple[int, ...] = (), dim: int = 6) -> Path:
    rng = np.random.default_rng(n)
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    vectors[list(bad), 0] = np.nan
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (n, 3))]
    texts = [[c, c + " too", ""][: 1 + i % 3] for i, c in enumerate(captions)] if lists else captions
    column = pa.array(texts, pa.list_(pa.string()) if lists else pa.string())
    return write_table(path, {"caption": column, "image_features": vector_column(vectors), "id": pa.array(range(n))})


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("train") / "train.parquet", 40)


@pytest.fixture(scope="module")
def model(train: Path) -> InfoNCE:
    return InfoNCE(dim=8, dim_word=4, device="cpu", **SETTINGS).fit(train)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 50])
def test_small_chunks_score_as_a_whole(model: InfoNCE, tmp_path: Path, monkeypatch: Any, n: int, lists: bool) -> None:
    monkeypatch.setattr(streaming_module.ScoreWork, "batch_rows", 7)
    data = write(tmp_path / "new.parquet", n, lists=lists, bad=(1, 8) if n > 8 else ())
    pairs = load_pairs(data)
    result = score_stream(model, data, tmp_path / "scores.parquet")
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table["pair_id"].to_pylist() == list(range(len(pairs))) and len(table) == len(pairs) == result.pairs
    assert table["key"].to_pylist() == pairs.keys
    got = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
    np.testing.assert_allclose(got, model.score_pairs(pairs), rtol=1e-4)
    reasons = {i: r for i, r in enumerate(table["reason"].to_pylist()) if r is not None}
    assert reasons == pairs.reasons and (n <= 8 or len(reasons) >= 2)
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


def test_partitions_score_as_one(model: InfoNCE, many: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(streaming_module, "run_partitions", told := Mock(wraps=run_partitions))
    result = score_stream(model, many, tmp_path / "scores.parquet")
    assert [partition.rows for partition in told.call_args.args[1]] == [20, 20, 20, 20, 1]
    assert not (tmp_path / "scores.parquet.parts").exists()
    monkeypatch.setattr(streaming_module.ScoreWork, "partition_rows", 1000)
    assert score_stream(model, many, tmp_path / "whole.parquet") == result
    table, whole = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("scores", "whole"))
    assert table.drop(["correspondence"]).equals(whole.drop(["correspondence"]))
    np.testing.assert_allclose(*(t["correspondence"].to_pandas() for t in (table, whole)), rtol=1e-5)
    assert table["pair_id"].to_pylist() == list(range(result.pairs)) and result.quarantined > 4


def test_parts_of_another_model_stay_out(model: InfoNCE, train: Path, many: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming_module, "_put_together", lambda *_: 1 / 0)
        assert_raises(ZeroDivisionError, ".", score_stream, model, many, out)
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
    table, out = pq.read_table(write(tmp_path / "a.parquet", 9)), tmp_path / "s.parquet"
    data = write_table(tmp_path / "images.parquet", table.set_column(1, "image", pa.array([b"no image"] * 9)))
    two = make_engine("local", workers=2)
    assert_raises(ConfigError, "leave --engine and --workers out", score_stream, model, data, out, engine=two)
    assert not out.exists()


def with_texts(path: Path, n: int, *, kind: Any = np.float32, bad: tuple[int, ...] = ()) -> Path:
    """Vectors of both sides; those of the captions ``bad`` are, in turn, zero, not finite and missing."""
    table = pq.read_table(write(path, n))
    images = np.reshape(table["image_features"].to_pylist(), (n, 6))
    texts: list[Any] = list((images + 0.3 * np.random.default_rng(7).normal(size=(n, 6))).astype(kind))
    for k, row in enumerate(bad):
        texts[row] = [np.zeros(6, kind), np.full(6, np.nan, kind), None][k % 3]
    vector = pa.list_(pa.from_numpy_dtype(kind), 6)
    return write_table(path, table.append_column("text_features", pa.array(texts, vector)), row_group_size=9)


@pytest.fixture(scope="module", params=[InfoNCE(**SETTINGS), ClipScore()], ids=["infonce", "clip-score"])
def of_both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    data = with_texts(tmp_path_factory.mktemp("both") / "both.parquet", 40)
    return request.param.set_params(text_encoder="features", device="cpu").fit(data)


def test_filters_that_are_named_are_asked_about_all_rows(of_both: Any, tmp_path: Path) -> None:
    """What streams passes none."""
    data, out = with_texts(tmp_path / "new.parquet", 9), tmp_path / "scores.parquet"
    pq.write_table(pq.read_table(data).set_column(0, "caption", pa.array(["w1", *["w1 w2 w3"] * 8])), data)
    model, two = copy(of_both).set_params(drop="caption_length=8"), make_engine("local", workers=2)
    assert score_stream(model, data, out).quarantined == 1
    words = r"without --drop.*all rows at once; leave --engine"
    assert_raises(ConfigError, words, score_stream, model, data, tmp_path / "s.parquet", engine=two)
    assert model.set_params(drop="none")._row_scorer({"features", "text_features"}) is not None


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_vectors_of_both_sides_stream(of_both: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_module.ScoreWork, "batch_rows", 7)
    monkeypatch.setattr(streaming_module, "load_source", lambda *_: pytest.fail("it was loaded whole"))
    why = {3: "its text vector is zero", 11: "its text vector is not finite", 20: "there is no text vector"}
    for n, bad in ((0, {}), (1, {}), (2, {}), (40, why)):
        data, out = with_texts(tmp_path / "new.parquet", n, kind=kind, bad=tuple(bad)), tmp_path / "scores.parquet"
        pairs = load_pairs(data)
        assert pairs.text_vectors is not None and len(pairs.text_vectors) == n
        assert score_stream(of_both, data, out, overwrite=True).pairs == n
        table = pq.read_table(out)
        got = table["correspondence"].to_numpy(zero_copy_only=False).astype(np.float32)
        np.testing.assert_allclose(got, of_both.score_pairs(pairs), rtol=1e-4, atol=1e-6)
        assert {11, 20} & set(bad) <= set(np.flatnonzero(np.isnan(got)).tolist())
        for row, words in bad.items():
            assert table["reason"][row].as_py() == pairs.reasons[row] == words


# -- Batches scored in a pipeline of somebody else's: as `score` scores them, however they are cut ---------------------

COLUMNS = ["correspondence", "is_mismatch", "reason"]


def rows(n: int) -> pa.Table:
    """Vectors of both sides in halves, captions of three words; some rows cannot be scored."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(n, 32)).astype(np.float16)
    texts = (vectors + rng.normal(size=(n, 32)) * 1.5).astype(np.float16)
    vectors[5:6], texts[9:10] = np.inf, 0
    captions = [" ".join(f"w{k}" for k in row) for row in rng.integers(0, 9, (n, 3))]
    captions[7:8] = ["  "]
    sides = {"image_features": vector_column(vectors), "text_features": vector_column(texts)}
    return pa.table({"uid": range(n), "text": captions, **sides})


VECTORS = ClipScore(text_encoder="features", device="cpu")
SMALL = {"epochs": 1, "eval_group_size": 32, "device": "cpu"}
METHODS = {
    "clip-score": VECTORS,
    "words": InfoNCE(backbone="mlp", dim=32, dim_word=32, require_dependence=False, **SMALL),
    "vectors": InfoNCE(text_encoder="features", **SMALL),
}


@pytest.mark.parametrize("name", METHODS)
def test_batches_of_any_size_have_the_scores_of_score(name: str, tmp_path: Path) -> None:
    data = write_table(tmp_path / "data.parquet", rows(200))
    model = METHODS[name].fit(data).save_pretrained(tmp_path / "run" / "model")
    streaming_module.score_stream(model, data, tmp_path / "scores.parquet")
    want = pq.read_table(tmp_path / "scores.parquet").select(COLUMNS)
    scorer, table, others = ScorePairs(tmp_path / "run"), pq.read_table(data), COLUMNS[1:]
    assert want["reason"].null_count < 200 and len(set(want["correspondence"].to_pylist())) > 150
    for size in (1, 7, 64, 130, 200, 1000):
        found = pa.concat_tables([scorer(table.slice(start, size)) for start in range(0, 200, size)])
        assert found.drop(COLUMNS).equals(table) and found.select(others).equals(want.select(others)), size
        np.testing.assert_allclose(*(t["correspondence"].to_numpy() for t in (found, want)), rtol=0, atol=1e-6)
    assert scorer(table.slice(0, 0)).schema.names == [*table.schema.names, *COLUMNS]
    if name != "words":  # captions need not be there
        bare, given = (t["correspondence"].to_numpy() for t in (scorer(table.drop("text")), want))
        assert np.isfinite(bare).sum() == np.isfinite(given).sum() + 1 == 198  # one caption is blank


def test_what_cannot_be_scored_says_so(tmp_path: Path) -> None:
    table = rows(60)
    data = write_table(tmp_path / "data.parquet", table)
    scorer = ScorePairs(VECTORS.fit(data).save_pretrained(tmp_path / "model"))
    for given, words in (
        ({"text": np.array(["a"])}, 'batch_format="pyarrow"'),
        (table.drop("text_features"), "text_features"),
        (table.append_column("reason", pa.nulls(60, pa.string())), "rename it"),
        (table.set_column(1, "text", pa.array([["a"]] * 60)), "one caption a row"),
    ):
        assert_raises(DataError, words, scorer, given)
    write_table(data, table.append_column("similarity", pa.array(np.linspace(0, 1, 60))))
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
    Path("shards").mkdir()
    first = write_table(Path("shards/a.parquet"), rows(300), row_group_size=100)
    write_table(Path("shards/b.parquet"), rows(150))
    model = VECTORS.fit(first).save_pretrained("runs/latest/model")
    streaming_module.score_stream(model, "shards", tmp_path / "scores.parquet")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
    try:
        exec(code, {})
    finally:
        ray.shutdown()
    kept, want = (pq.read_table(name).to_pylist() for name in ("kept", "scores.parquet"))
    good = [(int(row["key"]), row["correspondence"]) for row in want if (row["correspondence"] or 0) >= 0.5]
    assert 0 < len(good) < 450
    assert sorted((row["uid"], row["correspondence"]) for row in kept) == sorted(good)
