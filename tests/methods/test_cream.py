"""CREAM: its loss and labels against loops of numpy, who trains on what and when."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import CREAM
from cleanpairs.methods.cream import CLEAN, HARD, NOISY, spread_cross_entropy
from cleanpairs.objectives import InfoNCELoss
from tests.methods.conftest import begun, probabilities_of_both


@pytest.mark.parametrize("phi", [0.0, 0.15, float("inf")])
@pytest.mark.parametrize("pair", [None, (1, 3)])
def test_the_loss_against_a_loop(phi: float, pair: tuple[int, int] | None) -> None:
    rng = np.random.default_rng(3)
    n, tau = 5, 0.3
    S, y = rng.uniform(-0.3, 1, size=(n, n)), rng.random(n)
    excluded = np.zeros((n, n), bool)
    if pair:
        excluded[pair], excluded[pair[::-1]] = True, True
    expected, spreads = [], 0
    for i in range(n):
        total = 0.0
        for T, out in ((S, excluded), (S.T, excluded.T)):  # image to texts, text to images
            left = [j for j in range(n) if not out[i, j]]
            p = {j: np.exp(T[i, j] / tau) / sum(np.exp(T[i, k] / tau) for k in left) for j in left}
            shares = {j: max(T[i, j], 0) for j in left if j != i}
            for j in left:
                weight = y[i] if j == i else (1 - y[i]) * shares[j] / sum(shares.values())
                if j != i and weight < phi:
                    continue
                spreads += j != i and weight > 0
                total -= weight * np.log(p[j])
        expected.append(total)
    args = torch.from_numpy(S), torch.from_numpy(y), tau, phi, torch.from_numpy(excluded) if pair else None
    np.testing.assert_allclose(spread_cross_entropy(*args), expected, rtol=1e-4)
    assert (spreads == 0) == (phi == float("inf"))
    if phi == float("inf"):  # nothing spreads: a weighted cross entropy
        torch.testing.assert_close(spread_cross_entropy(*args), 2 * InfoNCELoss(tau=tau)(args[0], args[1], args[4]))


def split_in_three(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    """Both networks take the first half for clean, B the next fifth."""
    procedure, view = begun(CREAM, n, **settings)
    rng = np.random.default_rng(1)
    low, high = rng.uniform(0, 0.4, (2, n)), rng.uniform(0.6, 1, (2, n))
    procedure.w = np.where(np.arange(n) < np.array([[n // 2], [n * 7 // 10]]), high, low).astype(np.float32)
    procedure.judge(view)
    procedure.split_known = True
    return procedure, view


def test_labels_of_the_three_kinds_by_hand() -> None:
    procedure, view = split_in_three()
    kind = procedure.kinds()
    assert kind.tolist() == [CLEAN] * 15 + [HARD] * 6 + [NOISY] * 9
    value = procedure.judge(view)
    p = probabilities_of_both(view)
    assert np.abs(p[0] - p[1]).max() > 0.01  # the networks differ
    w_a, w_b = procedure.w
    v, mean = (w_a + w_b) / 2, (p[0] + p[1]) / 2
    for own, (own_p, other_w) in enumerate(((p[0], w_b), (p[1], w_a))):
        expected = [other_w + (1 - other_w) * own_p, v + (1 - v) * own_p, mean]
        np.testing.assert_allclose(procedure.y[own], np.choose(kind, expected), rtol=1e-4)
    np.testing.assert_allclose(value, np.choose(kind, [v + (1 - v) * mean, v + (1 - v) * mean, mean]), rtol=1e-4)


@pytest.mark.parametrize(("behind", "kinds"), [(1, {CLEAN}), (3, {CLEAN, HARD}), (5, {CLEAN, HARD, NOISY})])
def test_kinds_join_in_their_order(behind: int, kinds: set[int]) -> None:
    procedure, view = split_in_three(hard_after=2, noisy_after=4, warmup=4)
    view.epoch = 4 + behind
    kind = procedure.kinds()
    batches = procedure.batches(view, 0)
    seen: dict[int, list[int]] = {k: [] for k in (CLEAN, HARD, NOISY)}
    for batch in batches:
        for rows in batch:
            assert len(set(kind[rows])) == 1  # each kind is a batch of its own
            seen[kind[rows[0]]] += rows.tolist()
    assert {k for k, rows in seen.items() if rows} == kinds
    for k in kinds - {NOISY}:
        assert sorted(seen[k]) == np.flatnonzero(kind == k).tolist()
    if NOISY in kinds:  # as often as there are clean batches
        assert set(seen[NOISY]) == set(np.flatnonzero(kind == NOISY)) and len(batches[-1]) >= 2


@pytest.mark.parametrize("behind", [1, 5])
def test_the_loss_of_a_batch_of_each_kind(behind: int) -> None:
    procedure, view = split_in_three(hard_after=2, noisy_after=4, warmup=4, tau=0.2)
    procedure.y = np.random.default_rng(2).uniform(0, 0.2, (2, 30)).astype(np.float32)  # so that some weights pass phi
    view.epoch = 4 + behind
    kind = procedure.kinds()
    batch = tuple(np.flatnonzero(kind == k) for k in (CLEAN, HARD, NOISY))
    f, expected = view.forward(1, *batch, seed=4), 0.0
    phi = float(procedure.y[1].mean())
    for k in range(3):
        part = f.select(f.source == k)
        least = float("inf") if k == 0 and behind <= 2 else phi
        y = torch.from_numpy(procedure.y[1][part.rows])
        loss = spread_cross_entropy(part.similarity(), y, 0.2, least, part.excluded)
        if least == phi:
            bare = spread_cross_entropy(part.similarity(), y, 0.2, float("inf"), part.excluded)
            assert bool((loss > bare + 1e-4).any())  # something does spread
        expected += loss.mean()
    torch.testing.assert_close(procedure.loss(view, 1, batch, 4), expected)


def test_nothing_is_filtered_where_nearly_all_are_clean() -> None:
    procedure, view = split_in_three(tau=0.2)
    procedure.w[:] = np.where(np.arange(30) < 28, 0.9, 0.1)
    procedure.judge(view)
    view.epoch = 5
    rows = np.arange(8)
    f = view.forward(0, rows, seed=4)
    y = torch.from_numpy(procedure.y[0][f.rows])
    expected = spread_cross_entropy(f.similarity(), y, 0.2, 0.0, f.excluded).mean()
    torch.testing.assert_close(procedure.loss(view, 0, (rows,), 4), expected)


def test_what_is_split() -> None:
    procedure, view = begun(CREAM, 30, split_by="infonce")
    encoded = view.encoded(0)
    S = torch.from_numpy(encoded.images.vectors @ encoded.texts.vectors.T) / 0.07
    loss = -(S.log_softmax(1).diagonal() + S.log_softmax(0).diagonal()).numpy()
    np.testing.assert_allclose(procedure.losses(view, 0), (loss - loss.min()) / (loss.max() - loss.min()), atol=1e-4)
