"""Auto: the noise rate, the label and the repair within the training, on a corpus whose truth is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from cleanpairs import Auto, ClipScore, Pairs, apply_noise, inject_noise
from cleanpairs.core.errors import ConfigError, RefusedError
from cleanpairs.correspondence.agreement import normalised_agreement, nothing_known
from cleanpairs.correspondence.calibration import calibrate, positions
from cleanpairs.correspondence.similarity import weights_by_twins
from cleanpairs.datasets import load_clipart
from cleanpairs.estimators import PairScorer, embedded
from cleanpairs.estimators.spaces import frozen_spaces
from cleanpairs.methods import auto_training, untrained
from cleanpairs.methods.auto_training import AutoTraining, first_within_one_standard_error
from cleanpairs.methods.untrained import plant
from cleanpairs.trainer.context import EpochContext
from tests.helpers import WORDS, assert_raises, reloaded, unit


def corpus(n: int, seed: int = 0) -> Pairs:
    """Captions of three words beside the sum of the words' vectors and noise, in two regions."""
    rng, table = np.random.default_rng(seed), np.random.default_rng(7).normal(size=(len(WORDS), 16))
    chosen = np.stack([rng.choice(len(WORDS), 3, replace=False) for _ in range(n)])
    features = np.stack([table[chosen].sum(1), table[chosen[:, 0]]], axis=1) + 0.3 * rng.normal(size=(n, 2, 16))
    return Pairs.from_arrays([" ".join(WORDS[k] for k in c) for c in chosen], features=features.astype(np.float32))


def small(**changes: Any) -> Auto:
    sizes = {"dim": 32, "epochs": 7, "label_epochs": 4, "lr": 2e-3, "batch_size": 32, "networks": 2}
    return Auto(**{"backbone": "mlp", **sizes, **changes})


Fitted = tuple[Auto, AutoTraining, np.ndarray]  # the model, the strategy that has trained it, (N,) which are wrong


def strategies(patch: pytest.MonkeyPatch) -> list[AutoTraining]:
    """Those of the fits that follow. They note scores and label of their first stage, captions and who answered."""
    seen: list[AutoTraining] = []
    make, label, loss = Auto._make_strategy, AutoTraining.calibration_label, AutoTraining.loss

    def noted(self: AutoTraining, view: EpochContext) -> np.ndarray:
        vars(self)["of_first_stage"] = self.scores.copy()
        vars(self)["first_label"] = label(self, view)
        return vars(self)["first_label"].copy()

    def trained(self: AutoTraining, view: EpochContext, *batch: Any) -> Any:
        vars(self).setdefault("trained", {})[view.stage, view.epoch] = view.captions.copy()
        return loss(self, view, *batch)

    def asked(*args: Any, **settings: Any) -> Any:
        vars(seen[-1]).setdefault("asked", []).append((args[1].copy(), args[2]))
        return normalised_agreement(*args, **settings)

    patch.setattr(Auto, "_make_strategy", lambda self, data: seen.append(make(self, data)) or seen[-1])
    patch.setattr(AutoTraining, "calibration_label", noted)
    patch.setattr(AutoTraining, "loss", trained)
    patch.setattr(auto_training, "normalised_agreement", asked)
    return seen


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """1,000 pairs, of which 30 % are wrong, without repairs."""
    clean = corpus(1000)
    noise = inject_noise(clean, 0.3, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        seen = strategies(patch)
        model = small(repair_weight=0.0).fit(apply_noise(clean, noise))
    return model, seen[0], noise.mismatched


def test_rate_and_label_without_a_setting_and_the_label_beats_each_of_its_sources(fitted: Fitted) -> None:
    model, strategy, wrong = fitted
    y = model.correspondence_
    assert abs(model.noise_rate_ - wrong.mean()) < 0.06
    assert abs(float((1 - y).mean()) - model.noise_rate_) < 0.02  # a probability: its mean is the share of right pairs
    assert roc_auc_score(~wrong, y) > 0.95
    assert model.threshold_ == 0.5
    flagged = y < 0.5
    assert (flagged & wrong).sum() / flagged.sum() > 0.85 and (flagged & wrong).sum() / wrong.sum() > 0.85
    asked = np.ones(len(wrong), bool)
    asked[strategy.known.planted] = False  # they had another's caption in the first stage
    labels = (strategy.known.agreement.matched, vars(strategy)["of_first_stage"], y)
    agreement, networks, joint = (roc_auc_score(~wrong[asked], each[asked]) for each in labels)
    assert joint > agreement and joint > networks - 0.002


def test_planted_pairs_answer_nobody_get_their_own_captions_back_and_are_judged_like_all_others(fitted: Fitted) -> None:
    model, strategy, wrong = fitted
    planted, y = strategy.known.planted, model.correspondence_
    assert len(planted) == 100
    known = vars(strategy)["first_label"][planted]  # of their own captions, not of those that they had till then
    assert abs(known.mean() - (~wrong[planted]).mean()) < 0.15 and roc_auc_score(~wrong[planted], known) > 0.8
    stages = [(stage, epoch) for stage, epochs in ((1, 4), (2, 7)) for epoch in range(1, epochs + 1)]
    assert [(line["stage"], line["epoch"]) for line in model.history_] == stages
    np.testing.assert_array_equal(strategy.captions, np.arange(1000))
    assert roc_auc_score(~wrong[planted], y[planted]) > 0.9
    assert abs(y[planted].mean() - (~wrong[planted]).mean()) < 0.1
    for low, high in ((0.0, 0.1), (0.9, 1.0)):  # of all pairs: a probability
        some = (y >= low) & (y <= high)
        assert some.sum() > 100 and abs((~wrong[some]).mean() - y[some].mean()) < 0.05
    for (stage, _), captions in vars(strategy)["trained"].items():  # each other's in the first stage
        np.testing.assert_array_equal(np.flatnonzero(captions != np.arange(1000)), planted if stage == 1 else [])
    # They answer nobody there: by their own captions they stood below the mismatched pairs, clip art .60, not .50.
    (first, exchanged), (last, none) = vars(strategy)["asked"]
    assert exchanged.shape == (2, 100) and not first[planted].any() and np.delete(first, planted).mean() > 0.5
    assert none.shape == (2, 0) and last[planted].mean() > 0.5


def test_repair_gives_mismatched_images_captions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = corpus(800, seed=5)
    noise = inject_noise(clean, 0.4, seed=4)
    seen = strategies(monkeypatch)
    small(epochs=4, repair_weight=0.25).fit(apply_noise(clean, noise))
    strategy = seen[0]
    moved = np.flatnonzero(strategy.captions != np.arange(800))
    assert len(moved) > 100 and (strategy.w[moved] < 0.5).all() and (strategy.weight[moved] == 0.25).all()
    unmoved = np.setdiff1d(np.arange(800), moved)
    np.testing.assert_array_equal(strategy.weight[unmoved], strategy.w[unmoved])
    assert len(np.unique(strategy.captions[moved])) > 0.7 * len(moved)  # not one caption for all
    assert (noise.permutation[strategy.captions[moved]] == moved).mean() > 0.25  # a random one is right once in 320


def test_so_many_pairs_are_planted() -> None:
    for n, share, planted in ((200, 0.1, 50), (600, 0.1, 100), (30_000, 0.1, 2000), (90, 0.25, 0)):
        caption, rows = plant(np.arange(n), np.arange(n), share, np.random.default_rng(0))
        assert len(rows) == planted and (np.flatnonzero(caption != np.arange(n)) == rows).all()


def vector_pairs(n: int, wrong: int, spread: float) -> tuple[Pairs, np.ndarray]:
    """Vectors of one space, of which the first ``wrong`` captions rotate; and which are wrong."""
    rng = np.random.default_rng(2)
    images = rng.normal(size=(n, 32)).astype(np.float32)
    texts = (images + spread * rng.normal(size=images.shape)).astype(np.float32)
    texts[:wrong] = np.roll(texts[:wrong], 1, axis=0)
    return Pairs.from_arrays(features=images, text_vectors=texts), np.arange(n) < wrong


def test_vectors_of_one_space_count_where_networks_learn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, wrong = vector_pairs(800, 320, 2.0)
    given = {"text_encoder": "features", "image_encoder": "features", "retrieval": True}
    seen = strategies(monkeypatch)
    model = small(epochs=2, label_epochs=2, networks=1, lr=1e-9, **given).fit(pairs)
    assert abs(model.noise_rate_ - 0.4) < 0.08 and roc_auc_score(~wrong, model.correspondence_) > 0.9
    asked = np.delete(np.arange(800), seen[0].known.planted)
    assert spearmanr(vars(seen[0])["first_label"][asked], seen[0].known.observed[asked]).statistic > 0.99


def test_what_is_known_without_training_counts_in_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_training, "similarity_to_neighbours", lambda *args, **settings: 0.0)
    rows, observed = np.arange(4), np.array([0.3, 0.1, 0.4, 0.2])
    known, same = SimpleNamespace(by_similarity=True), np.eye(4, dtype=np.float32)
    training: Any = SimpleNamespace(seed=0, scores=np.zeros(4), known=known, joint=lambda *args: (same, same))
    data = SimpleNamespace(image_index=rows, image_group=rows, text_group=rows)
    view: Any = SimpleNamespace(data=data, seed=lambda number: number)
    order = AutoTraining.joined(training, view, rows, np.ones(4), np.ones(4), observed, np.zeros((2, 0), np.int64))
    assert np.argsort(order).tolist() == np.argsort(observed).tolist() and len(set(order)) == 4


def test_the_regression_beside_the_networks_retrieves_more_and_is_kept(tmp_path: Path) -> None:
    clean, test = corpus(400, seed=11), corpus(200, seed=12)
    mixed = apply_noise(clean, inject_noise(clean, 0.4, seed=2))
    both, alone = (small(epochs=3, label_epochs=2, regression=on).fit(mixed) for on in (True, False))
    np.testing.assert_array_equal(both.correspondence_, alone.correspondence_)
    assert both.evaluate(test).rsum > alone.evaluate(test).rsum
    assert reloaded(both, tmp_path, test).evaluate(test) == both.evaluate(test)
    assert_raises(ConfigError, "networks", Auto(networks=17).fit, mixed)


def test_images_whose_captions_are_all_wrong_are_found_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    one, joined, within = corpus(350, seed=3), AutoTraining.joined, list[bool]()
    captions = [" ".join(words) for c in one.captions for a, b, d in [c.split()] for words in ((a, b), (b, d), (d, a))]
    clean = Pairs.from_arrays(captions, features=one.images.array(), image_index=np.repeat(np.arange(350), 3))
    seen = lambda of, *given: within.append((given[3] <= of.known.group_matched).all()) or joined(of, *given)  # noqa: E731
    monkeypatch.setattr(AutoTraining, "joined", seen)
    model = small().fit(apply_noise(clean, noise := inject_noise(clean, 0.3, per="image", seed=1)))
    low, high = model.noise_rate_interval_
    assert low < noise.mismatched.mean() < high < noise.mismatched.mean() + 0.1
    assert roc_auc_score(~noise.mismatched, model.correspondence_) > 0.95
    assert within == [True, True]  # in both stages a pair weighs no more than its group
    few = small().fit(clean.select(np.arange(180)))  # 60 images are too few to tell
    assert np.isnan(few.noise_rate_) and "few images have several captions" in few._why_undetermined
    some = small().fit(clean.select(np.r_[:90, 90:1050:3]))  # 30 images of several captions, which may all be wrong
    ends = some.noise_rate_interval_[1], some.threshold_for(keep=1.0).share.high
    assert min(ends) > 90 / 410 and abs(ends[1] - ends[0]) < 0.05 and not some._why_undetermined
    assert_raises(RefusedError, "max_wrong=0.1 cannot be kept", some.threshold_for, max_wrong=0.1)


def test_where_the_agreement_sees_nothing_the_planted_pairs_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrained, "neighbour_agreement", lambda pairs, **asked: nothing_known(len(pairs)))
    clean = corpus(700, seed=12)
    noise = inject_noise(clean, 0.4, seed=5)
    model = small().fit(pairs := apply_noise(clean, noise))
    flagged = model.correspondence_ < model.threshold_
    assert abs(model.noise_rate_ - 0.4) < 0.06
    assert roc_auc_score(~noise.mismatched, model.correspondence_) > 0.9
    assert (flagged & noise.mismatched).sum() / flagged.sum() > 0.8
    seen = list[int]()
    monkeypatch.setattr(embedded, "frozen_spaces", lambda *of: seen.append(len(of[0])) or frozen_spaces(*of))
    assert model.rematch(pairs).summary().judged and seen == [700]  # they take long


@pytest.mark.parametrize("pairs", [corpus(100), vector_pairs(100, 20, 3.0)[0]], ids=["captions", "vectors"])
def test_too_few_pairs_to_plant_leave_the_noise_rate_undetermined(pairs: Pairs) -> None:
    model = small(epochs=4, label_epochs=3).fit(pairs)
    assert np.isnan(model.noise_rate_) and np.isnan(model.noise_rate_interval_).all() and model.calibration_ is None
    assert np.isfinite(model.correspondence_).all() and "fewer than 120" in model._why_undetermined
    assert [line["stage"] for line in model.history_] == [1] * 4 * bool(pairs.captions[0])  # nothing to be calibrated


@pytest.mark.parametrize("method", [Auto, ClipScore])
def test_few_of_the_right_pairs_are_flagged_where_the_noise_rate_is_undetermined(method: type[PairScorer]) -> None:
    model = method(text_encoder="features", require_dependence=False).fit(vector_pairs(600, 0, 9.0)[0])
    assert np.isnan(model.noise_rate_) and (model.correspondence_ < model.threshold_).mean() < 0.08


@pytest.mark.parametrize(("n", "wrong"), [(120, 0.0), (250, 0.3)])
def test_shares_are_those_of_the_untrained_agreement_where_the_networks_learn_little(n: int, wrong: float) -> None:
    """Of so few pairs they cannot tell the planted ones from others."""
    pairs = load_clipart().select(np.random.default_rng(1).permutation(1870)[:n])
    model = Auto(random_state=1).fit(apply_noise(pairs, inject_noise(pairs, wrong, seed=1)))
    assert np.isnan(model.noise_rate_) and abs(1 - model.correspondence_.mean() - wrong) < 0.15
    assert (model.correspondence_ < model.threshold_).mean() < wrong + 0.1


@pytest.mark.parametrize("retrieval", [False, True])
def test_vectors_that_tell_all_are_trained_on_once_if_that_is_asked_for(retrieval: bool, tmp_path: Path) -> None:
    pairs, wrong = vector_pairs(400, 80, 0.3)
    images = np.asarray(pairs.images.array())[:, 0]
    model = small(epochs=3, label_epochs=2, retrieval=retrieval).fit(pairs, val=pairs)
    assert [line["stage"] for line in model.history_] == [1] * 3 * retrieval
    assert model.best_val_rsum_ == pytest.approx(model.evaluate(pairs).rsum)  # also where no epoch was trained
    assert model.rematch(pairs, repairs="plausible").summary().repaired > 10
    again = reloaded(model, tmp_path, pairs.select(np.arange(60, 200)))
    if not retrieval:
        np.testing.assert_allclose(again.score_pairs(pairs), model.correspondence_, atol=0.05)
        np.testing.assert_allclose(again.encode_images(images), unit(images), atol=1e-6)
    assert roc_auc_score(~wrong, model.correspondence_) > 0.99 and abs(model.noise_rate_ - 0.2) < 0.05


def exchanged_among_similar_pairs(rate: float) -> tuple[Pairs, np.ndarray]:
    """500 pairs of one of four kinds, shown by features and captions beside two words; and which are wrong."""
    rng, table = np.random.default_rng(3), np.random.default_rng(7).normal(size=(len(WORDS), 16))
    kind = rng.integers(0, 4, 500)
    chosen = np.stack([rng.choice(len(WORDS), 2, replace=False) for _ in range(500)])
    words = [" ".join(WORDS[w] for w in c) for c in chosen]
    captions = [f"kind{k} sort{k} class{k} {told}" for k, told in zip(kind, words, strict=True)]
    features = table[chosen].sum(1) + 2.5 * np.eye(16)[kind] + 0.2 * rng.normal(size=(500, 16))
    clean = Pairs.from_arrays(captions, features=features.astype(np.float32))
    noise = inject_noise(clean, rate, seed=1, kind="within:kind", groups=kind)
    return apply_noise(clean, noise), noise.mismatched


def test_captions_of_similar_pairs_are_within_the_bound_which_leaves_few_where_all_is_right() -> None:
    pairs, wrong = exchanged_among_similar_pairs(0.4)
    random, similar = (small(text_encoder=None, networks=1, mismatches=of).fit(pairs) for of in ("random", "similar"))
    assert random.noise_rate_interval_[1] < wrong.mean() - 0.2  # of random wrong captions there are few
    assert wrong.mean() < random.noise_rate_bound_ <= 1
    assert similar.noise_rate_bound_ > wrong.mean() and np.isnan(similar.noise_rate_)
    kept = [wrong[m.correspondence_ >= m.threshold_].mean() for m in (random, similar)]
    assert kept[1] < kept[0] / 2
    right, _ = exchanged_among_similar_pairs(0.0)
    for mismatches in ("random", "similar"):
        model = small(text_encoder=None, networks=1, mismatches=mismatches, epochs=4, label_epochs=3).fit(right)
        assert (model.correspondence_ < model.threshold_).mean() < 0.05
        assert not model.noise_rate_bound_ > 0.35


def test_the_simplest_order_is_taken_unless_another_is_better_by_more_than_chance() -> None:
    rng, planted = np.random.default_rng(0), np.arange(100)
    score = rng.normal(size=1000) + 2.0 * (np.arange(1000) >= 100)
    same, better = score.copy(), score.copy()
    same[planted] = rng.permutation(score[planted]) - 0.01
    better[planted] -= 1
    means = [positions(s[planted], s[100:]).mean() for s in (score, same, better)]
    assert means[2] < means[1] < means[0]  # the best by itself is never the first
    for scores, chosen in (([score, same], 0), ([score, better], 1), ([better, score], 0)):
        assert first_within_one_standard_error(scores, planted) == chosen


# -- planted pairs stand for the mismatched ones where captions of several images were copied -------------------------


@pytest.mark.parametrize("seed", range(3))
def test_copied_captions_do_not_raise_the_noise_rate(seed: int) -> None:
    """A mismatched pair scores lower where its caption has another image, and so do planted ones. Few of these have."""
    rng, n = np.random.default_rng(seed), 3000
    image, text = np.arange(n), np.arange(n)
    wrong = np.isin(image, rng.choice(n, 600, replace=False))
    text[wrong] = rng.choice(np.flatnonzero(~wrong), 600)
    several = np.bincount(text, minlength=n)[text] > 1
    captions = rng.permutation(n)[:300]
    observed = rng.normal(np.where(wrong, -1.5, 2.5), 1.0)
    planted = rng.normal(np.where(several[captions], -1.5, 0.5), 1.0)
    weight = weights_by_twins(image, text, captions, np.where(rng.random(n) < 0.05, wrong, ~wrong).astype(float))
    assert weight.mean() == pytest.approx(1, abs=0.2)
    plain, weighted = (calibrate(observed, planted, weight=w, draws=0) for w in (None, weight))
    assert abs(weighted.rate - 0.2) < 0.03 < plain.rate - 0.2


@pytest.mark.parametrize("text", [np.arange(400), np.repeat(0, 400)], ids=["all differ", "all alike"])
def test_without_both_kinds_planted_pairs_weigh_the_same(text: np.ndarray) -> None:
    assert (weights_by_twins(np.arange(400), text, np.arange(50), np.full(400, 0.5)) == 1).all()
