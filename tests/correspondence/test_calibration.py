"""The calibration by a null: probabilities and intervals against the truth of simulated scores."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from scipy.stats import norm

from cleanpairs.core.plain import rate_in_words
from cleanpairs.correspondence import calibration, pair_probability
from cleanpairs.correspondence.calibration import Calibration, calibrate, calibrate_by_labels, noise_rate, positions
from cleanpairs.correspondence.pair_probability import PairNumbers, PairProbability
from cleanpairs.repair.decisions import RepairProbability, _as_pure
from tests.helpers import unit


def scores(
    n: int, m: int, rate: float, seed: int, right: tuple[float, float] = (3, 1.3)
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observed (n,), null (m,) and the truth (n,): ``right`` pairs score higher, by default they spread more."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < rate
    return np.where(wrong, rng.normal(0, 1, n), rng.normal(*right, n)), rng.normal(0, 1, m), wrong


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.95])
def test_no_g_is_likelier_than_what_is_found(rate: float) -> None:
    """L-BFGS-B finds none, neither from there nor from elsewhere."""
    q, drawn = (np.arange(1000) + 0.5) / 1000, [scores(1000, 300, rate, seed, right=(2, 1))[:2] for seed in range(5)]

    def loss(p: np.ndarray, count: np.ndarray) -> float:
        z = p[0] - np.exp(p[1]) * np.log(q) + np.exp(p[2]) * np.log1p(-q)
        prior = [0.01, 1.5, 0.5] @ (p - np.log([1, 5, 0.3])) ** 2
        return float(prior - count @ log_expit(z) + count.sum() * np.log(expit(z).mean()))

    counts = np.array([np.histogram(positions(null, x), 1000, (0, 1))[0] for x, null in drawn])
    for count, (a, b, c), least in zip(counts, *calibration._fit(counts, np.zeros((5, 3)), None), strict=True):
        found = np.array([a, np.log(b), np.log(c)])
        assert loss(found, count) == pytest.approx(least)
        for start in (found, found + 1, np.zeros(3)):
            limits = [(-60, 60), (-3, 4.5), (-3, 4.5)]
            assert least < minimize(loss, start, (count,), "L-BFGS-B", bounds=limits).fun + 1e-3


@pytest.mark.parametrize("gap", [2, 8])
def test_the_interval_moves_as_far_as_the_rate(gap: float) -> None:
    """Also where no score lies between both kinds of pairs. Ten times as many pairs narrow it little."""
    observed, null, _ = scores(4000, 4000, 0.2, seed=0, right=(gap, 0.7))
    found, more = (calibrate(np.tile(observed, k), np.tile(null, k), by_score=True) for k in (1, 10))
    was, near = found.noise_rate(4000), found.moved(found.rate - 0.02).noise_rate(4000)
    assert (near.low, near.high) == pytest.approx((was.low - 0.02, was.high - 0.02), abs=0.002)
    assert (many := more.noise_rate(40_000)).high - many.low > 0.5 * (was.high - was.low)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_of_pairs_with_a_probability_that_share_is_mismatched(rate: float) -> None:
    observed, null, wrong = scores(6000, 3000, rate, seed=1)
    found = calibrate(observed, null)
    p = found.mismatched(positions(observed, observed))
    for low, high in ((0.01, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.0)):
        some = (p >= low) & (p < high)
        assert abs(wrong[some].mean() - p[some].mean()) < 0.08, (low, high)
    estimate = found.noise_rate(len(observed))
    assert estimate.low <= wrong.mean() <= estimate.high and estimate.high - estimate.low < 0.1


def test_of_a_few_null_pairs_the_rate_does_not_come_out_low_where_most_are_mismatched() -> None:
    """160 of them let g fall where it is flat: .08 off, nearly always low, were its slope not expected."""
    off = []
    for seed in range(12):
        observed, null, wrong = scores(1600, 160, 0.8, seed, right=(2, 0.7))
        off.append(calibrate(observed, null, draws=0).rate - wrong.mean())
    assert np.sqrt(np.mean(np.square(off))) < 0.065 and np.mean(off) > -0.045


def test_intervals_hold_the_truth_where_there_are_few_null_pairs() -> None:
    held = []
    for seed in range(12):
        observed, null, wrong = scores(1500, 150, 0.3, seed=seed)
        found = calibrate(observed, null, draws=40, seed=seed)
        order = np.argsort(-observed)
        right = 1 - found.mismatched(positions(observed, observed))
        told = [*found.shares(right, [500, 1000]), found.noise_rate(1500)]
        truth = [wrong[order[:count]].mean() for count in (500, 1000, 1500)]
        held.append([estimate.low <= share <= estimate.high for estimate, share in zip(told, truth, strict=True)])
    of_shares, of_rates = np.mean(held, axis=0)[:2].mean(), np.mean(held, axis=0)[2]
    assert of_shares >= 0.8 and of_rates >= 0.8  # .7 of the bootstrap's own


def test_a_figure_with_a_known_null_takes_off_the_luck_of_the_draw() -> None:
    """Null pairs that happen to score high in a figure whose null is known are weighed down."""
    rng = np.random.default_rng(3)
    observed, _, wrong = scores(4000, 0, 0.4, seed=2)
    u = rng.random(4000)
    null = 0.3 * rng.normal(size=4000) + 0.91**0.5 * norm.ppf(u)  # most of it is the known figure's
    chosen = np.flatnonzero(rng.random(4000) < 0.1 * u)  # drawn the likelier the higher
    without, raked = (calibrate(observed, null[chosen], known=known, draws=0).rate for known in (None, u[chosen]))
    assert abs(raked - wrong.mean()) < 0.5 * abs(without - wrong.mean())


def answered(observed: np.ndarray, wrong: np.ndarray, n: int, seed: int) -> Calibration:
    """By n answers about the pairs that tell most, ten at once; one of fifty is wrong."""
    rng, labels, q = np.random.default_rng(seed), dict[int, bool](), positions(observed, observed)
    while True:
        found = calibrate_by_labels(observed, np.array(list(labels), int), np.array(list(labels.values()), bool))
        if len(labels) == n:
            return found
        free = np.setdiff1d(np.arange(len(observed)), list(labels))
        rows = free[found.telling(q[free], 10, seed=seed)].tolist()
        assert len(set(rows)) == 10
        labels |= {i: bool(~wrong[i] ^ (rng.random() < 0.02)) for i in rows}


@pytest.mark.parametrize(("rate", "level"), [(0.0, 0), (0.1, 2), (0.4, 2), (0.2, 0)])
def test_forty_labels_tell_what_the_null_cannot(rate: float, level: float) -> None:
    """At ``level`` 2 mismatched pairs score two deviations above the null: by the null alone hardly any is wrong."""
    held, worth, width, pure = [], [], [], []
    for seed in range(6):
        observed, _, wrong = scores(1500, 0, rate, seed, right=(3.5, 1.0))
        observed = observed + level * wrong
        found = answered(observed, wrong, 40, seed)
        estimate = found.noise_rate(1500)
        held.append(estimate.low <= wrong.mean() <= estimate.high)
        width.append(estimate.high - estimate.low)
        hits = np.cumsum(wrong[np.argsort(observed)])
        f1 = 2 * hits / (np.arange(1, 1501) + max(wrong.sum(), 1))
        worth.append(f1[int(1500 * found.best_share()) - 1] / max(f1.max(), 1e-12))
        kept = found.purest(1 - found.mismatched(positions(observed, observed)), 0.05)
        pure += [wrong[np.argsort(-observed)[:kept]].mean() <= 0.05] if kept else []
    assert np.mean(held) >= 0.8 and np.mean(width) < 0.25
    assert rate == 0 or np.mean(worth) > 0.9
    assert len(pure) < 5 or np.mean(pure) >= 0.9


def test_more_labels_narrow_the_interval() -> None:
    observed, _, wrong = scores(1500, 0, 0.3, seed=1, right=(2, 1))
    width = [(rate := answered(observed, wrong, n, 1).noise_rate(1500)).high - rate.low for n in (0, 40, 120)]
    assert width == sorted(width, reverse=True) and width[0] > 0.5 and width[-1] < 0.15
    found = answered(observed, wrong, 40, 1)
    matched = np.r_[np.ones(20), np.zeros(40), 1 - found.mismatched(np.linspace(0.1, 0.9, 40))]  # 60 have labels
    precision, recall = found.below(matched, matched == 0)
    assert precision.low > 0.99 and recall.high < 0.99


def test_the_verdict_claims_no_more_than_is_known() -> None:
    for found, told in (
        ({"noise_rate": None}, "The scores do not show how many pairs are mismatched."),
        ({"noise_rate": None, "why_undetermined": "few images"}, "how many pairs are mismatched: few images."),
        ({"noise_rate": None, "noise_rate_bound": 0.4}, "They are at most 40.0 %, apart"),
        ({"noise_rate": 0.01, "noise_rate_interval": [0, 0.02], "noise_rate_bound": 0.3}, "0.0 % to 30.0 % of the"),
        ({"noise_rate": 0.2, "noise_rate_interval": [0.1, 0.3], "answers": 40, "better_than_random": 0}, "By 40"),
        ({"noise_rate": 0.2, "noise_rate_interval": [0, 1], "answers": 0, "opinions": 9}, "By 9 opinions of a judge a"),
        ({"noise_rate": 0.2, "noise_rate_interval": [0, 1], "answers": 1, "opinions": 9}, "By 1 answer and 9 "),
    ):
        words = rate_in_words(found)
        assert told in words and ("are mismatched (95" in words) == ("answers" in found)


def test_a_rate_is_undetermined_where_other_scores_contradict_it_or_nothing_tells() -> None:
    observed, null, _ = scores(1500, 1000, 0.4, seed=3)
    found = calibrate(observed, null)
    rate = noise_rate(found, 1500)
    assert noise_rate(found, 1500, other=rate.value) == rate
    for other in (rate.low - 0.09, rate.high + 0.09):
        grown = noise_rate(found, 1500, other=other)
        ends, off = (grown.low - rate.low, grown.high - rate.high), (other - rate.value) / 2
        assert grown.value == rate.value and ends == pytest.approx((min(off, 0), max(off, 0)))
    for other in (rate.low - 0.11, rate.high + 0.11):
        assert np.isnan(noise_rate(found, 1500, other=other).value)
    rng = np.random.default_rng(0)
    for n, m in ((500, 20), (20, 500)):  # a handful
        assert calibrate(rng.normal(size=n), rng.normal(size=m)) is None
    half = np.where(rng.random(300) < 0.5, 0.0, 0.7)
    found = calibrate(rng.normal(size=300) + half, rng.normal(size=40))
    assert np.isnan(noise_rate(found, 300).value) and np.isnan(noise_rate(None, 300).value)


def test_a_stored_one_says_the_same_probabilities_lead_back_and_less_than_one_pair_is_none() -> None:
    observed, null, _ = scores(800, 200, 0.4, seed=4)
    found = replace(calibrate(observed, null), unseen=80.0)  # they may be among the kept, and among the missed
    again = Calibration.from_dict(found.to_dict())
    q = np.linspace(0.01, 0.99, 50)
    seen, p = replace(again, unseen=0.0), 1 - found.mismatched(positions(observed, observed))
    for count in (800, 400):
        assert again.shares(p, [count])[0].high == pytest.approx(seen.shares(p, [count])[0].high + 80 / count)
    assert again.below(p, p < 0.5)[1].low < seen.below(p, p < 0.5)[1].low - 0.05
    np.testing.assert_array_equal(again.mismatched(q), found.mismatched(q))
    np.testing.assert_allclose(found.quantile(found.mismatched(q)), q, atol=2e-3)
    observed, null, _ = scores(3000, 3000, 0.0, seed=0, right=(6, 0.7))
    found = calibrate(observed, null)
    p = 1 - found.mismatched(positions(observed, observed))  # of all pairs, and of nearly all, as the report shows both
    assert [share.low for share in found.shares(p, [3000, 2999])] == [0, 0] < [found.rate] * 2


# -- Probabilities of repairs, beside the truth of a corpus whose captions were exchanged -----------------------------


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error (Naeini et al., 2015): mean distance of probability and share right, over ten bins."""
    bins = np.array_split(np.argsort(probability, kind="stable"), 10)
    return sum(len(b) * abs(probability[b].mean() - right[b].mean()) for b in bins if len(b)) / len(probability)


class Exchanged:
    """n images and captions, linear in a common cause, with noise. A share of the captions is exchanged, or copies.

    Of the exchanged ones an ``outside`` share belongs to images that are not there.
    """

    def __init__(
        self, n: int, noise: float, share: float = 0.4, seed: int = 0, copied: bool = False, outside: float = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        added = round(outside * share * n)
        cause = rng.normal(size=(n + added, 24))
        self.truth = np.arange(n)
        wrong = rng.choice(n, round(share * n), replace=False)
        self.truth[wrong] = rng.choice(n, len(wrong)) if copied else np.roll(wrong, 1)
        self.truth[wrong[:added]] = n + np.arange(added)
        self.images = unit(cause[:n] @ rng.normal(size=(24, 40)) + noise * rng.normal(size=(n, 40)))
        texts = unit(cause @ rng.normal(size=(24, 32)) + noise * rng.normal(size=(n + added, 32)))
        self.texts = texts[self.truth]
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


@pytest.mark.parametrize(("noise", "copied"), [(2.0, False), (4.0, False), (2.0, True)])
def test_probabilities_hold(noise: float, copied: bool) -> None:
    corpus = Exchanged(1500, noise, copied=copied)
    model = corpus.model()
    probability, right = (x.reshape(len(model.captions), -1) for x in corpus.edges(model))
    best = probability.argmax(axis=1)[:, None]  # of each image, the likeliest caption
    probability, right = (np.take_along_axis(x, best, axis=1).ravel() for x in (probability, right))
    most, off, found = (0.13, 0.13, 60) if copied else (0.1, 0.07, 100)
    assert calibration_error(probability, right) < most and abs(probability.mean() - right.mean()) < off
    assert noise > 2.0 or right[probability > 0.5].sum() > found, "they are found where they can be"


def test_parts_of_trusted_pairs_have_their_partners_and_what_tells_nothing_makes_no_repair_probable() -> None:
    corpus = Exchanged(600, 2.0)
    found = corpus.model()
    trusted, flagged = np.flatnonzero(corpus.matched >= 0.5)[:50], np.flatnonzero(corpus.matched < 0.5)[:50]
    assert not found.probability(trusted, flagged).any() and not found.probability(flagged, trusted).any()
    few = Exchanged(150, 2.0).model()
    assert not few.judged and np.isnan(few.probability(np.arange(3), np.arange(3))).all()
    corpus = Exchanged(900, 2.0)
    corpus.texts = unit(np.random.default_rng(1).normal(size=corpus.texts.shape))
    found = corpus.model()
    assert not found.judged or (corpus.edges(found)[0] < 0.5).all()


def test_the_surest_are_taken_as_long_as_what_is_kept_stays_as_pure() -> None:
    confidence = np.array([0.5, np.nan, 0.99, 0.55, 0.9], np.float32)
    taken = _as_pure(confidence, RepairProbability(lambda i, t: confidence, kept=20, mismatched=1.0))
    # 1.56 of 23 is .068; 2.06 of 24 would be .086, above .05 + .02
    assert np.flatnonzero(taken).tolist() == [2, 3, 4]


def test_sums_over_samples_promise_no_more_than_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_probability, "NUMBERS", PairNumbers(most_exact=100, most_held=200))
    corpus = Exchanged(6000, 4.0, seed=2)
    model = corpus.model()
    probability, right = (x.reshape(len(model.captions), -1) for x in corpus.edges(model))
    image, caption = np.arange(len(probability)), probability.argmax(axis=1)
    made = probability[image, caption] > 0.5
    expected, true = (x[image, caption][made].mean() for x in (probability, right))
    assert made.sum() > 200 and -0.1 < expected - true < 0.03


def test_captions_whose_images_are_not_there_have_no_repair() -> None:
    shares = []
    for outside in (1, 0.5, 0):
        corpus = Exchanged(1500, 2.0, outside=outside)
        found = corpus.model()
        probability, right = corpus.edges(found)
        made = probability > 0.5
        assert abs(probability[made].sum() - right[made].sum()) < 60
        shares.append(found.share)
    assert shares[0] < 0.1 and abs(shares[1] - 0.5) < 0.1 and shares[2] > 0.8


@pytest.mark.parametrize("of_image", [True, False])
def test_groups_that_are_mismatched_as_a_whole_are_repaired(of_image: bool) -> None:
    """Images exchanged all of their three captions, or the caption that all of their three photographs show."""
    objects, rng = Exchanged(500, 2.0), np.random.default_rng(1)
    group, each, one = np.repeat(np.arange(500), 3), np.arange(1500), np.arange(500)
    noise = rng.normal(size=(1500, 40 - 8 * of_image)) / 10
    images = objects.images if of_image else unit(objects.images[group] + noise)
    texts = unit(objects.texts[group] + noise) if of_image else objects.texts[group]
    index, text = (one[group], each) if of_image else (each, objects.truth[group])
    found = PairProbability(images, texts, index, index, text, objects.matched[group], 0.5)
    image, caption = (x.ravel() for x in np.meshgrid(found.captions, found.captions, indexing="ij"))
    probability, right = found.probability(image, caption), objects.truth[group[caption]] == group[image]
    made = probability > 0.5
    assert right[made].sum() > 300 and abs(probability[made].mean() - right[made].mean()) < 0.15
