"""A split is taken only where it is plausible; else the previous one stands, and the reason is said."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.correspondence.mixture import guarded_split

BOTH = pytest.mark.parametrize("kind", ["gaussian", "beta"])


def modes(n: int, clean: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n losses in two modes, and which of them are low."""
    rng = np.random.default_rng(seed)
    low = rng.permutation(n) < clean * n
    return np.where(low, rng.beta(4, 36, n), rng.beta(30, 10, n)), low


@BOTH
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_two_modes_are_told_apart(kind: str, share: float) -> None:
    losses, low = modes(2000, share)
    split = guarded_split(losses, kind)
    assert split.refused is None
    assert split.clean.shape == (2000,) and split.clean.dtype == np.float32
    assert ((split.clean > 0.5) == low).mean() > 0.99
    assert split.clean.min() >= 0 and split.clean.max() <= 1


@BOTH
def test_the_probability_falls_with_the_loss(kind: str) -> None:
    """A wide component must not come back on the far side of a narrow one."""
    rng = np.random.default_rng(1)
    losses = np.concatenate([rng.beta(20, 180, 1500), rng.beta(6, 4, 900), [0.0, 0.001, 0.999, 1.0]])
    split = guarded_split(losses, kind)
    assert split.refused is None
    clean = split.clean[np.argsort(losses)]
    assert (clean - np.minimum.accumulate(clean)).max() < 1e-3 and clean[0] > 0.99 and clean[-1] < 0.01


@BOTH
@pytest.mark.parametrize("previous", [None, np.linspace(0, 1, 500)])
def test_one_mode_leaves_the_previous_one_or_all_clean(kind: str, previous: np.ndarray | None) -> None:
    losses = np.random.default_rng(2).beta(20, 80, 500)
    split = guarded_split(losses, kind, previous)
    assert split.refused == "losses do not separate into two modes"
    expected = np.ones(500) if previous is None else previous
    np.testing.assert_allclose(split.clean, expected, rtol=1e-6)
    assert split.clean.dtype == np.float32


@BOTH
def test_a_share_that_jumps_is_refused(kind: str) -> None:
    losses, low = modes(1000, 0.3)
    before = np.arange(1000) < 800
    split = guarded_split(losses, kind, before.astype(np.float32))
    assert split.refused is not None
    assert "the share of clean pairs jumps from 80.0% to 30" in split.refused
    np.testing.assert_array_equal(split.clean, before)
    near = np.arange(1000) < 500
    taken = guarded_split(losses, kind, near.astype(np.float32))
    assert taken.refused is None and ((taken.clean > 0.5) == low).mean() > 0.99
    np.testing.assert_array_equal(taken.clean, guarded_split(losses, kind).clean)  # the previous one only guards


@BOTH
def test_nearly_nothing_on_one_side_is_refused(kind: str) -> None:
    for share in (0.005, 0.999):
        losses, _ = modes(4000, share)
        split = guarded_split(losses, kind)
        assert split.refused is not None and (split.clean == 1).all()


@BOTH
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_losses(kind: str, n: int) -> None:
    losses = np.linspace(0, 1, n)
    assert guarded_split(losses, kind).clean.tolist() == [1.0] * n
    kept = guarded_split(losses, kind, np.full(n, 0.25))
    assert kept.refused is not None and kept.clean.tolist() == [0.25] * n


@BOTH
@pytest.mark.parametrize("value", [0.0, 0.4, 1.0])
def test_losses_all_alike(kind: str, value: float) -> None:
    split = guarded_split(np.full(300, value), kind)
    assert split.refused is not None and (split.clean == 1).all()


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_losses_that_are_not_finite(kind: str, bad: float) -> None:
    losses, _ = modes(100, 0.5)
    losses[3] = bad
    with pytest.raises(DataError, match="finite"):
        guarded_split(losses, kind)
