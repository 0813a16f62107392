"""CLIP-score and LEMoN, which train nothing: by a tiny CLIP, by vectors or cosines of the data, by several scores."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from cleanpairs import ClipScore, LEMoN, Pairs, load_pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.recipe import Recipe
from cleanpairs.encoders.pretrained import PretrainedCLIP
from tests.encoders.conftest import edit, made, save_clip
from tests.helpers import assert_not_loaded, assert_raises, cone, distinct, picture, reloaded, unit, write_table

CAPTIONS = [f"caption number {i}" for i in range(60)]
PLAIN = Pairs.from_arrays(CAPTIONS, features=np.ones((60, 4), np.float32))


# -- a model ----------------------------------------------------------------------------------------------------------


def test_the_correspondence_is_the_cosine_and_another_model_or_regions_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = made(tmp_path / "clip", save_clip)
    encoder = PretrainedCLIP(folder)
    captions = "red blue green,cat dog boat,tree house sky,sea road car,red cat,blue dog,green boat,sea sky".split(",")
    images = [picture(i, size=(50, 40)) for i in range(8)]
    pairs = Pairs.from_arrays(captions, images=images)
    settings = {"model": folder, "device": "cpu", "eval_group_size": 16}
    model = ClipScore(**settings, normalise="none").fit(pairs)
    opened = [Image.open(io.BytesIO(data)) for data in images]
    z_image, z_text = encoder.encode_images(opened), encoder.encode_texts(captions)
    np.testing.assert_allclose(2 * model.correspondence_ - 1, (z_image * z_text).sum(1), atol=1e-6)
    np.testing.assert_allclose(model.score_pairs(pairs), model.correspondence_, atol=1e-6)
    np.testing.assert_allclose(model.encode_images(pairs), z_image, atol=1e-6)
    np.testing.assert_allclose(model.encode_texts(captions), z_text, atol=1e-6)
    assert_raises(ConfigError, "list", model.encode_texts, "one caption")
    pixels = np.stack([np.asarray(image) for image in opened]).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(model.encode_images(pixels), z_image, atol=1e-6)
    assert model.tau_ == pytest.approx(encoder.temperature)
    path = model.save_pretrained(tmp_path / "model")
    told = json.loads((path / "config.json").read_text(encoding="utf-8"))["pretrained"]
    edit(path / "config.json", pretrained={**told, "fingerprint": "0" * 64})
    assert_raises(DataError, "is not the model that", ClipScore.from_pretrained, path)
    with pytest.raises(DataError, match="9 x 24"):
        ClipScore(**settings).fit(Pairs.from_arrays(captions, features=np.ones((8, 9, 24), np.float32)))


# -- vectors or cosines of the data -----------------------------------------------------------------------------------


def vectors(n: int, wrong: int, *, dim: int, cone: float, noise: float, seed: int, **more: Any) -> Pairs:
    """Vectors of both sides; the first ``wrong`` captions are reversed. The length of a caption's does not matter."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, dim)).astype(np.float32) + np.float32(cone)
    at = np.r_[np.arange(wrong)[::-1], wrong:n]
    texts = 3 * (z + noise * rng.normal(size=z.shape).astype(np.float32))[at]
    return Pairs.from_arrays([f"caption number {i}" for i in at], features=z, text_vectors=texts, **more)


def both(**more: Any) -> Pairs:
    """60 pairs, of which 12 are wrong."""
    return vectors(60, 12, dim=16, cone=0, noise=0.1, seed=0, **more)


def many(n: int, wrong: int, seed: int = 1, **more: Any) -> Pairs:
    """Of one cone, with noise in all directions."""
    return vectors(n, wrong, dim=32, cone=1, noise=0.5, seed=seed, **more)


def test_vectors_of_both_sides_need_no_model(tmp_path: Path) -> None:
    pairs = both()
    model = ClipScore(text_encoder="features", quantile=0.2, normalise="none").fit(pairs)
    cosine = (unit(pairs.images.array()[:, 0]) * unit(pairs.text_vectors)).sum(1)
    np.testing.assert_allclose(model.correspondence_ * 2 - 1, cosine, atol=1e-6)
    assert (model.correspondence_ < model.threshold_).nonzero()[0].tolist() == list(range(12))
    plan = model.rematch(pairs, repairs="plausible").to_pandas()
    taken = plan[plan["action"] == "rematch_text"]
    assert len(taken) >= 10 and (taken["caption"] == [CAPTIONS[i] for i in taken["pair_id"]]).all()
    again = reloaded(model, tmp_path, pairs)
    assert again.evaluate(pairs).i2t_r1 == pytest.approx(80.0)
    assert_raises(ConfigError, "came with the data", again.encode_texts, ["a"])


@pytest.mark.parametrize("normalise", ["background", "csls", "none"])
@pytest.mark.parametrize("stored", [100, 4096])
def test_the_threshold_comes_from_the_null(normalise: str, stored: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Noise rate and probability, too."""
    monkeypatch.setattr(ClipScore, "_background_pairs", stored)
    pairs, wrong = many(600, 200), np.arange(600) < 200
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
    flagged, wrong = model.score_pairs(many(1000, 300, seed=2)) < model.threshold_, np.arange(1000) < 300
    assert flagged[wrong].mean() > 0.95 and flagged[~wrong].mean() < 0.02 and abs(flagged.mean() - 0.3) < 0.015


def test_where_there_is_no_common_space_and_of_few_pairs_nothing_is_flagged() -> None:
    pairs = many(300, 0)
    texts = pairs.text_vectors @ np.linalg.qr(np.random.default_rng(2).normal(size=(32, 32)))[0]
    turned = Pairs.from_arrays(pairs.captions, features=pairs.images.array()[:, 0], text_vectors=texts)
    for given in (turned, both()):
        model = ClipScore(text_encoder="features").fit(given)
        assert np.isnan(model.noise_rate_) and model.threshold_ == 0 and (model.correspondence_ >= 0).all()


def test_a_column_of_scores_needs_nothing_else(tmp_path: Path) -> None:
    scores = np.linspace(-0.1, 0.4, 60).astype(np.float32)
    scores[7] = np.nan
    table = {"caption": CAPTIONS, "similarity": scores, "image": [b"no picture"] * 60}
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
    known, new = (many(600, 200, seed, precomputed_scores={"similarity": np.arange(600) / 1000}) for seed in (1, 2))
    model.set_params(quantile=0.3).fit(known).calibrate({i: i >= 200 for i in range(0, 600, 10)})
    assert model.rematch(known).summary().repaired > 100
    assert "undetermined" in str(model.rematch(new).summary())  # answers are of their own pairs


def test_what_the_data_must_bring() -> None:
    assert_raises(DataError, "found 1 x 4 an image and none a caption", ClipScore(text_encoder="features").fit, PLAIN)
    for name in ("similarity", ""):
        with pytest.raises(DataError, match=rf"score_column of clip-score: .* no scores '{name}' \(found: none\)"):
            ClipScore(score_column=name).fit(PLAIN)
    percent = both(precomputed_scores={"clip_score": np.full(60, 28.0)})
    assert_raises(DataError, "to 1; 'clip_score' holds 28 at pair 0", ClipScore(score_column="clip_score").fit, percent)


def test_settings_that_do_not_go_together() -> None:
    for settings, message in (
        ({}, "model of clip-score must be"), ({"text_encoder": "features", "normalise": "sinkhorn"}, "normalise"),
        ({"model": "x", "score_column": "similarity"}, "found several"),
        ({"encoder": "/no/such/model"}, "there is no directory /no/such/model"),  # it names the model too
    ):  # fmt: skip
        assert_raises((ConfigError, DataError), message, ClipScore(**settings).fit, PLAIN)


def test_it_has_no_settings_of_a_training() -> None:
    with pytest.raises(ConfigError, match="'lr' is a setting of trainings, and clip-score trains nothing"):
        Recipe.resolve(overrides=["lr=0.1"], options={"method": "clip-score"})


# -- several scores ---------------------------------------------------------------------------------------------------

NAMES = "clip_score,other,judge,aesthetic"


Scored = tuple[Path, np.ndarray]  # a file of pairs, and which are wrong


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """1,000 pairs, 30 % of them wrong, and three scores of rising noise, and one that knows nothing."""
    rng, n = np.random.default_rng(0), 1000
    wrong = rng.random(n) < 0.3
    clip, other, judge = (rng.normal(size=n) * noise - 2.0 * wrong for noise in (1, 1, 2))
    known = [None if k >= 200 else int(not w) for k, w in enumerate(wrong)]
    table = {
        "caption": [f"text {k}" for k in range(n)], "image": [picture(k % 200) for k in range(n)],
        "clip_score": np.tanh(clip / 4), "other": other,
        "judge": np.round(np.exp(judge), 1),  # skewed, with ties
        "aesthetic": rng.integers(1, 10, n), "human": pa.array(known, pa.float32()),
    }  # fmt: skip
    return write_table(tmp_path_factory.mktemp("scores") / "scores.parquet", table), wrong


@pytest.mark.parametrize("labels", [None, "human"])
def test_several_scores_are_better_together(scored: Scored, tmp_path: Path, labels: str | None) -> None:
    pairs, wrong = load_pairs(scored[0], score_columns="other,judge,aesthetic,human"), scored[1]
    model = ClipScore(score_column=NAMES, label_column=labels).fit(pairs)
    alone = [roc_auc_score(~wrong, pairs.precomputed_scores[name]) for name in NAMES.split(",")]
    assert roc_auc_score(~wrong, model.correspondence_) > max(alone) + 0.02
    told = model._captions or ""
    weight = {name: float(share) for name, share in (part.split() for part in told.split(": ")[1].split(", "))}
    assert weight["clip_score"] > weight["judge"] > abs(weight["aesthetic"]) < 0.1 and (labels or "agree on") in told
    assert not labels or np.mean(model.correspondence_ < model.threshold_) == pytest.approx(0.3, abs=0.06)
    reloaded(model, tmp_path, pairs)
    few = model.fit(pairs.select(np.arange(900))).correspondence_
    pairs.reasons.update(dict.fromkeys(range(900, 1000), "unusable"))  # what is not used teaches nothing
    np.testing.assert_array_equal(few, model.fit(pairs).correspondence_[:900])


def test_a_command_takes_several_scores_and_prints_the_weights(scored: Scored, tmp_path: Path, output_of: Any) -> None:
    columns = "--set score_column=other,judge --column score=other --column score=judge".split()
    told = output_of("fit", scored[0], "--method", "clip-score", "--out", tmp_path / "run", *columns)
    assert "weighed by what they agree on: other 0.50, judge 0.50" in told
    assert output_of("evaluate", tmp_path / "run").endswith("\nrSum                   -\n")


def test_several_scores_that_cannot_be_weighed(scored: Scored) -> None:
    path = scored[0]
    few = load_pairs(path, score_columns="other,human", limit=79)
    for settings, error, words in (
        ({"score_column": "clip_score,other"}, DataError, "by 80 pairs or more, and 79"),
        ({"score_column": "clip_score,judge"}, DataError, "no scores 'judge'.*--column score=judge"),
        ({"score_column": "other", "label_column": "human"}, ConfigError, "weighs several scores"),
    ):
        assert_raises(error, words, ClipScore(**settings).fit, few)
    assert_not_loaded("'caption' of .* is string; a score must be a number", path, score_columns="caption")
    labelled = load_pairs(path, score_columns="other,judge,human", limit=100)
    labelled.precomputed_scores["human"][15:] = np.nan
    with pytest.raises(DataError, match="by 10 matched and 10 mismatched pairs or more"):
        ClipScore(score_column="other,judge", label_column="human").fit(labelled)


# -- LEMoN: its equations by a loop, and its own threshold ------------------------------------------------------------


def lemon_by_loop(x: np.ndarray, y: np.ndarray, pairs: list[tuple[int, int]], k: int) -> np.ndarray:
    """Equations of the module; a pair (i, j) has the image of i and the caption of j."""
    out = []
    for i, j in pairs:
        total = 1 - x[i] @ y[j]
        for a, b, p, q in ((x, y, i, j), (y, x, j, i)):
            at = [m for m in np.argsort(-(a @ a[p]), kind="stable") if m != p][:k]
            total += 5 * np.mean(np.exp(-0.1 * (1 - a[at] @ a[p]) - 5 * (1 - (a * b)[at].sum(1))) * (1 - b[at] @ b[q]))
        out.append(-total)
    return np.array(out)


@pytest.mark.parametrize("k", [3, 30, 100])
def test_the_score_of_lemon_is_that_of_its_equations(k: int) -> None:
    x, y, null = *cone(60, 1 / 6, dim=24)[:2], np.array([[0, 5, 7], [3, 5, 1]])
    expected = lemon_by_loop(x, y, [*zip(range(60), range(60), strict=True), *zip(*null.tolist(), strict=True)], k)
    for copies in (0, 2 * k):  # of the first pair, which are one neighbour
        given = distinct(x, y).take(np.append(np.arange(60), np.zeros(copies, np.int64)))
        observed, of_null = LEMoN(k=k).compare(given, given, null)
        np.testing.assert_allclose(np.append(observed[:60], of_null), expected, atol=1e-5)


def test_lemon_has_its_own_threshold_and_scores_the_same_when_loaded(tmp_path: Path) -> None:
    x, y, _, wrong = cone(600, 1 / 3, dim=24, spread=0.5)
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(600)], features=x, text_vectors=y)
    model = LEMoN().fit(pairs)
    assert roc_auc_score(~wrong, model.correspondence_) > 0.97
    assert abs(model.noise_rate_ - 1 / 3) < 0.05 and ((model.correspondence_ < model.threshold_) != wrong).mean() < 0.1
    np.testing.assert_allclose(reloaded(model, tmp_path, pairs).score_pairs(pairs), model.correspondence_, atol=1e-4)
    assert (model.rematch(pairs, repairs="plausible").to_pandas()["action"] == "rematch_text").sum() > 100
    for odd in (None, np.zeros(600), (np.zeros(600), np.zeros(7)), (np.full(600, np.nan), np.zeros(2400))):
        model.compare = lambda *_, odd=odd: odd
        assert_raises(ConfigError, r"compare of lemon must .* shapes \(600,\) .* and \(2400,\)", model.fit, pairs)
