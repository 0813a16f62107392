"""LEMoN: its equations by a loop, and its own threshold."""

import numpy as np
import pytest

from cleanpairs import LEMoN
from cleanpairs.ops.normalised_similarity import VectorPairs
from tests.helpers import unit


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
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 24))
    x, y = unit(z), unit(z + 0.5 * rng.normal(size=z.shape))
    group = np.arange(60)
    pairs, null = VectorPairs(x, y, group, group), np.array([[0, 5, 7], [3, 5, 1]])
    observed, of_null = LEMoN(k=k).compare(pairs, pairs, null)
    np.testing.assert_allclose(observed, by_loop(x, y, [(i, i) for i in range(60)], k), atol=1e-5)
    np.testing.assert_allclose(of_null, by_loop(x, y, list(zip(*null.tolist(), strict=True)), k), atol=1e-5)
