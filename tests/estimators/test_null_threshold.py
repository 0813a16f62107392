"""The threshold of what is trained on vectors of one space, whatever scale its labels have."""

from dataclasses import replace

import numpy as np
import pytest

from cleanpairs import RCL, Pairs, apply_noise, detection, inject_noise
from cleanpairs.estimators.null_threshold import null_threshold
from cleanpairs.ops.normalised_similarity import VectorPairs

N, D = 400, 32


def noisy(rate: float) -> Pairs:
    """Vectors as a contrastive model leaves them: a small cone a side, with the topics of a corpus."""
    rng = np.random.default_rng(0)
    topic = rng.normal(size=(20, D))[rng.integers(0, 20, N)] + rng.normal(size=(N, D))
    image, text = (topic + 0.6 * rng.normal(size=(N, D)) + cone for cone in rng.normal(size=(2, D)) * 2.5)
    pairs = Pairs.from_arrays(image_vectors=image.astype(np.float32), text_vectors=text.astype(np.float32))
    return apply_noise(pairs, inject_noise(pairs, rate, seed=0))


def test_the_scale_of_the_labels_does_not_matter() -> None:
    pairs, rng = noisy(0.4), np.random.default_rng(1)
    y = np.clip(np.where(pairs.true_mismatch, 0.25, 0.75) + 0.1 * rng.normal(size=N), 0, 1)
    known = VectorPairs(np.asarray(pairs.images.array())[:, 0], pairs.text_vectors, pairs.image_group, pairs.text_group)
    for scaled in (y, 0.8 + 0.2 * y, 0.05 * y):
        found = null_threshold(scaled, known)
        assert detection(scaled, pairs.true_mismatch, found[0]).f1 > 0.9
        assert found[1] == pytest.approx(0.4, abs=0.08)
    assert null_threshold(rng.random(N), known) is None  # a method that has learned the wrong pairs by heart
    assert null_threshold(np.ones(N), known) is None  # labels that the training has not moved
    unrelated = rng.normal(size=(N, D))  # two spaces of one length: every pair looks like any other
    assert null_threshold(y, replace(known, texts=unrelated)) is None


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_a_method_with_a_fixed_threshold_flags_the_wrong_pairs(rate: float) -> None:
    pairs = noisy(rate)
    model = RCL().fit(pairs)
    if rate:
        assert detection(model.correspondence_, pairs.true_mismatch, model.threshold_).f1 > 0.85
        assert RCL(threshold=0.25, epochs=1).fit(pairs).threshold_ == 0.25
    else:
        assert np.mean(model.correspondence_ < model.threshold_) < 0.03
