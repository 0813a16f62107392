"""Mixtures: known ones are found; what is none is not believed; never NaN."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.stats import beta as beta_distribution
from sklearn.mixture import GaussianMixture

from cleanpairs.core.errors import DataError
from cleanpairs.correspondence.calibration import ScoreProbability
from cleanpairs.correspondence.density_minimum import find_density_minimum
from cleanpairs.correspondence.mixture import EDGE, Split, guarded_split, split_in_two
from cleanpairs.correspondence.similarity import LEAST_PAIRS, null_pairs
from tests.helpers import assert_raises

gaussian_split, beta_split = split_in_two, partial(split_in_two, kind="beta")
BOTH = pytest.mark.parametrize("split", [beta_split, gaussian_split])
Splitter = Callable[[np.ndarray], Split]


def checked(split: Splitter, x: np.ndarray) -> Split:
    """The split, of which holds what does for any input."""
    found = split(x)
    assert found.high.shape == x.shape and found.high.dtype == np.float64
    assert np.isfinite(found.high).all() and ((found.high >= 0) & (found.high <= 1)).all()
    assert 0 <= found.weight <= 1
    assert (found.low == 1 - found.high).all()
    assert np.isfinite(found.means).all() and found.means[0] <= found.means[1]
    return found


@BOTH
def test_few_values_and_values_alike_are_split_and_what_is_no_scaled_loss_is_refused(split: Splitter) -> None:
    for value in (0.0, 0.3, 1.0):
        found = checked(split, np.full(500, value))
        assert not found.separated and (found.high == 1).all()
    for n in range(6):
        assert not checked(split, np.linspace(0, 1, n)).separated or n >= 4
    x = np.repeat([0.0, 1.0], 200)
    found = checked(split, x)
    assert found.separated and ((found.high >= 0.5) == (x == 1)).all()
    rng = np.random.default_rng(5)
    for n in (4, 7, 50, 400):
        for a, b in ((0.05, 0.05), (1, 1), (5, 0.1), (0.1, 5), (200, 200)):
            checked(split, rng.beta(a, b, n))
    checked(split, np.append(np.full(999, 0.9), 0.1))
    for bad, word in ((np.nan, "finite"), (np.inf, "finite"), (-0.01, "minimum"), (1.01, "maximum")):
        assert_raises(DataError, word, split, np.array([0.1, 0.2, bad, 0.5, 0.9]))


def scaled(x: np.ndarray) -> np.ndarray:
    return (x - x.min()) / np.ptp(x)


ONE_MODE: list[Callable[[np.random.Generator, int], np.ndarray]] = [
    *(lambda rng, n, width=width: rng.lognormal(0, width, n) for width in (0.3, 1.5)),
    lambda rng, n: rng.random(n),
    lambda rng, n: np.maximum(rng.normal(0.5, 1, n), 0),
]


@BOTH
@pytest.mark.parametrize("mode", range(len(ONE_MODE)))
def test_a_mode_with_a_tail_is_no_split(split: Splitter, mode: int) -> None:
    for n, seed in ((1000, 0), (40_000, 2)):
        x = scaled(ONE_MODE[mode](np.random.default_rng(seed), n))
        assert not checked(split, x).separated and not checked(split, 1 - x).separated, n


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_it_is_scikit_learns_run_to_convergence(share: float) -> None:
    n = 8_000
    rng = np.random.default_rng(0)
    x = scaled(np.where(rng.random(n) < share, rng.normal(0.55, 0.15, n), rng.normal(0.2, 0.1, n)))
    found = gaussian_split(x)
    model = GaussianMixture(2, max_iter=2000, tol=1e-9, reg_covar=5e-4, random_state=0).fit(x[:, None])
    top = int(model.means_.argmax())
    assert found.weight == pytest.approx(model.weights_[top], abs=1e-3)
    assert sorted(found.means) == pytest.approx(sorted(model.means_.ravel()), abs=1e-3)
    theirs = held(lambda z: model.predict_proba(z[:, None])[:, top], x, np.sort(model.means_.ravel()))
    assert np.abs(found.high - theirs).max() < 1e-3


def held(posterior: Callable[[np.ndarray], np.ndarray], x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Below the low mean at most what it is there, above the high one at least."""
    at, resp = posterior(means), posterior(x)
    resp = np.where(x < means[0], np.minimum(resp, at[0]), resp)
    return np.where(x > means[1], np.maximum(resp, at[1]), resp)


def two_betas(z: np.ndarray, weight: list[float], means: np.ndarray, common: list[float]) -> np.ndarray:
    low, high = (weight[k] * beta_distribution.pdf(z, means[k] * common[k], (1 - means[k]) * common[k]) for k in (0, 1))
    return high / (low + high)


def beta_em(x: np.ndarray, iterations: int = 10) -> tuple[float, list[float], np.ndarray]:
    """The beta mixture value by value, with the densities of scipy: weight, means and posterior."""
    x = np.clip(x, EDGE, 1 - EDGE)
    start = GaussianMixture(2, max_iter=2000, tol=1e-9, reg_covar=5e-4, random_state=0).fit(x[:, None])
    top = int(start.means_.argmax())
    means = np.sort(start.means_.ravel())
    resp = held(lambda z: start.predict_proba(z[:, None])[:, top], x, means)
    for _ in range(iterations):
        shares = [1 - resp, resp]
        weight = [s.mean() for s in shares]
        means = np.array([(s * x).sum() / s.sum() for s in shares])
        common = [m * (1 - m) / ((s * (x - m) ** 2).sum() / s.sum()) - 1 for s, m in zip(shares, means, strict=True)]
        resp = held(partial(two_betas, weight=weight, means=means, common=common), x, means)
    return float(weight[1]), means.tolist(), resp


@pytest.mark.parametrize("case", ["betas", "normals", "wide above narrow"])
def test_the_beta_mixture_is_that_of_a_value_at_a_time(case: str) -> None:
    rng = np.random.default_rng(0)
    n = 3000
    noisy = rng.random(n) < 0.4
    x = {
        "betas": np.where(noisy, rng.beta(8, 4, n), rng.beta(2, 10, n)),
        "normals": scaled(np.where(noisy, rng.normal(0.55, 0.15, n), rng.normal(0.2, 0.1, n))),
        "wide above narrow": np.clip(np.where(noisy, rng.normal(0.6, 0.2, n), rng.normal(0.2, 0.04, n)), 0, 1),
    }[case]
    weight, means, posterior = beta_em(x)
    found = beta_split(x)
    assert found.weight == pytest.approx(weight, abs=2e-3)
    assert found.means == pytest.approx(means, abs=2e-3)
    assert np.abs(found.high - posterior).max() < 0.02
    assert np.abs(found.high - posterior).mean() < 2e-3


# -- guarded: a split is taken only where it is plausible; else the previous one stands -----------------------------


def modes(n: int, clean: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n losses in two modes, and which of them are low."""
    rng = np.random.default_rng(seed)
    low = rng.permutation(n) < clean * n
    return np.where(low, rng.beta(4, 36, n), rng.beta(30, 10, n)), low


@pytest.mark.parametrize("kind", ["gaussian", "beta"])
def test_a_split_is_taken_only_where_it_is_plausible(kind: str) -> None:
    one_mode = np.random.default_rng(2).beta(20, 80, 500)
    for previous in (None, np.linspace(0, 1, 500)):
        split = guarded_split(one_mode, kind, previous)
        assert split.refused == "losses do not separate into two modes"
        np.testing.assert_allclose(split.clean, np.ones(500) if previous is None else previous, rtol=1e-6)
        assert split.clean.dtype == np.float32
    losses, low = modes(1000, 0.3)
    before, near = (np.arange(1000) < clean for clean in (800, 500))
    split = guarded_split(losses, kind, before.astype(np.float32))
    assert "the share of clean pairs jumps from 80.0 % to 30" in split.refused
    np.testing.assert_array_equal(split.clean, before)
    taken = guarded_split(losses, kind, near.astype(np.float32))
    assert taken.refused is None and ((taken.clean > 0.5) == low).mean() > 0.99
    np.testing.assert_array_equal(taken.clean, guarded_split(losses, kind).clean)  # the previous one only guards
    for share in (0.005, 0.999):  # nearly nothing on one side
        split = guarded_split(modes(4000, share)[0], kind)
        assert split.refused is not None and (split.clean == 1).all()


# -- The density minimum between two modes ----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.04, 0.2, 0.6, 0.9])
def test_the_rate_is_that_of_the_lower_mode(share: float) -> None:
    """A fixed threshold is lowered where there is little noise."""
    rng = np.random.default_rng(1)
    wrong = int(20_000 * share)
    x = np.concatenate([rng.beta(1, 40, wrong), rng.beta(12, 3, 20_000 - wrong)])
    density_minimum = find_density_minimum(x)
    assert density_minimum.separated
    assert density_minimum.lower_mode == pytest.approx(share, abs=0.02)
    flagged = x < density_minimum.threshold
    assert flagged[:wrong].mean() > 0.97 and flagged[wrong:].mean() < 0.01
    assert (density_minimum.at_most(0.5) < 0.5) == (share < 0.1)
    assert density_minimum.at_most(0.001) == 0.001
    assert find_density_minimum(rng.beta(20, 2, 5000)).at_most(0.5) == 0.5


def test_one_mode_has_no_minimum_and_may_be_known_to_be_right() -> None:
    betas = [(20, 2, True), (12, 3, True), (6, 2, True), (2, 20, False), (2, 12, False), (5, 5, False), (1.3, 1, False)]
    for a, b, right in betas:
        found = find_density_minimum(np.random.default_rng(0).beta(a, b, 5000))
        assert not found.separated and found.lower_mode == 0.0 and found.right == right


def test_equal_or_few_scores_tell_nothing_and_what_is_no_correspondence_is_refused() -> None:
    few = np.repeat([0.05, 0.1, 0.2, 0.3, 0.4, 0.75], [50, 50, 30, 20, 8, 2])  # two pairs are no mode
    for scores in [np.full(1000, v) for v in (0.0, 0.6, 1.0)] + [few] + [np.linspace(0, 1, n) for n in (0, 1, 19)]:
        found = find_density_minimum(scores)
        assert not found.separated and not found.right
    for bad in (np.nan, np.inf, -0.01, 1.01):
        assert_raises(DataError, "density minimum", find_density_minimum, [0.5] * 30 + [bad])


# -- A noise rate and probabilities from null scores, on mixtures whose truth is known --------------------------------


def mixture(n: int, wrong: float, apart: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observed scores, which are wrong, and null scores."""
    rng = np.random.default_rng(seed)
    is_wrong = rng.random(n) < wrong
    return rng.normal(size=n) + np.where(is_wrong, 0, apart), is_wrong, rng.normal(size=4 * n)


@pytest.mark.parametrize(("wrong", "apart"), [(0.0, 2.5), (0.05, 2.5), (0.2, 5.0), (0.6, 2.5)])
def test_the_rate_and_the_probabilities_are_right(wrong: float, apart: float) -> None:
    observed, is_wrong, null = mixture(4000, wrong, apart)
    found = ScoreProbability.from_null(observed, null)
    assert found is not None and abs(found.noise_rate - is_wrong.mean()) < 0.03
    p = 1 - found(observed)
    bins = np.minimum((p * 10).astype(int), 9)
    assert sum(abs((p - is_wrong)[bins == k].sum()) for k in range(10)) / len(p) < 0.03
    odds = np.log(max(wrong, 1e-9) / max(1 - wrong, 1e-9))
    best = (observed < apart / 2 + odds / apart) != is_wrong
    assert ((p > 0.5) != is_wrong).mean() <= best.mean() + 0.015
    assert wrong or (p > 0.5).mean() <= 0.005
    assert (p > 0.5).sum() == (observed < found.threshold()).sum()


def test_probabilities_rise_strictly_beyond_what_was_seen_whatever_unit_and_origin_the_scores_have() -> None:
    observed, _, null = mixture(1000, 0.3)
    plain, mapped = (ScoreProbability.from_null(a * observed - b, a * null - b) for a, b in ((1, 0), (7, 3)))
    assert plain.noise_rate == pytest.approx(mapped.noise_rate, abs=1e-6)
    at = np.linspace(observed.min() - 2, observed.max() + 2, 400)
    p = plain(at)
    np.testing.assert_allclose(p, mapped(7 * at - 3), atol=1e-5)
    assert (np.diff(p) > 0).all() and p.min() > 0 and p.max() < 1


def test_the_threshold_lies_in_the_gap_of_few_pairs() -> None:
    errors = 0
    for seed in range(12):
        observed, is_wrong, null = mixture(200, 0.2, apart=7.0, seed=seed)
        errors += ((ScoreProbability.from_null(observed, null)(observed) < 0.5) != is_wrong).sum()
    assert errors <= 4  # by quantiles alone, 7


def test_null_pairs_share_neither_image_nor_text_and_few_pairs_tell_nothing() -> None:
    image_group, text_group = np.arange(300) // 3, np.arange(300) % 50
    image, text = null_pairs(image_group, text_group)
    assert len(image) > 1000
    assert (image_group[image] != image_group[text]).all() and (text_group[image] != text_group[text]).all()
    assert len(null_pairs(np.zeros(100, int), np.arange(100))[0]) == 0
    assert ScoreProbability.from_null(np.zeros(LEAST_PAIRS - 1), np.zeros(1000)) is None
    constant = ScoreProbability.from_null(np.zeros(200), np.zeros(800))
    assert constant is not None and np.isfinite(constant(np.zeros(3))).all()
