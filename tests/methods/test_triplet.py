"""The plain triplet baseline: its warm-up, and what it finds without resisting."""

from typing import Any

import numpy as np
import pytest

from cleanpairs import InfoNCE, Triplet
from cleanpairs.correspondence.density_minimum import find_density_minimum
from tests.methods.conftest import SMALL, corpus


def test_the_warm_up_ends_where_it_says() -> None:
    """Equal up to the epoch in which one takes the mean and the other the hardest."""
    losses = [
        [line["loss"] for line in Triplet(**{**SMALL, "epochs": 4}, warmup=k).fit(corpus(40, 0)).history_]
        for k in (0, 2, 3, 4)
    ]
    assert losses[1][:2] == losses[2][:2] == losses[3][:2] and losses[2][:3] == losses[3][:3]
    assert losses[0][0] > 1.5 * losses[1][0]  # the hardest is above the mean
    assert losses[1][2] != losses[2][2] and losses[2][3] != losses[3][3]


def test_the_correspondence_is_the_last_epochs_probability() -> None:
    """Labels are all ones, so a shorter training is the beginning of a longer one."""
    long = Triplet(**{**SMALL, "epochs": 3}, lr_update=3).fit(corpus(40, 0))
    short = Triplet(**{**SMALL, "epochs": 2}, lr_update=3).fit(corpus(40, 0))
    assert [line["mean_probability"] is None for line in long.history_] == [True, True, False]
    assert long.history_[-1]["mean_probability"] == pytest.approx(float(long.correspondence_.mean()), rel=1e-5)
    assert not np.allclose(long.correspondence_, short.correspondence_)


@pytest.mark.parametrize("method", [InfoNCE, Triplet])
def test_nothing_is_flagged_where_no_density_minimum_is(method: Any) -> None:
    """Neither probability means anything in absolute terms: the one is near 1, the other near 1 / group."""
    rng = np.random.default_rng(0)
    mode = rng.beta(20, 300, 2000)
    two = np.concatenate([mode, rng.beta(300, 20, 3000)])
    assert not find_density_minimum(mode).separated
    assert method()._default_threshold(find_density_minimum(mode)) == 0
    assert (two < method()._default_threshold(find_density_minimum(two))).mean() == pytest.approx(0.4, abs=0.01)
