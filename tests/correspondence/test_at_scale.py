"""Millions of scores: the mixture is scikit-learn's to 1e-3, the density minimum that of a sample, both in seconds."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from cleanpairs.correspondence.density_minimum import find_density_minimum
from cleanpairs.correspondence.mixture import REG_COVAR, split_in_two

N = 2_000_000


@pytest.fixture(scope="module")
def losses() -> np.ndarray:
    rng = np.random.default_rng(0)
    modes = rng.normal(0.25, 0.08, N), rng.normal(0.7, 0.1, N)
    return np.clip(np.where(rng.random(N) < 0.3, modes[1], modes[0]), 0, 1)


@pytest.mark.slow
def test_a_mixture_of_millions(losses: np.ndarray) -> None:
    began = time.process_time()
    split = split_in_two(losses)
    seconds = time.process_time() - began
    assert seconds < 2, seconds
    # To the end from where it will end: from k-means it takes minutes.
    model = GaussianMixture(
        2, max_iter=3, tol=1e-9, reg_covar=REG_COVAR, means_init=[[split.means[0]], [split.means[1]]],
        weights_init=[1 - split.weight, split.weight],
        precisions_init=[[[1 / (0.08**2 + REG_COVAR)]], [[1 / (0.1**2 + REG_COVAR)]]],
    )  # fmt: skip
    with pytest.warns(UserWarning, match="did not converge"):
        model.fit(losses[:, None])
    np.testing.assert_allclose(split.means, model.means_.ravel(), atol=1e-3)
    np.testing.assert_allclose(split.weight, model.weights_[1], atol=1e-3)
    some = losses[::997]
    np.testing.assert_allclose(split.high[::997], model.predict_proba(some[:, None])[:, 1], atol=1e-3)
    assert split.separated


@pytest.mark.slow
def test_a_density_minimum_of_millions(losses: np.ndarray) -> None:
    scores = 1 - losses
    began = time.process_time()
    density_minimum = find_density_minimum(scores)
    seconds = time.process_time() - began
    assert seconds < 2, seconds
    sample = find_density_minimum(scores[::100])
    assert density_minimum.separated and density_minimum.threshold == pytest.approx(
        sample.threshold, abs=0.011
    )  # a bin
    assert density_minimum.noise_rate == pytest.approx(sample.noise_rate, abs=0.01)
