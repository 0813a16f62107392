"""Auto: the noise rate, the label and the repair within the training, on a corpus whose truth is known."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from cleanpairs import Auto, ClipScore, Pairs, apply_noise, inject_noise
from cleanpairs.core.errors import ConfigError
from cleanpairs.correspondence.agreement import NeighbourAgreement, normalised_agreement, nothing_known
from cleanpairs.correspondence.calibration import Estimate, positions
from cleanpairs.datasets import load_clipart
from cleanpairs.estimators import PairScorer, scorer
from cleanpairs.estimators.spaces import frozen_spaces
from cleanpairs.methods import auto_training, untrained
from cleanpairs.methods.auto_training import AutoTraining, first_within_one_standard_error
from cleanpairs.methods.untrained import plant
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.trainer.context import EpochContext
from tests.helpers import WORDS, assert_raises, reloaded


def corpus(n: int, seed: int = 0) -> Pairs:
    """Captions of three words beside the sum of the words' vectors and noise, in two regions."""
    rng = np.random.default_rng(seed)
    table = np.random.default_rng(7).normal(size=(len(WORDS), 16))
    chosen = [rng.choice(len(WORDS), 3, replace=False) for _ in range(n)]
    captions = [" ".join(WORDS[k] for k in c) for c in chosen]
    features = np.stack([np.stack([table[c].sum(0), table[c[0]]]) for c in chosen])
    return Pairs.from_arrays(captions, features=(features + 0.3 * rng.normal(size=features.shape)).astype(np.float32))


def small(**changes: Any) -> Auto:
    sizes = {"dim": 32, "epochs": 7, "label_epochs": 4, "lr": 2e-3, "batch_size": 32, "networks": 2}
    return Auto(**{"backbone": "mlp", **sizes, **changes})


Fitted = tuple[Auto, AutoTraining, np.ndarray]  # the model, the procedure that has trained it, (N,) which are wrong


def procedures(patch: pytest.MonkeyPatch) -> list[AutoTraining]:
    """Those of the fits that follow. They note scores and label of their first stage, captions and who answered."""
    seen: list[AutoTraining] = []
    make, label, loss, ask = Auto._procedure, AutoTraining.calibration_label, AutoTraining.loss, normalised_agreement

    def noted(self: AutoTraining, view: EpochContext) -> np.ndarray:
        vars(self)["of_first_stage"] = self.scores.copy()
        vars(self)["first_label"] = label(self, view)
        return vars(self)["first_label"].copy()

    def trained(self: AutoTraining, view: EpochContext, *batch: Any) -> Any:
        vars(self).setdefault("trained", {})[view.stage, view.epoch] = view.captions.copy()
        return loss(self, view, *batch)

    def asked(*args: Any, **settings: Any) -> Any:
        vars(seen[-1]).setdefault("asked", []).append((args[1].copy(), args[2]))
        return ask(*args, **settings)

    patch.setattr(Auto, "_procedure", lambda self, data: seen.append(make(self, data)) or seen[-1])
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
        seen = procedures(patch)
        model = small(repair_weight=0.0).fit(apply_noise(clean, noise))
    return model, seen[0], noise.mismatched


def test_rate_and_label_without_a_setting(fitted: Fitted) -> None:
    model, _, wrong = fitted
    y = model.correspondence_
    assert abs(model.noise_rate_ - wrong.mean()) < 0.06
    assert abs(float((1 - y).mean()) - model.noise_rate_) < 0.02  # a probability: its mean is the share of right pairs
    assert roc_auc_score(~wrong, y) > 0.95
    assert model.threshold_ == 0.5
    flagged = y < 0.5
    assert (flagged & wrong).sum() / flagged.sum() > 0.85 and (flagged & wrong).sum() / wrong.sum() > 0.85


def test_the_label_beats_each_of_its_sources(fitted: Fitted) -> None:
    model, procedure, wrong = fitted
    asked = np.ones(len(wrong), bool)
    asked[procedure.known.planted] = False  # they had another's caption in the first stage
    of_networks = vars(procedure)["of_first_stage"]
    sources = [roc_auc_score(~wrong[asked], each[asked]) for each in (procedure.known.agreement.matched, of_networks)]
    joint = roc_auc_score(~wrong[asked], model.correspondence_[asked])
    assert joint > sources[0] and joint > sources[1] - 0.002


def test_planted_pairs_get_their_own_captions_back_and_are_judged_like_all_others(fitted: Fitted) -> None:
    model, procedure, wrong = fitted
    planted, y = procedure.known.planted, model.correspondence_
    assert len(planted) == 100
    known = vars(procedure)["first_label"][planted]  # of their own captions, not of those that they had till then
    assert abs(known.mean() - (~wrong[planted]).mean()) < 0.15 and roc_auc_score(~wrong[planted], known) > 0.8
    assert [(line["stage"], line["epoch"]) for line in model.history_] == [
        *((1, epoch) for epoch in range(1, 5)),
        *((2, epoch) for epoch in range(1, 8)),
    ]
    np.testing.assert_array_equal(procedure.captions, np.arange(1000))
    assert roc_auc_score(~wrong[planted], y[planted]) > 0.9
    assert abs(y[planted].mean() - (~wrong[planted]).mean()) < 0.1
    for low, high in ((0.0, 0.1), (0.9, 1.0)):  # of all pairs: a probability
        some = (y >= low) & (y <= high)
        assert some.sum() > 100 and abs((~wrong[some]).mean() - y[some].mean()) < 0.05


def test_planted_pairs_have_each_others_captions_in_the_first_stage_and_answer_nobody_there(fitted: Fitted) -> None:
    """Among those that answer, by their own captions, they stood below the mismatched pairs: clip art .60, not .50."""
    _, procedure, _ = fitted
    planted, trained = procedure.known.planted, vars(procedure)["trained"]
    for (stage, _), captions in trained.items():
        np.testing.assert_array_equal(np.flatnonzero(captions != np.arange(1000)), planted if stage == 1 else [])
    (first, exchanged), (last, none) = vars(procedure)["asked"]
    assert exchanged.shape == (2, 100) and not first[planted].any() and np.delete(first, planted).mean() > 0.5
    assert none.shape == (2, 0) and last[planted].mean() > 0.5


def test_repair_gives_mismatched_images_captions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = corpus(800, seed=5)
    noise = inject_noise(clean, 0.4, seed=4)
    seen = procedures(monkeypatch)
    small(repair_weight=0.25).fit(apply_noise(clean, noise))
    procedure = seen[0]
    moved = np.flatnonzero(procedure.captions != np.arange(800))
    assert len(moved) > 100
    assert (procedure.w[moved] < 0.5).all() and (procedure.weight[moved] == 0.25).all()
    stay = np.setdiff1d(np.arange(800), moved)
    np.testing.assert_array_equal(procedure.weight[stay], procedure.w[stay])
    assert len(np.unique(procedure.captions[moved])) > 0.7 * len(moved)  # not one caption for all
    own = noise.permutation[procedure.captions[moved]] == moved  # a random one would be right once in 320
    assert own.mean() > 0.25


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
    seen = procedures(monkeypatch)
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
    both, alone = small().fit(mixed), small(regression=False).fit(mixed)
    np.testing.assert_array_equal(both.correspondence_, alone.correspondence_)
    assert both.evaluate(test).rsum > alone.evaluate(test).rsum
    assert reloaded(both, tmp_path, test).evaluate(test) == both.evaluate(test)


def test_no_more_than_sixteen_networks() -> None:
    assert_raises(ConfigError, "networks", Auto(networks=17).fit, corpus(100))


def test_images_whose_captions_are_all_wrong_are_found_and_counted() -> None:
    one = corpus(350, seed=3)
    captions = [" ".join(words) for c in one.captions for a, b, d in [c.split()] for words in ((a, b), (b, d), (d, a))]
    clean = Pairs.from_arrays(captions, features=one.images.array(), image_index=np.repeat(np.arange(350), 3))
    noise = inject_noise(clean, 0.3, per="image", seed=1)
    model = small().fit(apply_noise(clean, noise))
    low, high = model.noise_rate_interval_
    assert low < noise.mismatched.mean() < high < noise.mismatched.mean() + 0.1
    assert roc_auc_score(~noise.mismatched, model.correspondence_) > 0.95


def test_where_the_agreement_sees_nothing_the_planted_pairs_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(pairs: VectorPairs, **asked: Any) -> NeighbourAgreement:
        return nothing_known(len(pairs))

    monkeypatch.setattr(untrained, "neighbour_agreement", blind)
    clean = corpus(700, seed=12)
    noise = inject_noise(clean, 0.4, seed=5)
    model = small().fit(apply_noise(clean, noise))
    flagged = model.correspondence_ < model.threshold_
    assert abs(model.noise_rate_ - 0.4) < 0.06
    assert roc_auc_score(~noise.mismatched, model.correspondence_) > 0.9
    assert (flagged & noise.mismatched).sum() / flagged.sum() > 0.8
    seen = list[int]()
    monkeypatch.setattr(scorer, "frozen_spaces", lambda *of: seen.append(len(of[0])) or frozen_spaces(*of))
    assert model.rematch(apply_noise(clean, noise)).summary().judged and seen == [700]  # they take long


@pytest.mark.parametrize("pairs", [corpus(100), vector_pairs(100, 20, 3.0)[0]], ids=["captions", "vectors"])
def test_too_few_pairs_to_plant_leave_the_noise_rate_undetermined(pairs: Pairs) -> None:
    model = small(epochs=4, label_epochs=3).fit(pairs)
    assert np.isnan(model.noise_rate_) and np.isnan(model.noise_rate_interval_).all() and model.calibration_ is None
    assert np.isfinite(model.correspondence_).all()
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
        unit = images / np.linalg.norm(images, axis=1, keepdims=True)
        np.testing.assert_allclose(again.encode_images(images), unit, atol=1e-6)
    assert roc_auc_score(~wrong, model.correspondence_) > 0.99 and abs(model.noise_rate_ - 0.2) < 0.05


def exchanged_among_similar_pairs(rate: float) -> tuple[Pairs, np.ndarray]:
    """500 pairs of one of four kinds, shown by features and captions beside two words; and which are wrong."""
    rng, table = np.random.default_rng(3), np.random.default_rng(7).normal(size=(len(WORDS), 16))
    kind, chosen = rng.integers(0, 4, 500), [rng.choice(len(WORDS), 2, replace=False) for _ in range(500)]
    captions = [
        " ".join([f"kind{k} sort{k} class{k}", *(WORDS[w] for w in c)]) for k, c in zip(kind, chosen, strict=True)
    ]
    features = np.stack([table[c].sum(0) + 2.5 * np.eye(16)[k] for k, c in zip(kind, chosen, strict=True)])
    clean = Pairs.from_arrays(captions, features=(features + 0.2 * rng.normal(size=features.shape)).astype(np.float32))
    noise = inject_noise(clean, rate, seed=1, kind="within:kind", groups=kind)
    return apply_noise(clean, noise), noise.mismatched


def test_captions_of_similar_pairs_are_within_the_bound_and_flagged_where_they_are_expected() -> None:
    pairs, wrong = exchanged_among_similar_pairs(0.4)
    random = small(text_encoder=None).fit(pairs)
    assert random.noise_rate_interval_[1] < wrong.mean() - 0.2  # of random wrong captions there are few
    assert wrong.mean() < random.noise_rate_bound_ <= 1
    similar = small(text_encoder=None, mismatches="similar").fit(pairs)
    assert similar.noise_rate_bound_ > wrong.mean() and np.isnan(similar.noise_rate_)
    kept = [wrong[m.correspondence_ >= m.threshold_].mean() for m in (random, similar)]
    assert kept[1] < kept[0] / 2


def test_the_bound_adds_to_the_rate_what_similar_pairs_leave_open() -> None:
    rng = np.random.default_rng(0)
    right, random, similar = rng.normal(6, 1, 6000), rng.normal(0, 1, 4000), rng.normal(3, 1, 4000)
    rate = Estimate(0.2, 0.17, 0.23)
    for of_similar in (0, 1000, 3000):
        observed = np.concatenate([right, random[:2000], similar[:of_similar]])
        wrong, of_random = (2000 + of_similar) / len(observed), 2000 / len(observed)
        found = NeighbourAgreement(observed, random[2000:], 0.0, observed, similar=similar[3000:])
        assert wrong < found.bound(Estimate(of_random, 0.95 * of_random, 0)) < wrong + 0.1
    none = NeighbourAgreement(right, random, 0.0, right, similar=similar[:9])
    assert np.isnan(none.bound(rate))
    assert replace(none, similar=similar).bound(replace(rate, high=0.9)) == 0.9


def test_of_pairs_that_are_as_they_should_be_the_bound_leaves_few() -> None:
    pairs, _ = exchanged_among_similar_pairs(0.0)
    for mismatches in ("random", "similar"):
        model = small(text_encoder=None, mismatches=mismatches, epochs=4, label_epochs=3).fit(pairs)
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
    assert first_within_one_standard_error([score, same], planted) == 0
    assert first_within_one_standard_error([score, better], planted) == 1
    assert first_within_one_standard_error([better, score], planted) == 0
