"""Pairs that a model has not seen have a threshold of their own: by random pairs among them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs import Auto, InfoNCE, Pairs, ScorePairs, apply_noise, inject_noise
from cleanpairs.commands.score import score_stream
from tests.conftest import Command
from tests.helpers import write_table

WORDS = [f"word{k}" for k in range(40)]


def rows(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Captions of three words, and the sum of their vectors with noise, (n, 16)."""
    rng, table = np.random.default_rng(seed), np.random.default_rng(7).normal(size=(len(WORDS), 16))
    chosen = [rng.choice(len(WORDS), 3, replace=False) for _ in range(n)]
    features = np.stack([table[c].sum(0) for c in chosen]) + 1.5 * rng.normal(size=(n, 16))
    return [" ".join(WORDS[k] for k in c) for c in chosen], features.astype(np.float32)


def pairs_of(n: int, seed: int) -> Pairs:
    captions, features = rows(n, seed)
    return Pairs.from_arrays(captions, features=features)


def with_noise(n: int, seed: int, rate: float) -> tuple[Pairs, np.ndarray]:
    """Pairs with mismatched captions, and which they are."""
    clean = pairs_of(n, seed)
    noise = inject_noise(clean, rate, seed=0)
    return apply_noise(clean, noise), noise.mismatched


@pytest.fixture(scope="module")
def model() -> Auto:
    """It knows 300 pairs, of which 30 % were mismatched, better than any others."""
    small = Auto(dim=64, epochs=16, lr=4e-3, batch_size=32, backbone="mlp", random_state=0, require_dependence=False)
    return small.fit(with_noise(300, 0, 0.3)[0])


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_few_clean_pairs_are_flagged_and_most_mismatched_ones(model: Auto, rate: float) -> None:
    clean, (pairs, wrong) = pairs_of(1200, 1), with_noise(1200, 1, rate)
    scores, flagged, unseen = model.score_pairs(pairs), model.predict(pairs), model.own_threshold(pairs)
    assert (scores < model.threshold_)[~wrong].mean() > 0.5  # the threshold of the fit is of pairs known by heart
    assert flagged[~wrong].mean() < 0.15
    share = unseen.noise_rate
    assert share.low <= rate <= share.high or (rate == 0.4 and np.isnan(share.value))  # said to be undetermined
    assert unseen.matched(scores).mean() == pytest.approx(1 - rate, abs=0.15)
    plan = model.rematch(pairs)
    if rate:
        assert flagged[wrong].mean() > 0.5
        repaired = plan.to_pandas().query("action == 'rematch_text'")
        right = [clean.captions[i] == caption for i, caption in zip(repaired.pair_id, repaired.caption, strict=True)]
        gap = np.mean(right) - repaired.confidence.mean()  # it says too little on such small data
        assert len(right) > 10 and -0.1 < gap < 0.4
    assert plan.threshold == unseen.threshold and (plan.to_pandas()["action"] == "keep").sum() == (~flagged).sum()
    assert model.rematch(pairs, threshold=0.3).threshold == 0.3
    assert model.explainer(pairs).threshold == unseen.threshold


def test_pairs_of_the_fit_too_few_pairs_and_foreign_ones_have_the_threshold_of_the_fit(model: Auto) -> None:
    captions, features = rows(300, 4)
    foreign = Pairs.from_arrays(captions, features=features[np.random.default_rng(0).permutation(300)])
    few = pairs_of(60, 3)
    for pairs in (with_noise(300, 0, 0.3)[0], few, foreign):  # the last ones score no better than random pairs
        assert model.own_threshold(pairs) is None
    np.testing.assert_array_equal(model.predict(few), model.score_pairs(few) < model.threshold_)
    for asked in (model.explainer, model.rematch):
        assert asked(few, correspondence=np.where(np.arange(60) < 12, 0.1, 0.9)).threshold == model.threshold_


@pytest.mark.parametrize("new", [100, 600])
def test_pairs_of_the_fit_do_not_count_for_the_threshold_of_new_ones(model: Auto, new: int) -> None:
    """A second version of the data has the first in it."""
    (old, of_old), (more, of_more) = with_noise(300, 0, 0.3), with_noise(new, 1, 0.3)
    features = np.concatenate([pairs.images.array()[:, 0] for pairs in (old, more)])
    pairs, mismatched = Pairs.from_arrays(old.captions + more.captions, features=features), np.append(of_old, of_more)
    unseen, flagged = model.own_threshold(pairs), model.predict(pairs)
    assert unseen is not None and np.isnan(unseen.noise_rate.value)
    assert flagged[~mismatched].mean() < 0.15 < 0.5 < flagged[mismatched].mean()


def test_a_stream_has_the_threshold_of_the_whole(model: Auto, tmp_path: Path, command: Command) -> None:
    captions, features = rows(500, 5)
    moved = np.r_[np.roll(np.arange(150), 1), np.arange(150, 500)]
    table = pa.table({"caption": [captions[k] for k in moved], "image_features": list(features)})
    data = write_table(tmp_path / "data.parquet", table)
    saved, unseen = model.save_pretrained(tmp_path / "run" / "model"), model.own_threshold(data)
    found = score_stream(saved, data, tmp_path / "scores.parquet")
    assert found.threshold == pytest.approx(unseen.threshold, rel=1e-4) and 120 < found.flagged < 220
    assert found.noise_rate.low < 0.3 < found.noise_rate.high
    result = {"pairs": 300, "flagged": 0, "threshold": model.threshold_}
    (tmp_path / "run" / "run.json").write_text(json.dumps({"status": "complete", "result": result}))
    code, out, err = command("score", "run", "data.parquet", "--out", "again.parquet")
    assert code == 0 and "threshold: by random pairs of this data" in out and "mismatched: 0." in out and not err
    scored = ScorePairs(tmp_path / "run", threshold=found.threshold)(table)
    assert sum(scored["is_mismatch"].to_pylist()) == found.flagged
    captions, features = rows(1200, 8)  # several row groups, of rows with lists of captions
    wrong = np.r_[np.roll(np.arange(300), 1), np.arange(300, 1200)]
    columns = {"caption": [[captions[k], f"{captions[k]} too"] for k in wrong], "image_features": list(features)}
    data = write_table(tmp_path / "lists.parquet", columns, row_group_size=500)
    found = score_stream(saved, data, tmp_path / "scores_of_lists.parquet")
    assert found.threshold == pytest.approx(model.own_threshold(data).threshold, rel=1e-3)


def test_new_vectors_have_a_threshold_of_their_own(tmp_path: Path) -> None:
    """Probabilities assume the noise rate of the fit. In a loaded model it is the same threshold."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(900, 32)).astype(np.float32)
    texts = (images + rng.normal(size=images.shape)).astype(np.float32)
    texts[500:600], wrong = np.roll(texts[500:600], 1, axis=0), np.arange(400) < 100
    clean = Pairs.from_arrays(image_vectors=images[:500], text_vectors=texts[:500])
    new = Pairs.from_arrays(image_vectors=images[500:], text_vectors=texts[500:])
    model = Auto(random_state=0).fit(clean)
    unseen = model.own_threshold(new)
    assert unseen is not None and unseen.noise_rate.low < 0.25 < unseen.noise_rate.high
    assert ((flagged := model.predict(new)) == wrong).mean() > 0.95
    columns = {"image_features": list(images[500:]), "text_features": list(texts[500:])}
    data = write_table(tmp_path / "new.parquet", {"caption": [f"caption {i}" for i in range(400)]} | columns)
    found = score_stream(model.save_pretrained(tmp_path / "model"), data, tmp_path / "scores.parquet")
    assert found.flagged == flagged.sum() and found.threshold == pytest.approx(unseen.threshold, rel=1e-4)
    knows = Auto(random_state=0).fit(new)
    loaded = Auto.from_pretrained(knows.save_pretrained(tmp_path / "knows"))
    of_clean = knows.own_threshold(clean)
    assert of_clean is not None and loaded.own_threshold(clean).threshold == of_clean.threshold
    assert loaded.predict(clean).mean() < 0.01
    names = ("noise_rate_", "noise_rate_interval_", "noise_rate_bound_", "better_than_random_")
    assert [getattr(loaded, name) for name in names] == [getattr(knows, name) for name in names]
    model.calibrate(dict.fromkeys(range(40), False))  # answers about the data of the fit
    again = model.own_threshold(new)
    assert model.noise_rate_interval_[0] > 0 and again is not None
    assert (again.threshold, again.noise_rate) == (unseen.threshold, unseen.noise_rate)


def test_a_model_that_compares_words_with_regions_is_scored_in_a_stream(tmp_path: Path) -> None:
    small = {"dim": 8, "dim_word": 8, "dim_sim": 4, "epochs": 1, "batch_size": 16, "require_dependence": False}
    local = InfoNCE(backbone="sgr", text_encoder="words", **small).fit(pairs_of(120, 0))
    captions, features = rows(100, 9)
    data = write_table(tmp_path / "data.parquet", {"caption": captions, "image_features": list(features)})
    found = score_stream(local.save_pretrained(tmp_path / "model"), data, tmp_path / "s.parquet")
    assert found.pairs == 100 and found.noise_rate is None and found.threshold == local.threshold_
