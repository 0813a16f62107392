"""CLIP-score without a model: vectors of both sides, or cosines, that the data brings."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs import ClipScore, InfoNCE, PairCleaner, Pairs, load_pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.recipe import Recipe
from tests.helpers import assert_raises, reloaded, write_table

CAPTIONS = [f"caption number {i}" for i in range(60)]


def both(n: int = 60, wrong: int = 12, **more: object) -> Pairs:
    """Vectors of both sides; the first ``wrong`` captions rotate."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, 16)).astype(np.float32)
    at = np.concatenate([np.roll(np.arange(wrong), 1), np.arange(wrong, n)]).astype(np.int64)
    texts = (z + 0.1 * rng.normal(size=z.shape).astype(np.float32))[at] * 3  # their length does not matter
    return Pairs.from_arrays([CAPTIONS[i] for i in at], features=z, text_vectors=texts, **more)  # type: ignore[arg-type]


def many(n: int, wrong: int, seed: int = 1) -> Pairs:
    """Of one cone, with noise in all directions."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 32)) + 1
    at = np.concatenate([np.roll(np.arange(wrong), 1), np.arange(wrong, n)]).astype(np.int64)
    texts = z[at] + 0.5 * rng.normal(size=z.shape)
    captions = [f"caption number {i}" for i in at]
    return Pairs.from_arrays(captions, features=z.astype(np.float32), text_vectors=texts.astype(np.float32))


def cosines(pairs: Pairs) -> np.ndarray:
    array, texts = pairs.images.array(), pairs.text_vectors
    image = array[pairs.image_index, 0]
    lengths = np.linalg.norm(image, axis=1) * np.linalg.norm(texts, axis=1)
    return np.asarray((image * texts).sum(1) / lengths, np.float32)


def test_vectors_of_both_sides_need_no_model(tmp_path: Path) -> None:
    pairs = both()
    model = ClipScore(text_encoder="features", quantile=0.2, normalise="none").fit(pairs)
    np.testing.assert_allclose(model.correspondence_ * 2 - 1, cosines(pairs), atol=1e-6)
    assert (model.correspondence_ < model.threshold_).nonzero()[0].tolist() == list(range(12))
    plan = model.rematch(pairs, repairs="plausible").to_pandas()
    taken = plan[plan["action"] == "rematch_text"]
    assert len(taken) >= 10 and (taken["caption"] == [CAPTIONS[i] for i in taken["pair_id"]]).all()
    again = reloaded(model, tmp_path, pairs)
    assert again.evaluate(pairs).i2t_r1 == pytest.approx(80.0)
    assert_raises(ConfigError, "came with the data", again.encode_texts, ["a"])


@pytest.mark.parametrize("normalise", ["background", "csls", "none"])
@pytest.mark.parametrize("stored", [100, 4096])
def test_threshold_rate_and_probability_come_from_the_null(
    normalise: str, stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClipScore, "_background_pairs", stored)
    pairs = many(600, 200)
    wrong = np.arange(600) < 200
    model = ClipScore(text_encoder="features", normalise=normalise).fit(pairs)
    assert abs(model.noise_rate_ - 1 / 3) < 0.05
    assert ((model.correspondence_ < model.threshold_) != wrong).mean() < 0.05
    assert normalise == "none" or model.threshold_ == 0.5  # more likely mismatched than matched
    again = reloaded(model, tmp_path, pairs).score_pairs(pairs)
    if stored > 600:
        np.testing.assert_allclose(again, model.correspondence_, atol=1e-5)
    assert ((again < model.threshold_) != wrong).mean() < 0.08  # those that are scored later mean the same
    clean = ClipScore(text_encoder="features", normalise=normalise).fit(many(600, 0))
    assert clean.noise_rate_ < 0.02 and (clean.correspondence_ < clean.threshold_).mean() <= 0.005


@pytest.mark.parametrize("normalise", ["background", "csls"])
def test_of_new_pairs_as_many_are_flagged_as_are_wrong(normalise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClipScore, "_background_pairs", 500)
    model = ClipScore(text_encoder="features", normalise=normalise, random_state=0).fit(many(2000, 600))
    flagged = model.score_pairs(many(1000, 300, seed=2)) < model.threshold_
    wrong = np.arange(1000) < 300
    assert flagged[wrong].mean() > 0.95 and flagged[~wrong].mean() < 0.02
    assert abs(flagged.mean() - 0.3) < 0.015


def test_where_there_is_no_common_space_and_of_few_pairs_nothing_is_flagged() -> None:
    pairs = many(300, 0)
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(32, 32)))[0]
    images = np.asarray(pairs.images.array())[:, 0]
    turned = Pairs.from_arrays(pairs.captions, features=images, text_vectors=(pairs.text_vectors @ turn))
    for given in (turned, both()):
        model = ClipScore(text_encoder="features").fit(given)
        assert np.isnan(model.noise_rate_) and model.threshold_ == 0 and (model.correspondence_ >= 0).all()


def test_a_column_of_scores_needs_nothing_else(tmp_path: Path) -> None:
    scores = np.linspace(-0.1, 0.4, 60).astype(np.float32)
    scores[7] = np.nan
    table = {"caption": CAPTIONS, "similarity": pa.array(scores), "image": [b"no picture"] * 60}
    pairs = load_pairs(write_table(tmp_path / "laion.parquet", table))
    model = ClipScore(score_column="similarity", threshold=0.6).fit(pairs)
    known = np.delete(np.arange(60), 7)
    np.testing.assert_allclose(model.correspondence_[known], (1 + scores[known]) / 2, atol=1e-6)
    assert model.quarantined_ == {7: "it has no similarity"}
    again = ClipScore.from_pretrained(model.save_pretrained(tmp_path / "m"))
    np.testing.assert_array_equal(again.score_pairs(pairs), model.correspondence_)
    actions = again.rematch(pairs, min_repair_score=0.0).to_pandas()["action"]
    assert actions.value_counts().to_dict() == {"drop": 35, "keep": 24, "quarantine": 1}


def test_scores_and_vectors_together_repair() -> None:
    pairs = both(precomputed_scores={"similarity": np.where(np.arange(60) < 12, 0.1, 0.3)})
    model = ClipScore(score_column="similarity", quantile=0.2).fit(pairs)
    assert np.unique(model.correspondence_).tolist() == pytest.approx([0.55, 0.65])
    assert (model.rematch(pairs, repairs="plausible").to_pandas()["action"] == "rematch_text").sum() >= 10


def test_what_the_data_must_bring() -> None:
    plain = Pairs.from_arrays(CAPTIONS, features=np.ones((60, 4), np.float32))
    assert_raises(DataError, "found 1 x 4 an image and none a caption", ClipScore(text_encoder="features").fit, plain)
    for name in ("similarity", ""):
        with pytest.raises(DataError, match=rf"score_column of clip-score: .* no scores '{name}' \(found: none\)"):
            ClipScore(score_column=name).fit(plain)
    percent = both(precomputed_scores={"clip_score": np.full(60, 28.0)})
    with pytest.raises(DataError, match=r"must hold cosines.*'clip_score' holds 28 at pair 0"):
        ClipScore(score_column="clip_score").fit(percent)


def test_settings_that_do_not_go_together() -> None:
    for settings, message in (
        ({}, "model of clip-score must be"),
        ({"text_encoder": "minilm"}, "text_encoder"),
        ({"text_encoder": "features", "normalise": "sinkhorn"}, "normalise"),
        ({"model": "x", "score_column": "similarity"}, "found several"),
        ({"encoder": "x", "text_encoder": "features"}, "text_encoder"),
        ({"encoder": "/no/such/model"}, "there is no directory /no/such/model"),  # it names the model too
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            ClipScore(**settings).fit(Pairs.from_arrays(CAPTIONS, features=np.ones((60, 4), np.float32)))  # type: ignore[arg-type]


def test_it_has_no_settings_of_a_training() -> None:
    trained, own = set(InfoNCE().get_params()), ClipScore().get_params()
    assert not {"lr", "epochs", "batch_size", "tokenizer", "dim", "tau", "precision"} & set(own)
    assert {"threshold", "device", "random_state", "normalise", "quantile"} <= set(own) and len(own) < len(trained) / 2
    assert not isinstance(ClipScore(), PairCleaner) and isinstance(InfoNCE(), PairCleaner)
    with pytest.raises(ConfigError, match="'lr' is a setting of trainings, and clip-score trains nothing"):
        Recipe.resolve(overrides=["lr=0.1"], options={"method": "clip-score"})
