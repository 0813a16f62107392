"""LEMoN: its equations by a loop, and its own threshold."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cleanpairs import LEMoN, Pairs
from cleanpairs.ops.normalised_similarity import VectorPairs
from tests.helpers import reloaded, unit


def vectors(n: int, wrong: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Topics with noise of their own on both sides; the first ``wrong`` captions rotate."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(40, 24))[rng.integers(0, 40, n)] + 0.8 * rng.normal(size=(n, 24))
    at = np.concatenate([np.roll(np.arange(wrong), 1), np.arange(wrong, n)]).astype(np.int64)
    return unit(z + 0.5 * rng.normal(size=z.shape)), unit(z + 0.5 * rng.normal(size=z.shape))[at]


def by_loop(x: np.ndarray, y: np.ndarray, pairs: list[tuple[int, int]], k: int) -> np.ndarray:
    """Equations of the module; a pair (i, j) has the image of i and the caption of j."""
    out = []
    for i, j in pairs:
        total = 1 - x[i] @ y[j]
        for a, b, p, q in ((x, y, i, j), (y, x, j, i)):
            near = [m for m in np.argsort(-(a @ a[p]), kind="stable") if m != p][:k]
            terms = [
                (1 - b[q] @ b[m]) * np.exp(-0.1 * (1 - a[p] @ a[m])) * np.exp(-5 * (1 - a[m] @ b[m])) for m in near
            ]
            total += 5 * np.mean(terms)
        out.append(-total)
    return np.array(out)


@pytest.mark.parametrize("k", [3, 30, 100])
def test_the_score_is_that_of_the_equations(k: int) -> None:
    x, y = vectors(60, 10)
    group = np.arange(60)
    pairs, null = VectorPairs(x, y, group, group), np.array([[0, 5, 7], [3, 5, 1]])
    observed, of_null = LEMoN(k=k).compare(pairs, pairs, null)
    np.testing.assert_allclose(observed, by_loop(x, y, [(i, i) for i in range(60)], k), atol=1e-5)
    np.testing.assert_allclose(of_null, by_loop(x, y, list(zip(*null.tolist(), strict=True)), k), atol=1e-5)


def test_it_has_its_own_threshold_and_scores_the_same_when_loaded(tmp_path: Path) -> None:
    x, y = vectors(600, 200)
    wrong = np.arange(600) < 200
    pairs = Pairs.from_arrays([f"caption {i}" for i in range(600)], features=x, text_vectors=y)
    model = LEMoN().fit(pairs)
    assert roc_auc_score(~wrong, model.correspondence_) > 0.97
    assert abs(model.noise_rate_ - 1 / 3) < 0.05 and ((model.correspondence_ < model.threshold_) != wrong).mean() < 0.1
    np.testing.assert_allclose(reloaded(model, tmp_path, pairs).score_pairs(pairs), model.correspondence_, atol=1e-4)
    assert (model.rematch(pairs, repairs="plausible").to_pandas()["action"] == "rematch_text").sum() > 100
