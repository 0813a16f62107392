"""The density minimum between two modes."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.correspondence.density_minimum import find_density_minimum


@pytest.mark.parametrize("share", [0.04, 0.2, 0.6, 0.9])
def test_the_rate_is_that_of_the_lower_mode(share: float) -> None:
    """A fixed threshold is lowered where there is little noise."""
    rng = np.random.default_rng(1)
    wrong = int(20_000 * share)
    x = np.concatenate([rng.beta(1, 40, wrong), rng.beta(12, 3, 20_000 - wrong)])
    density_minimum = find_density_minimum(x)
    assert density_minimum.separated
    assert density_minimum.noise_rate == pytest.approx(share, abs=0.02)
    flagged = x < density_minimum.threshold
    assert flagged[:wrong].mean() > 0.97 and flagged[wrong:].mean() < 0.01
    assert (density_minimum.at_most(0.5) < 0.5) == (share < 0.1)
    assert density_minimum.at_most(0.001) == 0.001
    assert find_density_minimum(rng.beta(20, 2, 5000)).at_most(0.5) == 0.5


def test_what_is_no_correspondence_is_refused() -> None:
    for bad in (np.nan, np.inf, -0.01, 1.01):
        with pytest.raises(DataError):
            find_density_minimum([0.5] * 30 + [bad])


@pytest.mark.parametrize(
    ("a", "b", "right"),
    [(20, 2, True), (12, 3, True), (6, 2, True), (2, 20, False), (2, 12, False), (5, 5, False), (1.3, 1, False)],
)
def test_one_mode_has_no_minimum_and_may_be_known_to_be_right(a: float, b: float, right: bool) -> None:
    density_minimum = find_density_minimum(np.random.default_rng(0).beta(a, b, 5000))
    assert not density_minimum.separated and density_minimum.noise_rate == 0.0
    assert density_minimum.right == right


def test_equal_or_few_scores_tell_nothing() -> None:
    for scores in [np.full(1000, v) for v in (0.0, 0.6, 1.0)] + [np.linspace(0, 1, n) for n in (0, 1, 19)]:
        found = find_density_minimum(scores)
        assert not found.separated and not found.right
