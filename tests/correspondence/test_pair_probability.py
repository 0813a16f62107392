"""Probabilities of repairs, beside the truth of a corpus whose captions were exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from cleanpairs.correspondence.pair_probability import PairProbability
from cleanpairs.repair.decisions import RepairProbability, _as_pure
from tests.helpers import unit


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error (Naeini et al., 2015): mean distance of probability and share right, over ten bins."""
    bins = np.array_split(np.argsort(probability, kind="stable"), 10)
    return sum(len(b) * abs(probability[b].mean() - right[b].mean()) for b in bins if len(b)) / len(probability)


class Exchanged:
    """n images and captions, linear in a common cause, with noise; a share of the captions is exchanged."""

    def __init__(self, n: int, noise: float, share: float = 0.4, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        cause = rng.normal(size=(n, 24))
        self.truth = np.arange(n)
        wrong = rng.choice(n, round(share * n), replace=False)
        self.truth[wrong] = np.roll(wrong, 1)
        self.images = unit(cause @ rng.normal(size=(24, 40)) + noise * rng.normal(size=(n, 40)))
        self.texts = unit(cause @ rng.normal(size=(24, 32)) + noise * rng.normal(size=(n, 32)))[self.truth]
        right = self.truth == np.arange(n)
        self.matched = np.where(rng.random(n) < 0.95, np.where(right, 0.95, 0.05), np.where(right, 0.05, 0.95))

    def model(self) -> PairProbability:
        own = np.arange(len(self.truth))
        return PairProbability(self.images, self.texts, own, own, self.truth, self.matched, 0.5)

    def edges(self, of: PairProbability) -> tuple[np.ndarray, np.ndarray]:
        """Probability of each pair of an image and a caption to be repaired, and whether it is right."""
        image, caption = (x.ravel() for x in np.meshgrid(of.captions, of.captions, indexing="ij"))
        some = image != caption
        return of.probability(image[some], caption[some]), self.truth[caption[some]] == image[some]


@pytest.mark.parametrize("noise", [2.0, 4.0])
def test_probabilities_hold(noise: float) -> None:
    corpus = Exchanged(1500, noise)
    found = corpus.model()
    probability, right = (x.reshape(len(found.captions), -1) for x in corpus.edges(found))
    best = probability.argmax(axis=1)[:, None]  # of each image, the likeliest caption
    probability, right = (np.take_along_axis(x, best, axis=1).ravel() for x in (probability, right))
    assert calibration_error(probability, right) < 0.1 and abs(probability.mean() - right.mean()) < 0.07
    if noise == 2.0:
        assert right[probability > 0.5].sum() > 100, "they are found where they can be"


def test_where_captions_tell_nothing_no_repair_is_probable() -> None:
    corpus = Exchanged(900, 2.0)
    corpus.texts = unit(np.random.default_rng(1).normal(size=corpus.texts.shape))
    found = corpus.model()
    assert not found.judged or (corpus.edges(found)[0] < 0.5).all()


def test_parts_of_trusted_pairs_have_their_partners_and_few_pairs_tell_nothing() -> None:
    corpus = Exchanged(600, 2.0)
    found = corpus.model()
    trusted, flagged = np.flatnonzero(corpus.matched >= 0.5)[:50], np.flatnonzero(corpus.matched < 0.5)[:50]
    assert not found.probability(trusted, flagged).any() and not found.probability(flagged, trusted).any()
    few = Exchanged(150, 2.0).model()
    assert not few.judged and np.isnan(few.probability(np.arange(3), np.arange(3))).all()


def test_the_surest_are_taken_as_long_as_what_is_kept_stays_as_pure() -> None:
    confidence = np.array([0.5, np.nan, 0.99, 0.55, 0.9], np.float32)
    taken = _as_pure(confidence, RepairProbability(lambda i, t: confidence, kept=20, mismatched=1.0))
    # 1.56 of 23 is .068; 2.06 of 24 would be .086, above .05 + .02
    assert np.flatnonzero(taken).tolist() == [2, 3, 4]


def test_one_caption_in_ten_is_expected_to_be_in_no_other_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    fit = LogisticRegression.fit

    def noted(self: LogisticRegression, x: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> LogisticRegression:
        seen.append(float(sample_weight[y == 1].mean()))
        return fit(self, x, y, sample_weight)

    monkeypatch.setattr(LogisticRegression, "fit", noted)
    Exchanged(900, 2.0).model()
    of_ratio, of_right = seen
    assert of_ratio == pytest.approx(1) and of_right == pytest.approx(0.9, abs=0.01)
