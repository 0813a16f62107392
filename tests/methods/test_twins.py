"""Captions of several images, most of which were copied: planted pairs stand for the mismatched ones all the same."""

import numpy as np
import pytest

from cleanpairs.correspondence.calibration import calibrate
from cleanpairs.correspondence.similarity import weights_by_twins


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
