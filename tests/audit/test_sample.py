"""The draw: every stratum by its size, most pairs where decisions are, and an order that tells nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cleanpairs.audit import draw_sample
from cleanpairs.audit.sample import AuditSample, stratum_of
from cleanpairs.core.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("n", "threshold"), [(1, 0.1), (2, 0.0), (7, 1.0), (60, 0.5), (60, 0.0), (500, 0.1), (500, 1.0)]
)
def test_the_weights_add_up_to_the_corpus(corpus: Callable[..., Any], n: int, threshold: float) -> None:
    y, _ = corpus(2_000)
    y[:50] = np.nan
    s = draw_sample(y, n, threshold=threshold)
    assert len(s) == n == len(set(s.pair_id.tolist()))
    assert (s.pair_id >= 50).all()
    assert np.array_equal(s.correspondence, y[s.pair_id].astype(float))
    assert np.array_equal(s.stratum, stratum_of(s.correspondence, s.edges))
    assert s.edges[0] == 0 and s.edges[-1] == 1 and (np.diff(s.edges) > 0).all()
    assert threshold in s.edges
    size = np.bincount(stratum_of(y[50:].astype(float), s.edges))
    assert all(np.isclose(s.weight[s.stratum == h].sum(), size[h]) for h in set(s.stratum.tolist()))
    if n >= 60:
        assert np.isclose(s.weight.sum(), 1_950)
        assert np.bincount(s.stratum).min() >= 4


def test_more_is_drawn_where_decisions_are_in_an_order_that_tells_nothing(corpus: Callable[..., Any]) -> None:
    y, _ = corpus(20_000, noise=0.1)
    s, same, other = (draw_sample(y, 200, threshold=0.1, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(s.pair_id, same.pair_id) and not np.array_equal(s.pair_id, other.pair_id)
    assert (s.correspondence < 0.1).sum() >= 80  # of 200, where 11 % of the pairs are
    assert (np.abs(s.correspondence - 0.1) < 0.1).mean() > 3 * (np.abs(y - 0.1) < 0.1).mean()
    assert abs(np.corrcoef(np.arange(200), s.correspondence)[0, 1]) < 0.2


def test_every_pair_of_a_stratum_is_as_likely(corpus: Callable[..., Any]) -> None:
    y, _ = corpus(60)
    counts = np.zeros(60)
    for seed in range(300):
        counts[draw_sample(y, 20, threshold=0.1, seed=seed).pair_id] += 1
    s = draw_sample(y, 20, threshold=0.1)
    of = stratum_of(y.astype(float), s.edges)
    for h in set(of.tolist()):
        share = counts[of == h] / 300
        assert np.abs(share - share.mean()).max() < 0.15  # 5 standard errors of a share of 1/2


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.9], [0.0, 0.0, 0.0], [1.0] * 5, [0.5] * 30])
def test_small_and_equal_scores(values: list[float]) -> None:
    for n, threshold in itertools.product((1, 3, 100), (0.0, 0.4, 0.5, 1.0)):
        s = draw_sample(values, n, threshold=threshold)
        assert len(s) == min(n, len(values)) and (n < len(values) or np.allclose(s.weight, 1))


@pytest.mark.parametrize(
    ("scores", "n", "threshold", "error", "words"),
    [
        ([0.5], 0, 0.5, ConfigError, "n of an audit must be a whole number >= 1, found 0"),
        ([0.5], 1, 1.5, ConfigError, "threshold"), ([], 1, 0.5, DataError, "no pair with a score"),
        ([np.nan], 1, 0.5, DataError, "no pair with a score"),
        ([0.5, 1.5], 1, 0.5, DataError, r"must be in \[0, 1\], found 0.5 to 1.5"),
    ],
)  # fmt: skip
def test_refusals(scores: list[float], n: int, threshold: float, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        draw_sample(scores, n, threshold=threshold)


def test_the_name_of_a_stratum_is_read_back_as_its_edges() -> None:
    s = AuditSample(*(np.zeros(0) for _ in range(2)), np.array([0, 0.05, 1 / 3, 1]), *(np.zeros(0) for _ in range(3)))
    assert [s.stratum_name(h) for h in range(3)] == ["0 to 0.05", "0.05 to 0.333333333", "0.333333333 to 1"]
    near = np.nextafter(np.float32(0.3), np.float32(1), dtype=np.float32)  # scores are of float32: told apart
    s = AuditSample(s.pair_id, s.stratum, np.array([0, np.float32(0.3), near, 1]), s.weight, s.weight, s.matched)
    low, high = map(np.float32, s.stratum_name(1).split(" to "))
    assert (low, high) == (np.float32(0.3), near)
