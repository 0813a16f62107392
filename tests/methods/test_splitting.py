"""Splitting by losses: who trains on what, what a refused split leaves, where labels stop, and going on after a cut."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cleanpairs import NCR
from cleanpairs.methods.splitting import UNSPLIT, FeatureMemory, Splitting
from cleanpairs.objectives import InfoNCEWithRCE
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import BatchOutput, EpochContext
from tests.methods import conftest


def view_of(n: int = 40, networks: int = 2) -> EpochContext:
    return conftest.view_of(SimpleNamespace(networks=networks, head=lambda model: None), n)


class Scripted(Splitting):
    """Losses as given, an epoch and network each; keeps the batches that it was asked to learn from."""

    def __init__(self, n: int, script: Any = (), *, networks: int = 2, half: bool = False, **settings: Any) -> None:
        self.networks, self.half = networks, half  # type: ignore[misc]
        super().__init__(n, NCR(**{"warmup": 5, "label_epochs": None, **settings}))
        self.warm_objective = InfoNCEWithRCE()
        self.script = script
        self.seen: list[tuple[BatchOutput, BatchOutput | None]] = []

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        return self.script[view.epoch - 1][network] if self.script else super().losses(view, network)

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        self.seen.append((clean, noisy))
        return clean.similarity().sum()


def modes(low: np.ndarray, seed: int = 0) -> np.ndarray:
    """Losses in [0, 1] with a mode of low ones where ``low`` is."""
    return np.clip(np.where(low, 0.1, 0.9) + 0.02 * np.random.default_rng(seed).normal(size=len(low)), 0, 1)


FLAT = np.linspace(0.5, 0.500001, 40)  # in rising order, but of one mode
FIRST = np.arange(40) < 24
SECOND = np.arange(40) >= 12


def run(strategy: Splitting, view: EpochContext, epochs: int, first: int = 1, of: int = 99) -> list[np.ndarray]:
    values = []
    for view.epoch in range(first, epochs + 1):
        view.last = view.epoch == of
        strategy.end_epoch(view)
        values.append(strategy.value().copy())
    return values


def split_by_hand(networks: int, clean: list[np.ndarray], n: int = 40, **settings: Any) -> Scripted:
    strategy = Scripted(n, networks=networks, **settings)
    strategy.w = np.stack(clean).astype(np.float32)
    strategy.split_known = True
    return strategy


# -- who trains on what ---------------------------------------------------------------------------------------------


def test_each_network_trains_on_the_others_split() -> None:
    strategy, view = split_by_hand(2, [FIRST, SECOND]), view_of()
    assert strategy.clean_rows(0).tolist() == np.flatnonzero(SECOND).tolist()
    assert strategy.clean_rows(1).tolist() == np.flatnonzero(FIRST).tolist()
    assert split_by_hand(1, [FIRST]).clean_rows(0).tolist() == np.flatnonzero(FIRST).tolist()
    assert strategy.labels().tolist() == [1.0] * 40  # 0 where no network takes the pair as clean
    assert split_by_hand(2, [FIRST, SECOND & FIRST]).labels().tolist() == FIRST.astype(float).tolist()
    for network, split in ((0, SECOND), (1, FIRST)):
        for clean, noisy in strategy.batches(view, network):
            assert split[clean].all() and not split[noisy].any()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_an_epoch_covers_every_clean_pair_once_and_noisy_ones_as_often_as_needed(share: float, half: bool) -> None:
    clean = np.random.default_rng(3).permutation(97) < share * 97
    strategy, view = split_by_hand(2, [clean, clean], n=97, half=half), view_of(97)
    for network in (0, 1):
        batches = strategy.batches(view, network)
        first, second = (np.concatenate([b[k] for b in batches]) for k in (0, 1))
        assert sorted(first.tolist()) == np.flatnonzero(clean).tolist()
        counts = np.bincount(second, minlength=97)
        assert not counts[clean].any()
        assert counts[~clean].max() - counts[~clean].min() <= 1  # no pair a lap ahead of another
        assert all(2 <= len(rows) <= (4 if half else 8) + 2 for b in batches for rows in b)
    orders = [[rows.tolist() for b in strategy.batches(view, k) for rows in b] for k in (0, 1, 0)]
    assert orders[0] != orders[1] and orders[0] == orders[2]


@pytest.mark.parametrize("clean", [0, 1, 39, 40])
def test_nearly_nothing_on_one_side(clean: int) -> None:
    """A side of fewer than two pairs has no negative: without clean ones all are trained on."""
    strategy, view = split_by_hand(2, [np.arange(40) < clean] * 2), view_of()
    batches = strategy.batches(view, 0)
    assert all(len(b) == 1 for b in batches)
    assert np.sort(np.concatenate([b[0] for b in batches])).tolist() == list(range(clean if clean >= 2 else 40))


def test_the_warm_up_takes_all_pairs_and_the_networks_other_orders() -> None:
    strategy, view = Scripted(40), view_of()
    batches = [strategy.batches(view, network) for network in (0, 1)]
    assert all(len(b) == 1 for of_one in batches for b in of_one)
    orders = [np.concatenate([b[0] for b in of_one]).tolist() for of_one in batches]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(40))
    expected = InfoNCEWithRCE()(view.forward(0, np.arange(6), seed=5).similarity(), torch.ones(6), None).mean()
    torch.testing.assert_close(strategy.loss(view, 0, (np.arange(6),), 5), expected)
    assert strategy.seen == []


# -- the split ------------------------------------------------------------------------------------------------------


def test_the_split_comes_behind_the_warm_up() -> None:
    strategy, view = Scripted(40, [[modes(FIRST), modes(SECOND)]] * 4, warmup=3), view_of()
    for epoch, known in ((1, False), (2, False), (3, True)):
        run(strategy, view, epoch, epoch)
        assert strategy.split_known is known
    assert ((strategy.w > 0.5) == np.stack([FIRST, SECOND])).all() and strategy.has_split.all()
    np.testing.assert_array_equal(strategy.y, strategy.w[::-1])
    np.testing.assert_allclose(strategy.value(), strategy.w.mean(axis=0), rtol=1e-6)
    assert strategy.note is None
    strategy, view = Scripted(40, [[modes(FIRST), modes(FIRST)]] * 2, warmup=5), view_of()
    values = run(strategy, view, 2, of=2)  # a training that ends in its warm-up is split at its end
    assert values[0].tolist() == [1.0] * 40 and ((values[1] > 0.5) == FIRST).all()


def test_a_refused_split_keeps_the_previous_one_and_says_so() -> None:
    script = [[modes(FIRST), modes(SECOND)], [FLAT, modes(SECOND)], [modes(FIRST), modes(np.arange(40) < 8)]]
    strategy, view = Scripted(40, script, warmup=1), view_of()
    run(strategy, view, 1)
    before = strategy.w.copy()
    jump = "network 2: the share of clean pairs jumps from 70.0 % to 20.0 %"
    for epoch, note in ((2, "network 1: losses do not separate into two modes"), (3, jump)):
        run(strategy, view, epoch, epoch)
        np.testing.assert_array_equal(strategy.w, before)
        assert strategy.note == note
    alone, view = Scripted(40, [[FLAT]], networks=1, warmup=1), view_of(networks=1)
    run(alone, view, 1)
    assert alone.note == "losses do not separate into two modes"


def test_where_nothing_ever_splits_all_are_clean_and_their_order_is_kept() -> None:
    strategy, view = Scripted(40, [[FLAT, FLAT]] * 3, warmup=1), view_of()
    value = run(strategy, view, 3)[-1]
    assert not strategy.has_split.any() and strategy.split_known
    assert strategy.labels().tolist() == [1.0] * 40 and (strategy.w > strategy.clean_above).all()
    assert (np.diff(value) <= 0).all() and value[0] > value[-1] >= 1 - UNSPLIT - 1e-6
    assert [len(b) for b in strategy.batches(view, 0)] == [1] * 5
    few = np.arange(40) < 8  # from 100 % to 20 % clean: no jump, since nothing had split before
    strategy, view = Scripted(40, [[FLAT], [modes(few)]], networks=1, warmup=1), view_of(networks=1)
    run(strategy, view, 2)
    assert strategy.note is None and ((strategy.w[0] > 0.5) == few).all()


# -- the last of these epochs ---------------------------------------------------------------------------------------


def test_labels_behind_the_horizon_do_not_enter_the_value() -> None:
    shrinking = [(np.arange(40) < k).astype(float) for k in (30, 26, 22, 18, 14)]
    script = [[modes(low > 0)] for low in shrinking]
    strategy, view = Scripted(40, script, networks=1, warmup=2, label_epochs=2), view_of(networks=1)
    values = run(strategy, view, 5, of=6)
    assert values[0].tolist() == [1.0] * 40
    np.testing.assert_allclose(values[1] > 0.5, shrinking[1])
    np.testing.assert_allclose(values[2], np.mean(shrinking[1:3], axis=0), atol=0.02)
    np.testing.assert_array_equal(values[3:], [values[2]] * 2)
    assert ((strategy.w[0] > 0.5) == shrinking[4]).all()  # while the training goes on with them
    everything = Scripted(40, script, networks=1, warmup=2, label_epochs=None)
    np.testing.assert_allclose(run(everything, view, 5)[-1], np.mean(shrinking[1:], axis=0), atol=0.02)


# -- losses ---------------------------------------------------------------------------------------------------------


def test_losses_of_a_whole_corpus_in_one_group() -> None:
    view = view_of(networks=1)
    S = conftest.similarities(view)
    by_probability = Scripted(40, networks=1, tau=0.1).losses(view, 0)
    np.testing.assert_allclose(by_probability, 1 - matching_probability(S, 0.1).numpy(), rtol=1e-4, atol=1e-6)
    hinges = (0.3 - S.diagonal()[:, None] + S).relu().fill_diagonal_(0).sum(1) / 39
    hinges += (0.3 - S.diagonal()[:, None] + S.T).relu().fill_diagonal_(0).sum(1) / 39
    by_triplet = Scripted(40, networks=1, split_by="triplet", margin=0.3).losses(view, 0)
    expected = (hinges - hinges.min()) / (hinges.max() - hinges.min())
    np.testing.assert_allclose(by_triplet, expected.numpy(), rtol=1e-3, atol=1e-5)
    assert by_triplet.min() == 0 and by_triplet.max() == 1


# -- the memory of feature pairs --------------------------------------------------------------------------------------


def features(*rows: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """What pair r looks like, known by r: images (n, 2) and texts (n, 3); and the rows."""
    r = torch.tensor(rows, dtype=torch.float32)[:, None]
    return r.repeat(1, 2), r.repeat(1, 3) + 0.5, np.array(rows)


def test_the_oldest_pairs_make_room_and_what_is_remembered_lies_on_the_device() -> None:
    """No second device is needed: ``meta`` has shapes and no values. A state that goes on comes from the CPU."""
    memory, known = FeatureMemory(3, "meta"), FeatureMemory(3)
    known.push(*features(9))
    memory.load_state(known.state())
    for held in (memory, known):
        held.push(*features(7, 8, 0, 1, 2))  # more than there is room for
        held.push(*features(3, 4))
    assert memory.images.device.type == memory.texts.device.type == "meta"
    assert memory.rows.tolist() == known.rows.tolist() == [2, 3, 4]
    torch.testing.assert_close((known.images, known.texts), features(2, 3, 4)[:2])
